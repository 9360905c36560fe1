"""Collect the log-probs of a teacher for a rollout batch, and log how far the policy is from it."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import hf_tokenizer
from verl.utils import tensordict_utils as tu
from verl.utils.fs import copy_to_local

from grpo_verl_ext.algorithms import ragged
from grpo_verl_ext.algorithms.groups import dense_group_ids, group_deviation
from grpo_verl_ext.catalogue.gvpo import alpha_of
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import SECTION
from grpo_verl_ext.verl_plugin.agent_loops import refuse_other_loop
from grpo_verl_ext.verl_plugin.batch.fields import are_responses, like, nested, prompt_ids, put
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.wire import Field
from gvpo_teacher import distillation, text
from gvpo_teacher.feature import READS_TEXT, has_teacher, teachers
from gvpo_teacher.options import LOG_PROB, SCORE, TeacherError, options_of
from gvpo_teacher.text import check_same_tokens, end_of_answer

_MANAGER = f"{__package__}.rollout.TeacherAgentLoopManager"
_ALL_LEFT_OUT = (
    f"no response of this step has a log-prob of the teacher, by the rule of {text.__name__}, so there is "
    f"nothing to learn. Where policy and teacher share a tokenizer, type: {SECTION}.teacher.reads=tokens"
)


class TeacherMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Have each response scored by its teacher, and give GVPO the numbers."""

    def __init__(self, config: DictConfig) -> None:
        if has_teacher(config) and options_of(config.algorithm).source == "server":
            with open_dict(config):
                config.actor_rollout_ref.rollout.agent.agent_loop_manager_class = _MANAGER
        super().__init__(config)

    def _init_tokenizer(self) -> None:
        """Refuse a teacher that could not read what it would be given: the policy's tokens, or a text.

        verl's own distillation, of which its token losses know nothing better, is checked, too.
        """
        super()._init_tokenizer()
        fix = READS_TEXT if has_teacher(self.config) else f"+algo@_global_=gvpo_distill {READS_TEXT}"
        for path in teachers(self.config):
            teacher = hf_tokenizer(name_or_path=copy_to_local(src=path))
            if self._reads_text:
                end_of_answer(teacher, path, self.config.data.get("apply_chat_template_kwargs") or {})
            else:
                check_same_tokens(self.tokenizer, teacher, path, fix)

    def _init_dataloader(self) -> None:
        """Refuse data with several turns, which a teacher that reads text would not see, or no log-probs."""
        super()._init_dataloader()
        options = options_of(self.config.algorithm)
        if has_teacher(self.config) and options.source == "recorded":
            _check_recorded(
                self.train_dataset,
                Options.from_config(self.config.algorithm).stored_responses.key,
                self.config.actor_rollout_ref.rollout.n,
            )
        if self._reads_text:
            for number in range(len(self.train_dataset)):
                why = "a teacher that reads text reads one turn"
                refuse_other_loop(self.train_dataset[number], why, f"{SECTION}.teacher.reads=tokens")

    @property
    def _reads_text(self) -> bool:
        return has_teacher(self.config) and options_of(self.config.algorithm).reads == "text"

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Store the teacher's log-probs; a response without one leaves its group, as a rejected one does."""
        if has_teacher(self.config):
            rows = nested(batch, "response_mask", Field.OLD_LOG_PROBS, "extra_fields")
            scores, is_stored = self._scores(batch, rows)
            known, mask = ~scores.isnan(), rows["response_mask"]
            fields = {LOG_PROB: scores.nan_to_num(0.0)}
            if not known[torch.tensor(are_responses(batch))].any():
                raise TeacherError(_ALL_LEFT_OUT)
            if not known.all():
                written = torch.where(known.repeat_interleave(mask.offsets().diff()), mask.values(), 0)
                rows["response_mask"] = fields["response_mask"] = like(mask, written)
            batch = put(batch, fields)
            metrics.update(self._metrics(batch, rows, fields[LOG_PROB], known, is_stored))
        return super()._compute_advantage(batch, metrics)

    def _scores(self, batch: Any, rows: TensorDict) -> tuple[Tensor, Tensor]:
        """Return log π_T of each row, NaN where it has none, and which rows are stored responses."""
        recorded = options_of(self.config.algorithm).source == "recorded"
        scores, stored = [], []
        for is_response, extra in zip(are_responses(batch), tu.get(rows, "extra_fields"), strict=True):
            origin = extra.get(Field.STORED_ORIGIN)
            stored.append(origin is not None)
            if not is_response:
                scores.append(0.0)
            elif recorded:
                # of the data, which were checked
                scores.append(float(torch.as_tensor(origin["log_probs"], dtype=torch.float64).sum()))
            else:
                score = extra[SCORE]
                scores.append(math.nan if score is None else score)
        return torch.tensor(scores, dtype=torch.float64), torch.tensor(stored)

    def _metrics(
        self, batch: Any, rows: TensorDict, teacher: Tensor, known: Tensor, is_stored: Tensor
    ) -> dict[str, float]:
        mask, offsets = rows["response_mask"].values(), rows["response_mask"].offsets()
        lengths = ragged.row_lengths(mask, offsets)
        member = lengths > 0
        own = ragged.row_sums(rows[Field.OLD_LOG_PROBS].values(), mask, offsets)
        group = dense_group_ids(prompt_ids(batch))
        alpha = alpha_of(self.config.actor_rollout_ref.actor.policy_loss)
        residual = distillation.residuals(own - teacher, lengths, group, member, alpha)
        deviations = group_deviation(own, group, member), group_deviation(teacher, group, member)
        found = {"distill/without_text": int((~known).sum()) / sum(are_responses(batch))}
        for origin, chosen in (("sampled", member & ~is_stored), ("stored", member & is_stored)):
            if chosen.any():
                fit = distillation.fit(own, teacher, residual, deviations, chosen)
                found.update(_named(origin, fit))
        return found


def _named(origin: str, fit: distillation.Fit) -> Iterator[tuple[str, float]]:
    for name, value in fit._asdict().items():
        if name != "kl":
            yield f"distill/{origin}/{name}", value
        elif origin == "sampled":
            yield "distill/kl_estimate", value


def _check_recorded(rows: Any, key: str, samples: int) -> None:
    """Refuse a prompt that has a sample without log-probs of the teacher.

    Raises:
        SettingError: the first such row.
    """
    source, where = f"{SECTION}.teacher.source", f"extra_info.{key} of row"
    for number in range(len(rows)):
        given = (rows[number].get("extra_info") or {}).get(key)
        found = 0 if given is None else len(given)
        unscored = [
            place for place in range(found) if getattr(given[place], "get", {}.get)("log_probs") is None
        ]
        if found < samples or unscored:
            seen = (
                f"response {unscored[0]} in {where} {number} has no log_probs, and {source} is recorded"
                if unscored
                else f"{where} {number} has {found} responses, and {source} is recorded"
            )
            raise SettingError(
                source,
                "recorded",
                seen=seen,
                valid=f"{samples} responses {{token_ids, log_probs}} with the teacher's log-probs",
                fix=f"{source}=server, or give them",
            )

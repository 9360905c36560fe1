"""Train on stored responses beside sampled ones: the part in the trainer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.model import get_generation_config

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms import ragged
from grpo_verl_ext.utils.console import say
from grpo_verl_ext.utils.end_tokens import end_of_response
from grpo_verl_ext.verl_plugin.batch.fields import actor_folder, are_responses, like, nested, prompt_ids, put
from grpo_verl_ext.verl_plugin.config import STORED_AGENT_LOOP, Options, StoredResponsesOptions
from grpo_verl_ext.verl_plugin.model_files import home_resolved
from grpo_verl_ext.verl_plugin.rollout.single_turn import refuse_other_loop
from grpo_verl_ext.verl_plugin.stored.rollout import Origin, PromptResponses, StoredResponse
from grpo_verl_ext.verl_plugin.stored.sources import GivenResponses, ResponseHistory, prompt_id
from grpo_verl_ext.verl_plugin.wire import Field

_WRITTEN = ("responses", "response_mask", "rm_scores", "old_log_probs", "extra_fields")
_SAMPLED_LOG_PROBS = "rollout_log_probs"
"""Fields of a rollout batch that are read here; the last one if the rollout reports log-probs."""


class StoredResponsesMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Give stored responses to the agent loop, log both kinds, and keep sampled ones for later steps."""

    _given: GivenResponses | None = None
    _history: ResponseHistory | None = None
    _known_prompts: set[str]

    def _init_dataloader(self) -> None:
        """Check the responses of the training data, before anything else is started."""
        super()._init_dataloader()
        options, samples = self._stored_options(), self.config.actor_rollout_ref.rollout.n
        count = round(options.share * samples) if options else 0
        if options is None or count == 0:
            return
        if options.source == "history":
            assert options.max_age is not None  # a row of the feature refused null
            self._history = ResponseHistory(count, options.max_age)
            self._known_prompts = {prompt_id(row["raw_prompt"]) for row in self._rows_of_data()}
            where = f"responses of this training, at most {options.max_age} steps old"
        else:
            self._given = self._given_responses(options, count, samples)
            found = self._given.check(self._rows_of_data())
            where = (
                f"extra_info.{options.key}: {found.responses} responses to {found.with_responses} of "
                f"{found.prompts} prompts, {found.used} of them within the share"
            )
        say(f"{count} of {samples} samples of a prompt are taken from {where}. {self._meaning(options)}")

    def _given_responses(self, options: StoredResponsesOptions, count: int, samples: int) -> GivenResponses:
        generation = get_generation_config(model=str(home_resolved(self.config.actor_rollout_ref.model.path)))
        template = self.config.data.get("apply_chat_template_kwargs") or {}
        return GivenResponses(
            options.key,
            count=count,
            samples=samples,
            budget=self.config.data.max_response_length,
            tokenizer=self.tokenizer,
            end=end_of_response(self.tokenizer, generation, template),
            with_log_probs=self.config.actor_rollout_ref.rollout.calculate_log_probs,
            recorded=options.old_log_probs == "recorded",
            of_teacher=Options.of_training(self.config.algorithm).of_teacher.source == "recorded",
        )

    def _meaning(self, options: StoredResponsesOptions) -> str:
        estimator = self.config.algorithm.adv_estimator
        if catalogue.has_groups(self.config):
            return (
                f"{estimator}: nothing to correct, its minimiser is the same for every sampling distribution "
                "(arXiv 2504.19599, Theorem 2)"
            )
        if options.old_log_probs == "recorded":
            return (
                f"{estimator}: π_old of a stored response is the policy that wrote it, by its recorded "
                "log-probs; ratios are clipped as those of sampled responses are"
            )
        return (
            f"{estimator}: π_old of a stored response is the policy before the update, as if it had written "
            "it: the first ratio is 1, and nothing corrects for the policy that did (choose its log-probs by "
            "algorithm.grpo_ext.stored_responses.old_log_probs=recorded)"
        )

    def _rows_of_data(self) -> Iterator[Mapping[str, Any]]:
        for number in range(len(self.train_dataset)):
            row = self.train_dataset[number]
            refuse_other_loop(row, "a stored response is one turn", "~algorithm.grpo_ext.stored_responses")
            yield row

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """Add the stored responses of each prompt, and the agent loop that takes them."""
        batch = super()._next_train_batch(num_prompts)
        if self._given is None and self._history is None:
            return batch
        prompts = tu.get(batch, "raw_prompt"), tu.get(batch, "extra_info")
        stored = [self._responses_to(*prompt) for prompt in zip(*prompts, strict=True)]
        tu.assign_non_tensor_stack(batch, Field.STORED_RESPONSES, stored)
        tu.assign_non_tensor_stack(batch, "agent_name", [STORED_AGENT_LOOP] * len(stored))
        return batch

    def _responses_to(self, messages: Any, extra_info: Mapping[str, Any] | None) -> PromptResponses:
        if self._history is None:
            assert self._given is not None
            return PromptResponses(prompt="", responses=[*self._given.of(extra_info)])
        prompt = prompt_id(messages)
        return PromptResponses(prompt=prompt, responses=[*self._history.of(prompt, self.global_steps)])

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Log both kinds, and keep sampled responses for later steps."""
        batch = super()._compute_old_log_prob(batch, metrics)
        if self._stored_options() is None:
            return batch
        has_log_probs = self.config.actor_rollout_ref.rollout.calculate_log_probs
        wanted = [Field.STORED_RESPONSES] * (self._history is not None) + [_SAMPLED_LOG_PROBS] * has_log_probs
        data = nested(batch, *_WRITTEN, *wanted)
        member, origins = torch.tensor(are_responses(batch)), _origins(batch, data)
        metrics.update(
            _by_origin(
                data,
                origins=origins,
                prompts=prompt_ids(batch),
                member=member,
                behaviour=_behaviour(data, origins),
                step=self.global_steps,
            )
        )
        if self._history is not None:
            self._keep_sampled(batch.keys, data, origins, member)
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Take recorded log-probs for old ones if asked to, after the policy's KL was measured."""
        options = self._stored_options()
        if options is not None and options.old_log_probs == "recorded":
            data = nested(batch, "response_mask", "old_log_probs", "extra_fields")
            origins = _origins(batch, data)
            old = _where_stored(data["old_log_probs"], _behaviour(data, origins), origins)
            batch = put(batch, {"old_log_probs": old})
        return super()._compute_advantage(batch, metrics)

    def _keep_sampled(
        self, keys: list[str], data: TensorDict, origins: list[Origin | None], member: Tensor
    ) -> None:
        """Add the sampled responses to the history, sessions in order: rows are ordered by length."""
        assert self._history is not None
        stored_for = tu.get(data, Field.STORED_RESPONSES)
        token_ids, log_probs = data["responses"].unbind(), data["old_log_probs"].unbind()
        sessions = sorted(range(len(keys)), key=lambda row: int(keys[row].rsplit("_", 2)[1]))
        for row in sessions:
            if member[row] and origins[row] is None and len(token_ids[row]):
                response = StoredResponse(
                    token_ids=token_ids[row].int().numpy(),
                    log_probs=log_probs[row].float().numpy(),
                    step=self.global_steps,
                )
                self._history.add(stored_for[row]["prompt"], response)
        self._history.forget(self.global_steps)

    def _save_checkpoint(self) -> None:
        """Save the history beside the actor's shards, before verl's marker of a complete step."""
        if self._history is not None:
            self._history.save(actor_folder(self.config.trainer, self.global_steps))
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self._history is not None and self.global_steps > 0:
            self._history.load(actor_folder(self.config.trainer, self.global_steps), self._known_prompts)

    def _stored_options(self) -> StoredResponsesOptions | None:
        return Options.of_training(self.config.algorithm).stored_responses


def _origins(batch: Any, data: TensorDict) -> list[Origin | None]:
    """Return the origin of each row's response; None for sampled ones and padding."""
    return [
        extra.get(Field.STORED_ORIGIN) if counts else None
        for extra, counts in zip(tu.get(data, "extra_fields"), are_responses(batch), strict=True)
    ]


def _behaviour(data: Any, origins: list[Origin | None]) -> Tensor:
    """Return log-probs under the policies that wrote the tokens, NaN where not recorded: (N,)."""
    offsets = data["response_mask"].offsets().tolist()
    if _SAMPLED_LOG_PROBS in data.keys():  # noqa: SIM118  # iterating a TensorDict yields rows
        behaviour = data[_SAMPLED_LOG_PROBS].values().to(data["old_log_probs"].dtype, copy=True)
    else:
        behaviour = torch.full_like(data["old_log_probs"].values(), torch.nan)
    for row, origin in enumerate(origins):
        if origin is not None and origin["log_probs"] is not None:
            behaviour[offsets[row] : offsets[row + 1]] = torch.tensor(origin["log_probs"])
    return torch.as_tensor(behaviour)


def _where_stored(old: Any, recorded: Tensor, origins: list[Origin | None]) -> Tensor:
    """Return old log-probs, with recorded ones in the rows of stored responses that have them; ragged."""
    has_record = torch.tensor([origin is not None and origin["log_probs"] is not None for origin in origins])
    chosen = has_record.repeat_interleave(old.offsets().diff())
    return like(old, torch.where(chosen, recorded, old.values()))


def _by_origin(
    rows: TensorDict,
    *,
    origins: Sequence[Origin | None],
    prompts: Sequence[str],
    member: Tensor,
    behaviour: Tensor,
    step: int,
) -> dict[str, float]:
    """Return metrics of stored and of sampled responses: share, reward, log-prob, ratio and age.

    Args:
        rows: ``responses``, ``response_mask``, ``rm_scores`` and ``old_log_probs``, ragged: B rows, N tokens.
        origins: origin of each stored response, None of a sampled one.
        prompts: prompt id of each row.
        member: (B,) bool, False for padding.
        behaviour: (N,) log-probs of the policy that wrote the tokens, NaN where not recorded.
        step: the training step.
    """
    stored = torch.tensor([origin is not None for origin in origins]) & member
    metrics = {
        "stored/share": float(stored.sum() / member.sum()),
        "stored/groups_of_one_text": float(_groups_of_one_text(rows["responses"], stored, prompts, member)),
    }
    mask, offsets = rows["response_mask"].values(), rows["response_mask"].offsets()
    old, rewards = rows["old_log_probs"].values(), rows["rm_scores"].values()
    everywhere = torch.ones_like(mask)
    ratio, recorded = (old - behaviour).exp(), _recorded(behaviour, mask, offsets)
    for name, chosen in (("stored", stored), ("sampled", member & ~stored)):
        if chosen.any():
            of_response = ragged.row_sums(rewards, everywhere, offsets)[chosen]
            metrics[f"{name}/reward"] = float(of_response.mean())
            metrics[f"{name}/log_prob"] = ragged.mean_over_tokens(old, mask, offsets, chosen)
        if (chosen & recorded).any():
            metrics[f"{name}/ratio"] = ragged.mean_over_tokens(ratio, mask, offsets, chosen & recorded)
    ages = [step - origin["step"] for origin in origins if origin and origin["step"] is not None]
    return metrics | ({"stored/age": sum(ages) / len(ages)} if ages else {})


def _recorded(behaviour: Tensor, mask: Tensor, offsets: Tensor) -> Tensor:
    unknown = ragged.row_sums(behaviour.isnan().double(), mask, offsets)
    return (unknown == 0) & ragged.row_has_tokens(mask, offsets)


def _groups_of_one_text(responses: Tensor, stored: Tensor, prompts: Sequence[str], member: Tensor) -> int:
    """Count the prompts whose responses are all stored and equal, and so have no variance."""
    texts: dict[str, set[tuple[int, ...] | None]] = {}
    for row, prompt, is_stored, counts in zip(
        responses.unbind(), prompts, stored.tolist(), member.tolist(), strict=True
    ):
        if counts:
            texts.setdefault(prompt, set()).add(tuple(row.tolist()) if is_stored else None)
    return sum(None not in found and len(found) == 1 for found in texts.values())

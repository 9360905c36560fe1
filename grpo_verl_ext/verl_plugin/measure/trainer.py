"""Log what the reward function reports, and how probable wanted responses are: the parts in the trainer.

verl logs of a training step only the mean of the reward itself. A forward pass gives the exact probability of
one wanted response (``algorithm.grpo_ext.gold_responses``), where sampling estimates it; right answers by
other responses are missing from it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, cycle, islice
from math import ceil, isfinite
from statistics import fmean
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.utils import create_rl_dataset
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.debug import marked_timer
from verl.utils.tokenizer import normalize_token_ids
from verl.utils.tokenizer.chat_template import apply_chat_template
from verl.workers.utils.padding import response_from_nested

from grpo_verl_ext.algorithms import ragged
from grpo_verl_ext.rewards.functions import as_number
from grpo_verl_ext.utils.console import say
from grpo_verl_ext.utils.end_tokens import end_of_response
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import MODEL, SECTION
from grpo_verl_ext.verl_plugin.batch import fields
from grpo_verl_ext.verl_plugin.batch.sessions import last_outputs
from grpo_verl_ext.verl_plugin.config import Options

_SECTION = f"{SECTION}.gold_responses"
_PARTITION = "grpo_ext_gold_responses"
"""Partition of TransferQueue in which the rows lie during a measurement."""
_Reported = Mapping[str, Any]
"""verl's ``reward_extra_info`` of one response."""


class MeasureMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Log what the reward function reports, and after every ``freq``-th step ``gold_response/…``.

    Of every numeric key ``training_reward/<key>`` is the mean over the step's responses,
    ``training_reward_std/<key>`` their standard deviation, ``training_reward_group_std/<key>`` the mean over
    prompts of the standard deviation between the responses to one; both divide by their number.

    ``probability`` is the mean over rows of exp Σ_t log π(y_t), ``log_prob`` that of Σ_t log π(y_t), in nats,
    both at ``rollout.temperature``. ``right``, where the reward function reports ``acc`` and ``gold``, is
    ``probability`` plus the share of the step's sampled responses that are right and not the wanted one: an
    estimate of the probability of a right answer.
    """

    _has_lost = False

    def _init_dataloader(self) -> None:
        """Read the rows next to verl's data, so that a wrong one is named before models are loaded."""
        super()._init_dataloader()
        self.gold_rows = _read_rows(self.config)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """Run verl's step, then count lost responses, read what was reported, and measure."""
        batch = super().step(metrics, timing_raw)
        rows, options = fields.nested(batch, "extra_fields"), Options.from_config(self.config.algorithm)
        by_prompt = _reported_by_prompt(batch, fields.are_responses(batch), rows)
        reports = list(chain.from_iterable(by_prompt.values()))
        asked = self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n
        lost, share = max(0, asked - len(reports)), options.lost_responses
        metrics["training/lost_responses"] = lost
        said = f"{lost} of {asked} responses of step {self.global_steps} are lost; the log says why"
        if share is not None and lost > share * asked:
            raise RuntimeError(f"{said}. Valid is a share of at most {share} ({SECTION}.lost_responses)")
        if lost and not self._has_lost:
            self._has_lost = True
            say(f"warning: {said}; from now on the metric training/lost_responses counts them")
        groups = [_by_key(np.std, own) for own in by_prompt.values()]
        for name, found in (
            ("training_reward", _by_key(fmean, reports)),
            ("training_reward_std", _by_key(np.std, reports)),
            ("training_reward_group_std", _by_key(fmean, groups)),
        ):
            metrics.update({f"{name}/{key}": value for key, value in found.items()})
        if options.gold_responses is None or self.global_steps % options.gold_responses.freq:
            return batch
        with marked_timer("gold_response", timing_raw):
            probability, log_prob = self._measure_gold_rows()
        metrics.update({"gold_response/probability": probability, "gold_response/log_prob": log_prob})
        sampled = _reported_by_prompt(batch, fields.were_sampled(batch, rows), rows).values()
        # right, and not the wanted one
        others = [
            each["acc"] * (1 - each["gold"]) for each in chain(*sampled) if {"acc", "gold"} <= each.keys()
        ]
        if others:
            metrics["gold_response/right"] = probability + fmean(others)
        return batch

    def _measure_gold_rows(self) -> tuple[float, float]:
        """Compute the log-probs as verl does those of its rollouts."""
        rows, sizes = self.gold_rows, self.config.actor_rollout_ref.rollout
        unit = fields.data_parallel_size(self.actor_rollout_wg)
        if not sizes.log_prob_use_dynamic_bsz:
            unit *= sizes.log_prob_micro_batch_size_per_gpu
        # Every rank gets equally many full micro-batches; only the first rows count.
        repeated = list(islice(cycle(rows), ceil(len(rows) / unit) * unit))
        batch = tq.kv_batch_put(
            keys=[f"{_PARTITION}_{number}_0_0" for number in range(len(repeated))],
            partition_id=_PARTITION,
            fields=tu.list_of_dict_to_tensordict(repeated),
            tags=[{} for _ in repeated],
        )
        usual = {"calculate_entropy": False, "compute_loss": False, "temperature": sizes.temperature}
        batch.extra_info.update(usual)
        self.actor_rollout_wg.compute_log_prob(batch)
        found = fields.nested(batch.select_keys(batch.keys[: len(rows)]), "log_probs", "response_mask")
        tq.kv_clear(keys=batch.keys, partition_id=_PARTITION)
        mask = found["response_mask"]
        log_prob = response_from_nested(found["log_probs"], mask)
        means = ragged.response_probability(log_prob.values(), mask.values(), mask.offsets())
        return means[0].item(), means[1].item()


def _by_key(statistic: Callable[[Sequence[float]], Any], reports: Iterable[_Reported]) -> dict[str, float]:
    """Return a statistic of every key over the reports with a finite number there; true counts as 1."""
    values: dict[str, list[float]] = {}
    for report in reports:
        for key, value in report.items():
            if (found := as_number(value)) is not None and isfinite(found):
                values.setdefault(key, []).append(found)
    return {key: float(statistic(own)) for key, own in values.items()}


def _reported_by_prompt(batch: Any, counts: Sequence[bool], rows: TensorDict) -> dict[str, list[_Reported]]:
    """Return the reports of the rows that count by prompt, of the last output of each session."""
    last = last_outputs(batch.keys)
    reports: dict[str, list[_Reported]] = {}
    own = zip(fields.prompt_ids(batch), tu.get(rows, "extra_fields"), strict=True)
    for row, (prompt, extra) in enumerate(own):
        if last[row] == row and counts[row]:
            reports.setdefault(prompt, []).append(extra.get("reward_extra_info") or {})
    return reports


def _read_rows(config: DictConfig) -> list[dict[str, Any]]:
    """Return the fields of prompts with the wanted response and end of turn, tokenized as in a rollout."""
    if (options := Options.from_config(config.algorithm).gold_responses) is None:
        return []
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    if model.processor is not None:
        path = config.actor_rollout_ref.model.path
        why = f"it takes more than text, for which {_SECTION} has no positions"
        raise SettingError(MODEL, path, why=why, valid="a model of text", fix=Line(f"~{_SECTION}"))
    template = config.data.get("apply_chat_template_kwargs") or {}
    end = end_of_response(model.tokenizer, model.generation_config, template)
    data = OmegaConf.create(OmegaConf.to_container(config.data, resolve=True))
    data.filter_overlong_prompts = data.shuffle = False
    files: Any = [options.files] if isinstance(options.files, str) else options.files
    most = options.samples
    dataset = create_rl_dataset(files, data, model.tokenizer, None, is_train=False, max_samples=most or -1)
    rows: list[dict[str, Any]] = []
    for number in range(len(dataset))[:most]:
        row = wanted = dataset[number]
        for name in options.response_key.split("."):
            wanted = wanted.get(name) if isinstance(wanted, Mapping) else None
        if not isinstance(wanted, str):
            key = f"{_SECTION}.response_key"
            why = f"row {number} of {_SECTION}.files has {wanted!r} there"
            fix = f"{key}=<another key>"
            raise SettingError(key, options.response_key, why=why, valid="a text in every row", fix=fix)
        prompt = normalize_token_ids(apply_chat_template(model.tokenizer, row["raw_prompt"], **template))
        response = model.tokenizer.encode(wanted, add_special_tokens=False)
        prompts, responses = torch.tensor(prompt), torch.tensor([*response, *([] if end is None else [end])])
        input_ids, mask = torch.cat([prompts, responses]), torch.ones_like(responses)
        # The fields that verl's agent loop stores of a response and the actor reads.
        stored = {"prompts": prompts, "responses": responses, "response_mask": mask, "loss_mask": mask}
        stored |= {"input_ids": input_ids, "position_ids": torch.arange(len(input_ids))}
        rows.append({**stored, "multi_modal_inputs": {}})
    if not rows:
        key, why = f"{_SECTION}.files", "there is no row to measure"
        raise SettingError(key, ", ".join(files), why=why, fix=f"{key}=<another file>")
    return rows

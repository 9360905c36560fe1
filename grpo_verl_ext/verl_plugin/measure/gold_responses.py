"""Measure how probable wanted responses are under the policy: ``algorithm.grpo_ext.gold_responses``.

A forward pass gives the exact probability of one response, where sampling estimates it; right answers by
other responses are missing from it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.utils import create_rl_dataset
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.debug import marked_timer
from verl.utils.tokenizer import normalize_token_ids
from verl.utils.tokenizer.chat_template import apply_chat_template
from verl.workers.utils.padding import response_from_nested

from grpo_verl_ext.algorithms import ragged
from grpo_verl_ext.utils.end_tokens import end_of_response
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import MODEL
from grpo_verl_ext.verl_plugin.batch.fields import clear, data_parallel_size, nested, put_rows
from grpo_verl_ext.verl_plugin.config import GOLD_RESPONSES, GoldResponseOptions, Options
from grpo_verl_ext.verl_plugin.measure.training_rewards import reported_of_sampled, right_by_other_responses

_PARTITION = "grpo_ext_gold_responses"
"""Partition of TransferQueue in which the rows lie during a measurement."""


@dataclass(frozen=True)
class GoldRow:
    """The tokens of a prompt and of the wanted response to it, which ends with the end of turn."""

    prompt_ids: list[int]
    response_ids: list[int]

    def fields(self) -> dict[str, Any]:
        """Return the fields that verl's agent loop stores of a response and the actor reads."""
        prompts, responses = torch.tensor(self.prompt_ids), torch.tensor(self.response_ids)
        input_ids, mask = torch.cat([prompts, responses]), torch.ones_like(responses)
        return {
            "prompts": prompts,
            "responses": responses,
            "response_mask": mask,
            "loss_mask": mask,
            "input_ids": input_ids,
            "position_ids": torch.arange(len(input_ids)),
            "multi_modal_inputs": {},
        }


class GoldResponseMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Log ``gold_response/…`` after the updates of every ``freq``-th step.

    ``probability`` is the mean over rows of exp Σ_t log π(y_t), ``log_prob`` that of Σ_t log π(y_t), in nats,
    both at ``rollout.temperature``. ``right``, where the reward function reports ``acc`` and ``gold``, is
    ``probability`` plus the share of the step's sampled responses that are right and not the wanted one: an
    estimate of the probability of a right answer.
    """

    def _init_dataloader(self) -> None:
        """Read the rows next to verl's data, so that a wrong one is named before models are loaded."""
        super()._init_dataloader()
        options = Options.of_training(self.config.algorithm).gold_responses
        self.gold_rows = [] if options is None else read_rows(options, self.config)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """Run verl's step, then measure."""
        batch = super().step(metrics, timing_raw)
        options = Options.of_training(self.config.algorithm).gold_responses
        if options is None or self.global_steps % options.freq:
            return batch
        with marked_timer("gold_response", timing_raw):
            probability, log_prob = self._measure_gold_rows()
        metrics.update({"gold_response/probability": probability, "gold_response/log_prob": log_prob})
        otherwise = right_by_other_responses(reported_of_sampled(batch))
        if otherwise is not None:
            metrics["gold_response/right"] = probability + otherwise
        return batch

    def _measure_gold_rows(self) -> tuple[float, float]:
        """Compute the log-probs as verl does those of its rollouts.

        Rows are repeated until every rank has equally many full micro-batches; only the first ones count.
        """
        rows, sizes = self.gold_rows, self.config.actor_rollout_ref.rollout
        unit = data_parallel_size(self.actor_rollout_wg)
        if not sizes.log_prob_use_dynamic_bsz:
            unit *= sizes.log_prob_micro_batch_size_per_gpu
        count = ceil(len(rows) / unit) * unit
        batch = put_rows(_PARTITION, [row.fields() for row in islice(cycle(rows), count)])
        usual = {"calculate_entropy": False, "compute_loss": False, "temperature": sizes.temperature}
        batch.extra_info.update(usual)
        self.actor_rollout_wg.compute_log_prob(batch)
        found = nested(batch.select_keys(batch.keys[: len(rows)]), "log_probs", "response_mask")
        clear(batch)
        mask = found["response_mask"]
        log_prob = response_from_nested(found["log_probs"], mask)
        means = ragged.response_probability(log_prob.values(), mask.values(), mask.offsets())
        return means[0].item(), means[1].item()


def read_rows(options: GoldResponseOptions, config: DictConfig) -> list[GoldRow]:
    """Read the first rows of the files and tokenize them as verl does in a rollout of one turn.

    Raises:
        SettingError: no row, a row without the wanted response, a row beyond the budgets of the rollout, or a
            model that takes more than text.
    """
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    if model.processor is not None:
        raise SettingError(
            MODEL,
            config.actor_rollout_ref.model.path,
            why=f"it takes more than text, for which {GOLD_RESPONSES} has no positions",
            valid="a model of text",
            fix=Line(f"~{GOLD_RESPONSES}"),
        )
    template = config.data.get("apply_chat_template_kwargs") or {}
    end = end_of_response(model.tokenizer, model.generation_config, template)
    rows = []
    for number, row in enumerate(_first_rows(options.names, options.samples, model.tokenizer, config)):
        text: Any = row
        for name in options.response_key.split("."):
            text = text.get(name) if isinstance(text, Mapping) else None
        if not isinstance(text, str):
            key = f"{GOLD_RESPONSES}.response_key"
            raise SettingError(
                key,
                options.response_key,
                why=f"row {number} of {GOLD_RESPONSES}.files has {text!r} there",
                valid="a text in every row",
                fix=f"{key}=<another key>",
            )
        prompt = normalize_token_ids(apply_chat_template(model.tokenizer, row["raw_prompt"], **template))
        response = model.tokenizer.encode(text, add_special_tokens=False)
        rows.append(GoldRow(prompt, [*response, *([] if end is None else [end])]))
    _check_rows(rows, options, config.data)
    return rows


def _check_rows(rows: Sequence[GoldRow], options: GoldResponseOptions, data: DictConfig) -> None:
    """Refuse rows that no rollout could have."""
    if not rows:
        key, files = f"{GOLD_RESPONSES}.files", ", ".join(options.names)
        raise SettingError(key, files, why="there is no row to measure", fix=f"{key}=<another file>")
    for name, lengths in (
        ("prompt", [len(row.prompt_ids) for row in rows]),
        ("response", [len(row.response_ids) for row in rows]),
    ):
        key = f"max_{name}_length"
        if max(lengths) > data[key]:
            number = next(row for row, length in enumerate(lengths) if length > data[key])
            raise SettingError(
                f"data.{key}",
                data[key],
                why=f"row {number} of {GOLD_RESPONSES}.files has a {name} of {lengths[number]} tokens",
                valid=f"at least {max(lengths)}",
                fix=Line(f"data.{key}={max(lengths)}", more=f", or ~{GOLD_RESPONSES}"),
            )


def _first_rows(files: Any, count: int | None, tokenizer: Any, config: DictConfig) -> Iterator[Any]:
    """Yield the first rows of files as verl reads its data; None: all rows."""
    # But for what would leave rows out or take others than the first.
    data = OmegaConf.create(OmegaConf.to_container(config.data, resolve=True))
    data.filter_overlong_prompts = data.shuffle = False
    dataset = create_rl_dataset(files, data, tokenizer, None, is_train=False, max_samples=count or -1)
    for number in range(min(len(dataset), count or len(dataset))):
        yield dataset[number]

"""Read responses that stay the same for a whole training, and measure their log-probs as verl does.

For the measurements on responses in a file: `gold_responses` and `rewarded_responses`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil
from typing import Any

import torch
from omegaconf import DictConfig
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tokenizer import normalize_token_ids
from verl.utils.tokenizer.chat_template import apply_chat_template
from verl.workers.utils.padding import response_from_nested

from grpo_verl_ext.utils.end_tokens import end_of_response
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import MODEL
from grpo_verl_ext.verl_plugin.batch.fields import clear, data_parallel_size, nested, put_rows
from grpo_verl_ext.verl_plugin.config import GoldResponseOptions, RewardedResponseOptions
from grpo_verl_ext.verl_plugin.measure.data import first_rows

PARTITION = "grpo_ext_fixed_responses"
"""Partition of TransferQueue in which the rows lie during a measurement."""
_Section = GoldResponseOptions | RewardedResponseOptions


@dataclass(frozen=True)
class FixedResponse:
    """The tokens of a prompt and of a response to it, which ends with the end of turn."""

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


def measured(
    trainer: PPOTrainer,
    rows: Sequence[FixedResponse],
    compute: Callable[[Any], object],
    sizes: DictConfig,
    **for_worker: object,
) -> tuple[Any, Any]:
    """Compute the log-probs of rows by a worker, as verl does those of its rollouts.

    Rows are repeated until every rank has equally many full micro-batches; only the first ones count.

    Args:
        compute: the worker's call, with a batch.
        sizes: verl's section with ``log_prob_use_dynamic_bsz`` and the worker's size of a micro-batch.
        for_worker: what the worker is told beside verl's usual settings.

    Returns:
        Log-probs of the response tokens and their mask, both nested.
    """
    unit = data_parallel_size(trainer.actor_rollout_wg)
    if not sizes.log_prob_use_dynamic_bsz:
        unit *= sizes.log_prob_micro_batch_size_per_gpu
    count = ceil(len(rows) / unit) * unit
    batch = put_rows(PARTITION, [row.fields() for row in islice(cycle(rows), count)])
    temperature = trainer.config.actor_rollout_ref.rollout.temperature
    usual = {"calculate_entropy": False, "compute_loss": False, "temperature": temperature}
    batch.extra_info.update(usual | for_worker)
    compute(batch)
    found = nested(batch.select_keys(batch.keys[: len(rows)]), "log_probs", "response_mask")
    clear(batch)
    return response_from_nested(found["log_probs"], found["response_mask"]), found["response_mask"]


Encode = Callable[[str], list[int]]
"""A text → the tokens of a whole response, with the end of turn."""


def prompts(
    options: _Section, section: str, config: DictConfig
) -> Iterator[tuple[Mapping[str, Any], list[int], Encode]]:
    """Yield the first rows of the files, each with its prompt's tokens, and what encodes its responses.

    Raises:
        SettingError: a model that takes more than text.
    """
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    if model.processor is not None:
        raise SettingError(
            MODEL,
            config.actor_rollout_ref.model.path,
            why=f"it takes more than text, for which {section} has no positions",
            valid="a model of text",
            fix=Line(f"~{section}"),
        )
    template = config.data.get("apply_chat_template_kwargs") or {}
    end = end_of_response(model.tokenizer, model.generation_config, template)

    def encode(text: str) -> list[int]:
        return [*model.tokenizer.encode(text, add_special_tokens=False), *([] if end is None else [end])]

    for row in first_rows(options.names, options.samples, model.tokenizer, config):
        prompt = apply_chat_template(model.tokenizer, row["raw_prompt"], **template)
        yield row, normalize_token_ids(prompt), encode


def at(row: Mapping[str, Any], dotted_key: str) -> Any:
    """Return what a row has at a key; None where it has nothing."""
    value: Any = row
    for name in dotted_key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def check_rows(rows: Sequence[FixedResponse], options: _Section, section: str, data: DictConfig) -> None:
    """Refuse rows that no rollout could have.

    Raises:
        SettingError: no row, or a row beyond the budgets of the rollout.
    """
    if not rows:
        key = f"{section}.files"
        raise SettingError(
            key, ", ".join(options.names), why="there is no row to measure", fix=f"{key}=<another file>"
        )
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
                why=f"row {number} of {section}.files has a {name} of {lengths[number]} tokens",
                valid=f"at least {max(lengths)}",
                fix=Line(f"data.{key}={max(lengths)}", more=f", or ~{section}"),
            )

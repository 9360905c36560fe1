"""The same rows through verl's engine and through one that shares prompts, on gloo ranks."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsdp2_ranks
import torch
from torch import Tensor

from grpo_verl_ext.verl_plugin.wire import Field

PLAIN = {
    "worker": "verl",
    "loss": "vanilla",
    "terms": "all",
    "dtype": "float64",
    "micro_batch": None,
    "gradient_checkpointing": False,
    "lora_rank": 0,
    "extra": {},
    "updates": 1,
    "of_update": False,
}


def rows_of(
    groups: list[tuple[int, list[int]]], vocabulary: int = 23, *, with_tools: bool = False
) -> list[Any]:
    """Rows by the length of each prompt and of its responses; tokens are few, so that some rows are equal."""
    generator, rows = torch.Generator().manual_seed(0), []
    for prompt_length, lengths in groups:
        prompt = torch.randint(vocabulary, (prompt_length,), generator=generator)
        for length in lengths:
            response = torch.randint(2, (length,), generator=generator)
            ids, mask = torch.cat([prompt, response]), torch.ones(length, dtype=torch.int64)
            if with_tools and length > 2:
                mask[1] = 0
            numbers = torch.randn(2, length, dtype=torch.float64, generator=generator)
            row = {"input_ids": ids, "position_ids": torch.arange(len(ids)), "prompts": prompt}
            row |= {"responses": response, "response_mask": mask, "loss_mask": mask}
            rows.append(row | {"advantages": numbers[0], "old_log_probs": numbers[1] / 10 - 3})
    return rows


def compare(rank: int, folder: Path) -> None:
    """Write {variant: relative errors of log-probs, entropy and gradient; refusals} with and without."""
    fsdp2_ranks.run_variants(_errors, rank, folder)


def _errors(job: dict[str, Any], variant: dict[str, Any], rows: list[Any], _: Any) -> dict[str, Any]:
    from verl.utils.torch_dtypes import PrecisionType

    variant = PLAIN | variant
    double = patch.object(PrecisionType, "to_dtype", staticmethod(lambda precision: torch.float64))
    with double if variant["dtype"] == "float64" else nullcontext():
        wanted = _passes(job, variant | {"of_update": False}, rows)
        try:
            found = _passes(job, variant | {"worker": "shared prompts"}, rows)
        except ValueError as error:
            return {"refused": str(error)}
        exact = _passes(job, variant | variant["exact"], rows) if "exact" in variant else wanted
    return {
        name: (float((found[name] - exact[name]).norm() / exact[name].norm()),
               float((wanted[name] - exact[name]).norm() / exact[name].norm()))
        for name in wanted
    }  # fmt: skip


def _passes(job: dict[str, Any], variant: dict[str, Any], rows: list[Any]) -> dict[str, Tensor]:
    """Log-probs, entropies and the gradient of one update, in float64."""
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.losses import ppo_loss
    from verl.workers.utils.padding import response_from_nested

    torch.manual_seed(0)  # LoRA's first weights
    worker = fsdp2_ranks.make_worker(job["models"][variant.get("model", "gpt_neox")], variant)
    worker.engine_config.infer_max_token_len_per_gpu = fsdp2_ranks.BUDGET
    worker.reset()
    if variant["dtype"] == "float64":
        worker.engine._autocast_dtype = torch.float32  # verl's word for "no autocast"
    config = fsdp2_ranks.actor_config({"n": 4, "beta": 0.1}, variant)
    worker.set_loss_fn(partial(ppo_loss, config=config))
    ranks = torch.distributed.get_world_size()
    extra = {"temperature": 1.0, "global_token_num": None, "global_batch_size": ranks * len(rows)}
    of_update, half = variant["of_update"], len(rows) // variant["updates"]
    extra |= {"mini_batch_size": ranks * half, "epochs": 1, **variant["extra"]}
    asked = {"calculate_entropy": True, "compute_loss": False, Field.KEEPS: of_update}
    output = worker.infer_batch(fsdp2_ranks.batch_of(rows[half * of_update :], extra | asked))
    extra |= {Field.OLD_IS_CURRENT: variant["updates"] > 1, Field.OLD_OF_UPDATE: of_update}
    gradient: list[Tensor] = []
    step = worker.engine.optimizer_step

    def optimizer_step() -> Any:
        parameters = (each for each in worker.engine.module.parameters() if each.requires_grad)
        gradient.append(torch.cat([each.grad.full_tensor().flatten().double() for each in parameters]))
        return step()

    worker.engine.optimizer_step = optimizer_step
    if of_update:
        rows = [row | {"old_log_probs": torch.zeros_like(row["old_log_probs"])} for row in rows]
    extra["calculate_entropy"] = bool(config.entropy_coeff)
    worker.train_mini_batch(fsdp2_ranks.batch_of(rows, extra))
    if of_update:
        output = worker.infer_batch(fsdp2_ranks.batch_of(rows, {Field.KEPT: True}))
    mask = fsdp2_ranks.batch_of(rows, {})["response_mask"]
    found = {
        name: response_from_nested(tu.get(output, name), mask).values().double()
        for name in ("log_probs", "entropy")
    }
    return found | {"gradient": gradient[0]}

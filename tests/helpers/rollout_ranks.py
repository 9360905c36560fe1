"""A rollout of eight prompts, the way it goes through our trainer, and training on it by verl's real workers.

The trainer orders the rows and writes what the workers need; FSDP2 workers on gloo ranks do four updates. A
dictionary replaces TransferQueue, which needs Ray; the end-to-end tests run the real one. Tests compare with
formulas in float64 on the whole mini-batch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsdp2_ranks
import pytest
import torch
from limits import largest
from omegaconf import DictConfig
from processes import run_ranks
from queue_store import Store, trainer_with
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo import padding_utils

from grpo_verl_ext.verl_plugin import compose, wire
from grpo_verl_ext.verl_plugin.mini_batch import plan as group_plan

BETA, N, MINI_BATCH, EPOCHS = 0.3, 4, 4, 2
GROUP_SIZES = [4, 4, 3, 4, 4, 1, 4, 2]
"""Responses that came back of the four asked for; prompt 5 has nothing to be compared with."""
MINI_BATCHES = [[0, 1, 2, 3, 5], [4, 6, 7]]
"""Prompts by hand: 15 rows and room for the single one; then the rest, with six rows of padding."""
REJECTED = "prompt6_2_0"
"""Response without a token left, as after rollout rejection; its prompt has three others."""
PROMPT_LENGTH, RESPONSE_LENGTH = 3, 13


def rollout() -> dict[str, fsdp2_ranks.Row]:
    """Responses with rewards, keyed as verl keys them, sessions of all prompts interleaved."""
    generator = torch.Generator().manual_seed(1)
    rows: dict[str, fsdp2_ranks.Row] = {}
    for session in range(N):
        for prompt, size in enumerate(GROUP_SIZES):
            if session >= size:
                continue
            length = int(torch.randint(1, RESPONSE_LENGTH + 1, (), generator=generator))
            tokens = torch.randint(0, 23, (PROMPT_LENGTH + length,), generator=generator)
            mask = torch.ones(length, dtype=torch.int64)
            if length > 5:
                mask[2:4] = 0  # the words of a tool
            reward = torch.zeros(length)
            # verl's rewards are in single precision; the means of two to four of these are exact in it.
            reward[-1] = 0.75 * torch.randint(-4, 5, (), generator=generator)
            key = f"prompt{prompt}_{session}_0"
            if key == REJECTED:
                mask = torch.zeros_like(mask)
            rows[key] = {
                "uid": f"prompt{prompt}",
                "input_ids": tokens,
                "attention_mask": torch.ones_like(tokens),
                "position_ids": torch.arange(len(tokens)),
                "prompts": tokens[:PROMPT_LENGTH],
                "responses": tokens[PROMPT_LENGTH:],
                "response_mask": mask,
                "loss_mask": mask,
                "rm_scores": reward,
                "extra_fields": {},
            }
    return rows


def token_log_probs(model: torch.nn.Module, row: fsdp2_ranks.Row) -> Tensor:
    """log π of the tokens of one response, one row at a time."""
    logits = model(row["input_ids"].unsqueeze(0)).logits[0].log_softmax(-1)
    return logits[len(row["prompts"]) - 1 : -1].gather(-1, row["responses"].unsqueeze(-1)).squeeze(-1)


def reference() -> torch.nn.Module:
    """A policy other than the one of the rollout."""
    model = fsdp2_ranks.tiny_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    return model


def composed(*overrides: str, algo: str = "gvpo") -> DictConfig:
    """A configuration with the sizes of this rollout."""
    if algo.startswith("gvpo"):
        overrides = (f"actor_rollout_ref.actor.policy_loss.gvpo_beta={BETA}", *overrides)
    return compose.composed([
        *(f"+algo={algo}", "actor_rollout_ref.rollout.name=vllm"),
        f"actor_rollout_ref.actor.ppo_mini_batch_size={MINI_BATCH}",
        f"actor_rollout_ref.actor.ppo_epochs={EPOCHS}",
        f"actor_rollout_ref.rollout.n={N}",
        *overrides,
    ])  # fmt: skip


def batch_for_workers(
    monkeypatch: pytest.MonkeyPatch,
    dp_size: int,
    *overrides: str,
    algo: str = "gvpo",
    local_trigger_step: int = 0,
    parts: int = 1,
    old_policy: int = 0,
) -> tuple[Store, KVBatchMeta]:
    """The rollout after the trainer's own methods, as it is handed to the workers.

    Args:
        local_trigger_step: after 0, the policy has moved since the old log-probs were computed.
        parts: of a training step, of which that is one.
        old_policy: seed of the model that computed them.
    """
    store = Store()
    # So that a row of padding is not longer than a response.
    monkeypatch.setattr(padding_utils, "SYNTHETIC_PADDING_SEQ_LEN", 8)
    monkeypatch.setattr(group_plan, "_PADDING_TOKENS", 8)
    store.rows = rollout()
    config = composed(*overrides, algo=algo)
    steps = {"parameter_sync_step": parts, "local_trigger_step": local_trigger_step}
    trainer = trainer_with(monkeypatch, store, config, dp_size, **steps)
    handed_over: list[KVBatchMeta] = []

    def update_actor(batch: KVBatchMeta) -> dict[str, Any]:
        handed_over.append(batch)
        return {"metrics": {"mfu": [0.0]}}

    trainer.actor_rollout_wg.update_actor = update_actor
    keys = list(store.rows)
    tags = [{"seq_len": len(store.rows[key]["input_ids"])} for key in keys]
    metrics: dict[str, Any] = {}
    batch = trainer._balance_batch(KVBatchMeta(partition_id="train", keys=keys, tags=tags), metrics)
    model = fsdp2_ranks.tiny_model(old_policy)
    anchor, kind = reference(), config.algorithm.grpo_ext.get("gvpo_anchor")
    for row in store.rows.values():
        row["old_log_probs"] = token_log_probs(model, row).detach()
        if kind == "ref":
            row["ref_log_prob"] = token_log_probs(anchor, row).detach()
        if kind not in ("old", "ref", None):  # a feature's, of whole responses
            score = (token_log_probs(anchor, row).detach() * row["response_mask"]).sum().item()
            row["extra_fields"] = {f"{kind}_score": score}
    batch = trainer._compute_advantage(batch, metrics)
    trainer._update_actor(batch, metrics)
    return store, handed_over[0]


def trained(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dp_size: int,
    variants: dict[str, Any],
    run_rank: Callable[[int, Path], None] = fsdp2_ranks.run_rank,
    *,
    dropout: float = 0,
    **rollout: int,
) -> dict[str, Any]:
    """Run the ranks; {variant: result}.

    ``dropout`` is of the model's hidden layers, in training; ``rollout`` see `batch_for_workers`.
    """
    folder = tmp_path / "model"
    fsdp2_ranks.tiny_model(hidden_dropout=dropout).save_pretrained(folder)
    batches = {name: batch_of_ranks(monkeypatch, dp_size, each, **rollout) for name, each in variants.items()}
    job = {"model": str(folder), "n": N, "beta": BETA, "variants": variants, "batches": batches}
    torch.save(job, tmp_path / "job.pt")
    run_ranks(run_rank, dp_size, tmp_path, folder=tmp_path)
    return torch.load(tmp_path / "result.pt", weights_only=False)


def batch_of_ranks(
    monkeypatch: pytest.MonkeyPatch, dp_size: int, variant: dict[str, Any], **rollout: int
) -> dict[str, Any]:
    """The rows of each rank as the trainer lays them out; ``source`` says what it must have planned."""
    of_gvpo = variant["algo"].startswith("gvpo")
    overrides = [f"algorithm.grpo_ext.gvpo_anchor={variant['anchor']}"] if of_gvpo else []
    if variant["anchor"] not in ("old", "ref"):
        overrides.append("distillation.enabled=false")  # the scores are put into the rows here
    alpha = variant["options"].get("gvpo_alpha")
    overrides += [] if alpha is None else [f"++actor_rollout_ref.actor.policy_loss.gvpo_alpha={alpha}"]
    if variant["source"] != BEFORE:
        overrides += [
            f"data.max_prompt_length={PROMPT_LENGTH}",
            f"data.max_response_length={RESPONSE_LENGTH}",
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={fsdp2_ranks.BUDGET}",
            f"actor_rollout_ref.actor.use_dynamic_bsz={variant['micro_batch'] is None}",
            f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={variant['micro_batch'] or 'null'}",
        ]
    store, batch = batch_for_workers(monkeypatch, dp_size, *overrides, algo=variant["algo"], **rollout)
    assert batch.extra_info[wire.Field.STATISTIC_SOURCE] == variant["source"]
    ranks = [[store.rows[key] for key in part.keys] for part in batch.chunk(dp_size)]
    return {"ranks": ranks, "extra_info": batch.extra_info}


BEFORE = "forward pass"


def variant(micro_batch: int | None, source: str = BEFORE, **changes: Any) -> dict[str, Any]:
    """``micro_batch`` None is dynamic batching; ``source`` is where the mean log-ratio comes from.

    The trainer plans a forward pass here because it is not told the micro-batches.
    """
    defaults = {
        "gradient_checkpointing": False, "worker": "ours", "algo": "gvpo", "loss": "gvpo", "lora_rank": 0,
        "dtype": "float64", "terms": "all", "anchor": "old", "options": {}, "actor": {},
    }  # fmt: skip
    return {"micro_batch": micro_batch, "source": source} | defaults | changes


def relative_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    scale = largest(tensor.abs().max() for tensor in expected.values())
    return largest((found[name] - expected[name]).abs().max() for name in expected) / scale

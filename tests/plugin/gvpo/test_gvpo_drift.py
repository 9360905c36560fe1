"""Test that GVPO through our trainer and verl's worker equals the paper's formula on the whole batch.

One process computes the printed formula in float64 with plain PyTorch: whole mini-batches, group means with
gradient, AdamW. The plugin computes it through verl: the trainer's order of rows and targets, FSDP2 workers
on 1, 2 and 4 gloo ranks, micro-batches of several sizes, four updates on one rollout; the mean log-ratio of a
prompt from the updates themselves or from forward passes before them. A dictionary replaces TransferQueue,
which needs Ray; the end-to-end tests run the real one.
"""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsdp2_ranks
import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig
from peft import LoraConfig, get_peft_model
from processes import run_ranks
from queue_store import Store
from ray_cluster import free_ports
from torch import Tensor
from transfer_queue import KVBatchMeta

from grpo_verl_ext.algorithms import gvpo_terms
from grpo_verl_ext.utils.measured import largest
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.gvpo import drift as group_drift
from grpo_verl_ext.verl_plugin.gvpo.drift import GroupTrainingWorker
from grpo_verl_ext.verl_plugin.wire import Field

F64 = torch.float64
OLD, REF = Field.OLD_LOG_PROBS, Field.REF_LOG_PROB
BETA, N, MINI_BATCH, EPOCHS = 0.3, 4, 4, 2
GROUP_SIZES = [4, 4, 3, 4, 4, 1, 4, 4]
"""Responses that came back of the four asked for; prompt 5 has nothing to be compared with."""
MINI_BATCHES = [[0, 1, 2, 3, 5], [4, 6, 7]]
"""Prompts by hand: 15 rows and room for the single one; then the rest, with four rows of padding."""
REJECTED = "prompt6_2_0"
"""Response without a token left, as after rollout rejection; its prompt has three others."""
PROMPT_LENGTH, RESPONSE_LENGTH = 3, 13
RANK = 4
"""Of LoRA's matrices."""


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
            # verl's rewards are in single precision; the means of three and of four of these are exact in it.
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
            }
    return rows


def token_log_probs(model: torch.nn.Module, row: fsdp2_ranks.Row) -> Tensor:
    """log π of the tokens of one response, one row at a time."""
    logits = model(row["input_ids"].unsqueeze(0)).logits[0].log_softmax(-1)
    start = len(row["prompts"])
    return logits[start - 1 : -1].gather(-1, row["responses"].unsqueeze(-1)).squeeze(-1)


def reference() -> torch.nn.Module:
    """A policy other than the one of the rollout."""
    model = fsdp2_ranks.tiny_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    return model


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """The paper's formula on every parameter, with the policy of the rollout as anchor."""
    return trained_by_the_formula(fsdp2_ranks.tiny_model())


@pytest.fixture(scope="module")
def anchored() -> dict[str, Any]:
    """The same with a reference as anchor."""
    return trained_by_the_formula(fsdp2_ranks.tiny_model(), anchor_policy=reference())


def covariance(one: Tensor, other: Tensor) -> Tensor:
    return ((one - one.mean()) * (other - other.mean())).sum() / (len(one) - 1)


def formula(rewards: Tensor, log_prob: Tensor, anchor: Tensor, terms: str) -> Tensor:
    """The loss of a prompt, with gradient through all means."""
    if terms == "all":
        implicit = BETA * (log_prob - anchor)
        distance = (implicit - implicit.mean()) - (rewards - rewards.mean())
        return 0.5 * distance.square().sum() / (len(rewards) - 1)
    advantage = -BETA * covariance(rewards, log_prob)
    if terms == "without_variance":
        return advantage - BETA**2 * covariance(log_prob, anchor)
    return advantage + 0.5 * BETA**2 * log_prob.var()


def moments(rewards: Tensor, log_prob: Tensor, old: Tensor, anchor: Tensor) -> Tensor:
    implicit, moved = BETA * (log_prob - anchor), log_prob - old
    target = rewards - BETA * (old - anchor)
    return torch.stack(
        [
            covariance(rewards, log_prob),
            covariance(log_prob, anchor),
            log_prob.var(),
            rewards.var(),
            implicit.var(),
            covariance(rewards, implicit),
            target.var() / 2,
            BETA**2 * moved.var() / 2,
            -BETA * covariance(target, moved),
        ]
    ).detach()


def logged(moments: Tensor) -> dict[str, float]:
    """Means over the prompts of a mini-batch, and slope and R² of one regression on all of them."""
    reward, anchor, variance, of_reward, of_implicit, both, *parts = (moments / MINI_BATCH).tolist()
    moved = of_implicit > 0
    return {
        "actor/gvpo_cov_reward_log_prob": reward,
        "actor/gvpo_cov_log_prob_anchor": anchor,
        "actor/gvpo_var_log_prob": variance,
        "actor/gvpo_fit_slope": both / of_reward,
        "actor/gvpo_fit_r2": both**2 / (of_reward * of_implicit) if moved else 0.0,
        **{
            f"actor/gvpo_{term}_term": part
            for term, part in zip(("reward", "var", "cov"), parts, strict=True)
        },
    }


def log_likelihoods(model: torch.nn.Module, rows: dict[str, fsdp2_ranks.Row]) -> dict[str, Tensor]:
    return {
        key: (token_log_probs(model, row).detach() * row["response_mask"]).sum() for key, row in rows.items()
    }


def trained_by_the_formula(
    model: torch.nn.Module,
    terms: str = "all",
    *,
    old_policy: torch.nn.Module | None = None,
    anchor_policy: torch.nn.Module | None = None,
) -> dict[str, Any]:
    """Gradients, metrics and the mean |Δ̄| of four updates, and the parameters after them.

    The old policy is the model, and the anchor the old policy, if not given.
    """
    rows = rollout()
    old = log_likelihoods(old_policy or model, rows)
    anchor = old if anchor_policy is None else log_likelihoods(anchor_policy, rows)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimiser = torch.optim.AdamW(trainable.values(), lr=fsdp2_ranks.LEARNING_RATE, weight_decay=0.01)
    gradients, losses, drifts, metrics = [], [], [], []
    for prompts in MINI_BATCHES * EPOCHS:
        loss, drift, sums = torch.zeros((), dtype=F64), 0.0, torch.zeros(9, dtype=F64)
        for prompt in prompts:
            own = {
                key: row
                for key, row in rows.items()
                if row["uid"] == f"prompt{prompt}" and row["response_mask"].any()
            }
            now = {
                key: (token_log_probs(model, row) * row["response_mask"]).sum() for key, row in own.items()
            }
            drift += abs(sum((now[key] - old[key]).item() for key in own) / len(own)) / MINI_BATCH
            if len(own) > 1:
                rewards = torch.stack([row["rm_scores"].sum() for row in own.values()]).double()
                log_prob = torch.stack([now[key] for key in own])
                olds, anchors = (torch.stack([each[key] for key in own]) for each in (old, anchor))
                loss = loss + formula(rewards, log_prob, anchors, terms) / MINI_BATCH
                sums += moments(rewards, log_prob, olds, anchors)
        optimiser.zero_grad()
        loss.backward()
        gradients.append({name: p.grad.clone() for name, p in trainable.items()})
        losses.append(loss.item())
        drifts.append(drift)
        metrics.append(logged(sums))
        optimiser.step()
    return {
        "gradients": gradients,
        "losses": losses,
        "drifts": drifts,
        "metrics": metrics,
        "parameters": {name: p.detach() for name, p in model.named_parameters()},
    }


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            overrides=[
                *(
                    "+algo=gvpo",
                    f"actor_rollout_ref.actor.policy_loss.gvpo_beta={BETA}",
                    "actor_rollout_ref.rollout.name=vllm",
                ),
                f"actor_rollout_ref.actor.ppo_mini_batch_size={MINI_BATCH}",
                f"actor_rollout_ref.actor.ppo_epochs={EPOCHS}",
                f"actor_rollout_ref.rollout.n={N}",
                *overrides,
            ],
        )


def batch_for_workers(
    monkeypatch: pytest.MonkeyPatch,
    dp_size: int,
    *overrides: str,
    local_trigger_step: int = 0,
    old_policy: int = 0,
) -> tuple[Store, KVBatchMeta]:
    """The rollout after the trainer's own methods, as it is handed to the workers.

    Args:
        local_trigger_step: after 0, the policy has moved since the old log-probs were computed.
        old_policy: seed of the model that computed them.
    """
    from verl.trainer.ppo import padding_utils
    from verl.trainer.ppo.v1 import trainer_base

    from grpo_verl_ext.verl_plugin import trainer_modes
    from grpo_verl_ext.verl_plugin.batch import fields as rollout_batch
    from grpo_verl_ext.verl_plugin.gvpo import plan as group_plan

    store = Store()
    for module in (trainer_base, padding_utils, rollout_batch):
        monkeypatch.setattr(module, "tq", store)
    # So that a row of padding is not longer than a response.
    monkeypatch.setattr(padding_utils, "SYNTHETIC_PADDING_SEQ_LEN", 8)
    monkeypatch.setattr(group_plan, "PADDING_TOKENS", 8)
    store.rows = rollout()
    config = composed(*overrides)
    trainer = object.__new__(trainer_modes.GroupTrainerSync)
    trainer.config, trainer.global_steps, trainer.use_critic = config, 1, False
    trainer.local_trigger_step = local_trigger_step
    trainer.tokenizer = SimpleNamespace(eos_token_id=0)
    handed_over: list[KVBatchMeta] = []

    def update_actor(batch: KVBatchMeta) -> dict[str, Any]:
        handed_over.append(batch)
        return {"metrics": {"mfu": [0.0]}}

    trainer.actor_rollout_wg = SimpleNamespace(
        _dispatch_info={"actor": list(range(dp_size))}, update_actor=update_actor
    )
    keys = list(store.rows)
    tags = [{"seq_len": len(store.rows[key]["input_ids"])} for key in keys]
    metrics: dict[str, Any] = {}
    batch = trainer._balance_batch(KVBatchMeta(partition_id="train", keys=keys, tags=tags), metrics)
    model = fsdp2_ranks.tiny_model(old_policy)
    anchor = reference() if config.algorithm.grpo_ext.gvpo_anchor == "ref" else None
    for row in store.rows.values():
        row["old_log_probs"] = token_log_probs(model, row).detach()
        if anchor is not None:
            row["ref_log_prob"] = token_log_probs(anchor, row).detach()
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
    fsdp2_ranks.tiny_model(dropout=dropout).save_pretrained(folder)
    batches = {name: batch_of_ranks(monkeypatch, dp_size, each, **rollout) for name, each in variants.items()}
    job = {"model": str(folder), "n": N, "beta": BETA, "variants": variants, "batches": batches}
    torch.save(job, tmp_path / "job.pt")
    (port,) = free_ports(1)
    where = {"WORLD_SIZE": str(dp_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    run_ranks(run_rank, dp_size, tmp_path, folder=tmp_path, **where)
    return torch.load(tmp_path / "result.pt", weights_only=False)


def batch_of_ranks(
    monkeypatch: pytest.MonkeyPatch, dp_size: int, variant: dict[str, Any], **rollout: int
) -> dict[str, Any]:
    """The rows of each rank as the trainer lays them out; ``source`` says what it must have planned."""
    overrides = [f"algorithm.grpo_ext.gvpo_anchor={variant['anchor']}"]
    if variant["source"] != BEFORE:
        overrides += [
            f"data.max_prompt_length={PROMPT_LENGTH}",
            f"data.max_response_length={RESPONSE_LENGTH}",
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={fsdp2_ranks.BUDGET}",
            f"actor_rollout_ref.actor.use_dynamic_bsz={variant['micro_batch'] is None}",
            f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={variant['micro_batch'] or 'null'}",
        ]
    store, batch = batch_for_workers(monkeypatch, dp_size, *overrides, **rollout)
    assert batch.extra_info[wire.Field.DRIFT_SOURCE] == variant["source"]
    ranks = [[store.rows[key] for key in part.keys] for part in batch.chunk(dp_size)]
    return {"ranks": ranks, "extra_info": batch.extra_info}


BEFORE = "forward pass"


def variant(micro_batch: int | None, source: str = BEFORE, **changes: Any) -> dict[str, Any]:
    """``micro_batch`` None is dynamic batching; ``source`` is where the mean log-ratio comes from.

    The trainer plans a forward pass here because it is not told the micro-batches.
    """
    defaults = {
        "gradient_checkpointing": False, "worker": "ours", "loss": "gvpo", "lora_rank": 0, "dtype": "float64",
        "terms": "all", "anchor": "old",
    }  # fmt: skip
    return {"micro_batch": micro_batch, "source": source} | defaults | changes


def relative_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    scale = largest(tensor.abs().max() for tensor in expected.values())
    return largest((found[name] - expected[name]).abs().max() for name in expected) / scale


MICRO_BATCH, RANKS = "micro-batch", "ranks"
IN_THE_UPDATE = {
    1: {"fours": (4, MICRO_BATCH), "eights": (8, MICRO_BATCH), "dynamic": (None, MICRO_BATCH)},
    2: {
        "pairs": (2, RANKS),  # 2 ranks × 2 rows are the responses to one prompt
        "fours": (4, MICRO_BATCH),
        "eights": (8, MICRO_BATCH),
        "dynamic": (None, MICRO_BATCH),
    },
    4: {
        "singles": (1, RANKS),
        "pairs": (2, RANKS),  # and 4 × 2 those to two
        "fours": (4, MICRO_BATCH),
        "dynamic": (None, MICRO_BATCH),
    },
}
"""Ranks → the micro-batches with which prompts of four responses need no forward pass, and why."""


@pytest.mark.parametrize("dp_size", [1, 2, pytest.param(4, marks=pytest.mark.long)])
def test_gradients_and_parameters_of_four_updates(
    dp_size: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, Any],
    anchored: dict[str, Any],
) -> None:
    variants = {
        "singles": variant(1),
        "pairs": variant(2),
        "fours": variant(4),
        "dynamic": variant(None),
        "recomputed": variant(2, gradient_checkpointing=True),
        "anchored": variant(2, anchor="ref"),
    }
    if dp_size < 4:  # four ranks have four rows each
        variants["eights"] = variant(8)
    for name, (micro_batch, source) in IN_THE_UPDATE[dp_size].items():
        variants[f"{name} in the update"] = variant(micro_batch, source)
        variants[f"{source}, anchored"] = variant(
            micro_batch, source, anchor="ref", gradient_checkpointing=True
        )
    for name, result in trained(tmp_path, monkeypatch, dp_size, variants).items():
        wanted = anchored if variants[name]["anchor"] == "ref" else expected
        errors = [
            relative_error(*pair) for pair in zip(result["gradients"], wanted["gradients"], strict=True)
        ]
        assert largest(errors) <= 1e-12, (name, errors)
        assert relative_error(result["parameters"], wanted["parameters"]) <= 1e-10, name
        assert result["metrics"]["actor/gvpo_loss"] == pytest.approx(wanted["losses"], rel=1e-12), name
        metrics = result["metrics"]
        terms = zip(*(metrics[f"actor/gvpo_{term}_term"] for term in ("reward", "var", "cov")), strict=True)
        assert [sum(parts) for parts in terms] == pytest.approx(wanted["losses"], rel=1e-12), name
        for key in wanted["metrics"][0]:
            values = [update[key] for update in wanted["metrics"]]
            assert metrics[key] == pytest.approx(values, rel=1e-9, abs=1e-12), (name, key)
        slopes = [update["actor/gvpo_fit_slope"] for update in wanted["metrics"][: len(MINI_BATCHES)]]
        assert metrics["actor/gvpo_fit_slope_first_epoch"] == pytest.approx(slopes, rel=1e-9, abs=1e-12), name
        assert metrics["actor/gvpo_drift"][0] == 0
        assert metrics["actor/gvpo_drift"] == pytest.approx(wanted["drifts"], rel=1e-10, abs=1e-15), name
        assert all(drift > 1e-4 for drift in metrics["actor/gvpo_drift"][1:])
        assert largest(metrics["actor/gvpo_weight_sum"]) <= 1e-6, name
        passes = 3 if variants[name]["source"] == BEFORE else 0
        assert result["forward_passes"] == passes, f"{name}: the first update never needs one"


def test_with_dropout_the_mean_log_ratio_is_that_of_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward pass beforehand has no dropout, so that the weights of a prompt do not sum to zero."""
    variants = {
        "before": variant(2),
        "ranks": variant(2, RANKS),
        "micro-batch": variant(4, MICRO_BATCH),
        "dynamic": variant(None, MICRO_BATCH),
    }
    results = trained(tmp_path, monkeypatch, 2, variants, dropout=0.2)
    sums = {name: largest(result["metrics"]["actor/gvpo_weight_sum"]) for name, result in results.items()}
    assert 1e-2 < sums.pop("before") < math.inf
    assert largest(sums.values()) <= 1e-6, sums


@pytest.mark.parametrize("dp_size", [1, 2, pytest.param(4, marks=pytest.mark.long)])
def test_old_log_probs_of_another_policy(
    dp_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with stored responses, which the policy did not write: no update has a drift of 0."""
    rollout = {"local_trigger_step": 1, "old_policy": 1}
    variants = {anchor: variant(2, anchor=anchor) for anchor in ("old", "ref")}
    other = fsdp2_ranks.tiny_model(rollout["old_policy"])
    for anchor, result in trained(tmp_path, monkeypatch, dp_size, variants, **rollout).items():
        wanted = trained_by_the_formula(
            fsdp2_ranks.tiny_model(),
            old_policy=other,
            anchor_policy=reference() if anchor == "ref" else None,
        )
        errors = [
            relative_error(*pair) for pair in zip(result["gradients"], wanted["gradients"], strict=True)
        ]
        assert largest(errors) <= 1e-12, (anchor, errors)
        assert result["metrics"]["actor/gvpo_loss"] == pytest.approx(wanted["losses"], rel=1e-12), anchor
        assert all(drift > 1e-4 for drift in result["metrics"]["actor/gvpo_drift"])
        for key in wanted["metrics"][0]:
            values = [update[key] for update in wanted["metrics"]]
            assert result["metrics"][key] == pytest.approx(values, rel=1e-9, abs=1e-12), (anchor, key)


def test_without_one_of_the_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    """The paper's ablation, as exact as the whole."""
    variants = {terms: variant(2, terms=terms) for terms in gvpo_terms.ABLATED_LOSSES}
    for terms, result in trained(tmp_path, monkeypatch, 2, variants).items():
        wanted = trained_by_the_formula(fsdp2_ranks.tiny_model(), terms)
        errors = [
            relative_error(*pair) for pair in zip(result["gradients"], wanted["gradients"], strict=True)
        ]
        assert largest(errors) <= 1e-12, (terms, errors)
        assert result["metrics"]["actor/gvpo_loss"] == pytest.approx(wanted["losses"], rel=1e-12)
        whole = relative_error(result["gradients"][0], expected["gradients"][0])
        assert whole > 0.01, f"{terms} is another loss"


def exact_log_ratios(policies: list[dict[str, Tensor]], rows: list[fsdp2_ranks.Row]) -> list[Tensor]:
    """Δ_i of the rows of each update at the policy that it met, in float64."""
    model = fsdp2_ranks.tiny_model()
    per_update = len(rows) * EPOCHS // len(policies)
    found = []
    for update, policy in enumerate(policies):
        model.load_state_dict(policy, strict=False)  # embed_out is the embedding
        start = update * per_update % len(rows)
        found.append(
            torch.stack(
                [
                    ((token_log_probs(model, row) - row["old_log_probs"]) * row["response_mask"])
                    .sum()
                    .detach()
                    for row in rows[start : start + per_update]
                ]
            )
        )
    return found


def test_in_bf16_the_first_update_has_no_log_ratio_and_later_ones_that_of_their_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    """As verl trains by default: fp32 weights, bf16 forward passes.

    ``old_log_probs`` are the float64 ones, so that they differ from those of a bf16 pass at every token.
    """
    variants = {"before": variant(2, dtype="bf16"), "ranks": variant(2, RANKS, dtype="bf16")}
    results = trained(tmp_path, monkeypatch, 2, variants)
    batches = torch.load(tmp_path / "job.pt", weights_only=False)["batches"]
    for name, result in results.items():
        metrics, used = result["metrics"], result["log_ratios"]
        assert metrics["actor/gvpo_log_prob_gap"][0] > 1e-3, "two passes differ"
        assert len(used) == 4
        assert used[0].abs().max() == 0
        assert metrics["actor/gvpo_var_term"][0] == 0

        # Later the error of Δ is the rounding of one pass, as in the gap, at a policy that has moved little.
        exact = exact_log_ratios(result["policies"], batches[name]["ranks"][0])
        assert 0.05 < largest(log_ratio.abs().max() for log_ratio in exact[1:]) < math.inf, "it has moved"
        errors = torch.stack(used[1:]) - torch.stack(exact[1:])
        assert errors.abs().mean() <= 2 * metrics["actor/gvpo_log_prob_gap"][0]
        # Σ_i w_i = −β Σ_i e_i, with e_i what the update differs by from the pass that gave the mean: nothing
        # in the same pass, and with the same cut on a CPU.
        assert largest(metrics["actor/gvpo_weight_sum"]) <= 1e-6
        # A few roundings to 8 bits, 2^−8 each, in a row; AdamW then divides the gradient by its own size, so
        # that later policies differ by those roundings as well.
        gradients = zip(result["gradients"], expected["gradients"], strict=True)
        found = [relative_error(*pair) for pair in gradients]
        assert found[0] <= 4 * 2**-8, found
        assert largest(found) <= 16 * 2**-8, found


@pytest.mark.parametrize(
    ("overrides", "local_trigger_step", "current"),
    [
        ([], 0, True),
        # Later parts of a batch meet a policy that the earlier ones moved.
        ([], 1, False),
        # The old log-probs are the rollout's, which may lag behind.
        (["algorithm.rollout_correction.bypass_mode=true"], 0, False),
    ],
)
def test_when_old_log_probs_are_those_of_the_policy_at_hand(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], local_trigger_step: int, current: bool
) -> None:
    _, batch = batch_for_workers(monkeypatch, 1, *overrides, local_trigger_step=local_trigger_step)
    assert batch.extra_info[wire.Field.OLD_IS_CURRENT] is current


@pytest.mark.parametrize(
    ("overrides", "misfit"),
    [
        # Groups of four in micro-batches of three rows.
        (["actor_rollout_ref.rollout.n=3", "{actor}.ppo_micro_batch_size_per_gpu=3"], "has 4 responses"),
        # The longest response has 13 tokens.
        (
            [
                *("{actor}.use_dynamic_bsz=true", "{actor}.ppo_max_token_len_per_gpu=64"),
                *("data.max_prompt_length=3", "data.max_response_length=12"),
            ],
            "have 16 tokens, more than 15",
        ),
    ],
)
def test_a_batch_that_does_not_fit_takes_a_forward_pass_and_is_named_once(
    overrides: list[str], misfit: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [each.format(actor="actor_rollout_ref.actor") for each in overrides]
    _, batch = batch_for_workers(monkeypatch, 1, *named)
    assert batch.extra_info[wire.Field.DRIFT_SOURCE] == BEFORE
    assert "force_group_size" not in batch.extra_info
    said = capsys.readouterr().err
    assert said.count("takes the mean log-ratio of a prompt from a forward pass before each update") == 1
    assert misfit in said


def test_the_plan_is_said_before_the_first_rollout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from verl.trainer.ppo.v1 import trainer_base

    from grpo_verl_ext.verl_plugin import trainer_modes

    monkeypatch.setattr(trainer_base.PPOTrainer, "_setup", lambda self: None)
    trainer = object.__new__(trainer_modes.GroupTrainerSync)
    trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0, 1]})
    for overrides, said in (
        (["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"], "from the update itself: "),
        (
            ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"],
            "from a forward pass before each update: ",
        ),
        (["algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla"], ""),
    ):
        trainer.config = composed(*overrides)
        vars(trainer).pop("_plan", None)
        trainer._setup()
        printed = capsys.readouterr().err
        assert said in printed
        assert bool(said) == bool(printed)


def test_an_adapter_is_trained_by_the_same_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LoRA: the drift is that of the policy with its adapter, and the base stays as it is."""
    variants = {"before": variant(2, lora_rank=RANK), "ranks": variant(2, RANKS, lora_rank=RANK)}
    for result in trained(tmp_path, monkeypatch, 2, variants).values():
        lora = LoraConfig(r=RANK, lora_alpha=fsdp2_ranks.LORA_ALPHA, target_modules="all-linear")
        model = get_peft_model(fsdp2_ranks.tiny_model(), lora).double()
        missing, unknown = model.load_state_dict(result["start"], strict=False)
        assert (missing, unknown) == (["base_model.model.embed_out.weight"], []), "tied to the embedding"
        wanted = trained_by_the_formula(model)
        gradients = zip(result["gradients"], wanted["gradients"], strict=True)
        errors = [relative_error(*pair) for pair in gradients]
        assert largest(errors) <= 1e-12, errors
        assert relative_error(result["parameters"], wanted["parameters"]) <= 1e-10
        assert all(drift > 1e-5 for drift in result["metrics"]["actor/gvpo_drift"][1:])
        ends = result["parameters"].items()
        changed = [name for name, end in ends if not torch.equal(end, result["start"][name])]
        assert changed
        assert all("lora_" in name for name in changed)


def test_without_the_drift_only_the_first_update_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    result = trained(tmp_path, monkeypatch, 1, {"no drift": variant(2, worker="no drift")})["no drift"]
    errors = [relative_error(*pair) for pair in zip(result["gradients"], expected["gradients"], strict=True)]
    assert errors[0] <= 1e-12
    assert all(1e-6 < error < math.inf for error in errors[1:])
    assert 1e-4 < largest(result["metrics"]["actor/gvpo_weight_sum"]) < math.inf, "and the metric shows it"


def test_a_loss_that_does_not_look_at_groups_is_verls_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same mini-batches, our worker and verl's: the same gradients, bit for bit."""
    variants = {name: variant(2, worker=name, loss="grpo") for name in ("ours", "verl")}
    results = trained(tmp_path, monkeypatch, 1, variants)
    for ours, verls in zip(results["ours"]["gradients"], results["verl"]["gradients"], strict=True):
        assert all(torch.equal(ours[name], verls[name]) for name in verls)
    assert results["ours"]["metrics"].keys() == results["verl"]["metrics"].keys()


def test_deviations_of_log_probs_from_the_mean_of_their_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank's rows; the other rank has one more response of prompt 0, and prompt 1 a rejected one."""
    monkeypatch.setattr(group_drift, "get_device_id", lambda: "cpu")
    worker = object.__new__(GroupTrainingWorker)
    elsewhere = {OLD: -1.0, REF: -6.0}
    rows = [
        {
            "group_index": 0,
            "group_size": 3,
            OLD: [-2.0, -1.0],
            REF: [-4.0, 0.0],
            "response_mask": [1, 1],
        },
        {
            "group_index": 0,
            "group_size": 3,
            OLD: [-5.0, 9.0],
            REF: [-2.0, 9.0],
            "response_mask": [1, 0],
        },
        {
            "group_index": 1,
            "group_size": 1,
            OLD: [-7.0],
            REF: [-3.0],
            "response_mask": [1],
        },
        {
            "group_index": 1,
            "group_size": 1,
            OLD: [-8.0],
            REF: [-8.0],
            "response_mask": [0],
        },
    ]
    batch = fsdp2_ranks.batch_of(
        [{name: torch.tensor(value) for name, value in row.items()} for row in rows],
        {wire.Field.NUM_GROUPS: 2},
    )
    found = {}
    for name, log_prob in elsewhere.items():

        def add_over_ranks(sums: Tensor, log_prob: float = log_prob) -> None:
            sums[:, 0] += torch.tensor([log_prob, 1.0])

        worker._add_over_ranks = add_over_ranks
        found[name] = worker._deviation(batch, name).tolist()
    assert found[OLD] == [0.0, -2.0, 0.0, 0.0], "from −3, the mean of −3, −5 and −1"
    assert found[REF] == [0.0, 2.0, 0.0, 0.0], "from −4, the mean of −4, −2 and −6"

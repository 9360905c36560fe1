"""Test that GVPO through our trainer and verl's worker equals the paper's formula on the whole batch.

One process computes the printed formula in float64 with plain PyTorch: whole mini-batches, group means with
gradient, AdamW. The plugin computes it through verl: the trainer's order of rows and targets, FSDP2 workers
on 1, 2 and 4 gloo ranks, micro-batches of several sizes, four updates on one rollout; the mean log-ratio of a
prompt from the updates themselves or from forward passes before them: `rollout_ranks`.
"""

import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsdp1_ranks
import fsdp2_ranks
import pytest
import torch
from limits import largest
from peft import LoraConfig, get_peft_model
from processes import SIZES
from rollout_ranks import (
    BEFORE,
    BETA,
    EPOCHS,
    MINI_BATCH,
    MINI_BATCHES,
    batch_for_workers,
    composed,
    reference,
    relative_error,
    rollout,
    token_log_probs,
    trained,
    variant,
)
from torch import Tensor

from grpo_verl_ext.algorithms import gvpo_terms
from grpo_verl_ext.verl_plugin import wire

F64 = torch.float64
ACTOR = "actor_rollout_ref.actor"
RANK = 4
"""Of LoRA's matrices."""
TERMS = [f"actor/gvpo_{term}_term" for term in ("reward", "var", "cov")]


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
    of_policy = [covariance(rewards, log_prob), covariance(log_prob, anchor), log_prob.var()]
    of_fit = [rewards.var(), implicit.var(), covariance(rewards, implicit)]
    terms = [target.var() / 2, BETA**2 * moved.var() / 2, -BETA * covariance(target, moved)]
    return torch.stack([*of_policy, *of_fit, *terms]).detach()


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
        **dict(zip(TERMS, parts, strict=True)),
    }


def log_likelihoods(model: torch.nn.Module, rows: dict[str, fsdp2_ranks.Row]) -> dict[str, Tensor]:
    return {key: (token_log_probs(model, row) * row["response_mask"]).sum() for key, row in rows.items()}


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
    with torch.no_grad():
        old = log_likelihoods(old_policy or model, rows)
        anchor = old if anchor_policy is None else log_likelihoods(anchor_policy, rows)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimiser = torch.optim.AdamW(trainable.values(), lr=fsdp2_ranks.LEARNING_RATE, weight_decay=0.01)
    gradients, losses, drifts, metrics = [], [], [], []
    for prompts in MINI_BATCHES * EPOCHS:
        loss, drift, sums = torch.zeros((), dtype=F64), 0.0, torch.zeros(9, dtype=F64)
        for prompt in prompts:
            own = {key: row for key, row in rows.items() if row["uid"] == f"prompt{prompt}"}
            own = {key: row for key, row in own.items() if row["response_mask"].any()}
            now = log_likelihoods(model, own)
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
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    found = {"gradients": gradients, "losses": losses, "drifts": drifts, "metrics": metrics}
    return found | {"parameters": parameters}


def assert_equal(result: dict[str, Any], wanted: dict[str, Any], name: object) -> None:
    """Gradients, losses and metrics of all updates."""
    errors = [relative_error(*pair) for pair in zip(result["gradients"], wanted["gradients"], strict=True)]
    assert largest(errors) <= 1e-12, (name, errors)
    assert result["metrics"]["actor/gvpo_loss"] == pytest.approx(wanted["losses"], rel=1e-12), name
    for key in wanted["metrics"][0]:
        values = [update[key] for update in wanted["metrics"]]
        assert result["metrics"][key] == pytest.approx(values, rel=1e-9, abs=1e-12), (name, key)


MICRO_BATCH, RANKS = "micro-batch", "ranks"
FOURS = {"fours": (4, MICRO_BATCH), "dynamic": (None, MICRO_BATCH)}
IN_THE_UPDATE = {
    1: {"eights": (8, MICRO_BATCH)} | FOURS,
    2: {"pairs": (2, RANKS), "dynamic": (None, MICRO_BATCH)},  # 2 · 2 rows are the responses to one prompt
    4: {"singles": (1, RANKS), "pairs": (2, RANKS)} | FOURS,  # and 4 · 2 those to two
}
"""Ranks → the micro-batches with which prompts of four responses need no forward pass, and why."""


@pytest.mark.parametrize("dp_size", SIZES)
def test_gradients_and_parameters_of_four_updates(
    dp_size: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, Any],
    anchored: dict[str, Any],
) -> None:
    variants = {"singles": variant(1), "anchored": variant(2, anchor="ref")}
    if dp_size == 1:
        variants |= {"pairs": variant(2), "eights": variant(8)}
    if dp_size == 4:
        variants |= {"dynamic": variant(None), "recomputed": variant(2, gradient_checkpointing=True)}
    for name, (micro_batch, source) in IN_THE_UPDATE[dp_size].items():
        variants[f"{name} in the update"] = variant(micro_batch, source)
        anchored_there = variant(micro_batch, source, anchor="ref", gradient_checkpointing=True)
        variants[f"{source}, anchored"] = anchored_there
    for name, result in trained(tmp_path, monkeypatch, dp_size, variants).items():
        wanted = anchored if variants[name]["anchor"] == "ref" else expected
        assert_equal(result, wanted, name)
        assert relative_error(result["parameters"], wanted["parameters"]) <= 1e-10, name
        metrics = result["metrics"]
        terms = zip(*(metrics[term] for term in TERMS), strict=True)
        assert [sum(parts) for parts in terms] == pytest.approx(wanted["losses"], rel=1e-12), name
        slopes = [update["actor/gvpo_fit_slope"] for update in wanted["metrics"][: len(MINI_BATCHES)]]
        assert metrics["actor/gvpo_fit_slope_first_epoch"] == pytest.approx(slopes, rel=1e-9, abs=1e-12), name
        assert metrics["actor/gvpo_drift"][0] == 0
        assert metrics["actor/gvpo_drift"] == pytest.approx(wanted["drifts"], rel=1e-10, abs=1e-15), name
        assert all(drift > 1e-4 for drift in metrics["actor/gvpo_drift"][1:])
        assert largest(metrics["actor/gvpo_weight_sum"]) <= 1e-6, name
        passes = 3 if variants[name]["source"] == BEFORE else 0
        assert result["forward_passes"] == passes, f"{name}: the first update never needs one"


@pytest.mark.ci
def test_losses_of_four_updates_under_fsdp1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    """verl's default engine; each loss is that of parameters that the updates before it made."""
    variants = {"before": variant(2), "ranks": variant(2, RANKS), "micro-batch": variant(4, MICRO_BATCH)}
    for result in trained(tmp_path, monkeypatch, 2, variants, fsdp1_ranks.run_rank).values():
        assert result["engine"] == "OnHost", "an FSDP1 module"
        metrics = result["metrics"]
        assert metrics["actor/gvpo_loss"] == pytest.approx(expected["losses"], rel=1e-12)
        assert metrics["actor/gvpo_drift"][0] == 0
        assert all(drift > 1e-4 for drift in metrics["actor/gvpo_drift"][1:])
        assert largest(metrics["actor/gvpo_weight_sum"]) <= 1e-6


@pytest.mark.ci
def test_with_dropout_the_mean_log_ratio_is_that_of_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward pass beforehand has no dropout, so that the weights of a prompt do not sum to zero."""
    variants = {"before": variant(2), "ranks": variant(2, RANKS)}
    variants |= {"micro-batch": variant(4, MICRO_BATCH), "dynamic": variant(None, MICRO_BATCH)}
    results = trained(tmp_path, monkeypatch, 2, variants, dropout=0.2)
    sums = {name: largest(result["metrics"]["actor/gvpo_weight_sum"]) for name, result in results.items()}
    assert 1e-2 < sums.pop("before") < math.inf
    assert largest(sums.values()) <= 1e-6, sums


@pytest.mark.ci
@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_old_log_probs_of_another_policy(
    dp_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with stored responses, which the policy did not write: no update has a drift of 0."""
    rollout = {"local_trigger_step": 1, "old_policy": 1}
    variants = {anchor: variant(2, anchor=anchor) for anchor in ("old", "ref")}
    other = fsdp2_ranks.tiny_model(rollout["old_policy"])
    for anchor, result in trained(tmp_path, monkeypatch, dp_size, variants, **rollout).items():
        wanted = trained_by_the_formula(
            fsdp2_ranks.tiny_model(), old_policy=other, anchor_policy=reference() if anchor == "ref" else None
        )
        assert_equal(result, wanted, anchor)
        assert all(drift > 1e-4 for drift in result["metrics"]["actor/gvpo_drift"])


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Results and batches of losses without a term, of LoRA and of bf16, on one pair of processes."""
    variants = {terms: variant(2, terms=terms) for terms in gvpo_terms.ABLATED_LOSSES}
    for name, change in (("LoRA", {"lora_rank": RANK}), ("bf16", {"dtype": "bf16"})):
        variants[name] = variant(2, **change)
        variants[f"{name}, ranks"] = variant(2, RANKS, **change)
    folder = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as monkeypatch:
        results = trained(folder, monkeypatch, 2, variants)
    return results, torch.load(folder / "job.pt", weights_only=False)["batches"]


@pytest.mark.ci
def test_without_one_of_the_terms(two_ranks: Any, expected: dict[str, Any]) -> None:
    """The paper's ablation, as exact as the whole."""
    for terms in gvpo_terms.ABLATED_LOSSES:
        result = two_ranks[0][terms]
        assert_equal(result, trained_by_the_formula(fsdp2_ranks.tiny_model(), terms), terms)
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
        own = rows[start : start + per_update]
        moved = ((token_log_probs(model, row) - row["old_log_probs"]) * row["response_mask"] for row in own)
        found.append(torch.stack([each.sum().detach() for each in moved]))
    return found


@pytest.mark.ci
def test_in_bf16_the_first_update_has_no_log_ratio_and_later_ones_that_of_their_policy(
    two_ranks: Any, expected: dict[str, Any]
) -> None:
    """As verl trains by default: fp32 weights, bf16 forward passes.

    ``old_log_probs`` are the float64 ones, so that they differ from those of a bf16 pass at every token.
    """
    results, batches = two_ranks
    for name in ("bf16", "bf16, ranks"):
        result = results[name]
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
        (["+algorithm.grpo_ext.stored_responses={share: 0.5}"], 0, True),
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
        (["actor_rollout_ref.rollout.n=3", f"{ACTOR}.ppo_micro_batch_size_per_gpu=3"], "has 4 responses"),
        # The longest response has 13 tokens.
        (
            [
                *(f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=64"),
                *("data.max_prompt_length=3", "data.max_response_length=12"),
            ],
            "have 16 tokens, more than 15",
        ),
    ],
)
def test_a_batch_that_does_not_fit_takes_a_forward_pass_and_is_named_once(
    overrides: list[str], misfit: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, batch = batch_for_workers(monkeypatch, 1, *overrides)
    assert batch.extra_info[wire.Field.STATISTIC_SOURCE] == BEFORE
    assert "force_group_size" not in batch.extra_info
    said = capsys.readouterr().err
    assert said.count("needs of other responses comes from a forward pass before each update") == 1
    assert misfit in said


def test_the_plan_is_said_before_the_first_rollout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from verl.trainer.ppo.v1 import trainer_base

    from grpo_verl_ext.verl_plugin import trainer_modes

    monkeypatch.setattr(trainer_base.PPOTrainer, "_setup", lambda self: None)
    trainer = object.__new__(trainer_modes.GroupTrainerSync)
    trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0, 1]})
    verls = ["algorithm.adv_estimator=grpo", f"{ACTOR}.policy_loss.loss_mode=vanilla"]
    for overrides, said in (
        ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"], "from the update itself: "),
        ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=1"], "from a forward pass before each update: "),
        (verls, ""),
    ):
        trainer.config = composed(*overrides)
        vars(trainer).pop("_plan", None)
        trainer._setup()
        printed = capsys.readouterr().err
        assert said in printed
        assert bool(said) == bool(printed)


@pytest.mark.ci
def test_an_adapter_is_trained_by_the_same_formula(two_ranks: Any) -> None:
    """The drift is that of the policy with its adapter, and the base stays as it is."""
    for result in (two_ranks[0][name] for name in ("LoRA", "LoRA, ranks")):
        lora = LoraConfig(r=RANK, lora_alpha=fsdp2_ranks.LORA_ALPHA, target_modules="all-linear")
        model = get_peft_model(fsdp2_ranks.tiny_model(), lora).double()
        missing, unknown = model.load_state_dict(result["start"], strict=False)
        assert (missing, unknown) == (["base_model.model.embed_out.weight"], []), "tied to the embedding"
        wanted = trained_by_the_formula(model)
        assert_equal(result, wanted, "LoRA")
        assert relative_error(result["parameters"], wanted["parameters"]) <= 1e-10
        assert all(drift > 1e-5 for drift in result["metrics"]["actor/gvpo_drift"][1:])
        ends = result["parameters"].items()
        changed = [name for name, end in ends if not torch.equal(end, result["start"][name])]
        assert changed
        assert all("lora_" in name for name in changed)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """Results of other workers and of losses of tokens, in one process."""
    kinds = [*itertools.product(("ours", "verl"), ("grpo", "gspo"), ["bf16"])]
    kinds += [(worker, "grpo", "float64") for worker in ("ours", "verl")]
    variants = {each: variant(2, worker=each[0], loss=each[1], dtype=each[2]) for each in kinds}
    variants["no drift"] = variant(2, worker="no drift")
    with pytest.MonkeyPatch.context() as monkeypatch:
        return trained(tmp_path_factory.mktemp("one"), monkeypatch, 1, variants)


@pytest.mark.ci
def test_without_the_drift_only_the_first_update_is_exact(
    one_rank: dict[Any, Any], expected: dict[str, Any]
) -> None:
    result = one_rank["no drift"]
    errors = [relative_error(*pair) for pair in zip(result["gradients"], expected["gradients"], strict=True)]
    assert errors[0] <= 1e-12
    assert all(1e-6 < error < math.inf for error in errors[1:])
    assert 1e-4 < largest(result["metrics"]["actor/gvpo_weight_sum"]) < math.inf, "and the metric shows it"


@pytest.mark.ci
def test_a_loss_that_does_not_look_at_groups_is_verls_own(one_rank: dict[Any, Any]) -> None:
    """Same mini-batches, our worker and verl's: the same gradients.

    They differ by the rounding of the old log-probs, for which ours takes the first update's own.
    """
    ours, verls = (one_rank[worker, "grpo", "float64"] for worker in ("ours", "verl"))
    for pair in zip(ours["gradients"], verls["gradients"], strict=True):
        assert relative_error(*pair) <= 1e-12
    assert ours["metrics"].keys() - verls["metrics"].keys() == {"actor/old_log_prob_gap"}
    assert largest(ours["metrics"]["actor/old_log_prob_gap"]) <= 1e-14


@pytest.mark.ci
def test_in_bf16_the_first_ratio_of_losses_of_tokens_is_1(one_rank: dict[Any, Any]) -> None:
    """``old_log_probs`` of another pass differ from the update's own by its rounding (verl #6280)."""
    for worker, loss in itertools.product(("ours", "verl"), ("grpo", "gspo")):
        first, *_ = one_rank[worker, loss, "bf16"]["metrics"]["actor/ppo_kl"]
        assert bool(first == 0) is (worker == "ours"), (worker, loss)

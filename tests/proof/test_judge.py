"""Test what the probe says of a configuration, and that it fails where something is broken."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from omegaconf import DictConfig
from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

from grpo_verl_ext.catalogue import ALGORITHMS, PRESETS
from grpo_verl_ext.proof.batch import Rollout
from grpo_verl_ext.proof.gradient import Training, changed, of_probe, rollout_for
from grpo_verl_ext.proof.judge import TOLERANCE, judgements, presets_on_this_verl, unread
from grpo_verl_ext.proof.reference import reference_weights
from grpo_verl_ext.utils.errors import Severity
from grpo_verl_ext.verl_plugin.compose import composed

A, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"
WHOLE = ["actor_rollout_ref.rollout.name=vllm", f"{A}.use_dynamic_bsz=true", f"{A}.ppo_mini_batch_size=64"]


@pytest.fixture(scope="module")
def default() -> DictConfig:
    return composed(WHOLE)


def of(preset: str, *words: str) -> DictConfig:
    return composed([*WHOLE, f"+algo@_global_={preset}", *words])


def found(preset: str, *words: str) -> dict[str, str]:
    """Check → message."""
    return {each.check: str(each.problem) for each in judgements(of(preset, *words), words)}


@pytest.mark.ci
def test_every_preset_computes_its_papers_gradient() -> None:
    away = dict(presets_on_this_verl())
    assert set(away) == set(PRESETS)
    assert max(away.values()) < 1e-12


# Broken on the side that trains; the record stays.

Broken = Callable[[Callable[..., Any]], Callable[..., Any]]


def with_value(change: Callable[[Tensor], Tensor]) -> Broken:
    def broken(loss: Callable[..., Any]) -> Callable[..., Any]:
        def changed(**arguments: Any) -> Any:
            value, metrics = loss(**arguments)
            return change(value), metrics

        return changed

    return broken


def averaged_otherwise(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Tokens are counted in the place of responses, and responses in that of tokens."""

    def broken(*, config: Any, loss_agg_mode: str, **arguments: Any) -> Any:
        counts = config.global_batch_info
        tokens, rows = counts["batch_num_tokens"], counts["global_batch_size"]
        counts.update(batch_num_tokens=rows, global_batch_size=tokens)
        try:
            return loss(config=config, loss_agg_mode=loss_agg_mode, **arguments)
        finally:
            counts.update(batch_num_tokens=tokens, global_batch_size=rows)

    return broken


def preset_of(default: DictConfig, name: str) -> DictConfig:
    return changed(of_probe(default), PRESETS[name].leaves)


def distance(config: DictConfig, name: str, papers: DictConfig | None = None) -> float:
    rollout = rollout_for(config, papers or config)
    expected = reference_weights(ALGORITHMS[name], Training(papers or config), rollout)
    return apart(Training(config), rollout, expected)


def apart(training: Training, rollout: Rollout, expected: Tensor) -> float:
    return float((training.weights(training.rows(rollout)) - expected).norm() / expected.norm())


@pytest.mark.parametrize("fault", [with_value(lambda value: -value), averaged_otherwise])
@pytest.mark.parametrize("name", PRESETS)
def test_a_broken_loss_is_another_gradient(default, monkeypatch, name, fault) -> None:
    config = preset_of(default, name)
    loss = ALGORITHMS[name].loss.name
    monkeypatch.setitem(POLICY_LOSS_REGISTRY, loss, fault(POLICY_LOSS_REGISTRY[loss]))
    assert not distance(config, name) <= TOLERANCE


@pytest.mark.parametrize("name", PRESETS)
def test_tokens_of_a_tool_that_count_are_another_gradient(default: DictConfig, name: str) -> None:
    config = preset_of(default, name)
    rollout = rollout_for(config)
    unmasked = replace(rollout, response_mask=rollout.given.long())
    expected = reference_weights(ALGORITHMS[name], Training(config), rollout)
    assert not apart(Training(config), unmasked, expected) <= TOLERANCE


def constants(name: str) -> Iterator[tuple[str, float]]:
    for key, value in PRESETS[name].leaves.items():
        of_loss = key.startswith(f"{A}.") and not key.endswith(("clip_ratio", "ppo_epochs", "gvpo_alpha"))
        if (of_loss or key.endswith("kl_coef")) and isinstance(value, float) and value:
            yield key, value


@pytest.mark.parametrize("name", PRESETS)
def test_a_constant_that_is_one_per_cent_off_is_another_gradient(default: DictConfig, name: str) -> None:
    papers, silent = preset_of(default, name), []
    for key, value in constants(name):
        if distance(changed(papers, {key: value * 1.01}), name, papers) <= TOLERANCE:
            silent.append(key.rpartition(".")[2])
    assert silent == SILENT.get(name, [])


SILENT = {
    # Bounds that nothing reaches: a ratio below 0, or above 10,000.
    "cispo": ["clip_ratio_low"],
    "dppo": ["clip_ratio_c"],
    "dppo_kl": ["clip_ratio_c"],
    # Of 200 tokens one is drawn or chosen, and one is at 1 % more, too.
    "clip_cov": ["clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "clip_ratio_low"],
    "kl_cov": ["kl_cov_ratio"],
    # Bounds of another number than π/π_old, beside which there are no rows.
    "bpo": ["clip_ratio_low", "clip_ratio_high"],
    "icepop": ["icepop_alpha", "icepop_beta"],
    "ipo": ["ipo_eps"],
}
"""Preset → constants whose 1 % makes no difference on the synthetic rollout."""

# What users type.


@pytest.mark.parametrize(
    ("preset", "word", "check"),
    [
        ("grpo", "+algorithm.grpo_ext.scale_rewards=none", "gradient"),
        ("dapo", "algorithm.grpo_ext.mask_truncated_completions=false", "gradient"),
        ("gvpo", f"{A}.entropy_coeff=0.01", "gradient"),
        ("dr_grpo", f"{A}.loss_scale_factor=100", "gradient"),
        ("gmpo", f"{A}.policy_loss.loss_mode=geo_mean", "cut"),
        ("rloo", f"{A}.ppo_mini_batch_size=16", "ratio"),
        ("ppo", f"{A}.clip_ratio_c=null", "refused"),  # which verl compares
        ("gvpo", "trainer.v1.trainer_mode=sync", "refused"),
        ("sapo", f"{A}.tau_pos=0", "no-gradient"),
    ],
)
def test_another_training_is_found(preset: str, word: str, check: str) -> None:
    assert check in found(preset, word)


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        ("grpo", [f"{A}.kl_loss_coef=0.001"]),
        ("grpo", [f"{A}.use_kl_loss=false", f"{A}.clip_ratio_high=0.28", f"{A}.clip_ratio_low=0.1"]),
        ("grpo", [f"{A}.entropy_coeff=0.001", f"{A}.ppo_epochs=4", f"{A}.kl_loss_type=k3+"]),
        ("grpo", ["algorithm.adv_estimator=grpo"]),  # verl's own, which is the same
        ("grpo", [f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold='0.5_5.0'"]),
        ("grpo", [f"{CORRECTION}.rollout_rs=token_k1", f"{CORRECTION}.rollout_rs_threshold=0.5_2.0"]),
        ("dapo", [f"{CORRECTION}.bypass_mode=true"]),
        ("cispo", [f"{A}.clip_ratio_high=5", f"{A}.clip_ratio_low=1.5"]),
        ("ppo", ["algorithm.lam=0.95"]),
        ("gvpo", [f"{A}.policy_loss.gvpo_beta=0.5", "algorithm.grpo_ext.gvpo_anchor=ref"]),
        ("gvpo", [f"+{A}.policy_loss.gvpo_alpha=0.5", "algorithm.grpo_ext.gvpo_anchor=ref"]),
        ("dr_grpo", [f"+{A}.policy_loss.off_policy_mask_threshold=0.5"]),
        ("dr_grpo", [f"{A}.loss_scale_factor=512", "data.max_response_length=512"]),
        ("rloo", [f"{A}.ppo_mini_batch_size=1024", "algorithm.kl_ctrl.kl_coef=0"]),
        ("gdpo", ["algorithm.gdpo_reward_keys=[a,b,c]", "algorithm.gdpo_reward_weights=[1.0,0.5,0.2]"]),
        ("kimi", [f"{A}.policy_loss.kimi_tau=1"]),
    ],
)
def test_what_is_the_users_own_is_no_finding(preset: str, words: list[str]) -> None:
    assert found(preset, *words) == {}


def test_the_finding_says_how_far_and_what_to_type() -> None:
    word = f"{A}.loss_scale_factor=100"
    (finding,) = judgements(of("dr_grpo", word, "data.max_response_length=200"), [word])
    assert finding.severity is Severity.WARNING
    # The constant is half of the budget, and so each weight is doubled.
    assert "100% away from that of dr_grpo (arXiv 2503.20783)" in str(finding.problem)
    assert finding.problem.fix.endswith(f"the same command without {word}")
    assert finding.problem.fix.without == (f"{A}.loss_scale_factor",)  # type: ignore[attr-defined]


def test_a_value_of_a_file_is_told_from_a_word_and_put_back() -> None:
    (finding,) = judgements(of("grpo", "+algorithm.grpo_ext.scale_rewards=none"), ["data.train_files=a"])
    assert "scale_rewards is none (by a file), in the preset group" in str(finding.problem)
    assert finding.problem.fix == "algorithm.grpo_ext.scale_rewards=group"


@pytest.mark.parametrize(
    ("preset", "word"),
    [
        ("gvpo", "algorithm.gamma=0.9"),
        ("gvpo", f"{A}.clip_ratio_high=0.28"),
        ("sapo", f"{A}.policy_loss.clip_cov_ratio=0.1"),
        ("grpo", f"{A}.use_prefix_grouper=true"),
        ("dapo", f"+{A}.policy_loss.rollout_correction.rollout_is=token"),
    ],
)
def test_what_changes_nothing_is_a_note(preset: str, word: str) -> None:
    config = of(preset, word)
    assert list(judgements(config, [word])) == []
    (note,) = unread(config, [word])
    assert (note.check, note.severity) == ("unread", Severity.NOTE)
    assert "on the probe's batch" in str(note.problem)


@pytest.mark.parametrize(
    ("preset", "word"),
    [
        ("grpo", f"{A}.clip_ratio_high=0.28"),
        ("grpo", f"{A}.clip_ratio_c=20"),
        ("dppo_kl", f"{A}.clip_ratio_low=0.06"),
        ("gmpo", f"{A}.clip_ratio_low=0.5"),
        ("grpo", f"{CORRECTION}.rollout_is=token"),
        ("grpo", f"+{A}.policy_loss.off_policy_mask_threshold=0.5"),
        ("ppo", "algorithm.gamma=0.99"),
        ("gdpo", "algorithm.gdpo_reward_weights=[1.0,0.5]"),
    ],
)
def test_what_changes_something_is_none(preset: str, word: str) -> None:
    assert list(unread(of(preset, word), [word])) == []


def test_a_loss_of_our_name_that_a_module_registers_is_found(monkeypatch, tmp_path) -> None:
    module = """
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, register_policy_loss
own = POLICY_LOSS_REGISTRY["grpo"]

@register_policy_loss("grpo")
def grpo(**arguments):
    loss, metrics = own(**arguments)
    return 2 * loss, metrics
"""
    (tmp_path / "a_module_of_a_user.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(POLICY_LOSS_REGISTRY, "grpo", POLICY_LOSS_REGISTRY["grpo"])
    message = found("grpo", "actor_rollout_ref.model.external_lib=a_module_of_a_user")["gradient"]
    assert "is another function than the record's" in message


def test_a_foreign_loss_that_cannot_be_tried_is_said_and_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(**_: Any) -> Any:
        raise KeyError("images")

    monkeypatch.setitem(POLICY_LOSS_REGISTRY, "mine", mine)
    (finding,) = judgements(of("grpo", f"{A}.policy_loss.loss_mode=mine"))
    assert finding.severity is Severity.WARNING
    assert "the training goes on" in str(finding.problem)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda value: value * math.nan,
    "infinite": lambda value: value * math.inf,
    "a constant": lambda value: value.detach().clone(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_no_gradient_and_one_that_is_no_number_fail(monkeypatch, change) -> None:
    # A constant of GRPO's would leave the KL term's gradient.
    monkeypatch.setitem(POLICY_LOSS_REGISTRY, "dapo", with_value(change)(POLICY_LOSS_REGISTRY["dapo"]))
    assert "no-gradient" in found("dapo")

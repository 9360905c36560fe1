"""Test the rows of features and algorithms: each finds what was not tested, and its line mends that."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import write_support_page
import yaml
from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.catalogue.requires import In
from grpo_verl_ext.preflight.tested_values import all_needs, untested
from grpo_verl_ext.utils.errors import Line, Severity
from grpo_verl_ext.verl_plugin.compose import composed

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
VLLM = (f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.n=4")
CORRECTION, OURS = "algorithm.rollout_correction", "algorithm.grpo_ext"
MODE = "trainer.v1.trainer_mode"

ROWS = [(name, row) for name, rows in all_needs() for row in rows]
OUTSIDE = (True, "token_k1", "R3", 0.5, "score", "sync", "forward_kl_topk", "single_turn_agent", "tool_agent")
OUTSIDE = (*OUTSIDE, "optimal_token_baseline", "kl_cov_mini_batch")
"""One of them is no tested value of any row."""


def with_value(row: In, value: Any) -> DictConfig:
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"n": 8}}})
    config.data = {"max_response_length": 9, "train_batch_size": 64}
    key, value = ("trainer.use_v1", False) if row.key == MODE else (row.key, value)
    OmegaConf.update(config, key, value, force_add=True)
    return config


def type_in(config: DictConfig, line: str) -> None:
    assert isinstance(line, Line)
    for word in line.words:
        key, _, value = word.lstrip("+~").partition("=")
        OmegaConf.update(config, key, yaml.safe_load(value) if value else None, force_add=True)


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{name} {row.key}" for name, row in ROWS])
def test_a_value_outside_is_found_and_the_line_mends_it(name: str, row: In) -> None:
    row = replace(row, when=None)  # which condition is met when is for the pairs below
    config = next(each for each in (with_value(row, value) for value in OUTSIDE) if not row.holds(each))
    found = row.unmet(name, config)
    assert found is not None
    assert (found.check, found.problem.key) == (name, row.key)
    assert found.severity is (Severity.ERROR if row.refuse else Severity.WARNING)
    assert str(found.problem).startswith(f"{name} is tested with {row.key} {row.tested}; it is ")
    assert f", which {row.why}. Type: " in str(found.problem)
    line = found.problem.fix
    if isinstance(line, Line) and any(word.lstrip("+~").startswith(row.key) for word in line.words):
        type_in(config, line)
        assert row.unmet(name, config) is None
    for value in row.values if row.key != MODE and row.test is None else ():
        OmegaConf.update(config, row.key, value)
        assert row.holds(config) or row.words, value


SHARE = f"++{OURS}.stored_responses={{share: 0.5}}"
HISTORY = f"++{OURS}.stored_responses={{share: 0.5, source: history, max_age: 9}}"
PARTS = "trainer.v1.separate_async.parameter_sync_step"
SYNC, MEGATRON = f"{MODE}=grpo_ext_sync", ["model_engine=megatron", f"{ACTOR}.ppo_epochs=2"]
TOKENS = f"{CORRECTION}.rollout_rs='seq_mean_k1,token_k1'"
BYPASS, FILTER = f"{CORRECTION}.bypass_mode=true", "algorithm.filter_groups.enable=true"
DISTILS = ["distillation.enabled=true", "distillation.distillation_loss.loss_mode=forward_kl_topk"]
ALONE = ["distillation.enabled=true", "distillation.distillation_loss.use_task_rewards=false"]
BUFFER = "++reward.reward_kwargs.overlong_buffer_cfg"
OVERLONG = ["reward.reward_manager.name=dapo", f"{BUFFER}.enable=true"]
MODELS = ["reward.reward_manager.name=rule_and_model", f"++{OURS}.reward_model.path=some/model"]
COLOCATE, ONE_UPDATE = f"{MODE}=grpo_ext_colocate_async", f"{ACTOR}.ppo_mini_batch_size=1024"
OTHERS, DETERMINED = "skip.rollout_tq.enable=true", f"{ROLLOUT}.full_determinism=true"
SAMPLER = [f"trainer.v1.sampler.custom_sampler.{each}" for each in ("path=/s.py", "name=Sampler")]
FULLY_ASYNC, ONE_STEP_OFF = "+async_training.a=1", "+rollout.a=1"
"""The sections of verl's other drivers, where ``trainer.v1.trainer_mode`` says ``sync``."""
NO_BYPASS = BYPASS.replace("true", "false")
REF, REFRESH = "actor_rollout_ref.ref", [f"++{OURS}.ref_model_sync_steps=5", SYNC]
OTHER_LAYERS = f"{REF}.fsdp_config.wrap_policy.min_num_params=1000"
FSDP1 = [f"{ACTOR}.strategy=fsdp", f"{REF}.strategy=fsdp"]
R, W = Severity.ERROR, Severity.WARNING

MUST_BE_FOUND: list[tuple[str, list[str], str, Severity]] = [
    ("gvpo", [f"{MODE}=sync"], "gvpo trainer_mode", R),
    ("gvpo", ["trainer.use_v1=false"], "gvpo trainer_mode", R),
    ("gvpo", MEGATRON, "gvpo strategy", R),
    ("kl_cov", MEGATRON, "kl_cov_mini_batch strategy", R),
    ("clip_cov", [f"{MODE}=colocate_async"], "clip_cov_mini_batch trainer_mode", R),
    ("clip_cov", [f"{ACTOR}.shuffle=true"], "clip_cov_mini_batch shuffle", R),
    ("gvpo", [TOKENS], "gvpo rollout_rs", R),
    ("gvpo", DISTILS, "gvpo loss_mode", R),
    ("gvpo", [BYPASS, f"{MODE}=grpo_ext_colocate_async"], "gvpo bypass_mode", R),
    ("gvpo", [f"{OURS}.gvpo_anchor=ref", FILTER], "gvpo enable", W),
    ("gvpo", [f"{OURS}.gvpo_anchor=ref", f"{ACTOR}.use_kl_loss=false"], "gvpo use_kl_loss", R),
    ("gvpo", [f"{ROLLOUT}.top_p=0.9"], "gvpo top_p", W),
    ("gvpo", [SHARE, BYPASS], "stored-responses bypass_mode", R),
    ("gmpo", [TOKENS], "gmpo rollout_rs", R),
    ("topr", [SHARE, SYNC, f"{CORRECTION}.bypass_mode=false"], "topr bypass_mode", W),
    ("kimi", [SHARE, SYNC, f"{CORRECTION}.bypass_mode=true"], "kimi bypass_mode", R),
    ("kimi", [f"++{OURS}.mask_truncated_completions=true"], "kimi mask_truncated_completions", R),
    ("dapo", [TOKENS], "mask-truncated rollout_rs", R),
    ("dapo", ["trainer.use_v1=false"], "dynamic-sampling trainer_mode", R),
    ("dapo", [BYPASS, f"{CORRECTION}.rollout_is=token"], "rollout-correction rollout_is", R),
    ("gspo", [BYPASS, f"{CORRECTION}.rollout_rs=seq_mean_k1"], "rollout-correction rollout_rs", R),
    ("cispo", ALONE, "distillation use_task_rewards", R),
    ("grpo", [f"{ROLLOUT}.top_k=1"], "group-size top_k", R),
    ("grpo", [f"{ROLLOUT}.temperature=0.0"], "group-size temperature", R),
    ("dapo", [f"{BUFFER}.len=0"], "overlong-punishment len", R),
    ("dapo", [f"{BUFFER}.len=4096", "data.max_response_length=1024"], "overlong-punishment len", R),
    ("dapo", [f"{BUFFER}.penalty_factor=-1"], "overlong-punishment penalty_factor", R),
    ("grpo", [SHARE], "stored-responses trainer_mode", R),
    ("grpo", [HISTORY.replace(", max_age: 9", ""), SYNC], "stored-responses max_age", R),
    ("grpo", [SHARE, SYNC, f"++{OURS}.stored_responses.max_age=9"], "stored-responses max_age", R),
    ("grpo", [HISTORY, f"{MODE}=grpo_ext_separate_async"], "stored-responses trainer_mode", R),
    ("grpo", [f"++{OURS}.ref_model_sync_steps=5"], "reference trainer_mode", R),
    ("grpo", [f"++{OURS}.ref_model_sync_steps=5", SYNC, "model_engine=veomni"], "reference strategy", R),
    ("grpo", [f"++{OURS}.gold_responses.files=a.parquet"], "gold-responses trainer_mode", R),
    ("grpo", [f"++{OURS}.lost_responses=0.5"], "lost-responses trainer_mode", R),
    ("grpo", [f"++{OURS}.seed_requests=1"], "seeds default_agent_loop", R),
    ("grpo", [f"++{OURS}.seed_requests=1", f"{MODE}=colocate_async"], "seeds trainer_mode", R),
    ("grpo_process", [f"{MODE}=sync"], "steps trainer_mode", R),
    ("grpo_process", ["algorithm.use_kl_in_reward=true"], "steps use_kl_in_reward", R),
    ("grpo_process", OVERLONG, "steps enable", R),
    ("gdpo", MODELS, "several-rewards name", R),
    ("grpo_process", [f"{ROLLOUT}.agent.default_agent_loop=tool_agent"], "steps default_agent_loop", R),
    ("gdpo", [f"{MODE}=separate_async"], "several-rewards trainer_mode", R),
    ("gdpo", [FILTER], "several-rewards enable", W),
    ("gspo", [f"{ACTOR}.clip_ratio_high=0.2"], "gspo clip_ratio_high", W),
    ("luspo", [f"{ACTOR}.clip_ratio_low=0.2"], "gspo clip_ratio_low", W),
    ("dppo_kl", [f"{ACTOR}.clip_ratio_low=0.2"], "dppo_kl clip_ratio_low", W),
    ("vespo", [f"{CORRECTION}.rollout_is=token"], "vespo rollout_is", R),
    ("icepop", [f"{CORRECTION}.rollout_is=token"], "icepop rollout_is", R),
    ("icepop", [BYPASS], "icepop bypass_mode", R),
    ("ipo", [f"{CORRECTION}.rollout_is=token"], "ipo rollout_is", R),
    ("ipo", [f"{ROLLOUT}.calculate_log_probs=false"], "ipo calculate_log_probs", R),
    ("grpo_unbiased_kl", [f"{ACTOR}.use_kl_loss=false"], "grpo_unbiased_kl use_kl_loss", R),
    ("lite_ppo", [f"{MODE}=separate_async", f"{PARTS}=4"], "batch-scale parameter_sync_step", W),
    ("topr", [f"{CORRECTION}.rollout_is=sequence"], "topr rollout_is", R),
    ("kimi", [f"{CORRECTION}.rollout_is=token"], "kimi rollout_is", R),
    ("vespo", [TOKENS], "vespo rollout_rs", R),
    ("topr", [TOKENS], "topr rollout_rs", R),
    ("kimi", [TOKENS], "kimi rollout_rs", R),
    ("luspo", [TOKENS], "gspo rollout_rs", R),
    ("kl_cov", [ONE_UPDATE], "kl_cov_mini_batch ppo_mini_batch_size", W),
    ("kl_cov", [f"{ACTOR}.strategy=megatron", ONE_UPDATE], "kl_cov_mini_batch strategy", R),
    ("topr", [COLOCATE], "topr bypass_mode", W),
    ("topr", [OTHERS], "topr bypass_mode", W),
    ("kimi", [COLOCATE, BYPASS], "kimi bypass_mode", R),
    ("maxrl", OVERLONG, "maxrl enable", W),
    ("lite_ppo", [FILTER], "batch-scale enable", W),
    ("grpo_process", [FILTER], "steps enable", W),
    ("dapo", SAMPLER, "dynamic-sampling path", W),
    ("dapo", ["algorithm.filter_groups.metric=score"], "dynamic-sampling metric", W),
    ("dapo", [DETERMINED], "group-size full_determinism", R),
    ("grpo", [f"{ROLLOUT}.n=1"], "group-size n", R),
    ("grpo", ["trainer.critic_warmup=20"], "critic-warmup critic_warmup", W),
    ("gvpo", [f"{ACTOR}.rollout_n=1"], "groups rollout_n", R),
    ("dapo", REFRESH, "reference use_kl_loss", R),
    ("grpo", [*REFRESH, f"{ACTOR}.strategy=fsdp", f"{REF}.strategy=fsdp2"], "reference strategy", R),
    ("grpo", [*REFRESH, *FSDP1, OTHER_LAYERS], "reference wrap_policy", W),
    ("gdpo", [f"+{OURS}.scale_rewards=none"], "several-rewards scale_rewards", R),
    ("kimi", [FULLY_ASYNC, BYPASS], "kimi bypass_mode", R),
    ("topr", [FULLY_ASYNC, NO_BYPASS], "topr bypass_mode", W),
    ("vespo", [ONE_STEP_OFF, NO_BYPASS], "vespo bypass_mode", W),
]
"""Preset, overrides, name and last part of the key, severity: by hand, from what was found before rows."""


@pytest.mark.parametrize(
    ("preset", "changes", "name", "severity"), MUST_BE_FOUND, ids=lambda each: str(each).replace(ACTOR, "")
)
def test_a_wrong_pair_is_found(preset: str, changes: list[str], name: str, severity: Severity) -> None:
    config = composed([f"+algo={preset}", *VLLM, *changes])
    found = [each for each in untested(config) if each.severity is severity]
    assert name in {f"{each.check} {each.problem.key.rpartition('.')[2]}" for each in found}


LOOP = f"{ROLLOUT}.agent.default_agent_loop"


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("luspo", ["algorithm.adv_estimator=grpo"]),  # LUSPO is verl's GSPO with this average
        # The ratio to the rollout's policy is not 1 at the first update, and KL-Cov's penalty has a gradient.
        ("kl_cov", [ONE_UPDATE, BYPASS]),
        ("gvpo", [FILTER]),  # around the old policy, prompts of equal rewards have no target
        ("grpo", SAMPLER),  # nothing that it would have to filter
        ("topr", [COLOCATE, BYPASS]),
        ("topr", [OTHERS, BYPASS]),
        ("topr", [f"{CORRECTION}.rollout_rs=seq_mean_k1"]),
        # Each response has a seed of its own.
        ("dapo", [DETERMINED, f"+{OURS}.seed_requests=1", f"{LOOP}=grpo_ext_single_turn_agent"]),
        ("dapo", [DETERMINED, f"{LOOP}=mine"]),
        ("kimi", [FULLY_ASYNC, NO_BYPASS]),
        ("vespo", [FULLY_ASYNC, BYPASS]),
        # All responses to a prompt come from one policy, of which the old log-probs may know nothing.
        ("kimi", [ONE_STEP_OFF, BYPASS]),
        ("topr", [ONE_STEP_OFF, BYPASS]),
    ],
)
def test_a_right_pair_is_not(preset: str, changes: list[str]) -> None:
    assert [*untested(composed([f"+algo={preset}", *VLLM, *changes]))] == []


@pytest.mark.parametrize("section", ["async_training", "rollout"])
@pytest.mark.parametrize("preset", ["gvpo", "clip_cov", "grpo_process", "gdpo"])
def test_verls_other_drivers(preset: str, section: str) -> None:
    config = composed([f"+algo={preset}", *VLLM, f"+{section}.a=1"])
    (found,) = (each for each in untested(config) if each.problem.key == MODE)
    assert found.severity is Severity.ERROR
    modules = ("fully_async", "one_step_off")
    assert found.problem.value in {f"verl.experimental.{each}_policy" for each in modules}
    assert found.problem.fix.startswith(f"python3 -m verl.trainer.main_ppo … {MODE}=grpo_ext_")


def test_what_uses_nothing_of_ours_or_a_mode_of_its_own_is_found_nothing() -> None:
    assert not [*untested(composed([*VLLM, "trainer.use_v1=false", *ALONE]))]
    assert not [*untested(composed(["+algo=gvpo", *VLLM, f"{MODE}=mine"]))]


@pytest.mark.parametrize("name", ["rollout_is", "rollout_rs"])
def test_verls_loss_for_bypass_mode_applies_what_its_own_section_says(name: str) -> None:
    lines = [*VLLM, "algorithm.adv_estimator=dr_grpo", BYPASS]
    lines += [f"{ACTOR}.policy_loss.loss_mode=bypass_mode", f"{CORRECTION}.{name}=seq_mean_k1"]
    section = f"+{ACTOR}.policy_loss.rollout_correction"
    for more, is_found in (
        ([], True),
        ([f"{section}=${{{CORRECTION}}}"], False),
        ([f"{section}={{{name}: null}}"], True),
    ):
        found = [each.check for each in untested(composed([*lines, *more]))]
        assert found == ["rollout-correction"] * is_found


def test_the_page_is_the_rows() -> None:
    written = Path(write_support_page.PAGE).read_text(encoding="utf-8")
    assert written == write_support_page.page(), "Type: python tests/helpers/write_support_page.py"

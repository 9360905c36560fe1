"""Test what a verl of the lower tier is refused and given, on the installed verl, which passes for one.

tests/contract/versions.py tries the same with verl 0.8.0 itself.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import DictConfig, OmegaConf
from packaging.version import Version
from processes import Python

from grpo_verl_ext import driver
from grpo_verl_ext.preflight.tier import check_tier
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import PATCHES_VARIABLE, RUNTIME_ENVIRONMENT, setting
from grpo_verl_ext.utils.which_verl import INSTALL, WhichVerl
from grpo_verl_ext.verl_plugin import tier
from grpo_verl_ext.verl_plugin.compose import CompositionError, composed

SECTION, SEED = "algorithm.grpo_ext", "actor_rollout_ref.rollout.seed"
GVPO = ("+algo=gvpo",)
REFUSED = {
    "gvpo": (GVPO, "actor_rollout_ref.actor.policy_loss.loss_mode"),
    "statistic": (("+algo=kl_cov",), "actor_rollout_ref.actor.policy_loss.loss_mode"),
    "process": (("+algo=grpo_process",), "algorithm.adv_estimator"),
    "several rewards": (("+algo=gdpo",), "algorithm.adv_estimator"),
    "dynamic sampling": (("+algo=dapo",), "algorithm.filter_groups.enable"),
    "refresh": (("+algo=grpo", f"++{SECTION}.ref_model_sync_steps=4"), f"{SECTION}.ref_model_sync_steps"),
    "stored": (
        ("+algo=grpo", f"++{SECTION}.stored_responses.files=[a.parquet]"),
        f"{SECTION}.stored_responses",
    ),
    "gold": (("+algo=grpo", f"++{SECTION}.gold_responses.files=[a.parquet]"), f"{SECTION}.gold_responses"),
    "rewarded": (
        ("+algo=grpo", f"++{SECTION}.rewarded_responses.files=[a.parquet]"),
        f"{SECTION}.rewarded_responses",
    ),
    "seeds": (("+algo=grpo", f"++{SECTION}.seed_requests=1"), f"{SECTION}.seed_requests"),
    "loop": (
        ("+algo=grpo", "actor_rollout_ref.rollout.agent.default_agent_loop=grpo_ext_tool_agent"),
        "actor_rollout_ref.rollout.agent.default_agent_loop",
    ),
    "rewards": (("+algo=grpo", "reward.reward_manager.name=rule_and_model"), "reward.reward_manager.name"),
    "seed": (("+algo=grpo", f"{SEED}=1"), SEED),
    "cpu": (("+algo=grpo", "+platform=cpu"), f"{RUNTIME_ENVIRONMENT}.VERL_PLATFORM"),
}
"""What is refused → how a training asks for it, and the key of the message."""


def training(*words: str) -> DictConfig:
    """A training's configuration without what verl 0.8 does not have either."""
    seeded = any(word.startswith(SEED) for word in words)
    return composed([*words, "actor_rollout_ref.rollout.name=vllm", *([] if seeded else [f"~{SEED}"])])


@pytest.fixture
def lower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed verl passes for 0.8.0."""
    older = WhichVerl(Version("0.8.0"), Path("/verl"))
    monkeypatch.setattr(tier, "which_verl", lambda: older)
    monkeypatch.setattr(tier, "has_losses_only", lambda: older.has_losses_only)


@pytest.mark.usefixtures("lower")
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_its_key_with_the_version_that_has_it(name: str) -> None:
    words, key = REFUSED[name]
    config = training(*words)
    with pytest.raises(SettingError) as refused:
        check_tier(config)
    problem = refused.value.problem
    assert problem.key == key
    assert f"{key} is " in str(problem)
    assert "but verl 0.8.0 has only what presets, estimators and losses of tokens" in str(problem)
    assert problem.valid == "verl >= 0.9"
    assert problem.fix.endswith(INSTALL)


@pytest.mark.parametrize("name", REFUSED)
def test_the_upper_tier_is_left_alone(name: str) -> None:
    check_tier(training(*REFUSED[name][0]))


@pytest.mark.usefixtures("lower")
def test_the_line_to_type_keeps_the_algorithm_on_this_verl() -> None:
    config = training("+algo=dapo")
    with pytest.raises(SettingError) as refused:
        check_tier(config)
    line = refused.value.problem.fix
    assert isinstance(line, Line)
    assert line == f"algorithm.filter_groups.enable=false, or {INSTALL}"
    check_tier(training("+algo=dapo", *line.words))


@pytest.mark.usefixtures("lower")
@pytest.mark.parametrize("algo", ["grpo", "dr_grpo", "gspo", "rloo", "lite_ppo", "maxrl", "ppo"])
def test_estimators_and_losses_of_tokens_are_not(algo: str) -> None:
    check_tier(training(f"+algo={algo}"))


@pytest.mark.usefixtures("lower")
@pytest.mark.parametrize("name", ["trainer.use_v9", "trainer.v1.nothing"])
def test_an_unknown_key_of_newer_trainers(name: str) -> None:
    with pytest.raises(CompositionError) as refused:
        training("+algo=grpo", f"{name}=true")
    assert (INSTALL in str(refused.value)) == name.startswith("trainer.v1")


@pytest.mark.usefixtures("lower")
@pytest.mark.parametrize(
    ("here", "given", "modules"),
    [
        ("grpo_verl_ext.plugin", None, "grpo_verl_ext.plugin"),
        ("", "mine", "mine,grpo_verl_ext.plugin"),
        ("mine,grpo_verl_ext.plugin", "other", "mine,grpo_verl_ext.plugin,other"),
    ],
)
def test_the_workers_import_the_plugin(
    here: str, given: str | None, modules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tier.MODULES_VARIABLE, here)
    config = training("+algo=grpo")
    if given:
        OmegaConf.update(config, f"{RUNTIME_ENVIRONMENT}.{tier.MODULES_VARIABLE}", given, force_add=True)
    driver.hand_on(config, driver.environment(config))
    assert setting(config, f"{RUNTIME_ENVIRONMENT}.{tier.MODULES_VARIABLE}") == modules
    assert setting(config, f"{RUNTIME_ENVIRONMENT}.{PATCHES_VARIABLE}") == ""


def test_a_training_is_checked_after_verl_has_moved_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[DictConfig] = []
    monkeypatch.setattr(driver, "prepare_training", prepared.append)
    moved = OmegaConf.create({"moved": True})
    module = SimpleNamespace(migrate_legacy_reward_impl=lambda config: moved)
    driver.patch_migration(module)
    assert module.migrate_legacy_reward_impl(OmegaConf.create()) is moved
    assert prepared == [moved]


def test_it_registers_estimators_and_losses_and_nothing_else(python: Python) -> None:
    found = python(
        """
        from grpo_verl_ext.utils import which_verl
        which_verl.FROM = "0.9.9"
        import verl
        from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
        from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
        from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
        import verl.trainer.ppo.v1
        print("dr_grpo" in ADV_ESTIMATOR_REGISTRY, "gvpo" in POLICY_LOSS_REGISTRY)
        print([name for name in TRAINER_REGISTRY if name.startswith("grpo_ext")])
        try:
            get_reward_manager_cls("rule_and_model")
        except ValueError:
            print("no manager")
        """
    )
    assert found.stdout.splitlines() == ["True True", "[]", "no manager"], found.stderr

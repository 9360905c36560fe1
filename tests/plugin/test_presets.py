"""Presets on verl's own command line: they compose, they change what they say, a misspelt one is named."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from verl.utils.config import omega_conf_to_dataclass

import grpo_verl_ext.config

CONFIG = Path(grpo_verl_ext.config.__file__).parent
PRESETS = sorted(f"{file.parent.name}={file.stem}" for file in CONFIG.glob("*/*.yaml"))

Compose = Callable[..., DictConfig]


@pytest.fixture
def verl_config() -> Compose:
    def composed(*overrides: str) -> DictConfig:
        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose("ppo_trainer", overrides=list(overrides))

    return composed


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_composes_with_verls_config(preset: str, verl_config: Compose) -> None:
    config = verl_config(f"+{preset}", "actor_rollout_ref.rollout.name=vllm")
    values = OmegaConf.to_container(OmegaConf.load(CONFIG / f"{preset.replace('=', '/')}.yaml"))
    for key, value in _leaves(values):
        if not (isinstance(value, str) and "${" in value):
            assert _select(config, key) == value, key


@pytest.mark.parametrize("preset", PRESETS)
def test_every_value_of_a_preset_has_a_comment_within_reach(preset: str) -> None:
    """Each block of values follows a comment that names its source, or says "ours" for the whole file."""
    text = (CONFIG / f"{preset.replace('=', '/')}.yaml").read_text()
    header = text.split("\n\n")[0].lower()
    assert "arxiv" in header or "ours" in header


def test_grpo_has_the_papers_settings(verl_config: Compose) -> None:
    config = verl_config("+algo=grpo")
    actor = config.actor_rollout_ref.actor
    assert config.algorithm.adv_estimator == "grpo_outcome"
    assert (actor.policy_loss.loss_mode, actor.loss_agg_mode) == ("grpo", "seq-mean-token-mean")
    assert (actor.use_kl_loss, actor.kl_loss_type, actor.kl_loss_coef) == (True, "low_var_kl", 0.04)
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.2)


def test_gvpo_loads_the_reference_for_the_anchor_that_needs_it(verl_config: Compose) -> None:
    from verl.trainer.ppo.utils import need_reference_policy

    config = verl_config("+algo=gvpo")
    actor = config.actor_rollout_ref.actor
    assert (actor.policy_loss.loss_mode, actor.policy_loss.gvpo_beta) == ("gvpo", 0.1)
    assert (actor.loss_agg_mode, config.trainer.v1.trainer_mode) == ("seq-mean-token-sum", "group_sync")
    assert not need_reference_policy(config)
    anchored = verl_config("+algo=gvpo", "algorithm.grpo_ext.gvpo_anchor=ref")
    assert need_reference_policy(anchored)
    assert anchored.actor_rollout_ref.actor.kl_loss_coef == 0


def test_the_embedded_task_has_settings_of_its_own_for_gvpo(verl_config: Compose) -> None:
    config = verl_config("+algo=gvpo", "+task=chain_sum", "actor_rollout_ref.rollout.name=vllm")
    actor = config.actor_rollout_ref.actor
    assert (actor.policy_loss.gvpo_beta, actor.optim.lr, actor.ppo_epochs) == (0.5, 2e-4, 2)
    others = verl_config("+algo=grpo", "+task=chain_sum", "actor_rollout_ref.rollout.name=vllm")
    assert others.actor_rollout_ref.actor.optim.lr == 5e-4
    assert others.actor_rollout_ref.actor.ppo_epochs == 1


def test_the_loss_follows_the_beta_of_the_estimator(verl_config: Compose) -> None:
    config = verl_config("+algo=gvpo", "algorithm.grpo_ext.gvpo_beta=0.5")
    assert config.actor_rollout_ref.actor.policy_loss.gvpo_beta == 0.5


def test_a_preset_can_be_overridden(verl_config: Compose) -> None:
    config = verl_config("+algo=grpo", "actor_rollout_ref.actor.kl_loss_coef=0.001")
    assert config.actor_rollout_ref.actor.kl_loss_coef == 0.001


def test_the_actor_of_a_preset_is_what_verls_dataclass_accepts(verl_config: Compose) -> None:
    config = verl_config(
        "+algo=grpo", "+platform=cpu", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"
    )
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert actor.strategy == "fsdp2"
    assert actor.fsdp_config.mixed_precision["param_dtype"] == "fp32"


def test_a_misspelt_preset_is_named_beside_the_valid_ones(python: Callable[..., object]) -> None:
    found = python(
        """
        import sys
        sys.argv = ["main_ppo", "+algo=grop"]
        from verl.trainer.main_ppo import main
        main()
        """
    )
    assert found.returncode != 0
    assert "Could not find 'algo/grop'" in found.stderr
    assert "grpo" in found.stderr.split("Available options in 'algo':")[1]


def _leaves(values: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    found = []
    for key, value in values.items():
        path = f"{prefix}{key}"
        found += _leaves(value, f"{path}.") if isinstance(value, dict) else [(path, value)]
    return found


def _select(config: DictConfig, key: str) -> object:
    node = config
    for part in key.split("."):
        node = node[part]
    return node

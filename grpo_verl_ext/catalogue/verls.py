"""Losses and estimators of verl's own that belong to no preset alone, and what is known of them."""

from collections.abc import Iterator

from omegaconf import DictConfig

from grpo_verl_ext.catalogue.record import VerlsEstimator, VerlsLoss
from grpo_verl_ext.catalogue.requires import In
from grpo_verl_ext.catalogue.weights import WEIGHTS, wrote_another_policy
from grpo_verl_ext.utils.errors import Line, Problem
from grpo_verl_ext.utils.keys import ACTOR, BYPASS, setting

VANILLA = VerlsLoss("vanilla")
GPG = VerlsLoss(
    "gpg",
    requires=(
        In(
            WEIGHTS,
            ("sequence", "token"),
            "leaves responses of another policy uncorrected: the loss has no ratio",
            when=wrote_another_policy,
            line=Line(f"{WEIGHTS}=sequence", f"{BYPASS}=false"),
        ),
    ),
)
_GEO_MEAN = VerlsLoss("geo_mean", exact_preset="+algo=gmpo")
_CLIP_COV = VerlsLoss("clip_cov", exact_preset="+algo=clip_cov")
_KL_COV = VerlsLoss("kl_cov", exact_preset="+algo=kl_cov")

VERLS_ESTIMATORS = (
    VerlsEstimator("grpo", kl_in_loss=True),
    VerlsEstimator("grpo_vectorized", kl_in_loss=True),
)

BYPASS_LOSS = "bypass_mode"
"""verl's loss that applies weights and rejection in bypass mode itself."""

OVERLONG_MANAGER = "dapo"
"""verl's reward manager with DAPO's punishment of long responses."""


KL_IN_REWARD = "algorithm.use_kl_in_reward"
ON_KL_IN_LOSS = Line(f"{KL_IN_REWARD}=false", f"{ACTOR}.use_kl_loss=true")
PUNISHES = "reward.reward_kwargs.overlong_buffer_cfg.enable"


def asks_model_alone(config: DictConfig) -> bool:
    """Whether verl asks its reward model for the reward and never calls the reward manager."""
    function = setting(config, "reward.custom_reward_function.path")
    return function is None and bool(setting(config, "reward.reward_model.enable"))


def overlong_punishment(config: DictConfig) -> bool:
    """Whether verl's reward manager ``dapo`` punishes long responses."""
    return _asks_for_punishment(config) and not asks_model_alone(config)


def _asks_for_punishment(config: DictConfig) -> bool:
    manager = setting(config, "reward.reward_manager.name")
    return manager == OVERLONG_MANAGER and bool(setting(config, PUNISHES))


def advise_punishment(config: DictConfig) -> Iterator[Problem]:
    """Warn of a punishment of long responses by a manager that is never called."""
    if _asks_for_punishment(config) and asks_model_alone(config):
        yield Problem(
            "reward.reward_model.enable",
            True,
            why="without reward.custom_reward_function.path verl then asks the reward model and never calls "
            f"reward.reward_manager.name={OVERLONG_MANAGER}, which would punish long responses",
            valid="true with a function of yours",
            fix=f"reward.custom_reward_function.path=<file>, or {PUNISHES}=false",
        )

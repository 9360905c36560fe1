"""The options that the adapters read from verl's configuration: typed, checked once, refused in one message.

`EstimatorSettings.from_config` and `check_loss` read plain configuration, so the driver can call both when
the configuration is composed, before any rollout.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from grpo_verl_ext.algorithms.advantages import OUTCOME_BASELINES
from grpo_verl_ext.verl_plugin.errors import SettingError
from grpo_verl_ext.verl_plugin.keys import ACTOR
from grpo_verl_ext.verl_plugin.options import SECTION, grpo_ext, is_count, is_number
from grpo_verl_ext.verl_plugin.reference import settings as reference
from grpo_verl_ext.verl_plugin.reward_model import settings as reward_model

SILENCE = "silence"
"""Key of ``algorithm.grpo_ext``: names of checks that are not to be made."""

SCALE_REWARDS = ("group", "batch", "none")
GVPO_ANCHORS = ("old", "ref")
PAIRED = ("dapo_per_prompt", "gvpo")
"""Names of an estimator and a loss of which one is wrong without the other."""
CONSTANT_LENGTH = "seq-mean-token-sum-norm"
"""The ``loss_agg_mode`` that divides by ``loss_scale_factor``."""


@dataclass(frozen=True)
class TrainingSettings:
    """Options that the driver reads for the training as a whole, under ``algorithm.grpo_ext``.

    Attributes:
        watch: end the training with an error when one of its Ray actors, or a vLLM engine, has died; verl
        alone
            may wait for it for ever.
        own_queue: give the training a TransferQueue of its own; needed where several trainings share a Ray
            cluster. ``ablate`` sets it for the jobs that it submits.
        ref_kl_metrics: the metrics ``actor/ref_kl_k1``, ``…_k2`` and ``…_k3`` where a reference is loaded, in
            the trainer modes of this package. The trainer fetches two log-probs and the mask for them.
    """

    watch: bool = True
    own_queue: bool = False
    ref_kl_metrics: bool = True

    @classmethod
    def from_config(cls, algorithm: Mapping[str, Any] | None) -> "TrainingSettings":
        """Read and check the options.

        Raises:
            SettingError: a value that is not true or false.
        """
        options = grpo_ext(algorithm)
        own = {field.name: options[field.name] for field in fields(cls) if field.name in options}
        for name, value in own.items():
            if not isinstance(value, bool):
                key = f"algorithm.grpo_ext.{name}"
                raise SettingError(key, value, valid=("true", "false"), fix=f"{key}=true")
        return cls(**own)

    def patches(self) -> list[str]:
        """Names of `patches.PATCHES` that the training needs."""
        return ["lost_parts", "engine_death"] * self.watch + ["own_queue"] * self.own_queue


@dataclass(frozen=True)
class EstimatorSettings:
    """Options of the estimators, all under ``algorithm.grpo_ext``.

    Attributes:
        scale_rewards: divide centred rewards by the std of the ``group``, of the whole ``batch``, or not at
            all (``none``). Default: ``none`` for those of `advantages.OUTCOME_BASELINES`, else ``group``.
        mask_truncated: advantage 0 for responses that used up the budget.
        max_response_length: that budget in tokens; needed by ``mask_truncated`` alone.
        step_rewards: the embedded task's reward function is asked for step rewards, too.
        gvpo_beta: GVPO's β > 0, in reward units per nat; larger stays nearer to the anchor.
        gvpo_anchor: GVPO's π': ``old``, the policy of the rollout, or ``ref``, the reference model.
    """

    scale_rewards: str = "group"
    mask_truncated: bool = False
    max_response_length: int | None = None
    step_rewards: bool = False
    gvpo_beta: float = 0.1
    gvpo_anchor: str = "old"

    @classmethod
    def from_config(
        cls, algorithm: Mapping[str, Any] | None, estimator: str | None = None
    ) -> "EstimatorSettings":
        """Read and check the options.

        Args:
            algorithm: verl's ``algorithm`` section as it is; None stands for all defaults.
            estimator: name of the estimator; None takes ``algorithm.adv_estimator``.

        Raises:
            ValueError: an unknown key, a value outside its range, or two keys that contradict each other.
        """
        section = algorithm or {}
        name = estimator or section.get("adv_estimator")
        options = dict(grpo_ext(section))
        _refuse_unknown_keys(options, option_names())
        own = {field.name for field in fields(cls)}
        options = {key: value for key, value in options.items() if key in own}
        options.setdefault("scale_rewards", "none" if name in OUTCOME_BASELINES else "group")
        settings = cls(**options)
        settings._check_rewards_and_budget()
        settings._check_gvpo()
        settings._check_against(name, section.get("norm_adv_by_std_in_grpo", True))
        return settings

    @property
    def budget_of_truncated(self) -> int | None:
        """The budget whose responses get advantage 0; None where all of them keep theirs."""
        return self.max_response_length if self.mask_truncated else None

    def _check_rewards_and_budget(self) -> None:
        if self.scale_rewards not in SCALE_REWARDS:
            key = f"{SECTION}.scale_rewards"
            raise SettingError(key, self.scale_rewards, valid=SCALE_REWARDS, fix=f"{key}=group")
        if not isinstance(self.mask_truncated, bool):
            raise SettingError(
                f"{SECTION}.mask_truncated",
                self.mask_truncated,
                valid=("true", "false"),
                fix=f"{SECTION}.mask_truncated=true",
            )
        if self.mask_truncated and not is_count(self.max_response_length):
            raise SettingError(
                f"{SECTION}.max_response_length",
                self.max_response_length,
                why=f"{SECTION}.mask_truncated needs the response budget",
                valid="an integer ≥ 1",
                fix=f"'+{SECTION}.max_response_length=${{data.max_response_length}}'",
            )

    def _check_gvpo(self) -> None:
        if not _is_positive_number(self.gvpo_beta):
            key = f"{SECTION}.gvpo_beta"
            raise SettingError(key, self.gvpo_beta, valid="a finite number > 0", fix=f"{key}=0.1")
        if self.gvpo_anchor not in GVPO_ANCHORS:
            key = f"{SECTION}.gvpo_anchor"
            raise SettingError(key, self.gvpo_anchor, valid=GVPO_ANCHORS, fix=f"{key}=old")

    def _check_against(self, estimator: str | None, norm_adv_by_std_in_grpo: bool) -> None:
        if estimator in OUTCOME_BASELINES and self.scale_rewards != "none":
            key = f"{SECTION}.scale_rewards"
            raise SettingError(
                key,
                self.scale_rewards,
                why=f"algorithm.adv_estimator={estimator} divides by no standard deviation",
                valid="none",
                fix=f"{key}=none, or for the scaled estimator: algorithm.adv_estimator=grpo_outcome",
            )
        if estimator == "gvpo" and self.mask_truncated:
            key = f"{SECTION}.mask_truncated"
            raise SettingError(
                key,
                True,
                why="with algorithm.adv_estimator=gvpo a response that left the loss would unbalance its "
                "group, whose weights must sum to zero",
                valid="false",
                fix=f"{key}=false, and shape the reward instead: reward.reward_manager.name=dapo",
            )
        # verl's default is true, so only false tells what somebody wants.
        if not norm_adv_by_std_in_grpo and self.scale_rewards != "none":
            key = "algorithm.norm_adv_by_std_in_grpo"
            raise SettingError(
                key,
                False,
                why=f"{estimator} divides by the standard deviation of the {self.scale_rewards} "
                f"({SECTION}.scale_rewards)",
                valid="true",
                fix=f"+{SECTION}.scale_rewards=none, or {key}=true",
            )


def check_options(algorithm: Mapping[str, Any] | None) -> None:
    """Check the options of a training, and the names of all others.

    Raises:
        SettingError: an unknown key of ``algorithm.grpo_ext``, or a value of another type.
    """
    _refuse_unknown_keys(grpo_ext(algorithm), option_names())
    TrainingSettings.from_config(algorithm)


def option_names() -> set[str]:
    """All keys of ``algorithm.grpo_ext``."""
    own = (TrainingSettings, EstimatorSettings)
    return {field.name for each in own for field in fields(each)} | {
        *reference.KEYS,
        reward_model.KEY,
        SILENCE,
    }


def check_loss(loss_mode: str, required: str, actor: Mapping[str, Any]) -> None:
    """Check verl's ``actor_rollout_ref.actor`` section against one of our losses.

    Args:
        loss_mode: name of the loss.
        required: the ``loss_agg_mode`` that it goes with.
        actor: the section.

    Raises:
        ValueError: ``loss_agg_mode``, ``loss_scale_factor`` or a clip range contradicts the loss.
    """
    _check_aggregation(loss_mode, required, actor)
    if loss_mode == "gvpo":
        _check_beta(actor["policy_loss"].get("gvpo_beta"))
    else:
        _check_clip_range(actor)


def check_pair(adv_estimator: str, loss_mode: str) -> None:
    """Refuse one half of a pair without the other: its estimator computes what its loss alone can read.

    Raises:
        ValueError: one of `PAIRED` is the estimator or the loss, but not both.
    """
    for name in PAIRED:
        if (adv_estimator == name) != (loss_mode == name):
            raise SettingError(
                "algorithm.adv_estimator",
                adv_estimator,
                why=f"policy_loss.loss_mode is {loss_mode}, and {name} is an estimator and a loss that "
                "belong together",
                valid=f"{name} for both or for neither",
                fix=f"algorithm.adv_estimator={name} {ACTOR}.policy_loss.loss_mode={name}",
            )


def _check_aggregation(loss_mode: str, required: str, actor: Mapping[str, Any]) -> None:
    if actor["loss_agg_mode"] != required:
        raise SettingError(
            f"{ACTOR}.loss_agg_mode",
            actor["loss_agg_mode"],
            why=f"with policy_loss.loss_mode={loss_mode} verl is to aggregate KL and entropy as the loss "
            "does",
            valid=required,
            fix=f"{ACTOR}.loss_agg_mode={required}",
        )
    if required == CONSTANT_LENGTH and not _is_positive_number(actor["loss_scale_factor"]):
        raise SettingError(
            f"{ACTOR}.loss_scale_factor",
            actor["loss_scale_factor"],
            why=f"policy_loss.loss_mode={loss_mode} divides by a constant length (with null verl would take "
            "the longest response of each micro-batch)",
            valid="a number > 0, the response budget",
            fix=f"'{ACTOR}.loss_scale_factor=${{data.max_response_length}}'",
        )


def _check_beta(beta: object) -> None:
    if not _is_positive_number(beta):
        raise SettingError(
            f"{ACTOR}.policy_loss.gvpo_beta",
            beta,
            why="policy_loss.loss_mode=gvpo needs its β",
            valid="a finite number > 0",
            fix=f"+algo=gvpo, or without the preset: "
            f"{ACTOR}.policy_loss._target_=grpo_verl_ext.verl_plugin.loss_config.LossConfig "
            f"'+{ACTOR}.policy_loss.gvpo_beta=${{algorithm.grpo_ext.gvpo_beta}}' "
            f"+algorithm.grpo_ext.gvpo_beta=0.1",
        )


def _check_clip_range(actor: Mapping[str, Any]) -> None:
    for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high"):
        clip_ratio = actor.get(name, 0.2)
        falls_back = clip_ratio is None and name != "clip_ratio"
        if not falls_back and not (is_number(clip_ratio) and clip_ratio >= 0):
            key = f"{ACTOR}.{name}"
            raise SettingError(key, clip_ratio, valid="a finite number ≥ 0", fix=f"{key}=0.2")
    clip_ratio_c = actor.get("clip_ratio_c")
    if clip_ratio_c is not None and not (is_number(clip_ratio_c) and clip_ratio_c > 1):
        key = f"{ACTOR}.clip_ratio_c"
        raise SettingError(
            key, clip_ratio_c, valid="a number > 1, or null for no dual clip", fix=f"{key}=null"
        )


def _refuse_unknown_keys(options: Mapping[str, Any], valid: set[str]) -> None:
    for key, value in options.items():
        if key not in valid:
            name = f"{SECTION}.{key}"
            raise SettingError(
                name,
                value,
                seen=f"{name}={value!r} is not an option",
                valid=sorted(valid),
                fix=f"~{name} to remove it",
            )


def _is_positive_number(value: object) -> bool:
    return is_number(value) and value > 0

"""The keys that this package adds to verl's configuration: default, valid values, check and description.

`Options` is the section ``algorithm.grpo_ext``; `loss_config.LossConfig` adds two keys to verl's
``actor.policy_loss``. A new key is one more field, made by `key`. ``docs/settings.md`` is written from the
fields.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeGuard, TypeVar, cast

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.algorithms.advantages import OUTCOME_BASELINES
from grpo_verl_ext.verl_plugin.errors import SettingError

# Sections, keys and values of verl's configuration that messages name.

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model.path"
RUNTIME_ENVIRONMENT = "ray_kwargs.ray_init.runtime_env.env_vars"
"""Environment variables that verl passes to every process of a training."""

SECTION = "algorithm.grpo_ext"
"""The section of `Options`."""

TRAINER_MODES = ("grpo_ext_sync", "grpo_ext_colocate_async", "grpo_ext_separate_async")
"""Values of ``trainer.v1.trainer_mode``: verl's modes, which also keep a prompt's responses in one optimizer
step, pass step rewards to the estimator and refresh the reference."""

AGENT_LOOPS = {"single_turn_agent": "step_single_turn_agent", "tool_agent": "step_tool_agent"}
"""verl's agent loops, which drop step rewards → this package's, which keep them."""

REWARD_MANAGER = "rule_and_model"
"""Value of ``reward.reward_manager.name``: weighted sum of a reward function and a reward model."""

DRIFT_ENGINES = ("fsdp", "fsdp2")
"""Values of ``actor.strategy`` with which GVPO's later updates on a rollout were tested."""
REFRESH_ENGINES = ("fsdp", "fsdp2")
"""Values of ``actor.strategy`` with which the reference refresh was tested."""

RENAMED = {
    f"{SECTION}.ref_sync_steps": f"{SECTION}.ref_model_sync_steps",
    f"{SECTION}.ref_mixup_alpha": f"{SECTION}.ref_model_mixup_alpha",
    f"{SECTION}.mask_truncated": f"{SECTION}.mask_truncated_completions",
    f"{SECTION}.gvpo_beta": f"{ACTOR}.policy_loss.gvpo_beta",
}
"""Keys of earlier development versions → their new names."""
RENAMED_MODES = {
    "group_sync": "grpo_ext_sync",
    "group_colocate_async": "grpo_ext_colocate_async",
    "group_separate_async": "grpo_ext_separate_async",
}
"""Values of ``trainer.v1.trainer_mode`` in earlier development versions → their new names."""

LARGEST = 1e30
"""Largest |value| of a numeric setting: products of settings must fit fp32, which ends at 3.4e38."""


def setting(config: DictConfig, key: str, default: Any = None) -> Any:
    """Return the value of a dotted key; ``default`` where it is null or missing."""
    value = OmegaConf.select(config, key, throw_on_resolution_failure=False)
    return default if value is None else value


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether the value is a number (not a bool) of at most `LARGEST` in size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST


def is_positive(value: object) -> TypeGuard[int | float]:
    """Whether the value is a number > 0 and at most `LARGEST`."""
    return is_number(value) and value > 0


def is_count(value: object) -> TypeGuard[int]:
    """Whether the value is an integer ≥ 1 that fits int64."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63


@dataclass(frozen=True)
class Rule:
    """The values that a key accepts.

    Attributes:
        accepts: whether a value is valid.
        valid: a description of the values, or the values; for messages and ``docs/settings.md``.
        example: a valid value as typed.
        nullable: whether null is valid, too.
    """

    accepts: Callable[[Any], bool]
    valid: str | tuple[str, ...]
    example: str
    nullable: bool = False

    def check(self, key: str, value: object, *, why: str = "", fix: str = "") -> None:
        """Refuse an invalid value.

        Raises:
            SettingError: the value is not valid.
        """
        if value is None and self.nullable:
            return
        if value is None or not self.accepts(value):
            raise SettingError(key, value, why=why, valid=self.valid, fix=fix or self._line(key))

    def _line(self, key: str) -> str:
        line = f"{key}={self.example}"
        return f"'{line}'" if "$" in line else line


def one_of(*names: str, nullable: bool = False) -> Rule:
    """Return the rule of a key that accepts one of these names."""
    return Rule(lambda value: value in names, names, names[0], nullable)


ON_OR_OFF = Rule(lambda value: isinstance(value, bool), ("true", "false"), "true")
POSITIVE = Rule(is_positive, "a finite number > 0", "0.1")
FACTOR = Rule(is_number, "a finite number", "1.0")
BUDGET = Rule(is_count, "an integer ≥ 1", "${data.max_response_length}", nullable=True)

Value = TypeVar("Value")
RULE, DESCRIPTION = "rule", "description"
"""Keys in the metadata of a field."""


def key(default: Value, rule: Rule, description: str) -> Value:
    """Return a dataclass field with a default, a rule and one line for ``docs/settings.md``."""
    made: Any = field(default=default, metadata={RULE: rule, DESCRIPTION: description})
    return cast(Value, made)


@dataclass(frozen=True)
class RewardModelOptions:
    """The section ``algorithm.grpo_ext.reward_model``, read by the reward manager ``rule_and_model``."""

    path: str | None = key(
        None,
        Rule(lambda value: isinstance(value, str), "a folder, or a name on a hub", "<folder>", nullable=True),
        "sequence classifier with one output, loaded by verl's reward processes; null: verl's server, "
        "`reward.reward_model`",
    )
    weight: float = key(1.0, FACTOR, "factor of the model's score")
    rule_weight: float = key(1.0, FACTOR, "factor of the reward function's score")


@dataclass(frozen=True)
class Options:
    """The section ``algorithm.grpo_ext``; all keys have defaults."""

    scale_rewards: str | None = key(
        None,
        one_of("group", "batch", "none", nullable=True),
        "std that divides centred rewards; null: `none` for estimators that only centre, as `dr_grpo` and "
        "`gvpo` do, else `group`",
    )
    mask_truncated_completions: bool = key(
        False,
        ON_OR_OFF,
        "advantage 0 for responses that used up `max_response_length`",
    )
    max_response_length: int | None = key(
        None, BUDGET, "the response budget in tokens; needed with `mask_truncated_completions`"
    )
    step_rewards: bool = key(False, ON_OR_OFF, "step rewards from the embedded task's reward function")
    gvpo_anchor: str = key("old", one_of("old", "ref"), "π′ of GVPO: the rollout's policy, or the reference")
    ref_model_sync_steps: int | None = key(
        None,
        Rule(is_count, "an integer ≥ 1, or null for a reference that stays", "512", nullable=True),
        "training steps between refreshes of the reference",
    )
    ref_model_mixup_alpha: float = key(
        1.0,
        Rule(lambda value: is_positive(value) and value <= 1, "a number in (0, 1]", "1.0"),
        "α of π_ref ← α π_θ + (1 − α) π_ref; 1 copies the policy (arXiv 2402.03300); TRL: 0.6",
    )
    reward_model: RewardModelOptions | None = key(
        None,
        Rule(lambda value: isinstance(value, Mapping), "a section, or null", "null", nullable=True),
        "a reward model beside the reward function",
    )
    ref_kl_metrics: bool = key(
        True,
        ON_OR_OFF,
        "`actor/ref_kl_k1`, `…_k2`, `…_k3` where a reference is loaded, in the `grpo_ext_…` modes",
    )
    watch: bool = key(
        True,
        ON_OR_OFF,
        "end the training when a Ray actor or vLLM engine of it died; verl may wait forever",
    )
    own_queue: bool = key(
        False,
        ON_OR_OFF,
        "a TransferQueue of its own, where trainings share a Ray cluster; `ablate` sets it for its jobs",
    )
    silence: Any = key(
        (),
        Rule(lambda _: True, "names of checks", "[]", nullable=True),
        "checks to skip",
    )

    @classmethod
    def from_config(cls, algorithm: Mapping[str, Any] | None) -> "Options":
        """Read and check the section in verl's ``algorithm``; None gives all defaults.

        Raises:
            SettingError: an unknown key, or a value outside its rule.
        """
        options: Options = _read(cls, written(algorithm), SECTION)
        if options.reward_model is None:
            return options
        nested = _read(RewardModelOptions, options.reward_model, f"{SECTION}.reward_model")
        return replace(options, reward_model=nested)

    @classmethod
    def for_estimator(cls, algorithm: Mapping[str, Any] | None, estimator: str | None = None) -> "Options":
        """Read the section for an estimator of this package and resolve a null ``scale_rewards``.

        Args:
            algorithm: verl's ``algorithm`` section.
            estimator: its name; None means ``algorithm.adv_estimator``.

        Raises:
            SettingError: an unknown key, a value outside its rule, or two keys that contradict each other.
        """
        section = algorithm or {}
        name = estimator or section.get("adv_estimator")
        options = cls.from_config(algorithm)
        if options.scale_rewards is None:
            options = replace(options, scale_rewards="none" if name in OUTCOME_BASELINES else "group")
        _check_budget(options)
        _check_estimator(options, name, section.get("norm_adv_by_std_in_grpo", True))
        return options

    @property
    def budget_of_truncated(self) -> int | None:
        """The budget in tokens whose truncated responses get advantage 0; None without such masking."""
        return self.max_response_length if self.mask_truncated_completions else None


def written(algorithm: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the section ``grpo_ext`` of verl's ``algorithm`` unchecked; empty if there is none.

    Raises:
        SettingError: it or ``algorithm`` is not a section.
    """
    if algorithm is None:
        return {}
    if not isinstance(algorithm, Mapping):
        raise SettingError(
            "algorithm", algorithm, valid="a section", fix=f"algorithm.adv_estimator={algorithm}"
        )
    section = algorithm.get("grpo_ext")
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise SettingError(SECTION, section, valid="a section, or null", fix=f"{SECTION}=null")
    return section


def _read(cls: type[Value], section: Any, prefix: str) -> Value:
    rules: dict[str, Rule] = {each.name: each.metadata[RULE] for each in fields(cast(Any, cls))}
    for name, value in section.items():
        full = f"{prefix}.{name}"
        if name not in rules:
            raise _unknown(full, value, [*rules])
        rules[name].check(full, value)
    return cls(**section)


def _unknown(key: str, value: object, valid: list[str]) -> SettingError:
    if key in RENAMED:
        new = RENAMED[key]
        return SettingError(
            key, value, seen=f"{key}={value!r} has another name now", valid=new, fix=f"~{key} ++{new}={value}"
        )
    return SettingError(
        key, value, seen=f"{key}={value!r} is not an option", valid=valid, fix=f"~{key} to remove it"
    )


def _check_budget(options: Options) -> None:
    if options.mask_truncated_completions and options.max_response_length is None:
        key = f"{SECTION}.max_response_length"
        raise SettingError(
            key,
            None,
            why=f"{SECTION}.mask_truncated_completions needs the response budget",
            valid="an integer ≥ 1",
            fix=f"'+{key}=${{data.max_response_length}}'",
        )


def _check_estimator(options: Options, estimator: str | None, norm_adv_by_std_in_grpo: bool) -> None:
    if estimator in OUTCOME_BASELINES and options.scale_rewards != "none":
        key = f"{SECTION}.scale_rewards"
        raise SettingError(
            key,
            options.scale_rewards,
            why=f"algorithm.adv_estimator={estimator} divides by no standard deviation",
            valid="none",
            fix=f"{key}=none, or for the scaled estimator: algorithm.adv_estimator=grpo_outcome",
        )
    if estimator == "gvpo" and options.mask_truncated_completions:
        key = f"{SECTION}.mask_truncated_completions"
        raise SettingError(
            key,
            True,
            why="with algorithm.adv_estimator=gvpo a response that left the loss would unbalance its group, "
            "whose weights must sum to zero",
            valid="false",
            fix=f"{key}=false, and shape the reward instead: reward.reward_manager.name=dapo",
        )
    # verl's default is true, so only false is a choice of the user.
    if not norm_adv_by_std_in_grpo and options.scale_rewards != "none":
        key = "algorithm.norm_adv_by_std_in_grpo"
        raise SettingError(
            key,
            False,
            why=f"{estimator} divides by the standard deviation of the {options.scale_rewards} "
            f"({SECTION}.scale_rewards)",
            valid="true",
            fix=f"+{SECTION}.scale_rewards=none, or {key}=true",
        )

"""The keys that this package adds to verl's configuration: default, valid values, check and description.

`Options` is the section ``algorithm.grpo_ext``; `loss_config.LossConfig` adds two keys to verl's
``actor.policy_loss``. A new key is one more field, made by `key`. ``docs/settings.md`` is written from the
fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, cast

from grpo_verl_ext.catalogue import ESTIMATORS
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import SECTION
from grpo_verl_ext.utils.rules import (
    ON_OR_OFF,
    RULE,
    SECTION_OR_NULL,
    Rule,
    Value,
    is_count,
    is_number,
    is_positive,
    key,
    one_of,
)
from grpo_verl_ext.verl_plugin.reward_options import (
    ClassifierOptions,
    RewardModelOptions,
    StepRewardModelOptions,
    are_named_sections,
)

# Sections and values of verl's configuration that messages name.

GOLD_RESPONSES = f"{SECTION}.gold_responses"
"""The section of `GoldResponseOptions`."""
SEED_REQUESTS = f"{SECTION}.seed_requests"

TRAINER_MODES = ("grpo_ext_sync", "grpo_ext_colocate_async", "grpo_ext_separate_async")
"""Values of ``trainer.v1.trainer_mode``: verl's modes, which also keep a prompt's responses in one optimizer
step, pass step rewards to the estimator and refresh the reference."""

AGENT_LOOPS = {"single_turn_agent": "grpo_ext_single_turn_agent", "tool_agent": "grpo_ext_tool_agent"}
"""verl's agent loops → this package's, which keep step rewards and can give each request a seed."""

STORED_AGENT_LOOP = "grpo_ext_stored_single_turn_agent"
"""Agent loop that a trainer with stored responses asks for in the place of the single-turn one."""
SINGLE_TURN_LOOPS = ("single_turn_agent", AGENT_LOOPS["single_turn_agent"], STORED_AGENT_LOOP)
"""Agent loops that `STORED_AGENT_LOOP` can stand in for."""

REWARD_MANAGER = "rule_and_model"
"""Value of ``reward.reward_manager.name``: weighted sum of a reward function and a reward model."""

DRIFT_ENGINES = ("fsdp", "fsdp2")
"""Values of ``actor.strategy`` with which GVPO's later updates on a rollout were tested."""
REFRESH_ENGINES = ("fsdp", "fsdp2")
"""Values of ``actor.strategy`` with which the reference refresh was tested."""
SEEDED_ROLLOUTS = ("vllm",)
"""Values of ``rollout.name`` whose requests take a seed: SGLang's do not, TensorRT-LLM's were not tested."""

BUDGET = Rule(is_count, "an integer ≥ 1", "${data.max_response_length}", nullable=True)


def _are_names(value: object) -> bool:
    names = [value] if isinstance(value, str) else value
    return (
        isinstance(names, Sequence) and bool(names) and all(name and isinstance(name, str) for name in names)
    )


@dataclass(frozen=True)
class GoldResponseOptions:
    """The section `GOLD_RESPONSES`, read by the trainer modes of this package."""

    files: str | Sequence[str] | None = key(
        None,
        Rule(_are_names, "a data file, or a list of them", "${data.val_files}", nullable=True),
        "prompts with wanted responses: `'${data.val_files}'`",
    )
    response_key: str = key(
        "extra_info.response",
        Rule(lambda value: isinstance(value, str) and bool(value), "a dotted key", "extra_info.response"),
        "the wanted response in a row",
    )
    samples: int | None = key(
        256,
        Rule(is_count, "an integer ≥ 1, or null for all", "256", nullable=True),
        "first rows of the files",
    )
    freq: int = key(1, Rule(is_count, "an integer ≥ 1", "1"), "training steps between measurements")

    @property
    def names(self) -> list[str]:
        """The files as a list."""
        return [self.files] if isinstance(self.files, str) else [*(self.files or ())]


@dataclass(frozen=True)
class StoredResponsesOptions:
    """The section ``algorithm.grpo_ext.stored_responses``, read by this package's trainer modes."""

    share: float = key(
        0.0,
        Rule(lambda value: is_number(value) and 0 <= value <= 1, "a number in [0, 1]", "0.5"),
        "share of a prompt's samples, the first ones; times `rollout.n` a whole number",
    )
    source: str = key(
        "data",
        one_of("data", "history"),
        "`extra_info`, or earlier samples of this training, under `grpo_ext_sync` alone",
    )
    max_age: int | None = key(
        None,
        Rule(is_count, "an integer ≥ 1, or null", "100", nullable=True),
        "of the history, in training steps",
    )
    old_log_probs: str = key(
        "actor",
        one_of("actor", "recorded"),
        "their π_old: the policy before the update, or the recorded one that wrote them",
    )
    key: str = key(  # last: in the lines below it, the name would be this field
        "responses",
        Rule(lambda value: isinstance(value, str) and value != "", "a name in extra_info", "responses"),
        "list in `extra_info`: texts, token ids, or `{token_ids, log_probs}`",
    )


@dataclass(frozen=True)
class Options:
    """The section ``algorithm.grpo_ext``; all keys have defaults."""

    preset: str | None = key(
        None,
        Rule(lambda value: isinstance(value, str) and bool(value), "a preset's name", "null", nullable=True),
        "the preset that `+algo=` names; values that replace its own are reported",
    )
    scale_rewards: str | None = key(
        None,
        one_of("group", "batch", "none", nullable=True),
        "std that divides centred rewards; null: `none` for estimators that only centre, else `group`",
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
        Rule(is_count, "an integer ≥ 1, or null", "512", nullable=True),
        "training steps between refreshes of the reference",
    )
    ref_model_mixup_alpha: float = key(
        1.0,
        Rule(lambda value: is_positive(value) and value <= 1, "a number in (0, 1]", "1.0"),
        "α of π_ref ← α π_θ + (1 − α) π_ref; 1 copies the policy (arXiv 2402.03300); TRL: 0.6",
    )
    reward_model: RewardModelOptions | None = key(
        None,
        SECTION_OR_NULL,
        "a reward model beside the reward function",
    )
    reward_models: Mapping[str, ClassifierOptions] | None = key(
        None,
        Rule(
            are_named_sections,
            "a section for each name, which is an identifier",
            "{helpful: {path: <folder>, weight: 0.5}}",
            nullable=True,
        ),
        "more reward models, by names for the metrics",
    )
    step_reward_model: StepRewardModelOptions | None = key(
        None,
        SECTION_OR_NULL,
        "a process reward model beside the reward function's step rewards",
    )
    gold_responses: GoldResponseOptions | None = key(
        None,
        SECTION_OR_NULL,
        "probability of wanted responses after the updates: `gold_response/…`, in the `grpo_ext_…` modes",
    )
    seed_requests: int | None = key(
        None,
        Rule(
            lambda value: isinstance(value, int) and not isinstance(value, bool),
            "an integer",
            "1",
            nullable=True,
        ),
        "a seed for each vLLM request: trainings share their randomness; with this package's agent loops",
    )
    stored_responses: StoredResponsesOptions | None = key(
        None,
        SECTION_OR_NULL,
        "responses to train on beside sampled ones",
    )
    ref_kl_metrics: bool = key(
        True,
        ON_OR_OFF,
        "`actor/ref_kl_k1`, `…_k2`, `…_k3` where a reference is loaded",
    )
    watch: bool = key(
        True,
        ON_OR_OFF,
        "end the training when a Ray actor or vLLM engine died, or a reward server; verl may wait or go on",
    )
    own_queue: bool = key(
        False,
        ON_OR_OFF,
        "a TransferQueue of its own, where trainings share a Ray cluster; `ablate` sets it",
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
        sections: dict[str, Any] = {
            name: _read(section, getattr(options, name), f"{SECTION}.{name}")
            for name, section in NESTED.items()
            if getattr(options, name) is not None
        }
        sections |= {
            name: _read_named(section, getattr(options, name), f"{SECTION}.{name}")
            for name, section in NESTED_BY_NAME.items()
            if getattr(options, name) is not None
        }
        options = replace(options, **sections)
        for name, model in (options.reward_models or {}).items():
            if model.path is None:
                raise _without_path(f"{SECTION}.reward_models.{name}.path")
        if options.gold_responses is not None and options.gold_responses.files is None:
            raise _without_files()
        return options

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
            options = replace(options, scale_rewards="none" if _only_centres(name) else "group")
        _check_budget(options)
        _check_estimator(options, name, section.get("norm_adv_by_std_in_grpo", True))
        return options

    @property
    def budget_of_truncated(self) -> int | None:
        """The budget in tokens whose truncated responses get advantage 0; None without such masking."""
        return self.max_response_length if self.mask_truncated_completions else None


def asks_reward_model(options: Options, *, server: bool) -> bool:
    """Whether the reward manager `REWARD_MANAGER` asks the model of the section ``reward_model``.

    Without a path there and without verl's server the section only weighs the reward function beside
    ``reward_models``.

    Args:
        server: ``reward.reward_model.enable``.
    """
    section = options.reward_model
    if server or (section is not None and section.path is not None):
        return True
    return not options.reward_models and (section is not None or options.step_reward_model is None)


NESTED: Mapping[str, type[Any]] = {
    "reward_model": RewardModelOptions,
    "step_reward_model": StepRewardModelOptions,
    "gold_responses": GoldResponseOptions,
    "stored_responses": StoredResponsesOptions,
}
"""Sections inside the section → what reads them."""
NESTED_BY_NAME: Mapping[str, type[Any]] = {"reward_models": ClassifierOptions}
"""Mappings of names to sections inside the section → what reads such a section."""


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


def _read_named(cls: type[Value], sections: Mapping[str, Any], prefix: str) -> Mapping[str, Value]:
    return {name: _read(cls, section, f"{prefix}.{name}") for name, section in sections.items()}


def _unknown(key: str, value: object, valid: list[str]) -> SettingError:
    section, _, name = key.rpartition(".")
    near = get_close_matches(name, valid, n=1)
    fix = f"~{key} ++{section}.{near[0]}={value}" if near else f"~{key} to remove it"
    return SettingError(key, value, seen=f"{key}={value!r} is not an option", valid=valid, fix=fix)


def _without_path(key: str) -> SettingError:
    return SettingError(key, None, valid="a folder, or a name on a hub", fix=f"+{key}=<folder>")


def _without_files() -> SettingError:
    key = f"{GOLD_RESPONSES}.files"
    return SettingError(
        key,
        None,
        why=f"{GOLD_RESPONSES} needs the responses to measure",
        valid="a data file, or a list of them",
        fix=f"'+{key}=${{data.val_files}}'",
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


def _only_centres(estimator: str | None) -> bool:
    """Whether an estimator has a baseline of its own, which divides by no standard deviation."""
    record = ESTIMATORS.get(str(estimator))
    return record is not None and record.baseline is not None


def _check_estimator(options: Options, estimator: str | None, norm_adv_by_std_in_grpo: bool) -> None:
    if _only_centres(estimator) and options.scale_rewards != "none":
        key = f"{SECTION}.scale_rewards"
        raise SettingError(
            key,
            options.scale_rewards,
            why=f"algorithm.adv_estimator={estimator} divides by no standard deviation",
            valid="none",
            fix=f"{key}=none, or for the scaled estimator: algorithm.adv_estimator=grpo_outcome",
        )
    record = ESTIMATORS.get(str(estimator))
    if record is not None and record.sums_to_zero and options.mask_truncated_completions:
        key = f"{SECTION}.mask_truncated_completions"
        raise SettingError(
            key,
            True,
            why=f"with algorithm.adv_estimator={estimator} a response that left the loss would unbalance its "
            "group, whose weights must sum to zero",
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

"""The keys that this package adds to verl's configuration: default, valid values, check and description.

`Options` is the section ``algorithm.grpo_ext``; `loss_config.LossConfig` adds two keys to verl's
``actor.policy_loss``. A new key is one more field, made by `option`. ``docs/settings.md`` is written from the
fields.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from grpo_verl_ext.catalogue import ESTIMATORS
from grpo_verl_ext.catalogue.gvpo import ANCHORS
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import SECTION, written
from grpo_verl_ext.utils.options import Count, Number, Section, Text, option
from grpo_verl_ext.verl_plugin.features import foreign_features

AGENT_LOOPS = {"single_turn_agent": "grpo_ext_single_turn_agent", "tool_agent": "grpo_ext_tool_agent"}
"""verl's agent loops → this package's, which keep step rewards and can give each request a seed."""

STORED_AGENT_LOOP = "grpo_ext_stored_single_turn_agent"
"""Agent loop that a trainer with stored responses asks for in the place of the single-turn one."""


class RewardModelOptions(Section):
    """The section ``reward_model``: a classifier of transformers beside the reward function."""

    path: Text | None = option(
        None,
        "needed: a classifier with one output, or with `grpo_process` a token classifier with two (wrong, "
        "right); verl's reward processes load it on CPU",
        "a folder, or a name on a hub",
        "<folder>",
    )
    weight: Number = option(1.0, "factor of the model's score, or of its P(right)", "a finite number", "1.0")
    rule_weight: Number = option(
        1.0,
        "factor of the reward function's score, or of its `step_rewards`; 0: it is not called, or only for "
        "`step_ends`",
        "a finite number",
        "1.0",
    )
    chat_template: bool = option(
        False, "the model reads the chat in its own template; false: text without special tokens"
    )
    dtype: Literal["float32", "auto"] = option("float32", "precision of the model; auto: its files'")


class _GoldResponseOptions(Section):
    """The section ``algorithm.grpo_ext.gold_responses``: responses in data files, measured after a step."""

    files: Text | Annotated[Sequence[Text], Field(min_length=1)] | None = option(
        None, "prompts with the responses", "a data file, or a list of them", "${data.val_files}"
    )
    samples: Count | None = option(256, "first rows of the files", "an integer ≥ 1, or null for all", "256")
    freq: Count = option(1, "training steps between measurements", "an integer ≥ 1", "1")
    response_key: Text = option(
        "extra_info.response", "the wanted response in a row", "a dotted key", "extra_info.response"
    )


class _StoredResponsesOptions(Section):
    """The section ``algorithm.grpo_ext.stored_responses``, read by this package's trainer modes."""

    share: Annotated[Number, Field(ge=0, le=1)] = option(
        0.0,
        "share of a prompt's samples, the first ones; times `rollout.n` a whole number",
        "a number in [0, 1]",
        "0.5",
    )
    source: Literal["data", "history"] = option(
        "data", "`extra_info`, or earlier samples of this training, under `grpo_ext_sync` alone"
    )
    max_age: Count | None = option(
        None, "of the history, in training steps", "an integer ≥ 1, or null", "100"
    )
    key: Text = option(
        "responses",
        "list in `extra_info`: texts, token ids, or `{token_ids, log_probs}`",
        "a name in extra_info",
        "responses",
    )


_ANCHORS = tuple(ANCHORS)


class Options(Section):
    """The section ``algorithm.grpo_ext``; all keys have defaults."""

    preset: Text | None = option(
        None,
        "the preset that the command line names; values that replace its own are reported",
        "a preset's name",
        "null",
    )
    scale_rewards: Literal["group", "batch", "none"] | None = option(
        None, "std that divides centred rewards; null: `none` for estimators that only centre, else `group`"
    )
    mask_truncated_completions: bool = option(
        False, "advantage 0 for responses that used up `max_response_length`; not with `gvpo` and `kimi`"
    )
    max_response_length: Count | None = option(
        None,
        "the response budget in tokens; needed with `mask_truncated_completions`",
        "an integer ≥ 1",
        "${data.max_response_length}",
    )
    step_rewards: bool = option(False, "step rewards from the embedded task's reward function")
    gvpo_anchor: Literal[_ANCHORS] = option(  # type: ignore[valid-type]
        "old", "π′ of GVPO: the rollout's policy, or the reference"
    )
    ref_model_sync_steps: Count | None = option(
        None, "training steps between refreshes of the reference", "an integer ≥ 1, or null", "512"
    )
    ref_model_mixup_alpha: Annotated[Number, Field(gt=0, le=1)] = option(
        1.0,
        "α of π_ref ← α π_θ + (1 − α) π_ref; 1 copies the policy (arXiv 2402.03300); TRL: 0.6",
        "a number in (0, 1]",
        "1.0",
    )
    reward_model: RewardModelOptions | None = option(
        None, "a reward model beside the reward function, of responses or steps"
    )
    gold_responses: _GoldResponseOptions | None = option(
        None,
        "probability of wanted responses after the updates: `gold_response/…`, in the `grpo_ext_…` modes",
    )
    seed_requests: int | None = option(
        None,
        "a seed for each vLLM request: trainings share their randomness; with this package's agent loops",
        "an integer",
        "1",
    )
    stored_responses: _StoredResponsesOptions | None = option(
        None, "responses to train on beside sampled ones"
    )
    shared_prompts: bool = option(
        False,
        "a prompt is computed once for its responses, and logits for response tokens alone, in all passes of "
        "actor and reference; the same log-probs and gradient but for rounding",
    )
    old_log_probs_from_update: bool = option(
        False,
        "the first update takes old log-probs from its own pass, whose policy is the same: no pass computes "
        "them before it, and with one update on a rollout none at all",
    )
    ref_kl_metrics: bool = option(True, "`actor/ref_kl_k1`, `…_k2`, `…_k3` where a reference is loaded")
    watch: bool = option(
        True,
        "end the training when an actor of Ray, an engine of vLLM or a reward function fails; verl may wait",
    )
    lost_responses: Annotated[Number, Field(ge=0, le=1)] | None = option(
        None,
        "share of a step's responses that may be lost, in the `grpo_ext_…` modes; null: none to an error of "
        "the reward function, except its server's",
        "a number in [0, 1], or null",
        "0.1",
    )
    own_queue: bool = option(
        False, "a TransferQueue of its own, where trainings share a Ray cluster; `ablate` sets it"
    )
    silence: Any = option((), "checks to skip", "names of checks", "[]")

    @classmethod
    def from_config(cls, algorithm: Mapping[str, Any] | None) -> "Options":
        """Read and check the section in verl's ``algorithm``; None gives all defaults."""
        options = options_model().read(written(algorithm), SECTION)
        if options.gold_responses is not None and options.gold_responses.files is None:
            key = f"{SECTION}.gold_responses.files"
            why = f"{SECTION}.gold_responses needs the responses to measure"
            fix, valid = Line(f"+{key}=${{data.val_files}}"), "a data file, or a list of them"
            raise SettingError(key, None, why=why, valid=valid, fix=fix)
        return options

    @classmethod
    def for_estimator(cls, algorithm: Mapping[str, Any] | None, estimator: str | None = None) -> "Options":
        """Read the section for an estimator, by default ``adv_estimator``, with its ``scale_rewards``."""
        section = algorithm or {}
        name, options = estimator or section.get("adv_estimator"), cls.from_config(algorithm)
        record, scale = ESTIMATORS.get(str(name)), options.scale_rewards
        if scale is None:
            scale = "none" if record is not None and record.baseline is not None else "group"
            options = options.model_copy(update={"scale_rewards": scale})
        if options.mask_truncated_completions and options.max_response_length is None:
            key = f"{SECTION}.max_response_length"
            why = f"{SECTION}.mask_truncated_completions needs the response budget"
            fix = Line(f"+{key}=${{data.max_response_length}}")
            raise SettingError(key, None, why=why, valid="an integer ≥ 1", fix=fix)
        said = f"algorithm.adv_estimator={name}"
        if record is not None and record.baseline is not None and scale != "none":
            key, why = f"{SECTION}.scale_rewards", f"{said} divides by no standard deviation"
            scaled = ", or for the scaled estimator: algorithm.adv_estimator=grpo_outcome"
            raise SettingError(key, scale, why=why, valid="none", fix=Line(f"{key}=none", more=scaled))
        if record is not None and record.sums_to_zero and options.mask_truncated_completions:
            key = f"{SECTION}.mask_truncated_completions"
            why = f"with {said} a response that left the loss would unbalance its group, whose weights "
            why += "must sum to zero"
            shaped = ", and shape the reward instead: reward.reward_manager.name=dapo"
            raise SettingError(key, True, why=why, valid="false", fix=Line(f"{key}=false", more=shaped))
        # verl's default is true, so only false is a choice of the user.
        if not section.get("norm_adv_by_std_in_grpo", True) and scale != "none":
            key = "algorithm.norm_adv_by_std_in_grpo"
            why = f"{name} divides by the standard deviation of the {scale} ({SECTION}.scale_rewards)"
            always_divides = record is not None and record.several_rewards
            centred = "" if always_divides else f", or +{SECTION}.scale_rewards=none"
            raise SettingError(key, False, why=why, valid="true", fix=Line(f"{key}=true", more=centred))
        return options

    @property
    def anchor_field(self) -> str:
        """The field of verl's batch with the log-probs of GVPO's anchor."""
        of_features = {name: field for each in foreign_features() for name, field in each.anchors.items()}
        return (ANCHORS | of_features)[self.gvpo_anchor]


@cache
def options_model() -> type[Options]:
    """Return `Options` with the sections and anchors of other packages' features."""
    features = foreign_features()
    if not features:
        return Options
    sections: dict[str, Any] = {
        each.name: (each.options | None, option(None, str(each.options.__doc__)))
        for each in features
        if each.options is not None
    }
    anchors: Any = Literal[(_ANCHORS + tuple(name for each in features for name in each.anchors))]
    anchor = (anchors, Options.model_fields["gvpo_anchor"])
    return create_model("Options", __base__=Options, gvpo_anchor=anchor, **sections)

"""The table of support: a cell for every feature and context, a refusal of the package or a test.

The package has the refusals; here is which test shows that a feature is exact where none refuses it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grpo_verl_ext.preflight.support import REFUSALS, REFUSED
from grpo_verl_ext.preflight.training import CONTEXTS, KNOWN_TRAINER_MODES, MODE
from grpo_verl_ext.verl_plugin.config import REWARD_MANAGER
from grpo_verl_ext.verl_plugin.features import Refusal


@dataclass(frozen=True)
class Exact:
    """The feature does exactly what its paper or documentation says."""

    test: str
    """``file::function`` of the test that shows it."""


Cell = Exact | Refusal
Row = dict[str, Cell]
"""Name in `FEATURES` → cell."""

# SAME_CALLS: verl's sources pass a loss or an estimator the same arguments.
SAME_CALLS = "tests/contract/test_hooks.py::test_verl_calls_what_we_count_on"
ANY_SPLIT = "tests/proof/test_invariance.py::test_every_loss_is_invariant"
COUNTS_ARE_ASKED_FOR = "tests/plugin/losses/test_losses.py::test_a_missing_count_is_refused"
ONE_UPDATE = "tests/plugin/losses/test_losses.py::test_gvpo_equals_the_paper_at_the_first_update"
FOUR_UPDATES = "tests/plugin/gvpo/test_gvpo_drift.py::test_gradients_and_parameters_of_four_updates"
ANCHORED = "tests/preflight/test_support.py::test_the_reference_is_brought_to_the_targets"
STATISTIC = "tests/plugin/mini_batch/test_statistic.py::test_gradients_and_parameters_of_four_updates"
STATISTIC_FSDP1 = "tests/plugin/mini_batch/test_statistic.py::test_losses_of_four_updates_under_fsdp1"
FSDP1 = "tests/plugin/gvpo/test_gvpo_drift_fsdp1.py::test_losses_of_four_updates_under_fsdp1"
PROCESS = "tests/plugin/steps/test_step_rewards.py::test_equals_the_oracle"
SEVERAL = "tests/plugin/several_rewards/test_several_rewards.py::test_equals_the_oracle"
REFRESH = "tests/plugin/reference/test_reference.py::test_mixing_and_resuming_what_verls_engine_sharded"
STORED = "tests/plugin/stored/test_stored_responses.py::test_gvpo_converges_to_its_optimum_and_grpo_does_not"
RECORDED = "tests/plugin/stored/test_stored_responses.py::test_the_old_policy_of_stored_responses_is_chosen"
KEPT = "tests/plugin/stored/test_stored_responses.py::test_a_prompt_meets_its_earlier_samples"
MASKED = "tests/plugin/test_estimators.py::test_mask_truncated"
SAME_METHODS = "tests/preflight/test_support.py::test_our_modes_share_what_makes_them_exact"
WEIGHTS = "tests/plugin/losses/test_losses.py::test_rollout_weights_multiply_token_losses"
WEIGHTS_UNREAD = "tests/preflight/test_support.py::test_gvpo_is_the_same_with_importance_weights"
REJECTED_RESPONSES = "tests/preflight/test_support.py::test_gvpo_leaves_rejected_responses_out_of_their_group"
REJECTED_TOKENS = "tests/preflight/test_support.py::test_steps_count_for_the_tokens_that_are_left"
MEASURED = "tests/plugin/measure/test_gold_responses.py::test_probabilities_of_what_verls_worker_computes"
FITTED = "tests/plugin/measure/test_rewarded_responses.py::test_slope_and_r2_of_both_models"
SEEDED = "tests/plugin/measure/test_request_seeds.py::test_each_request_has_a_seed_of_its_own"
TEACHER = "tests/plugin/teacher/test_teacher_exact.py::test_four_updates_around_a_teacher"
DISTILLED = "tests/preflight/test_support.py::test_distillation_is_added_to_the_loss"

EVERYWHERE: Mapping[str, str] = {
    "token_loss": ANY_SPLIT,
    "statistic_one": ANY_SPLIT,
    "statistic_several": STATISTIC,
    "gvpo_one": ONE_UPDATE,
    "gvpo_several": FOUR_UPDATES,
    "anchor_old": FOUR_UPDATES,
    "anchor_ref": ANCHORED,
    "dynamic_sampling": SAME_CALLS,
    "mask_truncated_completions": MASKED,
    "refresh": REFRESH,
    "gold_responses": MEASURED,
    "rewarded_responses": FITTED,
    "seed_requests": SEEDED,
    "stored_responses": STORED,
    "recorded": RECORDED,
    "history": KEPT,
    "process": PROCESS,
    "several_rewards": SEVERAL,
    "anchor_teacher": TEACHER,
}
"""Tests of features that a context does not affect."""


def _all(features: Iterable[str], test: str) -> dict[str, str]:
    return dict.fromkeys(features, test)


GVPO = ("gvpo_one", "gvpo_several")
MEASURED_ROWS = ("statistic_one", "statistic_several")
OURS = (
    *(*GVPO, *MEASURED_ROWS, "anchor_ref", "anchor_teacher", "process", "several_rewards", "refresh"),
    *("gold_responses", "rewarded_responses", "stored_responses", "recorded"),
)
"""Features that need a trainer mode of this package."""
OTHER_DRIVER = {"token_loss": SAME_CALLS}
OTHER_ENGINE = _all(("token_loss", "statistic_one", "gvpo_one"), SAME_CALLS)

CHANGES: Mapping[str, Mapping[str, str]] = {
    "grpo_ext_colocate_async": _all(OURS, SAME_METHODS),
    "grpo_ext_separate_async": _all(OURS, SAME_METHODS),
    "v0": OTHER_DRIVER,
    "one_step_off": OTHER_DRIVER,
    "fully_async": OTHER_DRIVER,
    "fsdp": {"token_loss": SAME_CALLS, **_all(GVPO, FSDP1), **_all(MEASURED_ROWS, STATISTIC_FSDP1)},
    "fsdp2": {"gvpo_one": FOUR_UPDATES},
    "megatron": OTHER_ENGINE,
    "megatron_stages": OTHER_ENGINE,
    "veomni": OTHER_ENGINE,
    "torchtitan": OTHER_ENGINE,
    "other_engine": _all(("token_loss", "statistic_one", "gvpo_one"), COUNTS_ARE_ASKED_FOR),
    "weights": {**_all(("token_loss", *MEASURED_ROWS), WEIGHTS), **_all(GVPO, WEIGHTS_UNREAD)},
    "token_rejection": {"process": REJECTED_TOKENS},
    "sequence_rejection": _all((*GVPO, "anchor_ref", "anchor_teacher"), REJECTED_RESPONSES),
    "bypass": {**_all(GVPO, FOUR_UPDATES), **_all(MEASURED_ROWS, STATISTIC)},
    "distillation": _all(("token_loss", *MEASURED_ROWS, *GVPO), DISTILLED),
    "distillation_top_k": {"token_loss": DISTILLED},
}
"""Context → feature → test, where it is another than `EVERYWHERE`."""


def _row(context: str) -> Row:
    tests = {**EVERYWHERE, **CHANGES.get(context, {})}
    return {name: REFUSED.get((name, context)) or Exact(test) for name, test in tests.items()}


TABLE: Mapping[str, Row] = {context: _row(context) for context in CONTEXTS}
"""Context → feature → cell."""
PAIRS: Mapping[tuple[str, str], Row] = {
    place: {feature: refusal for (feature, other), refusal in REFUSED.items() if other == place}
    for refusal in REFUSALS
    for place in refusal.places
    if isinstance(place, tuple)
}
"""Two contexts → cells that neither has alone."""

FEATURE_TITLES = {
    "token_loss": "Losses of tokens",
    "statistic_one": "Losses with a statistic, one update",
    "statistic_several": "The same, several updates",
    "gvpo_one": "GVPO, one update per rollout",
    "gvpo_several": "GVPO, several updates",
    "anchor_old": "`gvpo_anchor=old`",
    "anchor_ref": "`gvpo_anchor=ref`",
    "dynamic_sampling": "Dynamic sampling",
    "mask_truncated_completions": "`mask_truncated_completions`",
    "refresh": "Reference refresh",
    "gold_responses": "`gold_responses`",
    "rewarded_responses": "`rewarded_responses`",
    "seed_requests": "`seed_requests`",
    "stored_responses": "`stored_responses`",
    "recorded": "`stored_responses.old_log_probs=recorded`",
    "history": "`stored_responses.source=history`",
    "process": "Process supervision",
    "several_rewards": "GDPO, several rewards",
    "anchor_teacher": "`gvpo_anchor=teacher`",
}
ENGINES, TRAINERS, ROLLOUTS, REWARDS = "Engines", "Trainers", "Rollouts and other losses", "Rewards"
CONTEXT_TITLES: Mapping[str, Mapping[str, str]] = {
    TRAINERS: {
        **{mode: f"`{MODE}={mode}`" for mode in KNOWN_TRAINER_MODES},
        "v0": "`trainer.use_v1=false`",
        "one_step_off": "`verl.experimental.one_step_off_policy`",
        "fully_async": "`verl.experimental.fully_async_policy`",
    },
    ENGINES: {
        "fsdp": "FSDP1: `actor.strategy=fsdp`",
        "fsdp2": "FSDP2: `fsdp2`",
        "megatron": "`megatron`, one pipeline stage",
        "megatron_stages": "`megatron`, more",
        "veomni": "`veomni`",
        "torchtitan": "`torchtitan`",
        "other_engine": "any other",
    },
    ROLLOUTS: {
        "weights": "importance weights: `rollout_is`",
        "token_rejection": "token rejection: `rollout_rs=token_…`",
        "sequence_rejection": "sequence rejection: `rollout_rs=seq_…`",
        "bypass": "`bypass_mode`",
        "bypassed_weights": "`bypass_mode` and `rollout_is`",
        "bypassed_rejection": "`bypass_mode` and `rollout_rs`",
        "distillation": "distillation beside the task's reward",
        "distillation_top_k": "the same, `forward_kl_topk`",
        "distillation_only": "distillation only",
    },
    REWARDS: {
        "kl_in_reward": "KL in the reward: `use_kl_in_reward`",
        "overlong": "overlong punishment: `reward_manager.name=dapo`",
        "response_models": f"reward models of responses: `reward_manager.name={REWARD_MANAGER}`",
    },
}
"""Kind of context → its contexts → what the page calls them."""

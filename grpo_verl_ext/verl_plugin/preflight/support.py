"""Refuse features of this package under engines, trainers and rollouts of verl where they are not exact.

`TABLE` has a cell for every feature and context of `training`: `Exact` with the test that shows it, or
`Refused` with the line to type; `PAIRS` has what only two contexts together change. ``docs/support.md`` is
written from them. Where verl's driver does not run this check, `check_our_trainer`, `check_drift_engine` and
the loss gvpo refuse at their first call.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from omegaconf import DictConfig

from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import ACTOR, MODE, setting
from grpo_verl_ext.verl_plugin.config import (
    DRIFT_ENGINES,
    GOLD_RESPONSES,
    REFRESH_ENGINES,
    SEED_REQUESTS,
    TRAINER_MODES,
)
from grpo_verl_ext.verl_plugin.preflight.training import (
    CONTEXTS,
    CORRECTION,
    DISTILLATION,
    ENGINES,
    FEATURES,
    REWARDS,
    ROLLOUTS,
    STRATEGY,
    TRAINERS,
    contexts,
    features,
)


@dataclass(frozen=True)
class Exact:
    """The feature does exactly what its paper or documentation says."""

    test: str
    """``file::function`` of the test that shows it."""


@dataclass(frozen=True)
class Refused:
    """The feature would do something else, or could not be tested."""

    key: str
    reason: str
    valid: str | tuple[str, ...]
    fix: str
    seen: str = ""
    """Replaces "key is value" in the message where one value does not say it."""

    def error(self, value: object) -> SettingError:
        """Return the error for this value of the key."""
        return SettingError(self.key, value, why=self.reason, valid=self.valid, fix=self.fix, seen=self.seen)


Cell = Exact | Refused
Row = dict[str, Cell]
"""Name in `FEATURES` → cell."""


def check_support(config: DictConfig) -> None:
    """Refuse a training that uses a feature in a context where `TABLE` refuses it.

    Raises:
        SettingError: the first refused cell.
    """
    used = features(config)
    rows = rows_of(contexts(config)) if used else ()
    for row in rows:
        for feature in used:
            cell = row.get(feature)
            if isinstance(cell, Refused):
                raise cell.error(setting(config, cell.key))


def rows_of(met: Sequence[str]) -> list[Row]:
    """Return the rows of these contexts, then of their pairs."""
    return [
        *(TABLE[context] for context in met),
        *(PAIRS[pair] for pair in combinations(met, 2) if pair in PAIRS),
    ]


# Tests. SAME_CALLS: verl's sources pass a loss or an estimator the same arguments (tests/contract/seams.py).
SAME_CALLS = Exact("tests/contract/test_verl_contract.py::test_verl_is_as_we_rely_on_it")
ANY_SPLIT = Exact("tests/plugin/test_invariance.py::test_every_loss_is_invariant")
COUNTS_ARE_ASKED_FOR = Exact("tests/plugin/test_losses.py::test_a_missing_count_is_refused")
ONE_UPDATE = Exact("tests/plugin/test_losses.py::test_gvpo_equals_the_paper_at_the_first_update")
FOUR_UPDATES = Exact("tests/plugin/test_group_exactness.py::test_gradients_and_parameters_of_four_updates")
ANCHORED = Exact("tests/plugin/test_support.py::test_the_reference_is_brought_to_the_targets")
FSDP1 = Exact("tests/plugin/test_fsdp1_updates.py::test_losses_of_four_updates_under_fsdp1")
PROCESS = Exact("tests/plugin/test_step_rewards.py::test_equals_the_oracle")
REFRESH = Exact("tests/plugin/test_reference.py::test_mixing_and_resuming_what_verls_engine_sharded")
STORED = Exact("tests/plugin/test_stored_responses.py::test_gvpo_converges_to_its_optimum_and_grpo_does_not")
RECORDED = Exact("tests/plugin/test_stored_responses.py::test_the_old_policy_of_stored_responses_is_chosen")
KEPT = Exact("tests/plugin/test_stored_responses.py::test_a_prompt_meets_its_earlier_samples")
MASKED = Exact("tests/plugin/test_estimators.py::test_mask_truncated")
SAME_METHODS = Exact("tests/plugin/test_support.py::test_our_modes_share_what_makes_them_exact")
WEIGHTS = Exact("tests/plugin/test_losses.py::test_rollout_weights_multiply_token_losses")
WEIGHTS_UNREAD = Exact("tests/plugin/test_support.py::test_gvpo_is_the_same_with_importance_weights")
REJECTED_RESPONSES = Exact(
    "tests/plugin/test_support.py::test_gvpo_leaves_rejected_responses_out_of_their_group"
)
REJECTED_TOKENS = Exact("tests/plugin/test_support.py::test_steps_count_for_the_tokens_that_are_left")
MEASURED = Exact("tests/plugin/test_gold_responses.py::test_probabilities_of_what_verls_worker_computes")
SEEDED = Exact("tests/plugin/test_request_seeds.py::test_each_request_has_a_seed_of_its_own")
DISTILLED = Exact("tests/plugin/test_support.py::test_distillation_is_added_to_the_loss")

EVERYWHERE: Row = {
    "token_loss": ANY_SPLIT,
    "gvpo_one": ONE_UPDATE,
    "gvpo_several": FOUR_UPDATES,
    "anchor_old": FOUR_UPDATES,
    "anchor_ref": ANCHORED,
    "process": PROCESS,
    "refresh": REFRESH,
    "stored_responses": STORED,
    "recorded": RECORDED,
    "history": KEPT,
    "dynamic_sampling": SAME_CALLS,
    "mask_truncated_completions": MASKED,
    "gold_responses": MEASURED,
    "seed_requests": SEEDED,
}
"""Cells of features that a context does not affect."""


def _row(*changes: Mapping[str, Cell]) -> Row:
    row = dict(EVERYWHERE)
    for change in changes:
        row.update(change)
    return row


def _all(features_: Iterable[str], cell: Cell) -> Row:
    return dict.fromkeys(features_, cell)


GVPO = ("gvpo_one", "gvpo_several")
NO_GROUPS = (
    "the loss gvpo is not told there which responses belong to one prompt, nor how far the policy has moved "
    "since they were written"
)
NOTHING_STORED = "nothing takes the responses of algorithm.grpo_ext.stored_responses there"
NEEDS: Mapping[str, str] = {
    "gvpo_one": NO_GROUPS,
    "gvpo_several": NO_GROUPS,
    "anchor_ref": "algorithm.grpo_ext.gvpo_anchor=ref needs the reference's log-probs in the targets, "
    "where only a trainer mode of this package puts them",
    "process": "algorithm.adv_estimator=grpo_process is not shown the steps there",
    "refresh": "the reference that algorithm.grpo_ext.ref_model_sync_steps asks for is never refreshed there",
    "gold_responses": f"the responses of {GOLD_RESPONSES} are not measured there",
    "stored_responses": NOTHING_STORED,
    "recorded": NOTHING_STORED,
    "history": NOTHING_STORED,
}
"""Features that need a trainer mode of this package → why they are refused without one."""
NO_SAMPLING = (
    "only verl's v1 trainers read algorithm.filter_groups; elsewhere every prompt would be trained on"
)
NOT_NUMBERED = (
    f"{SEED_REQUESTS} needs a number for each response to a prompt, which that trainer does not give"
)
INTERRUPTED = f"with {SEED_REQUESTS} an interrupted response would draw the same random numbers again"


def _without_our_trainer(key: str, valid: str | tuple[str, ...], fix: str, seen: str = "") -> Row:
    return {name: Refused(key, reason, valid, fix, seen) for name, reason in NEEDS.items()}


def _verls_mode(ours: str) -> Row:
    return _row(_without_our_trainer(MODE, TRAINER_MODES, f"{MODE}={ours}"))


INTERRUPTING: Row = {
    "seed_requests": Refused(MODE, INTERRUPTED, ("sync", "grpo_ext_sync"), f"{MODE}=grpo_ext_sync")
}
"""Cells that trainers with a partial rollout change."""


def _other_driver(key: str, seen: str, fix: str) -> Row:
    valid = "verl.trainer.main_ppo with trainer.use_v1=true"
    without_sampling = Refused(key, NO_SAMPLING, valid, "algorithm.filter_groups.enable=false", seen)
    without_seeds = Refused(key, NOT_NUMBERED, valid, fix, seen)
    return _row(
        {"token_loss": SAME_CALLS, "dynamic_sampling": without_sampling, "seed_requests": without_seeds},
        _without_our_trainer(key, valid, fix, seen),
    )


STALE = Refused(
    MODE,
    "algorithm.grpo_ext.stored_responses.source is history, and there a response is trained on in a later "
    "step than the one that sampled it: its age would be too small, and its log-probs those of another "
    "policy",
    "grpo_ext_sync",
    f"{MODE}=grpo_ext_sync",
)
OURS_ASYNC = _row(_all(NEEDS, SAME_METHODS), {"history": STALE}, INTERRUPTING)

TRAINER_ROWS: Mapping[str, Row] = {
    "sync": _verls_mode("grpo_ext_sync"),
    "colocate_async": _verls_mode("grpo_ext_colocate_async") | INTERRUPTING,
    "separate_async": _verls_mode("grpo_ext_separate_async") | INTERRUPTING,
    "grpo_ext_sync": _row(),
    "grpo_ext_colocate_async": OURS_ASYNC,
    "grpo_ext_separate_async": OURS_ASYNC,
    "v0": _other_driver("trainer.use_v1", "", f"trainer.use_v1=true {MODE}=grpo_ext_sync"),
    "one_step_off": _other_driver(
        "rollout",
        "the driver is verl.experimental.one_step_off_policy",
        f"python3 -m verl.trainer.main_ppo … {MODE}=grpo_ext_separate_async",
    ),
    "fully_async": _other_driver(
        "async_training",
        "the driver is verl.experimental.fully_async_policy",
        f"python3 -m verl.trainer.main_ppo … {MODE}=grpo_ext_separate_async",
    ),
}

NO_DRIFT = Refused(
    STRATEGY,
    "GVPO's drift between the updates on one rollout is not measured there",
    (*DRIFT_ENGINES, "or one update per rollout without algorithm.rollout_correction.bypass_mode"),
    f"{STRATEGY}=fsdp2, or {ACTOR}.ppo_epochs=1 '{ACTOR}.ppo_mini_batch_size=${{data.train_batch_size}}'",
)
NO_REFRESH = Refused(
    STRATEGY,
    "the reference that algorithm.grpo_ext.ref_model_sync_steps asks for cannot follow the policy there",
    REFRESH_ENGINES,
    f"{STRATEGY}=fsdp2, or ~algorithm.grpo_ext.ref_model_sync_steps",
)


def _engine(name: str, loss: Exact) -> Row:
    """Return the row of an engine that passes a loss the mini-batch counts as FSDP's does."""
    return _row(
        _all(("token_loss", "gvpo_one"), loss),
        {} if name in DRIFT_ENGINES else {"gvpo_several": NO_DRIFT},
        {} if name in REFRESH_ENGINES else {"refresh": NO_REFRESH},
    )


ENGINE_ROWS: Mapping[str, Row] = {
    "fsdp": _engine("fsdp", SAME_CALLS) | _all(GVPO, FSDP1),
    "fsdp2": _engine("fsdp2", ANY_SPLIT) | {"gvpo_one": FOUR_UPDATES},
    "megatron": _engine("megatron", SAME_CALLS),
    "megatron_stages": _engine("megatron", SAME_CALLS),
    "veomni": _engine("veomni", SAME_CALLS),
    "torchtitan": _engine("torchtitan", SAME_CALLS),
    "other_engine": _engine("", COUNTS_ARE_ASKED_FOR),
}


def _bypassed(key: str, what: str) -> Row:
    return _row(
        _all(
            ("token_loss", *GVPO),
            Refused(
                key,
                f"with {CORRECTION}.bypass_mode=true {what} by verl's loss bypass_mode alone, not by yours",
                "null",
                f"{key}=null, or {CORRECTION}.bypass_mode=false",
            ),
        )
    )


TASK_REWARDS = Refused(
    f"{DISTILLATION}.use_task_rewards",
    "the distillation is then the whole loss; the algorithm does nothing",
    "true",
    f"{DISTILLATION}.use_task_rewards=true",
)
TOP_K = Refused(
    f"{DISTILLATION}.loss_mode",
    "verl then calls the loss for the logits, too, where GVPO has no groups",
    "an estimator of one token, k1 or k3",
    f"{DISTILLATION}.loss_mode=k3",
)
WHOLE_RESPONSES = Refused(
    f"{CORRECTION}.rollout_rs",
    "GVPO compares the log-ratios of whole responses, which rejected tokens would change",
    "criteria of sequences, or null",
    f"{CORRECTION}.rollout_rs=null",
)
LOST_LAST_TOKEN = Refused(
    f"{CORRECTION}.rollout_rs",
    "algorithm.grpo_ext.mask_truncated_completions knows a truncated response by its last token, which may "
    "be rejected",
    "criteria of sequences, or null",
    f"{CORRECTION}.rollout_rs=null, or algorithm.grpo_ext.mask_truncated_completions=false",
)

ROLLOUT_ROWS: Mapping[str, Row] = {
    "weights": _row({"token_loss": WEIGHTS}, _all(GVPO, WEIGHTS_UNREAD)),
    "token_rejection": _row(
        _all((*GVPO, "anchor_ref"), WHOLE_RESPONSES),
        {"process": REJECTED_TOKENS, "mask_truncated_completions": LOST_LAST_TOKEN},
    ),
    "sequence_rejection": _row(_all((*GVPO, "anchor_ref"), REJECTED_RESPONSES)),
    "bypass": _row(_all(GVPO, FOUR_UPDATES)),
    "bypassed_weights": _bypassed(f"{CORRECTION}.rollout_is", "importance weights are applied"),
    "bypassed_rejection": _bypassed(f"{CORRECTION}.rollout_rs", "rejection is done"),
    "distillation": _row(_all(("token_loss", *GVPO), DISTILLED)),
    "distillation_top_k": _row({"token_loss": DISTILLED}, _all(GVPO, TOP_K)),
    "distillation_only": _row(
        _all(EVERYWHERE, TASK_REWARDS),
        {"dynamic_sampling": SAME_CALLS, "gold_responses": MEASURED, "seed_requests": SEEDED},
    ),
}

STEPS_ALONE = "algorithm.adv_estimator=grpo_process learns from step rewards alone, and "
REWARD_ROWS: Mapping[str, Row] = {
    "kl_in_reward": _row(
        {
            "process": Refused(
                "algorithm.use_kl_in_reward",
                f"{STEPS_ALONE}this KL is subtracted from the reward of whole responses; the paper has it in "
                "the loss (arXiv 2402.03300, §4.1.1)",
                "false",
                f"algorithm.use_kl_in_reward=false {ACTOR}.use_kl_loss=true",
            ),
            "recorded": Refused(
                "algorithm.use_kl_in_reward",
                "algorithm.grpo_ext.stored_responses.old_log_probs is recorded, and verl then takes the KL "
                "of the policy that wrote a response",
                "false",
                f"algorithm.use_kl_in_reward=false {ACTOR}.use_kl_loss=true, or "
                "algorithm.grpo_ext.stored_responses.old_log_probs=actor",
            ),
        }
    ),
    "overlong": _row(
        {
            "process": Refused(
                "reward.reward_kwargs.overlong_buffer_cfg.enable",
                f"{STEPS_ALONE}verl's punishment of long responses is added to the reward of whole responses",
                "false, and steps of yours that punish",
                "reward.reward_kwargs.overlong_buffer_cfg.enable=false",
            )
        }
    ),
    "response_models": _row(
        {
            "process": Refused(
                "reward.reward_manager.name",
                f"{STEPS_ALONE}the models of algorithm.grpo_ext.reward_model and …reward_models, or of "
                "verl's server, score whole responses",
                "a weight of 0 for each of them, which only reports its score",
                "reward.reward_manager.name=naive, or ++algorithm.grpo_ext.reward_model.weight=0",
            )
        }
    ),
}

TABLE: Mapping[str, Row] = {**TRAINER_ROWS, **ENGINE_ROWS, **ROLLOUT_ROWS, **REWARD_ROWS}
"""Context → feature → cell."""

NO_ANCHOR = Refused(
    f"{CORRECTION}.bypass_mode",
    f"with {MODE}=grpo_ext_colocate_async or grpo_ext_separate_async the responses of a prompt, and the "
    "tokens of one response, may be sampled from different policies; their recorded log-probs are then no "
    "common anchor",
    "false",
    f"{CORRECTION}.bypass_mode=false",
)
PAIRS: Mapping[tuple[str, str], Row] = {
    (mode, "bypass"): {"anchor_old": NO_ANCHOR}
    for mode in ("grpo_ext_colocate_async", "grpo_ext_separate_async")
}
"""Two contexts, in the order of `CONTEXTS` → cells that neither has alone; all others are in `TABLE`."""

__all__ = [
    "CONTEXTS",
    "ENGINES",
    "FEATURES",
    "PAIRS",
    "REWARDS",
    "ROLLOUTS",
    "TABLE",
    "TRAINERS",
    "Cell",
    "Exact",
    "Refused",
    "check_support",
]

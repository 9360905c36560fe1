"""Check that estimator, loss and aggregation together make the algorithm that they name."""

from collections.abc import Iterator

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import (
    ALGORITHMS,
    ESTIMATORS,
    LOSSES,
    Estimator,
    VerlsEstimator,
    VerlsLoss,
    verls,
)
from grpo_verl_ext.catalogue.averages import CONSTANT_LENGTH
from grpo_verl_ext.catalogue.dr_grpo import DR_GRPO
from grpo_verl_ext.utils.errors import Problem, SettingError
from grpo_verl_ext.utils.keys import ACTOR, LOSS, SCALE_FACTOR, SECTION, setting
from grpo_verl_ext.verl_plugin.config import Options, written
from grpo_verl_ext.verl_plugin.gvpo.plan import parts_of_step
from grpo_verl_ext.verl_plugin.loss_config import check_loss, check_no_mask
from grpo_verl_ext.verl_plugin.preflight.preset import replaced

NO_GRADIENT, BIASED_GRADIENT = ("kl", "k1"), ("abs", "low_var_kl", "k3")
"""verl's KL estimators without a ``+``: gradient of mean 0; biased gradient."""


def check_options(config: DictConfig) -> None:
    """Refuse unknown keys and wrong types in ``algorithm.grpo_ext``."""
    Options.from_config(config.algorithm)


def check_settings(config: DictConfig) -> None:
    """Refuse options of our estimators and losses that are invalid or contradict each other."""
    if config.algorithm.adv_estimator in ESTIMATORS:
        Options.for_estimator(config.algorithm)
    actor, loss = config.actor_rollout_ref.actor, catalogue.loss_of(config)
    if loss is None or isinstance(loss, VerlsLoss):
        check_no_mask(actor.policy_loss.loss_mode, actor)
    else:
        check_loss(loss, actor)
    check_pair(config.algorithm.adv_estimator, actor.policy_loss.loss_mode)


def check_pair(adv_estimator: str, loss_mode: str) -> None:
    """Refuse a paired estimator without its loss, or the loss without the estimator.

    Only the paired loss can read the advantages of such an estimator.

    Raises:
        SettingError: one of the two is configured without the other.
    """
    for name in (name for name, algorithm in ALGORITHMS.items() if algorithm.paired):
        if (adv_estimator == name) != (loss_mode == name):
            raise SettingError(
                "algorithm.adv_estimator",
                adv_estimator,
                why=f"policy_loss.loss_mode is {loss_mode}, and {name} is an estimator and a loss that "
                "belong together",
                valid=f"{name} for both or for neither",
                fix=f"algorithm.adv_estimator={name} {ACTOR}.policy_loss.loss_mode={name}",
            )


def advise_constant_length(config: DictConfig) -> Iterator[Problem]:
    """Warn where verl's own form of Dr. GRPO has no constant."""
    actor, loss = config.actor_rollout_ref.actor, setting(config, LOSS)
    if loss not in LOSSES and actor.loss_agg_mode == CONSTANT_LENGTH.mode and actor.loss_scale_factor is None:
        yield Problem(
            SCALE_FACTOR,
            None,
            why="with loss_agg_mode=seq-mean-token-sum-norm verl then divides by the longest response of "
            "each micro-batch, and the gradient depends on how the batch is cut (`grpo-verl-ext invariance "
            "--verl` measures it)",
            fix=f"'{SCALE_FACTOR}=${{data.max_response_length}}', or +algo={DR_GRPO.name}",
        )


def advise_kl_gradient(config: DictConfig) -> Iterator[Problem]:
    """Warn of KL estimators whose gradient is not that of KL(π ‖ π_ref), unbiased in value or not."""
    actor, key = config.actor_rollout_ref.actor, f"{ACTOR}.kl_loss_type"
    if not actor.use_kl_loss or not actor.kl_loss_coef:
        return
    kind = actor.kl_loss_type
    if kind in NO_GRADIENT:
        yield Problem(
            key,
            kind,
            why="its gradient has mean 0: as a loss it does not hold the policy to the reference at all (J. "
            "Schulman, Approximating KL Divergence; docs/anatomy.md measures it)",
            fix=f"{key}=k3+, the value of k3 with the gradient of k2",
        )
    elif kind in BIASED_GRADIENT and not _has_kl_in_loss(config):
        yield Problem(
            key,
            kind,
            why="its gradient is not that of KL(π ‖ π_ref): k3's is that of KL(π_ref ‖ π) (docs/anatomy.md "
            "measures it); GRPO's paper means it so, other estimators have no reason to",
            fix=f"{key}=k3+, the value of k3 with the gradient of k2",
        )


def _has_kl_in_loss(config: DictConfig) -> bool:
    """Whether the loss of the estimator's paper contains k3 and its gradient: arXiv 2402.03300, eq. 4."""
    known: list[Estimator | VerlsEstimator] = [*verls.VERLS_ESTIMATORS, *ESTIMATORS.values()]
    return any(each.kl_in_loss for each in known if each.name == config.algorithm.adv_estimator)


def advise_batch_scale(config: DictConfig) -> Iterator[Problem]:
    """Warn of a batch's standard deviation where an estimator is shown parts of the batch."""
    parts = parts_of_step(config)
    if written(config.algorithm).get("scale_rewards") == "batch" and parts != 1:
        yield Problem(
            f"{SECTION}.scale_rewards",
            "batch",
            why=f"trainer.v1.….parameter_sync_step is {parts}, and advantages are computed for each of these "
            "parts: the standard deviation is that of a part, not of the batch",
            valid="batch with a parameter_sync_step of 1, or another scale",
            fix=f"{SECTION}.scale_rewards=group",
        )


def advise_unread_options(config: DictConfig) -> Iterator[Problem]:
    """Warn of options of our estimators when another package's estimator is configured.

    Where it replaces the named preset's, the options are the preset's, which `advise_preset` reports.
    """
    estimator = config.algorithm.adv_estimator
    options = written(config.algorithm)
    if estimator in ESTIMATORS or "algorithm.adv_estimator" in replaced(config):
        return
    for name in ("mask_truncated_completions", "scale_rewards"):
        if options.get(name):
            key = f"{SECTION}.{name}"
            yield Problem(
                key,
                options[name],
                why=f"algorithm.adv_estimator={estimator} is not of this package and does not read it",
                valid=tuple(ESTIMATORS),
                fix=f"~{key}, or algorithm.adv_estimator=<one of them>",
            )

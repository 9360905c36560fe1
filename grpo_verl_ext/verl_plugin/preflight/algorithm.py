"""Check that estimator, loss and aggregation together make the algorithm that they name."""

from collections.abc import Iterator

from omegaconf import DictConfig

from grpo_verl_ext.verl_plugin.config import ACTOR, SECTION, Options, written
from grpo_verl_ext.verl_plugin.errors import Problem, SettingError
from grpo_verl_ext.verl_plugin.estimators import ESTIMATORS
from grpo_verl_ext.verl_plugin.gvpo.plan import parts_of_step
from grpo_verl_ext.verl_plugin.loss_config import CONSTANT_LENGTH, check_loss, check_no_mask
from grpo_verl_ext.verl_plugin.losses import LOSSES, VARIANTS
from grpo_verl_ext.verl_plugin.preflight.preset import replaced

GRPO_FAMILY = ("grpo", "grpo_vectorized", "grpo_outcome", "grpo_process")
"""Estimators of GRPO's paper, whose loss contains k3 and its gradient: arXiv 2402.03300, eq. 4."""
NO_GRADIENT, BIASED_GRADIENT = ("kl", "k1"), ("abs", "low_var_kl", "k3")
"""verl's KL estimators without a ``+``: gradient of mean 0; biased gradient."""


def check_options(config: DictConfig) -> None:
    """Refuse unknown keys and wrong types in ``algorithm.grpo_ext``."""
    Options.from_config(config.algorithm)


def check_settings(config: DictConfig) -> None:
    """Refuse options of our estimators and losses that are invalid or contradict each other."""
    actor = config.actor_rollout_ref.actor
    if config.algorithm.adv_estimator in ESTIMATORS:
        Options.for_estimator(config.algorithm)
    loss = actor.policy_loss.loss_mode
    if loss in VARIANTS:
        check_loss(loss, VARIANTS[loss].loss_agg_mode, actor)
    else:
        check_no_mask(loss, actor)
    check_pair(config.algorithm.adv_estimator, loss)


def check_pair(adv_estimator: str, loss_mode: str) -> None:
    """Refuse a paired estimator without its loss, or the loss without the estimator.

    Only the paired loss can read the advantages of such an estimator.

    Raises:
        SettingError: one of the two is configured without the other.
    """
    for name in (name for name, variant in VARIANTS.items() if variant.paired):
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
    """Warn where Dr. GRPO's constant is not the response budget, or verl's own form has no constant."""
    actor, budget = config.actor_rollout_ref.actor, config.data.max_response_length
    key, factor = f"{ACTOR}.loss_scale_factor", config.actor_rollout_ref.actor.loss_scale_factor
    loss = actor.policy_loss.loss_mode
    if loss == "dr_grpo" and factor not in (None, budget):
        yield Problem(
            key,
            factor,
            why=f"data.max_response_length is {budget}, which Dr. GRPO divides by (arXiv 2503.20783, §3.1 "
            "and its code); another constant scales the learning rate",
            fix=f"'{key}=${{data.max_response_length}}'",
        )
    verls_own = loss not in LOSSES
    if verls_own and actor.loss_agg_mode == CONSTANT_LENGTH and factor is None:
        yield Problem(
            key,
            None,
            why="with loss_agg_mode=seq-mean-token-sum-norm verl then divides by the longest response of "
            "each micro-batch, and the gradient depends on how the batch is cut (`grpo-verl-ext invariance "
            "--verl` measures it)",
            fix=f"'{key}=${{data.max_response_length}}', or +algo=dr_grpo",
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
    elif kind in BIASED_GRADIENT and config.algorithm.adv_estimator not in GRPO_FAMILY:
        yield Problem(
            key,
            kind,
            why="its gradient is not that of KL(π ‖ π_ref): k3's is that of KL(π_ref ‖ π) (docs/anatomy.md "
            "measures it); GRPO's paper means it so, other estimators have no reason to",
            fix=f"{key}=k3+, the value of k3 with the gradient of k2",
        )


def advise_gvpo_kl(config: DictConfig) -> Iterator[Problem]:
    """Warn of a KL beside GVPO's own, or an entropy bonus: both move the minimiser (arXiv 2504.19599)."""
    actor = config.actor_rollout_ref.actor
    if actor.policy_loss.loss_mode != "gvpo":
        return
    found = {
        f"{ACTOR}.kl_loss_coef": actor.use_kl_loss and actor.kl_loss_coef,
        "algorithm.use_kl_in_reward": config.algorithm.use_kl_in_reward,
        f"{ACTOR}.entropy_coeff": actor.entropy_coeff,
    }
    for key, value in found.items():
        if value:
            what = "an entropy bonus" if key.endswith("entropy_coeff") else "a KL beside GVPO's own"
            yield Problem(
                key,
                value,
                why=f"{what} moves its minimiser away from π' e^{{R/β}} (arXiv 2504.19599, Theorem 1, whose "
                "authors use none)",
                fix=f"{key}={'false' if value is True else 0}",
            )


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

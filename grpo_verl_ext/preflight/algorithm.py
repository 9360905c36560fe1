"""Check that estimator, loss, aggregation and groups together make the algorithm that they name."""

from collections.abc import Iterator

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import ALGORITHMS, ESTIMATORS, Estimator, VerlsEstimator, verls
from grpo_verl_ext.catalogue.requires import runs_v1
from grpo_verl_ext.utils.errors import Line, Problem, SettingError, as_typed
from grpo_verl_ext.utils.keys import (
    ACTOR,
    BYPASS,
    CORRECTION,
    ESTIMATOR,
    LOSS,
    MODE,
    ROLLOUT,
    SECTION,
    setting,
    written,
)
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.features import Feature
from grpo_verl_ext.verl_plugin.loss_config import check_loss
from grpo_verl_ext.verl_plugin.mini_batch.plan import parts_of_step, parts_of_step_key

_RETURNED = f"{ROLLOUT}.logprobs_mode"


def _check_options(config: DictConfig) -> None:
    """Refuse unknown keys and wrong types in ``algorithm.grpo_ext``."""
    Options.from_config(config.algorithm)


def _check_settings(config: DictConfig) -> None:
    """Refuse options and clips of the configured loss outside of their ranges, and half of a pair."""
    loss = catalogue.loss_of(config)
    if loss is not None and catalogue.knows(config):
        check_loss(loss, config.actor_rollout_ref.actor)
    check_pair(str(setting(config, ESTIMATOR)), str(setting(config, LOSS)))


def check_pair(adv_estimator: str, loss_mode: str) -> None:
    """Refuse a paired estimator without its loss, which alone can read its advantages, and the reverse."""
    pairs = [(each.estimator.name, each.loss.name) for each in ALGORITHMS.values() if each.paired]
    for estimator, loss in pairs if (adv_estimator, loss_mode) not in pairs else ():
        if adv_estimator == estimator or loss_mode == loss:
            why = f"policy_loss.loss_mode is {loss_mode}, and the estimator {estimator} and the loss {loss} "
            why += "belong together"
            fix = Line(f"{ESTIMATOR}={estimator}", f"{LOSS}={loss}")
            valid = f"{estimator} with the loss {loss}, or neither"
            raise SettingError(ESTIMATOR, adv_estimator, why=why, valid=valid, fix=fix)


def _advise_kl_gradient(config: DictConfig) -> Iterator[Problem]:
    """Warn of KL estimators whose gradient is not that of KL(π ‖ π_ref), unbiased in value or not."""
    actor, key = config.actor_rollout_ref.actor, f"{ACTOR}.kl_loss_type"
    # The loss of the estimator's paper may have k3 and its gradient: arXiv 2402.03300, eq. 4.
    known: list[Estimator | VerlsEstimator] = [*verls.VERLS_ESTIMATORS, *ESTIMATORS.values()]
    has_k3 = any(each.kl_in_loss for each in known if each.name == config.algorithm.adv_estimator)
    why = {
        **dict.fromkeys(("kl", "k1"), "has mean 0: as a loss it does not hold the policy to the reference"),
        **dict.fromkeys(
            () if has_k3 else ("abs", "low_var_kl", "k3"),
            "is not that of KL(π ‖ π_ref): k3's is that of KL(π_ref ‖ π), which GRPO's paper alone means",
        ),
    }.get(actor.kl_loss_type)
    if why and actor.use_kl_loss and actor.kl_loss_coef:
        fix = Line(f"{key}=k3+", more=", the value of k3 with the gradient of k2")
        yield Problem(key, actor.kl_loss_type, fix, f"its gradient {why} (docs/algorithms/grpo.md)")


def _correction(config: DictConfig) -> str:
    """Return what corrects for the rollout's policy by its log-probs; empty without it, or without ours."""
    keys = [f"{CORRECTION}.{name}" for name in ("bypass_mode", "rollout_is", "rollout_rs")]
    given = [key for key in keys if setting(config, key)] if catalogue.knows(config) else []
    return f"{given[0]}={as_typed(setting(config, given[0]))}" if given else ""


def _check_rollout_log_probs(config: DictConfig) -> None:
    """Refuse a correction by log-probs of the rollout that nobody records: verl would leave it out."""
    key, mode, correction = f"{ROLLOUT}.calculate_log_probs", setting(config, _RETURNED), _correction(config)
    needs = f"{correction} needs the log-probs of the rollout"
    if correction and setting(config, key) is False:
        why = f"{needs}, without which verl leaves the correction out, or ends after the first rollout"
        raise SettingError(key, False, why=why, valid="true", fix=Line(f"{key}=true"))
    if correction and setting(config, f"{ROLLOUT}.name") == "vllm" and str(mode).endswith("_logits"):
        valid, fix = "processed_logprobs, or raw_logprobs at temperature 1", f"{_RETURNED}=processed_logprobs"
        raise SettingError(_RETURNED, mode, why=f"{needs}, and logits are none", valid=valid, fix=Line(fix))


def _advise_bypass(config: DictConfig) -> Iterator[Problem]:
    """Warn of log-probs of the rollout that are those of another distribution than the policy's."""
    rollout, correction = config.actor_rollout_ref.rollout, _correction(config)
    is_raw = setting(config, _RETURNED) == "raw_logprobs"
    if correction and is_raw and rollout.temperature != 1:
        why = f"{correction} compares them, at temperature 1, with the policy's at temperature "
        fix = Line(f"{_RETURNED}=processed_logprobs")
        yield Problem(_RETURNED, "raw_logprobs", fix, f"{why}{rollout.temperature}")
    if correction.startswith(BYPASS) and not is_raw and (rollout.top_p < 1 or rollout.top_k > 0):
        name = "top_p" if rollout.top_p < 1 else "top_k"
        why = f"with {correction} the old log-probs are of the truncated distribution, the policy's of the "
        why += "whole: every ratio is too small"
        fix = Line(f"{ROLLOUT}.top_p=1", f"{ROLLOUT}.top_k=-1", more=f", or {BYPASS}=false")
        yield Problem(f"{ROLLOUT}.{name}", rollout[name], fix, why)


def _advise_batch_scale(config: DictConfig) -> Iterator[Problem]:
    """Warn of a batch's standard deviation where an estimator is shown a part of the batch."""
    parts, key, scale = parts_of_step(config), parts_of_step_key(config), f"{SECTION}.scale_rewards"
    is_of_batch = written(config.algorithm).get("scale_rewards") == "batch"
    if parts > 1 and (is_of_batch or catalogue.learns_from_several_rewards(config)):
        why = (
            f"advantages are computed for each of these parts, and {ESTIMATOR}={setting(config, ESTIMATOR)} "
            "divides by the standard deviation of a part, not of the batch"
        )
        words = (f"{key}=1", f"{ACTOR}.ppo_mini_batch_size=${{data.train_batch_size}}")
        fix = Line(*words, more=f", or {scale}=group" if is_of_batch else "")
        yield Problem(key, parts, fix, why, valid="1")


def _advise_mini_batch(config: DictConfig) -> Iterator[Problem]:
    """Warn of a mini-batch that verl's v1 trainers fill up.

    verl itself checks the sizes without dynamic batching, and under ``separate_async``.
    """
    key, batch_key = f"{ACTOR}.ppo_mini_batch_size", "data.train_batch_size"
    mini_batch, prompts, parts = setting(config, key), setting(config, batch_key), parts_of_step(config)
    if not (all(map(is_count, (mini_batch, prompts, parts))) and runs_v1(config) and catalogue.knows(config)):
        return
    of_part = prompts // parts
    last = of_part % mini_batch
    if last and setting(config, f"{ACTOR}.use_dynamic_bsz") and "separate_async" not in setting(config, MODE):
        whose = f"each of the {parts} parts of a step" if parts > 1 else "a step"
        largest = max(each for each in range(1, min(mini_batch, of_part) + 1) if of_part % each == 0)
        why = (
            f"the last update of {whose} has {last} prompts: the rest of it is padding, and a loss "
            "averaged over responses or prompts is divided by it, too"
        )
        yield Problem(key, mini_batch, Line(f"{key}={largest}"), why, valid=f"a divisor of {of_part}")


ALGORITHM = Feature(
    checks={
        "options": _check_options,
        "settings": _check_settings,
        "tested": lambda _: None,  # the rows, each with a name and a severity of its own
        "rollout-log-probs": _check_rollout_log_probs,
    },
    advice={
        "kl-gradient": _advise_kl_gradient,
        "batch-scale": _advise_batch_scale,
        "mini-batch": _advise_mini_batch,
        "bypass": _advise_bypass,
    },
)

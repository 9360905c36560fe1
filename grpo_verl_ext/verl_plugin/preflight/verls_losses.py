"""Check verl's own losses where its defaults are not their papers', or where they depend on the cut."""

from collections.abc import Iterator
from importlib.metadata import version

from omegaconf import DictConfig
from packaging.version import Version

from grpo_verl_ext.verl_plugin.config import ACTOR
from grpo_verl_ext.verl_plugin.errors import Problem, SettingError
from grpo_verl_ext.verl_plugin.estimators import ESTIMATORS
from grpo_verl_ext.verl_plugin.gvpo.plan import several_updates
from grpo_verl_ext.verl_plugin.losses import LOSSES
from grpo_verl_ext.verl_plugin.presets import PRESETS

AGGREGATION, LOSS = f"{ACTOR}.loss_agg_mode", f"{ACTOR}.policy_loss.loss_mode"

TOKENS_RANGE = 0.1
"""From here on, a clip range is one of tokens' ratios: GSPO's paper has 3e-4 and 4e-4, GRPO's losses 0.2."""

DEPENDS_ON_CUT = {
    "geo_mean": ("averages over the responses of each micro-batch", "+algo=gmpo"),
    "clip_cov": ("ranks the tokens of each micro-batch, and draws among them", f"{LOSS}=vanilla"),
    "kl_cov": ("ranks the tokens of each micro-batch", f"{LOSS}=vanilla"),
}
"""Losses of verl → (why the gradient depends on how the batch is cut, what to type)."""

WITHOUT_RATIO = ("gpg",)
"""Losses of verl without π_θ/π_old, which are right for one update on a rollout alone."""


def check_verls_aggregation(config: DictConfig) -> None:
    """Refuse an estimator of ours and a loss of verl's, which a preset puts together, with another average.

    Raises:
        SettingError: ``loss_agg_mode`` is not the preset's.
    """
    estimator, actor = config.algorithm.adv_estimator, config.actor_rollout_ref.actor
    loss, mode = actor.policy_loss.loss_mode, actor.loss_agg_mode
    if estimator not in ESTIMATORS or loss in LOSSES or not _follows_key(loss):
        return
    named = {
        f"+algo={name}": preset.loss_agg_mode
        for name, preset in PRESETS.items()
        if (preset.adv_estimator, preset.loss_mode) == (estimator, loss)
    }
    if named and mode not in named.values():
        raise SettingError(
            AGGREGATION,
            mode,
            why=f"algorithm.adv_estimator={estimator} and policy_loss.loss_mode={loss} are "
            f"{' or '.join(named)}, whose paper averages otherwise",
            valid=tuple(named.values()),
            fix=f"{AGGREGATION}={next(iter(named.values()))}",
        )


def _follows_key(loss: str) -> bool:
    """Whether verl's loss averages as ``loss_agg_mode`` says; 0.9.0's gspo always averages over responses."""
    return loss != "gspo" or Version(version("verl")) >= Version("0.9.1")


def advise_verls_losses(config: DictConfig) -> Iterator[Problem]:
    """Warn of verl's defaults for gspo and cispo, of losses that depend on the cut or have no ratio."""
    actor = config.actor_rollout_ref.actor
    loss = actor.policy_loss.loss_mode
    if loss == "gspo":
        yield from _advise_gspo(config)
    if loss == "cispo" and _clip(actor, "low") < 1:
        yield Problem(
            f"{ACTOR}.clip_ratio_low",
            _clip(actor, "low"),
            why="CISPO's importance weights have no lower bound (arXiv 2506.13585, §3.1)",
            valid="a number ≥ 1, which bounds nothing",
            fix=f"{ACTOR}.clip_ratio_low=1.0",
        )
    if loss in DEPENDS_ON_CUT:
        why, fix = DEPENDS_ON_CUT[loss]
        yield Problem(
            LOSS,
            loss,
            why=f"verl's {loss} {why}, so that the gradient depends on how the batch is cut "
            "(`grpo-verl-ext invariance --verl` measures it)",
            fix=fix,
        )

    if loss in WITHOUT_RATIO and several_updates(config):
        yield Problem(
            f"{ACTOR}.ppo_mini_batch_size",
            actor.ppo_mini_batch_size,
            why=f"with data.train_batch_size={config.data.train_batch_size} and {ACTOR}.ppo_epochs="
            f"{actor.ppo_epochs} a rollout is used for several updates, and policy_loss.loss_mode={loss} has "
            "no ratio that corrects for a policy that has moved",
            valid="one update on a rollout",
            fix=f"'{ACTOR}.ppo_mini_batch_size=${{data.train_batch_size}}' {ACTOR}.ppo_epochs=1",
        )


def _advise_gspo(config: DictConfig) -> Iterator[Problem]:
    actor = config.actor_rollout_ref.actor
    wanted = PRESETS["gspo"].loss_agg_mode
    ours = config.algorithm.adv_estimator in ESTIMATORS
    if actor.loss_agg_mode != wanted and not ours and _follows_key("gspo"):
        yield Problem(
            AGGREGATION,
            actor.loss_agg_mode,
            why="GSPO is a mean over responses (arXiv 2507.18071, eq. 5), and verl's loss of that name "
            "averages as this key says",
            valid=wanted,
            fix=f"{AGGREGATION}={wanted}",
        )
    for side, papers in (("low", "3e-4"), ("high", "4e-4")):
        if _clip(actor, side) >= TOKENS_RANGE:
            key = f"{ACTOR}.clip_ratio_{side}"
            yield Problem(
                key,
                _clip(actor, side),
                why="GSPO clips the ratio of a whole response to the power 1/|y|, which is near 1, where "
                "GRPO's range clips nothing (arXiv 2507.18071, §5.1)",
                valid=f"the paper's {papers}",
                fix=f"{key}={papers}",
            )


def _clip(actor: DictConfig, side: str) -> float:
    """Return a side of the clip range as verl reads it: null is ``clip_ratio``."""
    value = actor[f"clip_ratio_{side}"]
    return float(actor.clip_ratio if value is None else value)

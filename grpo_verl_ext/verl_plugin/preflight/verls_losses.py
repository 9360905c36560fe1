"""Check verl's own losses where its defaults are not their papers', or where they depend on the cut."""

from collections.abc import Iterator
from importlib.metadata import version

from omegaconf import DictConfig
from packaging.version import Version

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import ALGORITHMS, VerlsLoss
from grpo_verl_ext.utils.errors import Problem, SettingError
from grpo_verl_ext.utils.keys import ACTOR, AGGREGATION, LOSS, SECTION, setting
from grpo_verl_ext.verl_plugin.gvpo.plan import several_updates


def check_verls_aggregation(config: DictConfig) -> None:
    """Refuse an estimator of ours and a loss of verl's, which a preset puts together, with another average.

    Raises:
        SettingError: ``loss_agg_mode`` is not the preset's, or this verl's loss does not read it.
    """
    estimator, loss = catalogue.estimator_of(config), catalogue.loss_of(config)
    mode = setting(config, AGGREGATION)
    if estimator is None or not isinstance(loss, VerlsLoss):
        return
    if not _follows_key(loss):
        _refuse_older_verl(config, loss)
        return
    named = {
        f"+algo={name}": algorithm.loss_agg_mode
        for name, algorithm in ALGORITHMS.items()
        if algorithm.has_preset and (algorithm.estimator, algorithm.loss) == (estimator, loss)
    }
    if named and mode not in named.values():
        raise SettingError(
            AGGREGATION,
            mode,
            why=f"algorithm.adv_estimator={estimator.name} and policy_loss.loss_mode={loss.name} are "
            f"{' or '.join(named)}, whose paper averages otherwise",
            valid=tuple(named.values()),
            fix=f"{AGGREGATION}={next(iter(named.values()))}",
        )


def _refuse_older_verl(config: DictConfig, loss: VerlsLoss) -> None:
    """Refuse a preset that needs another average than the one that this verl's loss always has."""
    preset = ALGORITHMS.get(str(setting(config, f"{SECTION}.preset")))
    if preset is None or preset.loss is not loss or loss.papers_average is None:
        return
    if preset.loss_agg_mode != loss.papers_average[0]:
        raise SettingError(
            AGGREGATION,
            setting(config, AGGREGATION),
            why=f"+algo={preset.name} averages by {preset.loss_agg_mode}, and the {loss.name} of verl "
            f"{version('verl')} averages by {loss.papers_average[0]} whatever this key says",
            valid=f"verl {loss.reads_average} or newer",
            fix=f"pip install 'verl>={loss.reads_average}'",
        )


def _follows_key(loss: VerlsLoss) -> bool:
    """Whether verl's loss averages as ``loss_agg_mode`` says."""
    return Version(version("verl")) >= Version(loss.reads_average)


def advise_verls_losses(config: DictConfig) -> Iterator[Problem]:
    """Warn of averages that are not the paper's, of losses that depend on the cut or have no ratio."""
    loss, actor = catalogue.loss_of(config), config.actor_rollout_ref.actor
    if not isinstance(loss, VerlsLoss):
        return
    yield from _advise_average(config, loss)
    if loss.depends_on_cut is not None:
        why, fix = loss.depends_on_cut
        yield Problem(
            LOSS,
            loss.name,
            why=f"verl's {loss.name} {why}, so that the gradient depends on how the batch is cut "
            "(`grpo-verl-ext invariance --verl` measures it)",
            fix=fix,
        )
    if not loss.has_ratio and several_updates(config):
        yield Problem(
            f"{ACTOR}.ppo_mini_batch_size",
            actor.ppo_mini_batch_size,
            why=f"with data.train_batch_size={config.data.train_batch_size} and {ACTOR}.ppo_epochs="
            f"{actor.ppo_epochs} a rollout is used for several updates, and policy_loss.loss_mode="
            f"{loss.name} has no ratio that corrects for a policy that has moved",
            valid="one update on a rollout",
            fix=f"'{ACTOR}.ppo_mini_batch_size=${{data.train_batch_size}}' {ACTOR}.ppo_epochs=1",
        )


def _advise_average(config: DictConfig, loss: VerlsLoss) -> Iterator[Problem]:
    """Where the estimator is verl's; `check_verls_aggregation` refuses the others."""
    if loss.papers_average is None or catalogue.estimator_of(config) or not _follows_key(loss):
        return
    wanted, why = loss.papers_average
    if setting(config, AGGREGATION) != wanted:
        yield Problem(
            AGGREGATION,
            setting(config, AGGREGATION),
            why=f"{why}, and verl's loss of that name averages as this key says",
            valid=wanted,
            fix=f"{AGGREGATION}={wanted}",
        )

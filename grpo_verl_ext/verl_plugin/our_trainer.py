"""Options that only a trainer mode of this package fulfils, refused where an estimator runs under another.

verl's fully async driver validates no configuration, so that nothing of ours is asked before the first
rollout there; the first thing of ours that it calls is the estimator.
"""

from collections.abc import Mapping
from typing import Any

from grpo_verl_ext.verl_plugin.errors import SettingError
from grpo_verl_ext.verl_plugin.keys import GROUP_MODES
from grpo_verl_ext.verl_plugin.laid_down import LaidDown
from grpo_verl_ext.verl_plugin.reference.settings import ReferenceSettings
from grpo_verl_ext.verl_plugin.settings import EstimatorSettings

OUR_TRAINER = LaidDown[bool]("trainer of this package")
"""True while a trainer mode of this package calls the estimator; None everywhere else."""


def check_our_trainer(settings: EstimatorSettings, algorithm: Mapping[str, Any] | None) -> None:
    """Refuse what nobody would do in this training.

    Args:
        settings: those of the estimator.
        algorithm: verl's section of that name, as verl hands it to the estimator.

    Raises:
        SettingError: the anchor ``ref`` or a reference refresh under a trainer that is not ours.
    """
    if OUR_TRAINER.current():
        return
    if settings.gvpo_anchor == "ref":
        raise _nobody_does("gvpo_anchor", "ref", "brings the reference's log-probs to the targets")
    steps = ReferenceSettings.from_config(algorithm or {}).ref_sync_steps
    if steps is not None:
        raise _nobody_does("ref_sync_steps", steps, "refreshes the reference")


def _nobody_does(option: str, value: object, task: str) -> SettingError:
    key = f"algorithm.grpo_ext.{option}"
    return SettingError(
        key,
        value,
        why=f"nothing in this training {task}",
        valid=f"a trainer mode of this package ({', '.join(GROUP_MODES)})",
        fix="python3 -m verl.trainer.main_ppo … trainer.use_v1=true trainer.v1.trainer_mode=group_sync",
    )

"""The check of losses that weigh whole responses themselves, and take no weight of a token beside that."""

from __future__ import annotations

from omegaconf import DictConfig

from grpo_verl_ext.catalogue.record import Refuse
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import setting

_WEIGHTS = "algorithm.rollout_correction.rollout_is"


def no_token_weights(why: str) -> Refuse:
    """Return a check that refuses weights of tokens.

    Args:
        why: what the loss has in their place, with its paper.
    """

    def check(config: DictConfig) -> None:
        """Refuse weights of tokens.

        Raises:
            SettingError: ``rollout_is`` is set.
        """
        if setting(config, _WEIGHTS) is not None:
            raise SettingError(
                _WEIGHTS,
                setting(config, _WEIGHTS),
                why=why,
                valid="null; with bypass_mode, the loss itself has the rollout's log-probs",
                fix=Line(f"{_WEIGHTS}=null", "algorithm.rollout_correction.bypass_mode=true"),
            )

    return check

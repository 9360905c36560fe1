"""SAPO: Gao et al., Soft Adaptive Policy Optimization, arXiv 2511.20347; verl's own loss."""

from collections.abc import Mapping
from typing import Any

from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.record import CLIPS, Algorithm, VerlsLoss
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import ACTOR
from grpo_verl_ext.utils.options import is_positive


def _check_temperatures(loss_mode: str, actor: Mapping[str, Any]) -> None:
    """Refuse a temperature of the gate that is none: verl's loss divides by it."""
    for name in ("tau_pos", "tau_neg"):
        if not is_positive(actor.get(name, 1.0)):
            key, why = f"{ACTOR}.{name}", f"it is a temperature of the gate of {loss_mode}"
            fix = Line(f"{key}={'1.0' if name == 'tau_pos' else '1.05'}")
            raise SettingError(key, actor[name], why=why, valid="a finite number > 0", fix=fix)


SAPO_LOSS = VerlsLoss("sapo", unread=CLIPS, settings=(_check_temperatures,))

SAPO = Algorithm(
    "sapo",
    "arXiv 2511.20347",
    GRPO_OUTCOME,
    SAPO_LOSS,
    "seq-mean-token-mean",
    title="Gao et al., Soft Adaptive Policy Optimization",
    fixes="a hard clip: a smooth gate takes its place",
)

"""The functions that verl calls for the estimators and losses of the catalogue, by their names.

Importing this module registers them with verl, and those of algorithms that are entered later.
"""

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

from torch import Tensor
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import Estimator, GroupLoss, Loss, TokenLoss
from grpo_verl_ext.verl_plugin import estimators, usage
from grpo_verl_ext.verl_plugin.gvpo import loss as group_loss
from grpo_verl_ext.verl_plugin.losses import custom

ESTIMATOR_FUNCTIONS: dict[str, estimators.VerlsCall] = {}
LOSS_FUNCTIONS: dict[str, custom.PolicyLoss] = {}


class _Yielding(partial[tuple[Tensor, Tensor]]):
    """An estimator whose name another module may register later, as verl lets it do with a loss's."""

    def __ne__(self, other: object) -> bool:
        """Return False, for verl refuses a name where the function that has it is unequal to the new one."""
        return False


def _function_of(record: Estimator | Loss) -> Callable[..., Any]:
    """Return the function of verl's signature for an estimator or a loss."""
    if isinstance(record, Estimator):
        made: Callable[..., Any] = estimators.estimator_function(record)
    elif isinstance(record, GroupLoss):
        made = group_loss.group_loss_function(record)
    else:
        assert isinstance(record, TokenLoss)
        made = custom.token_loss_function(record)
    setattr(made, usage.RECORD, record)
    return made


def is_of(function: object, record: Estimator | Loss) -> bool:
    """Whether a registered function was made from this record."""
    return getattr(function, usage.RECORD, None) is record


def _enter(record: Estimator | Loss) -> None:
    """Register a record's function with verl.

    A name that another package takes, before or later, is that package's, whose trainings need it; a training
    that means our function of that name is refused by the check ``names``.
    """
    is_estimator = isinstance(record, Estimator)
    own: dict[str, Any] = ESTIMATOR_FUNCTIONS if is_estimator else LOSS_FUNCTIONS
    verls: dict[Any, Any] = ADV_ESTIMATOR_REGISTRY if is_estimator else POLICY_LOSS_REGISTRY
    own[record.name] = made = _function_of(record)
    verls.setdefault(record.name, update_wrapper(_Yielding(made), made) if is_estimator else made)


catalogue.enter_foreign()
catalogue.listen(_enter)

"""For tests of a loss of your own: `assert_invariant`, as a function and as a fixture of pytest."""

from collections.abc import Callable
from typing import Any

import pytest


def assert_invariant(
    loss: str | Callable[..., Any], *, loss_agg_mode: str = "token-mean", loss_scale_factor: int | None = None
) -> None:
    """Raise AssertionError where value or gradient of a loss depend on how a mini-batch is split.

    ``loss`` is a function for `own_loss.token_loss`, or a registered name. The message has the worst split.
    """
    from grpo_verl_ext.catalogue import LOSSES  # verl takes seconds to import
    from grpo_verl_ext.proof.invariance import measure, own_case
    from grpo_verl_ext.verl_plugin.own_loss import token_loss

    name = loss if isinstance(loss, str) else loss.__name__
    if not isinstance(loss, str) and getattr(LOSSES.get(name), "per_token", None) is not loss:
        token_loss(loss)
    case = own_case(name, loss_agg_mode, loss_scale_factor)
    worst = max(measure([case] if case else ()), key=lambda each: (not each.passed, each.error))
    if not worst.passed:
        cut = f"{worst.split} micro-batches × {worst.dp_size} ranks, {worst.dtype}"
        raise AssertionError(f"{name} is {worst.verdict}: relative error {worst.error:.2g} with {cut}")


@pytest.fixture(name="assert_invariant")
def _assert_invariant() -> Callable[..., None]:
    return assert_invariant

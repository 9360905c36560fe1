"""What a feature or an algorithm was tested with, as rows: a key of verl's configuration and its values.

A row makes its check, the message, the line to type, a line of ``docs/support.md`` and a case of the tests.
Outside of the tested values a training is warned, or refused where the fault would be silent or the gradient
another.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig

from grpo_verl_ext.utils import keys
from grpo_verl_ext.utils.errors import Finding, Line, Problem, Severity, as_typed
from grpo_verl_ext.utils.keys import ACTOR, BYPASS, CORRECTION, MODE, SECTION, setting

Condition = Callable[[DictConfig], bool]
"""Whether a training uses something; the page of support has the docstring."""

VERLS_MODES = ("sync", "colocate_async", "separate_async")
OUR_MODES = ("grpo_ext_sync", "grpo_ext_colocate_async", "grpo_ext_separate_async")
"""Values of ``trainer.v1.trainer_mode``: verl's modes, which also keep a prompt's responses in one optimizer
step, pass step rewards to the estimator and refresh the reference."""
_FULLY_ASYNC_DRIVER = "verl.experimental.fully_async_policy"
_ONE_STEP_OFF_DRIVER = "verl.experimental.one_step_off_policy"
_V0 = "trainer.use_v1=false"
STATISTIC_ENGINES = ("fsdp2", "fsdp")
"""Values of ``actor.strategy`` with which later updates of losses with a statistic were tested."""
ON_FSDP2 = ("model_engine=dp", f"{ACTOR}.strategy=fsdp2")
"""What to type for FSDP2; ``actor.strategy`` alone chooses between verl's FSDP engines."""


@dataclass(frozen=True)
class If:
    """Whether a key has one of some values; without values, whether it is neither null, false nor 0."""

    key: str
    values: tuple[Any, ...] = ()

    def __call__(self, config: DictConfig) -> bool:
        """Return whether it has."""
        value = setting(config, self.key)
        return value in self.values if self.values else bool(value)

    def __str__(self) -> str:
        return f"`{self.key}` is {' or '.join(map(as_typed, self.values)) if self.values else 'on'}"


@dataclass(frozen=True)
class Where:
    """A condition on a training, with its words for the page of support."""

    words: str
    holds: Condition

    def __call__(self, config: DictConfig) -> bool:
        """Return whether it holds."""
        return bool(self.holds(config))


@dataclass(frozen=True)
class In:
    """A key and the values with which a feature was tested; the first is the one to type.

    Attributes:
        why: what another value does; follows "which".
        refuse: another value is refused, not warned of.
        when: the row holds for trainings of which this is true; None: for all.
        line: what to type, where it is not the first value; or a function from the value that is found.
        test: whether a value is a tested one in this training, where ``values`` does not list them.
        words: the tested values in words, where ``values`` does not list them.
        read: returns what a training has, where it is not the key's value alone.
    """

    key: str
    values: tuple[Any, ...]
    why: str = ""
    refuse: bool = False
    when: Condition | None = None
    line: str | Callable[[Any], str] = ""
    test: Callable[[Any, DictConfig], bool] | None = None
    words: str = ""
    read: Callable[[DictConfig], Any] | None = None

    def value(self, config: DictConfig) -> Any:
        """Return what a training has."""
        return setting(config, self.key) if self.read is None else self.read(config)

    def holds(self, config: DictConfig) -> bool:
        """Whether a training has a tested value."""
        value = self.value(config)
        return value in self.values if self.test is None else self.test(value, config)

    @property
    def tested(self) -> str:
        """The tested values in words."""
        return self.words or " or ".join(dict.fromkeys(as_typed(each) for each in self.values))

    def unmet(self, name: str, config: DictConfig) -> Finding | None:
        """Return what is found of a training that uses the feature; None where it has a tested value."""
        if (self.when is not None and not self.when(config)) or self.holds(config):
            return None
        value = self.value(config)
        seen = f"{name} is tested with {self.key} {self.tested}; it is {as_typed(value)}, which {self.why}"
        severity = Severity.ERROR if self.refuse else Severity.WARNING
        is_new = self.key.startswith(SECTION) and setting(config, self.key) is None
        first = Line(f"{'++' * is_new}{self.key}={as_typed(self.values[0])}")
        line = self.line(value) if callable(self.line) else self.line
        return Finding(name, severity, Problem(self.key, value, line or first, seen=seen))


def Off(key: str, why: str, **more: Any) -> In:  # noqa: N802  # a kind of row
    """Return the row of a switch that is off."""
    return In(key, (False, None, 0), why, words="false", **more)


def Null(key: str, why: str, **more: Any) -> In:  # noqa: N802
    """Return the row of a key without a value."""
    return In(key, (None,), why, **more)


def AtLeast(key: str, least: float, why: str, **more: Any) -> In:  # noqa: N802
    """Return the row of a number that is not too small."""
    return In(
        key,
        (least,),
        why,
        test=lambda value, _: isinstance(value, int | float) and value >= least,
        words=f"≥ {least}",
        **more,
    )


def AtMost(key: str, most: float, why: str, **more: Any) -> In:  # noqa: N802
    """Return the row of a number that is not too large, or null."""
    return In(
        key,
        (most,),
        why,
        test=lambda value, _: value is None or (isinstance(value, int | float) and value <= most),
        words=f"≤ {most}",
        **more,
    )


def NoneWith(key: str, prefix: str, why: str, **more: Any) -> In:  # noqa: N802
    """Return the row of a comma-separated value without an entry that begins so."""
    return In(
        key,
        (None,),
        why,
        test=lambda value, _: not any(each.strip().startswith(prefix) for each in str(value).split(",")),
        words=f"without {prefix}…",
        **more,
    )


def Same(key: str, other: str, why: str, **more: Any) -> In:  # noqa: N802
    """Return the row of a key that is null or has the value of another."""
    return In(
        key,
        (other,),
        why,
        line=Line(f"{key}=${{{other}}}"),
        test=lambda value, config: value in (None, setting(config, other)),
        words=f"as {other}",
        **more,
    )


def Trainer(modes: tuple[str, ...], why: str, **more: Any) -> In:  # noqa: N802
    """Return the row of trainer modes, beside which other drivers and verl's older trainers are values, too.

    A mode that neither verl nor this package has is its author's, and nothing is said of it.
    """
    known = (*VERLS_MODES, *OUR_MODES, _FULLY_ASYNC_DRIVER, _ONE_STEP_OFF_DRIVER, _V0)

    def line(trainer: str) -> str:
        ours = f"grpo_ext_{trainer}" if f"grpo_ext_{trainer}" in modes else modes[0]
        if trainer.startswith("verl."):
            return f"python3 -m verl.trainer.main_ppo … {MODE}={ours}"
        return Line(*["trainer.use_v1=true"] * (trainer == _V0), f"{MODE}={ours}")

    own = {"read": _trainer_of, "test": lambda trainer, _: trainer in modes or trainer not in known}
    return In(MODE, modes, why, **({"line": line} | own | more))


def refused(*rows: In) -> tuple[In, ...]:
    """Return the rows, of which other values are refused."""
    return tuple(replace(row, refuse=True) for row in rows)


def _trainer_of(config: DictConfig) -> str:
    """Return the mode of verl's v1 trainers, `_V0`, or the module of another driver of verl's."""
    if keys.FULLY_ASYNC in config:
        return _FULLY_ASYNC_DRIVER
    if keys.ONE_STEP_OFF in config:
        return _ONE_STEP_OFF_DRIVER
    return str(setting(config, MODE, "")) if setting(config, "trainer.use_v1", True) else _V0


def runs_v1(config: DictConfig) -> bool:
    """Whether ``main_ppo`` runs the training, with one of verl's v1 trainers or of somebody's own."""
    return _trainer_of(config) not in (_FULLY_ASYNC_DRIVER, _ONE_STEP_OFF_DRIVER, _V0)


# Rows of losses that weigh a response by the log-ratio of the whole response, π to an older policy

ONE_OUTPUT = "its loss needs log π(y) of one y, and several outputs of a session are not one"
"""Why such losses refuse a session with several outputs."""
WEIGHTS = f"{CORRECTION}.rollout_is"
_CACHE = "skip.rollout_tq.enable"
"""verl's key for rollouts of an earlier run, or step, in the place of sampled ones."""

is_stored = If(f"{SECTION}.stored_responses.share")
"""Whether some of the responses were not sampled in this step."""


several_policies = Where(
    "the responses to a prompt may come from several policies",
    lambda config: _trainer_of(config) == _FULLY_ASYNC_DRIVER or _trainer_of(config).endswith("_async"),
)
_wrote_another_policy = Where(
    "some responses are of another policy than the one that is trained",
    lambda config: (
        is_stored(config)
        or several_policies(config)
        or _trainer_of(config) == _ONE_STEP_OFF_DRIVER
        or setting(config, _CACHE)
    ),
)


WHOLE_RESPONSES = NoneWith(
    f"{CORRECTION}.rollout_rs",
    "token",
    "changes the log-ratio of a response, by which the loss weighs all of it",
    refuse=True,
)
"""What is left of a response has another log-ratio, chosen for being small."""


def weighs_responses(why: str) -> tuple[In, ...]:
    """Return the rows of a loss that weighs whole responses by its own ratio to the policy that wrote them.

    ``why`` is what other weights, of the rollout correction, do beside.
    """
    old = (
        "has the old log-probs computed when a response is trained on, by another policy than the one that "
        "wrote it"
    )
    return (
        Null(WEIGHTS, why, refuse=True, line=Line(f"{WEIGHTS}=null", f"{BYPASS}=true")),
        WHOLE_RESPONSES,
        In(BYPASS, (True,), old, when=_wrote_another_policy),
    )

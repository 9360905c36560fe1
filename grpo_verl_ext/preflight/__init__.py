"""Check a composed configuration before Ray starts; each check is one function with one message.

A check refuses only what is known to be wrong with this package's own algorithms, settings and platform, and
values that verl cannot use (`values`). All else, verl's own settings included, is a warning.
``algorithm.grpo_ext.silence=[name]`` skips a check by name.
A check that raises an unexpected error is reported and refuses nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue

from grpo_verl_ext.preflight import algorithm, environment, files, names, tested, values
from grpo_verl_ext.utils.errors import Finding, Line, Problem, SettingError, Severity
from grpo_verl_ext.utils.keys import ROLLOUT, SECTION, setting, written
from grpo_verl_ext.verl_plugin.cpu import checks as cpu
from grpo_verl_ext.verl_plugin.features import Advise, Refuse, all_features

_SILENCE = f"{SECTION}.silence"
"""Key that lists the checks to skip."""


CHECKS: Mapping[str, Refuse] = {
    "options": algorithm.check_options,
    "preset-name": names.check_preset,
    "device": environment.check_device,
    "names": names.check_names,
    "sections": names.check_sections_of_modes,
    "task": files.check_task,
    "settings": algorithm.check_settings,
    "tested": lambda _: None,  # the rows, each with a name and a severity of its own
    "rollout-log-probs": algorithm.check_rollout_log_probs,
    **{name: refuse for feature in all_features() for name, refuse in feature.checks.items()},
    "cpu-cache": cpu.check_cache,
    "cpu-bucket": cpu.check_bucket,
}
"""Refusals by name, all about this package's own settings."""

ADVICE: Mapping[str, Advise] = {
    "preset": names.advise_preset,
    "features": names.advise_features,
    "kl-gradient": algorithm.advise_kl_gradient,
    "batch-scale": algorithm.advise_batch_scale,
    "mini-batch": algorithm.advise_mini_batch,
    "bypass": algorithm.advise_bypass,
    **{name: advise for feature in all_features() for name, advise in feature.advice.items()},
    "files": files.advise_files,
    "verl-version": environment.advise_verl,
    "packages": environment.advise_packages,
    "cpu-shared-memory": cpu.advise_shared_memory,
    "cpu-memory": cpu.advise_memory,
}
"""Warnings by name."""


_JUDGEMENTS = ("gradient", "no-gradient", "cut", "ratio", "refused", "unread", "probe")
"""Findings of `proof.judge`, by the names that silence them."""


def check_training(config: DictConfig) -> None:
    """Refuse a configuration that would fail in Ray or train another algorithm than the one it names.

    Raises:
        SettingError: the first refusal: key, value seen, valid values and the line to type.
    """
    for found in findings(config):
        if found.severity is Severity.ERROR:
            raise SettingError.of(found.problem)


def check_run_of_many(config: DictConfig) -> None:
    """Refuse one of many trainings as `check_training` does, and loggers for which all of them would end.

    Raises:
        SettingError: the first refusal.
    """
    check_training(config)
    if "packages" not in _silenced(config):
        for problem in environment.advise_loggers(config, keys=True):
            raise SettingError.of(problem)


def warnings(config: DictConfig) -> Iterator[Finding]:
    """Return settings that are allowed but seldom intended, without silenced checks."""
    return (found for found in findings(config) if found.severity is Severity.WARNING)


_FIRST = "preset"
"""The warning that comes before the refusals, since what it reports is often their cause."""


_OF_UPDATES = ("tested", "settings")
"""Refusals of what estimator and loss would do; a run that only validates calls neither."""


def findings(config: DictConfig, words: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield `_FIRST`, all refusals and all other warnings, without silenced checks and repeated messages.

    Values that no check can read are all that is yielded where there are some.

    Args:
        config: the composed configuration.
        words: of the command that it was composed from; none: Hydra's own, in a training.
    """
    if not words and HydraConfig.initialized():
        words = list(HydraConfig.get().overrides.task)
    try:
        silenced = _silenced(config)
    except SettingError as error:
        yield Finding("silence", Severity.ERROR, error.problem)
        silenced = []
    unreadable = [] if values.NAME in silenced else [*_caught(values.NAME, values.unreadable(config))]
    yield from unreadable
    if any(each.severity is Severity.ERROR for each in unreadable):
        return
    only_validates = setting(config, "trainer.val_only") and setting(config, "trainer.val_before_train", True)
    lenient = _OF_UPDATES if only_validates else ()
    said, keys, refused = {str(each.problem) for each in unreadable}, set[str](), False
    for name in _names():
        if name not in silenced:
            of_values = name == values.NAME
            check = values.unsuitable(config, words) if of_values else _run_check(name, config)
            for found in _caught(name, check):
                is_new = str(found.problem) not in said and found.check not in silenced
                if is_new and not (of_values and found.problem.key in keys):
                    weighed = replace(found, severity=Severity.WARNING) if name in lenient else found
                    refused |= weighed.severity is Severity.ERROR
                    yield weighed
                said.add(str(found.problem))
                keys.add(found.problem.key)
    if not only_validates:
        for found in _judged(config, words):
            # Of a training that is refused, nothing but its name is of interest.
            if found.check not in silenced and (not refused or found.check == "gradient"):
                yield found


def _judged(config: DictConfig, words: Sequence[str]) -> Iterator[Finding]:
    """Yield what the probe finds; where it cannot run, a warning once, and the training goes on."""
    try:
        from grpo_verl_ext.proof.judge import judgements

        yield from judgements(config, words)
    except Exception as error:  # noqa: BLE001  # a verl with other functions, or a fault of the probe
        seen = (
            f"the gradient could not be computed beforehand ({type(error).__name__}: {error}), so that "
            "nothing is known of it; the training goes on"
        )
        yield Finding("probe", Severity.WARNING, Problem("", None, seen=seen))


def _run_check(name: str, config: DictConfig) -> Iterator[Finding]:
    """Yield the findings of one check."""
    if name == "tested":
        yield from tested.untested(config)
    if name in CHECKS:
        CHECKS[name](config)
    for problem in ADVICE[name](config) if name in ADVICE else ():
        yield Finding(name, Severity.WARNING, problem)


def _caught(name: str, found: Iterator[Finding]) -> Iterator[Finding]:
    """Yield the findings of one check, its error among them; an unexpected error becomes a warning."""
    try:
        yield from found
    except SettingError as error:
        yield Finding(name, Severity.ERROR, error.problem)
    except MissingMandatoryValue as error:
        yield Finding("missing", Severity.WARNING, _missing(str(error.full_key)))
    except InterpolationToMissingValueError as error:
        key = str(error).partition("Missing mandatory value: ")[2].split()[0]
        yield Finding("missing", Severity.WARNING, _missing(key))
    except Exception as error:  # noqa: BLE001  # a fault in a check must not end a training
        seen = (
            f"the check '{name}' of grpo_verl_ext failed itself ({type(error).__name__}: {error}), so "
            f"nothing is known of what it looks at; the training goes on"
        )
        yield Finding(name, Severity.WARNING, Problem("", None, Line(f"++{_SILENCE}=[{name}]"), seen=seen))


def _names() -> list[str]:
    """Return the names of all checks, rows and judgements."""
    of_rows = (name for name, _ in tested.all_needs())
    return list(dict.fromkeys((_FIRST, *CHECKS, values.NAME, *of_rows, *ADVICE, *_JUDGEMENTS)))


def _missing(key: str) -> Problem:
    seen = f"{key} has no value, and verl has no default for it"
    if key != f"{ROLLOUT}.name":
        return Problem(key, None, f"{key}=<value>", seen=seen)
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    return Problem(key, None, Line(f"{key}=vllm"), valid=tuple(RolloutReplicaRegistry._registry), seen=seen)


def _silenced(config: DictConfig) -> list[str]:
    value = written(config.algorithm).get("silence")
    silenced = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    names = silenced if isinstance(silenced, list) else [silenced] if silenced else []
    valid = tuple(_names())
    for name in names:
        if not isinstance(name, str) or name not in valid:
            raise SettingError(
                _SILENCE,
                names,
                why=f"{name!r} is not the name of a check",
                valid=valid,
                fix=Line(f"{_SILENCE}=[]"),
            )
    return [str(name) for name in names]


__all__ = ["ADVICE", "CHECKS", "check_training", "findings", "warnings"]

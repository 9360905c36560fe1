"""Check a composed configuration before Ray starts; each check is one function with one message.

A check refuses only what is known to be wrong with this package's own algorithms, settings and platform, and
values that verl cannot use (`values`). All else, verl's own settings included, is a warning.
``algorithm.grpo_ext.silence=[name]`` skips a check by name.
A check that raises an unexpected error is reported and refuses nothing.
"""

from collections.abc import Iterator, Mapping, Sequence

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue

from grpo_verl_ext.preflight import algorithm, environment, tested_values, values
from grpo_verl_ext.utils.errors import Finding, Line, Problem, SettingError, Severity
from grpo_verl_ext.utils.keys import ROLLOUT, SECTION, setting, written
from grpo_verl_ext.verl_plugin.features import Advise, Refuse, all_features

_SILENCE = f"{SECTION}.silence"

_RECORDS = (algorithm.ALGORITHM, environment.ENVIRONMENT, *all_features())

CHECKS: Mapping[str, Refuse] = {name: check for each in _RECORDS for name, check in each.checks.items()}
"""Refusals by name, all about this package's own settings."""

ADVICE: Mapping[str, Advise] = {name: advise for each in _RECORDS for name, advise in each.advice.items()}
"""Warnings by name."""

NOTES: Mapping[str, Advise] = {name: note for each in all_features() for name, note in each.notes.items()}
"""Advice by name, of a training without a fault."""

_PROBE = "probe"


def check_training(config: DictConfig) -> None:
    """Refuse a configuration that would fail in Ray or train another algorithm than the one it names."""
    for found in findings(config):
        if found.severity is Severity.ERROR:
            raise SettingError(**vars(found.problem))


def findings(config: DictConfig, words: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield what `preset` warns of, all refusals, and all other warnings, without silenced and repeated ones.

    Values that no check can read are all that is yielded where there are some. In a training the words of its
    command are Hydra's.
    """
    if not words and HydraConfig.initialized():
        words = list(HydraConfig.get().overrides.task)
    try:
        silenced = _silenced(config)
    except SettingError as error:
        yield Finding("silence", Severity.ERROR, error.problem)
        silenced = []
    left_out = {*silenced} - {_PROBE}
    if setting(config, "trainer.val_only") and setting(config, "trainer.val_before_train", True):
        left_out |= {"tested", "settings", "sizes", "rows", _PROBE}  # of a training that has no updates
    said, refused = set[str](), False
    for name in _names():
        for found in _of_check(name, config, words) if name not in left_out else ():
            # Of a training that other checks refuse, the probe says nothing but its name.
            is_beside = refused and name == _PROBE and found.check != "gradient"
            if str(found.problem) not in said and found.check not in silenced and not is_beside:
                refused |= found.severity is Severity.ERROR and name != _PROBE
                yield found
            said.add(str(found.problem))
        if refused and name == values.NAME:
            return


def _of_check(name: str, config: DictConfig, words: Sequence[str]) -> Iterator[Finding]:
    """Yield the findings of one check, its error among them; an unexpected error becomes a warning."""
    try:
        if name == values.NAME:
            yield from values.wrong(config, words)
        if name == "tested":
            yield from tested_values.untested(config)
        if name == _PROBE:
            from grpo_verl_ext.proof.judge import judgements  # which fails on a verl with other functions

            yield from judgements(config, words)
        if name in CHECKS:
            CHECKS[name](config)
        for advise, severity in ((ADVICE.get(name), Severity.WARNING), (NOTES.get(name), Severity.NOTE)):
            for problem in advise(config) if advise else ():
                yield Finding(name, severity, problem)
    except SettingError as error:
        yield Finding(name, Severity.ERROR, error.problem)
    except (MissingMandatoryValue, InterpolationToMissingValueError) as error:
        asked = str(error).partition("Missing mandatory value: ")[2].split()
        key = asked[0] if asked else str(error.full_key)
        fix = Line(f"{key}=vllm") if key == f"{ROLLOUT}.name" else f"{key}=<value>"
        seen = f"{key} has no value, and verl has no default for it"
        yield Finding("missing", Severity.WARNING, Problem(key, None, fix, seen=seen))
    except Exception as error:  # noqa: BLE001  # a fault in a check must not end a training
        seen = f"the check '{name}' of grpo_verl_ext failed itself ({type(error).__name__}: {error}), so "
        seen += "nothing is known of what it looks at; the training goes on"
        yield Finding(name, Severity.WARNING, Problem("", None, Line(f"++{_SILENCE}=[{name}]"), seen=seen))


def _names() -> list[str]:
    of_rows = (name for name, _ in tested_values.all_needs())
    of_judge = ("gradient", "no-gradient", "cut", "ratio", "refused", "unread", _PROBE)
    # Before all others the check by whose errors they would end; what a replaced preset's warning reports is
    # often the cause of a refusal.
    names = (values.NAME, "preset", *CHECKS, *of_rows, *ADVICE, *NOTES, *of_judge)
    return list(dict.fromkeys(names))


def _silenced(config: DictConfig) -> list[str]:
    value = written(config.algorithm).get("silence")
    silenced = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    given = silenced if isinstance(silenced, list) else [silenced] if silenced else []
    valid = _names()
    if unknown := [each for each in given if each not in valid]:
        why, fix = f"{unknown[0]!r} is not the name of a check", Line(f"{_SILENCE}=[]")
        raise SettingError(_SILENCE, given, why=why, valid=valid, fix=fix)
    return [str(each) for each in given]

"""Find problems in a training's configuration without starting it, print them, and correct its command."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace

from omegaconf import OmegaConf

from grpo_verl_ext.preflight.report import exit_status, findings_with_verls, print_findings
from grpo_verl_ext.runs.verl_run import TRAINER
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.errors import Finding, Line, SettingError, Severity
from grpo_verl_ext.utils.keys import key_of
from grpo_verl_ext.verl_plugin.compose import CONFIG_NAME, CONFIG_PATH, composed


def examine_configuration(
    overrides: Sequence[str], *, as_json: bool, fix: bool = False, **options: str
) -> int:
    """Print the problems of a training's command line, with Hydra's options, and return the exit status.

    With ``fix`` print the corrected command, and to stderr what was changed and what is left.
    """
    with redirect_stdout(sys.stderr):  # verl prints while it validates
        words, corrected, found = correct(overrides, follow=fix, **options)
    usual = {"config_path": CONFIG_PATH, "config_name": CONFIG_NAME}
    given = {name: value for name, value in options.items() if value != usual[name]}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    command = ["python3", *TRAINER, *flags, *words]
    if as_json:
        content: dict[str, object] = {"command": command} if fix else {}
        for name, listed in {**({"fixed": corrected} if fix else {}), "findings": found}.items():
            content[name] = [
                {
                    "check": each.check,
                    "severity": each.severity.value,
                    "key": each.problem.key,
                    "value": each.problem.value,
                    "valid": each.problem.valid or None,
                    "why": each.problem.reason,
                    "type": each.problem.fix or None,
                }
                for each in listed
            ]
        print(json.dumps(content, indent=2, default=OmegaConf.to_container))
        return exit_status(found)
    console = make_console(stderr=fix)
    for each in corrected:
        console.print(f"fixed {each.check}: {each.problem}")
    print_findings(found, console)
    if fix:
        print(" \\\n    ".join([shlex.join(command[:3]), *map(shlex.quote, command[3:])]))
    return exit_status(found)


def all_findings(
    overrides: Sequence[str], *, config_path: str = CONFIG_PATH, config_name: str = CONFIG_NAME
) -> Iterator[Finding]:
    """Yield the findings of our checks, and what verl itself says beyond them."""
    try:
        config = composed(overrides, config_path=config_path, config_name=config_name)
    except SettingError as error:
        problem = error.problem
        if not problem.key:
            problem = replace(problem, seen=f"verl refuses the command line: {problem.seen}")
        yield Finding("composition", Severity.ERROR, problem)
        return
    yield from findings_with_verls(config, overrides)


def correct(
    overrides: Sequence[str], *, follow: bool = True, **options: str
) -> tuple[list[str], list[Finding], list[Finding]]:
    """Return the corrected command, the findings that were followed, in this order, and those it still has.

    One is followed after the other, since one may be the cause of others, and each line once.
    """
    words, corrected = list(overrides), list[Finding]()
    while True:
        found = list(all_findings(words, **options))
        followed = [each.problem.fix for each in corrected]
        for each in found if follow else ():
            line = each.problem.fix
            is_new = each.severity is not Severity.NOTE and isinstance(line, Line) and line not in followed
            if is_new and (better := put_in(line, words)) != words:
                words, corrected = better, [*corrected, each]
                break
        else:
            return words, corrected, found


def put_in(line: str, overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a command with the words of a line to type; as they are for a plain text.

    A word takes the place of the first override of its key, whose own ``+`` stays. ``~key`` removes the
    override that has added the key; where none has, it is an override itself.
    """
    kept = list(overrides)
    if isinstance(line, Line):
        removed = tuple(f"{key}." for key in line.without)
        kept = [word for word in overrides if not f"{key_of(word)}.".startswith(removed)]
        for word in line.words:
            mine = [each for each in kept if key_of(each) == key_of(word)]
            at = kept.index(mine[0]) if mine else len(kept)
            new = [] if mine and word.startswith("~") else [word]
            if mine and not word.startswith(("~", "++")):
                new = [f"{mine[-1].partition('=')[0]}={word.partition('=')[2]}"]
            kept = [*kept[:at], *new, *(each for each in kept[at:] if each not in mine)]
    return kept

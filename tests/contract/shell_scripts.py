"""Record the commands that shell scripts would start, without running them.

Each script runs in a copy of its checkout in a temporary folder, with ``HOME`` inside it and a ``PATH`` of a
few harmless tools and stand-ins. ``python3``, ``python``, ``torchrun``, ``uv run`` and ``ray job submit``
record their arguments; a command not on this ``PATH`` does nothing and succeeds; ``mkdir``, ``rm`` etc. work
inside the folder and do nothing elsewhere. A script that redirects elsewhere is not run.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PLACES = ("examples/**/*.sh", "tests/special_e2e/**/*.sh", "verl/experimental/*/shell/**/*.sh")
"""Where verl has its example scripts."""
SECONDS = 30.0
"""For one script; they take a tenth of a second."""

HARMLESS = (
    "basename",
    "bash",
    "cat",
    "cut",
    "dirname",
    "false",
    "grep",
    "head",
    "ls",
    "printf",
    "pwd",
)
HARMLESS += ("readlink", "realpath", "seq", "sh", "tail", "tr", "true", "uname", "wc")
"""None of them writes a file, with whatever option."""
WRITING = ("chmod", "cp", "ln", "mkdir", "mv", "rm", "tee", "touch")
RECORDED = ("python3", "python", "torchrun")
DEMANDED = re.compile(r"\$\{(\w+):\?")
WRITES_ELSEWHERE = re.compile(r">>?\s*[\"']?(/(?!dev/(null|stderr|stdout)\b)\S*)")

RECORDER = """\
{ printf '%s\\0' "$PWD" "${0##*/}" "$@"; } > "$STAND_IN_RECORDS/$EPOCHREALTIME-$$"
case "${1:-}" in
    -c) exit 1 ;;                                     # an import is tried: nothing is installed here
    -) grep -q get_device_name && echo cuda ;;        # a script asks verl: a node with NVIDIA's GPUs
esac
exit 0
"""
RAY = """\
while (($#)); do
    [[ $1 == -- ]] && { shift; exec "$@"; }
    shift
done
"""
DATE = "echo 2026-01-01\n"
"""The same for two runs of a script, whose arguments are compared."""
UV = """\
while (($#)); do
    [[ $1 == python3 || $1 == python || $1 == torchrun ]] && exec "$@"
    shift
done
"""
WRITER = """\
for argument; do
    [[ $argument == -* ]] && continue
    [[ $(realpath -m -- "$argument") == "$STAND_IN_FOLDER"/* ]] && continue
    [[ {name} == tee ]] && exec cat
    exit 0
done
exec {real} "$@"
"""
PASSING_ON = 'exec "$@"\n'
NOTHING_DONE = "command_not_found_handle() { return 0; }\nulimit() { return 0; }\n"
UNBOUND = re.compile(r"\b([A-Z][A-Z0-9_]*): unbound variable")
PLAUSIBLE = {"INFER_BACKEND": "vllm"}
"""Values of variables that a script demands; the others get the name of a folder."""


@dataclass(frozen=True)
class Invocation:
    """A Python that a script would have started."""

    script: str
    folder: str
    """Where, relative to the checkout."""
    program: str
    arguments: tuple[str, ...]

    @property
    def module(self) -> str | None:
        """Of ``-m module``; for torchrun, too."""
        return self.arguments[self.arguments.index("-m") + 1] if "-m" in self.arguments[:-1] else None

    @property
    def overrides(self) -> tuple[str, ...]:
        """What the module gets."""
        return self.arguments[self.arguments.index("-m") + 2 :] if self.module else ()


@dataclass(frozen=True)
class Outcome:
    """What became of one script."""

    script: str
    invocations: tuple[Invocation, ...]
    failure: str | None
    """Why it ended early, in its own words."""


class Folder:
    """A copy of a checkout, and the stand-ins."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.root = folder.resolve()
        self.home = self.root / "home"
        self.checkout = self.root / "checkout"
        self.records = self.root / "records"
        self.tools = self.root / "bin"
        for made in (self.home, self.records, self.tools):
            made.mkdir(parents=True)
        shutil.copytree(checkout, self.checkout, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        self._stand_ins()

    def scripts(self) -> list[Path]:
        """All shell scripts of `PLACES`, in a fixed order."""
        return sorted({file for place in PLACES for file in self.checkout.glob(place)})

    def run(self, script: Path) -> Outcome:
        """Run one of them; the folder is as empty of records as before."""
        name, text = str(script.relative_to(self.checkout)), script.read_text(encoding="utf-8")
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        if elsewhere := WRITES_ELSEWHERE.search(code):
            return Outcome(name, (), f"not run: it writes to {elsewhere.group(1)}")
        demanded = set(DEMANDED.findall(code))
        while True:
            failure = self._started(
                script, {key: PLAUSIBLE.get(key, str(self.home / key)) for key in demanded}
            )
            invocations = tuple(self._recorded(name))
            unbound = UNBOUND.search(failure or "")
            if unbound is None or unbound.group(1) in demanded:
                return Outcome(name, invocations, failure)
            demanded.add(unbound.group(1))

    def _stand_ins(self) -> None:
        for name in HARMLESS:
            if real := shutil.which(name):
                (self.tools / name).symlink_to(real)
        for name in RECORDED:
            self._stand_in(name, RECORDER)
        for name in WRITING:
            self._stand_in(name, WRITER.format(name=name, real=shutil.which(name)))
        self._stand_in("ray", RAY)
        self._stand_in("uv", UV)
        self._stand_in("date", DATE)
        self._stand_in("nohup", PASSING_ON)
        (self.tools / "nothing_done").write_text(NOTHING_DONE, encoding="utf-8")

    def _stand_in(self, name: str, lines: str) -> None:
        file = self.tools / name
        file.write_text(f"#!{shutil.which('bash')}\n{lines}", encoding="utf-8")
        file.chmod(0o755)

    def _environment(self, demanded: dict[str, str]) -> dict[str, str]:
        return {
            **demanded,
            "PATH": str(self.tools),
            "HOME": str(self.home),
            "BASH_ENV": str(self.tools / "nothing_done"),
            "LANG": "C.UTF-8",
            "STAND_IN_FOLDER": str(self.root),
            "STAND_IN_RECORDS": str(self.records),
        }

    def _started(self, script: Path, demanded: dict[str, str]) -> str | None:
        process = subprocess.Popen(
            [str(self.tools / "bash"), str(script)],
            cwd=self.checkout,
            env=self._environment(demanded),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            _, said = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"not at its end after {SECONDS:.0f} s"
        lines = [line for line in said.splitlines() if line and not line.startswith("+")]
        return (
            f"exit {process.returncode}: {lines[-1] if lines else 'no word'}" if process.returncode else None
        )

    def _recorded(self, script: str) -> Iterator[Invocation]:
        for record in sorted(self.records.iterdir()):
            folder, program, *arguments = record.read_bytes().decode(errors="replace").split("\0")[:-1]
            record.unlink()
            yield Invocation(script, os.path.relpath(folder, self.checkout), program, tuple(arguments))

"""Parse the arguments of quickstart.sh and smollm2.sh, refuse folders that they could damage, name stages.

Standard library only: the scripts start this file before anything is installed.
"""

import argparse
import difflib
import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ABOUT = (
    "on verl's real trainer and show what was learned. The run folder gets attempt-N.jsonl (verl's metrics), "
    "attempt-N.log (verl's output), checkpoints/, and at the end learning_curve.png and summary.json."
)


@dataclass(frozen=True)
class Example:
    """One of the scripts.

    Attributes:
        name: of its files; its run folder is ``outputs/<name>`` unless told otherwise.
        words: what a run is called in messages.
        task: preset, which is also verl's data source.
        what: what is trained, for the help.
        steps: training steps unless told otherwise.
    """

    name: str
    words: str
    task: str
    what: str
    steps: int

    @property
    def script(self) -> str:
        """Return the program's name in messages."""
        return f"{self.name}.sh"


QUICKSTART = Example("quickstart", "quick start", task="chain_sum", what="the embedded task", steps=14)
SMOLLM2 = Example("smollm2", "training", task="smollm2_max", what="the pretrained SmolLM2-135M", steps=20)
EXAMPLES = {example.name: example for example in (QUICKSTART, SMOLLM2)}


def parse_arguments(
    example: Example = QUICKSTART, arguments: Sequence[str] | None = None
) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of an example, and the overrides for verl; by default from the command line."""
    parser = argparse.ArgumentParser(
        prog=example.script,
        description=f"Train {example.what} {ABOUT}",
        epilog="Other arguments go to verl: key=value …",
    )
    folder = f"outputs/{example.name}"
    parser.add_argument("--algo", default="gvpo", help="preset of the package (default: gvpo)")
    parser.add_argument("--seed", type=int, default=1, help="seed of task, data order and sampling (1)")
    parser.add_argument("--steps", type=int, default=example.steps, help=f"training steps ({example.steps})")
    parser.add_argument("--out", type=Path, default=Path(folder), help=f"run folder ({folder})")
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    return parser.parse_known_args(arguments)


def check_algo(algo: str, example: Example = QUICKSTART) -> None:
    """Exit if no preset has the name, but one is near; another package may have presets, too."""
    root = Path(__file__).parents[1]
    presets = sorted(file.stem for file in (root / "grpo_verl_ext/config/algo").glob("*.yaml"))
    others = Path(os.environ.get("VENV", root / ".venv")).glob(
        "lib/*/site-packages/*.dist-info/entry_points.txt"
    )
    known = algo in presets or any(f"\n{algo} = " in file.read_text("utf-8") for file in others)
    near = [] if known else difflib.get_close_matches(algo, presets, n=1, cutoff=0.7)
    if near:
        shown = "".join(each if each.isprintable() else f"<U+{ord(each):04X}>" for each in algo)
        valid = ", ".join(presets)
        sys.exit(f"{example.script}: --algo is {shown}; valid are {valid}. Type: --algo {near[0]}")


def check_out(out: Path, example: Example = QUICKSTART) -> Path:
    """Return the absolute path of ``--out``; exit unless it is new, empty, or an earlier run's.

    The folder of an earlier run is renamed, so a folder with other files must not be taken for one.
    """
    folder = out.resolve()
    here = Path.cwd()
    if folder in (here, *here.parents):
        refuse_out(folder, "which holds the current directory", example)
    if not_a_folder := next((path for path in (folder, *folder.parents) if path.is_file()), None):
        refuse_out(folder, f"but {not_a_folder} is a file", example)
    try:
        others = folder.is_dir() and any(folder.iterdir()) and not is_run(folder)
    except OSError as error:
        refuse_out(folder, f"which cannot be read ({error.strerror})", example)
    if others:
        refuse_out(folder, "which has other files in it", example)
    return folder


def is_run(folder: Path) -> bool:
    """Whether the folder was made by an example, which writes ``settings`` before anything else."""
    marker = folder / "settings"
    return marker.is_file() and marker.read_bytes().startswith(b"algo=")


def refuse_out(folder: Path, reason: str, example: Example) -> NoReturn:
    """Exit with one message."""
    sys.exit(
        f"{example.script}: --out is {folder}, {reason}; valid is a new folder, an empty one, or that of an "
        f"earlier run. Type the same command with --out {another(folder, example)}"
    )


def another(folder: Path, example: Example = QUICKSTART) -> str:
    """Return another folder to suggest."""
    names = (f"outputs/{example.name}-{number}" for number in itertools.count(2))
    return next(name for name in names if not os.path.exists(name) and Path(name).resolve() != folder)


EXPECTED_SECONDS = {"install": 30.0, "prepare": 40.0, "start": 60.0, "step": 6.5}
"""On 2 cores without a GPU; a step of the default run includes its share of tests and checkpoints."""

STAGES = ("install", "prepare", "start", "train")


class Stages:
    """Print each stage as it begins, and how long it took when it ends.

    ``started`` is the time at which quickstart.sh announced the installation; None if it did not.
    """

    def __init__(self, started: float | None = None, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.started = clock() if started is None else started
        self.began = self.started
        self.current = "" if started is None else STAGES[0]

    def begin(self, stage: str, what: str, seconds: float, shortcut: str = "") -> None:
        """End the previous stage and announce this one; do nothing if it is the current stage.

        Args:
            stage: one of ``STAGES``.
            what: description of the stage.
            seconds: time that it takes on 2 cores.
            shortcut: when it takes less time.
        """
        if stage == self.current:
            return
        self.end()
        self.current, self.began = stage, self.clock()
        number = f"[{STAGES.index(stage) + 1}/{len(STAGES)}]"
        print(f"{number} {what}: {about(seconds)} on 2 cores{shortcut}.", flush=True)

    def end(self) -> None:
        """Print how long the current stage took, if there is one."""
        if self.current:
            now = self.clock()
            print(
                f"      took {minutes(now - self.began)}; {minutes(now - self.started)} since the start",
                flush=True,
            )
        self.current = ""

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return round(self.clock() - self.started, 1)


def about(seconds: float) -> str:
    """Return a rough time in words: ``about 30 s``, ``about 2 minutes``."""
    if seconds < 55:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    whole = round(seconds / 60)
    return f"about {whole} minute{'s' * (whole > 1)}"


def minutes(seconds: float) -> str:
    """Return a measured time as ``1:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    options, _ = parse_arguments(EXAMPLES[name], rest)
    check_algo(options.algo, EXAMPLES[name])
    check_out(options.out, EXAMPLES[name])
    Stages().begin(
        "install",
        "Installing verl, vLLM for the processor and this package",
        EXPECTED_SECONDS["install"],
        ", a few seconds if they are installed already",
    )

"""Parse the arguments of the quick start, and refuse folders that it could damage.

Standard library only: quickstart.sh starts this file before anything is installed.
"""

import argparse
import itertools
import sys
from pathlib import Path
from typing import NoReturn

STEPS = 14
ABOUT = (
    "Train the embedded task on verl's real trainer and show what was learned. The run folder gets "
    "attempt-N.jsonl (verl's metrics), attempt-N.log (verl's output), checkpoints/, and at the end "
    "learning_curve.png and summary.json."
)


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """Return the options of the quick start, and the overrides for verl."""
    parser = argparse.ArgumentParser(
        prog="quickstart.sh", description=ABOUT, epilog="Other arguments go to verl: key=value …"
    )
    parser.add_argument("--algo", default="gvpo", help="preset of the package (default: gvpo)")
    parser.add_argument("--seed", type=int, default=1, help="seed of task, data order and sampling (1)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"training steps ({STEPS})")
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/quickstart"), help="run folder (outputs/quickstart)"
    )
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    return parser.parse_known_args()


def check_out(out: Path) -> Path:
    """Return the absolute path of ``--out``; exit unless it is new, empty, or an earlier quick start's.

    The folder of an earlier run is renamed, so a folder with other files must not be taken for one.
    """
    folder = out.resolve()
    here = Path.cwd()
    if folder in (here, *here.parents):
        refuse_out(folder, "which holds the current directory")
    if not_a_folder := next((path for path in (folder, *folder.parents) if path.is_file()), None):
        refuse_out(folder, f"but {not_a_folder} is a file")
    if folder.is_dir() and any(folder.iterdir()) and not is_quickstart(folder):
        refuse_out(folder, "which has other files in it")
    return folder


def is_quickstart(folder: Path) -> bool:
    """Whether the folder was made by a quick start, which writes ``settings`` before anything else."""
    marker = folder / "settings"
    return marker.is_file() and marker.read_bytes().startswith(b"algo=")


def refuse_out(folder: Path, reason: str) -> NoReturn:
    """Exit with one message."""
    sys.exit(
        f"quickstart.sh: --out is {folder}, {reason}; valid is a new folder, an empty one, or that of an "
        f"earlier quick start. Type the same command with --out {another(folder)}"
    )


def another(folder: Path) -> str:
    """Return another folder to suggest."""
    names = (f"outputs/quickstart-{number}" for number in itertools.count(2))
    return next(name for name in names if not Path(name).exists() and Path(name).resolve() != folder)


if __name__ == "__main__":
    check_out(parse_arguments()[0].out)

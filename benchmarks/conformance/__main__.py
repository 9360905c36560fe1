"""Make an environment per framework, run its own losses on the common mini-batch, compare, and write the
page.

python -m benchmarks.conformance [NAMES…] [--environments FOLDER] [--checkout NAME=PATH …] [--accept]

Without names: all that install from packages, and all that a checkout is given for. Rows of frameworks that
are not run stay as they are kept. Fails if a framework is missing or differs from the one that was tested,
if a failing control passes, if a row of ours depends on the cut, or if a row has NaN, no gradient or no cut
to compare. `--accept`: keep the new versions and hashes.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.conformance import comparison
from benchmarks.conformance.batch import batches
from benchmarks.conformance.environments import InstallationError, python_of
from benchmarks.conformance.frameworks import FRAMEWORKS
from benchmarks.conformance.page import page
from grpo_verl_ext.utils.files import write_whole

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs/conformance.md"


class RunError(Exception):
    """A framework's environment could not run its adapter."""


def main() -> None:
    options = arguments()
    checkouts = dict(pair.split("=", 1) for pair in options.checkout)
    kept = json.loads(RESULTS.read_text())["frameworks"] if RESULTS.exists() else {}
    frameworks, problems = dict(kept), []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.names or installable(checkouts):
            try:
                found = run(name, Path(scratch), options.environments, checkouts.get(name))
            except (InstallationError, RunError) as error:
                problems.append(f"{name}: {error}")
                continue
            changes = comparison.drift(found, kept.get(name), FRAMEWORKS[name].version)
            problems += [f"{name} {change}" for change in changes]
            if options.accept or not changes:
                frameworks[name] = found
                keep(frameworks)
    problems += comparison.failures(frameworks)
    if problems:
        sys.exit("conformance: " + "\n  ".join(problems))


def keep(frameworks: dict[str, Any]) -> None:
    """Write results and page, after every framework: an interrupted command has lost nothing."""
    in_order = {name: frameworks[name] for name in FRAMEWORKS if name in frameworks}
    results = {"date": date.today().isoformat(), "frameworks": in_order}
    write_whole(RESULTS, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    write_whole(PAGE, page(results))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAMES")
    parser.add_argument("--environments", type=Path, default=Path("outputs/conformance"))
    parser.add_argument("--checkout", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--accept", action="store_true")
    options = parser.parse_args()
    named = {*options.names, *(pair.split("=", 1)[0] for pair in options.checkout)}
    if unknown := sorted(named - set(FRAMEWORKS)):
        parser.error(f"no adapter is called {', '.join(unknown)}; valid are {', '.join(FRAMEWORKS)}")
    return options


def installable(checkouts: dict[str, str]) -> list[str]:
    """Return the frameworks that need no checkout, or have one."""
    return [name for name, framework in FRAMEWORKS.items() if not framework.repository or name in checkouts]


def run(name: str, scratch: Path, environments: Path, checkout: str | None) -> dict[str, Any]:
    """Run a framework on every number of ranks, and return its facts and its rows with their cells.

    Raises:
        InstallationError: pip failed.
        RunError: the adapter did; the last line of its output.
    """
    if FRAMEWORKS[name].repository and checkout is None:
        raise RunError(f"needs a checkout of {FRAMEWORKS[name].repository}; type --checkout {name}=PATH")
    python = python_of(name, environments.absolute())
    (scratch / "batches").mkdir(exist_ok=True)
    (scratch / name).mkdir()
    common = batches()
    for kind, batch in common.items():
        batch.save(scratch / "batches" / f"{kind}.npz")
    found = {}
    for world_size in FRAMEWORKS[name].world_sizes:
        _run_ranks(python, name, scratch, world_size, checkout)
        ranks = [_load(scratch / name / f"rank-{rank}-of-{world_size}.npz") for rank in range(world_size)]
        found[world_size] = comparison.averaged(ranks)
    facts = json.loads((scratch / name / "rank-0-of-1.json").read_text())
    for index, row in enumerate(facts["rows"]):
        row["cells"] = comparison.cells(index, row["algorithm"], common, found)
    for row in facts["estimators"]:
        row["cell"] = comparison.estimator_cell(row.pop("advantages"), row["algorithm"])
    return facts


def _run_ranks(python: Path, name: str, scratch: Path, world_size: int, checkout: str | None) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "CONFORMANCE_CHECKOUT": checkout or "",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
    }
    logs = [scratch / name / f"rank-{rank}-of-{world_size}.log" for rank in range(world_size)]
    processes = []
    for rank, log in enumerate(logs):
        command = [str(python), "-m", "benchmarks.conformance.harness", name, str(scratch)]
        with log.open("w") as output:
            processes.append(
                subprocess.Popen(
                    command, env=environment | {"RANK": str(rank)}, stdout=output, stderr=subprocess.STDOUT
                )
            )
    if sum(process.wait() != 0 for process in processes):
        raise RunError("did not run: " + (logs[0].read_text().strip().splitlines() or ["no message"])[-1])


def _load(path: Path) -> comparison.Gradients:
    with np.load(path) as arrays:
        return dict(arrays)


if __name__ == "__main__":
    main()

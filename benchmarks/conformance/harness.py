"""Run one adapter on one rank, inside the environment of its framework. Imports numpy and that framework
alone.

python -m benchmarks.conformance.harness ADAPTER FOLDER

FOLDER has the batches; ``rank-R-of-W.npz`` (gradients by row, batch, cut) and ``.json`` (versions, hashes,
lines) are written there. RANK and WORLD_SIZE are read from the environment, as torch's launcher sets them.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.conformance.adapter import Task
from benchmarks.conformance.batch import CUTS, Batch, Floats, rank_rows
from benchmarks.conformance.oracle import ALGORITHMS, KL_COEF

CHECKOUT = os.environ.get("CONFORMANCE_CHECKOUT", "")
"""Path of the user's checkout, for a framework that runs from one."""


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    adapter = importlib.import_module(f"benchmarks.conformance.adapters.{name}")
    batches = {path.stem: Batch.load(path) for path in sorted((folder / "batches").glob("*.npz"))}
    found = gradients(adapter, batches, rank, world_size)
    target = folder / name / f"rank-{rank}-of-{world_size}"
    np.savez(target.with_suffix(".npz"), **found)
    known = facts(adapter)
    if world_size == 1:
        known["estimators"] = advantages(adapter, batches["ragged"])
    target.with_suffix(".json").write_text(json.dumps(known, indent=1))


def gradients(
    adapter: ModuleType, batches: dict[str, Batch], rank: int = 0, world_size: int = 1
) -> dict[str, Floats]:
    """Return ``"row/batch/cut"`` → ∂L/∂log π (B, T) that this rank contributes, before ranks are averaged."""
    found = {}
    for index, row in enumerate(adapter.ROWS):
        algorithm = ALGORITHMS[row.algorithm]
        for kind, batch in batches.items():
            if kind == "kl" and not (row.algorithm == "grpo" and adapter.HAS_K3_LOSS):
                continue
            for cut in adapter.CUTS:
                task = Task(
                    row=row,
                    batch=batch,
                    micro_batches=CUTS[cut](rank_rows(len(batch), rank, world_size), batch.lengths),
                    rank=rank,
                    world_size=world_size,
                    clip_low=algorithm.clip_low,
                    clip_high=algorithm.clip_high,
                    kl_coef=KL_COEF if kind == "kl" else 0.0,
                )
                found[f"{index}/{kind}/{cut}"] = np.asarray(adapter.gradient(task), dtype=np.float64)
    return found


def advantages(adapter: ModuleType, batch: Batch) -> list[dict[str, Any]]:
    """Return the rows of a framework's estimators with the advantage of each response."""
    return [
        {
            "algorithm": row.algorithm,
            "settings": row.settings,
            "note": row.note,
            "advantages": np.asarray(adapter.advantages(row, batch), dtype=np.float64).tolist(),
        }
        for row in getattr(adapter, "ESTIMATORS", ())
    ]


def facts(adapter: ModuleType) -> dict[str, Any]:
    """Return what was run: versions, hashes of the files that the loss passes through, lines stood in for."""
    root = source_root(adapter)
    return {
        "title": adapter.TITLE,
        "version": version(adapter),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in adapter.BESIDE},
        "sha256": {file: hashlib.sha256((root / file).read_bytes()).hexdigest() for file in adapter.SOURCES},
        "stand_ins": [
            {
                "file": s.file,
                "line_number": line_number(root / s.file, s.line, s.after),
                "line": s.line,
                "ours": s.ours,
            }
            for s in adapter.STAND_INS
        ],
        "has_k3_loss": adapter.HAS_K3_LOSS,
        "cuts": list(adapter.CUTS),
        "no_mode": adapter.NO_MODE,
        "rows": [
            {key: getattr(row, key) for key in ("algorithm", "settings", "note", "control", "bug")}
            for row in adapter.ROWS
        ],
    }


def version(adapter: ModuleType) -> str:
    """Return the release that is installed, or the commit of the user's checkout."""
    if CHECKOUT:
        command = ["git", "-C", CHECKOUT, "rev-parse", "--short=7", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return metadata.version(adapter.DISTRIBUTION)


def source_root(adapter: ModuleType) -> Path:
    """Return the folder below which the framework's files lie: its site-packages or the user's checkout."""
    return Path(CHECKOUT or str(metadata.distribution(adapter.DISTRIBUTION).locate_file("")))


def line_number(file: Path, text: str, after: str = "") -> int:
    """Return the number of the first line with ``text``, from the first with ``after`` on; 0 if none is."""
    lines = file.read_text(encoding="utf-8").splitlines()
    start = next((number for number, line in enumerate(lines) if after in line), len(lines))
    return next((number + 1 for number in range(start, len(lines)) if text in lines[number]), 0)


if __name__ == "__main__":
    main()

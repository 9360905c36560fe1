"""Measure `ablate report` of a large grid: the size of its table, CPU seconds, and memory at its peak.

python benchmarks/ablation_report.py [--runs 500] [--steps 55] [--folder FOLDER]

The runs are made up: each repeats the metrics of a real one, varied by a tenth where they vary.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from grpo_verl_ext.ablation.declaration import Control, Expectation, Primary
from grpo_verl_ext.ablation.grid import GridSettings, runs_of
from grpo_verl_ext.ablation.state import State
from grpo_verl_ext.ablation.table import RunResult, gathered, read_table, write_table
from grpo_verl_ext.runs.metrics import Metrics

REAL = Path(__file__).parents[1] / "examples/ablations/results/losses_chain_sum/metrics.parquet"
VARIANTS = 10
ACCURACY = "val-core/chain_sum/acc/mean@1"


def settings_of(runs: int, steps: int) -> GridSettings:
    names = [f"variant-{number}" for number in range(VARIANTS)]
    return GridSettings(
        folder="made_up",
        steps=steps,
        base=[],
        axes={"loss": {name: [] for name in names}},
        seeds=[*range(1, runs // VARIANTS + 1)],
        baseline=names[:1],
        metrics=[ACCURACY, "gold_response/probability"],
        primary=Primary("gold_response/probability", "area"),
        margin=0.05,
        expect=[Expectation(name, "higher") for name in names[1:-1]],
        control=Control(names[-1], "lower"),
    )


def made_up(settings: GridSettings) -> Iterator[tuple[RunResult, Metrics]]:
    """Runs of the grid, with as many digits as real numbers have: most of them are of float32."""
    real = read_table(REAL)
    finished = [run for run in real.runs if run.state is State.FINISHED]
    rng = np.random.default_rng(0)
    for index, run in enumerate(runs_of(settings)):
        like = finished[index % len(finished)]
        rows = real.table[(real.table["variant"] == like.variant) & (real.table["seed"] == like.seed)]
        metrics: Metrics = {step: {} for step in range(settings.steps + 1)}
        for name, own in rows.groupby("metric", observed=True, sort=False):
            values = own["value"].to_numpy()
            steps = range(int(own["step"].iloc[0]), settings.steps + 1)
            for step, value in zip(steps, rng.choice(values, len(steps)).tolist(), strict=True):
                metrics[step][name] = _varied(value, rng.normal())
        yield RunResult(run.variant, run.seed, State.FINISHED, like.record), metrics


def _varied(value: float, noise: float) -> float:
    """The value times a factor near 1, with as many digits; a share of counts, such as 5/16, as it is."""
    if (value * 1024).is_integer():
        return value
    kind = np.float32 if value == np.float32(value) else np.float64
    return float(kind(value * (1 + 0.1 * noise)))


REPORT = """
import resource, sys
from pathlib import Path
from grpo_verl_ext.ablation.terminal import print_report
print_report(Path(sys.argv[1]), threshold=None, output=Path(sys.argv[2]))
own = resource.getrusage(resource.RUSAGE_SELF)
print(f"{own.ru_utime + own.ru_stime:.1f} {own.ru_maxrss / 1024:.0f}", file=sys.stderr)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--steps", type=int, default=55)
    parser.add_argument("--folder", type=Path, default=None)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        settings = settings_of(asked.runs, asked.steps)
        results = gathered(settings, made_up(settings))
        write_table(results, folder / "metrics.parquet")
        reported = subprocess.run(
            [sys.executable, "-c", REPORT, str(folder / "metrics.parquet"), str(folder / "report")],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
        seconds, memory = reported.stderr.split()[-2:]
        size = (folder / "metrics.parquet").stat().st_size / 2**20
        print(f"{asked.runs} runs, {len(results.table):,} numbers: metrics.parquet {size:.1f} MiB")
        print(f"report: {seconds} s of CPU, {memory} MiB at its peak")


if __name__ == "__main__":
    main()

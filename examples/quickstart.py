"""Train the embedded task on verl's real trainer and show what was learned; started by quickstart.sh.

Everything a run leaves lies in one folder: ``attempt-N.jsonl`` (verl's metrics), ``attempt-N.log`` (verl's
output), ``checkpoints/``, and at the end ``learning_curve.png`` and ``summary.json``.
"""

import argparse
import json
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from grpo_verl_ext.files import write_whole
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.runs.process import ProcessFailedError
from grpo_verl_ext.runs.verl_run import VerlRun

TEST_ACCURACY = "val-core/chain_sum/acc/mean@1"
TRAIN_SCORE = "critic/score/mean"
STEPS = 16


def main() -> None:
    options, overrides = parse_arguments()
    prepare_task(options.seed)
    settings = " ".join([f"algo={options.algo} seed={options.seed} steps={options.steps}", *overrides])
    out = open_run_folder(options.out, settings)
    summary = summarize(train(options, overrides, out), out, options)
    print(
        f"\nTest accuracy, sampled at temperature 1: {summary['accuracy_before']:.3f} before, "
        f"{summary['accuracy_after']:.3f} after {summary['steps']} steps of {options.algo} "
        f"(seed {options.seed}, {summary['seconds']:.0f} s in all).\n{out / 'learning_curve.png'}"
    )


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="quickstart.sh", description=__doc__, epilog="Other arguments go to verl: key=value …"
    )
    parser.add_argument("--algo", default="gvpo", help="preset of the package (default: gvpo)")
    parser.add_argument("--seed", type=int, default=1, help="seed of task, data order and sampling (1)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"training steps ({STEPS})")
    parser.add_argument("--out", type=Path, default=Path("outputs/quickstart"), help="run folder")
    parser.add_argument("--started", type=float, default=time.time(), help=argparse.SUPPRESS)
    return parser.parse_known_args()


def prepare_task(seed: int) -> None:
    """Make data, tokenizer and starting model, unless the cache has them."""
    command = [Path(sys.executable).with_name("grpo-verl-ext"), "prepare", "chain_sum", "--seed", str(seed)]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(1)  # the command has said why


def open_run_folder(out: Path, settings: str) -> Path:
    """Take up an unfinished run of the same settings; move any other aside."""
    marker = out / "settings"
    same = marker.is_file() and marker.read_text() == settings
    if out.exists() and ((out / "summary.json").exists() or not same):
        aside = out.with_name(f"{out.name}-{datetime.now():%Y%m%d-%H%M%S}")
        out.rename(aside)
        print(f"An earlier run was moved to {aside}")
    out.mkdir(parents=True, exist_ok=True)
    marker.write_text(settings)
    return out


def train(options: argparse.Namespace, overrides: list[str], out: Path) -> VerlRun:
    """Run verl's trainer in a process of its own, with a progress bar made from its metrics."""
    settings = (
        *(f"+algo={options.algo}", "+platform=cpu", "+task=chain_sum", f"task.seed={options.seed}"),
        *("trainer.test_freq=4", "trainer.save_freq=4", "trainer.max_actor_ckpt_to_keep=1"),
    )
    run = VerlRun(out, [*settings, *overrides], options.steps)
    print(f"Starting verl: {' '.join(run.command())}\n{run.ray.words}\nIts output goes to {out}")
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns) as progress:
        bar = progress.add_task("starting Ray, actor and rollout", total=options.steps)
        try:
            run.go(
                lambda metrics: progress.update(bar, completed=max(metrics, default=0), **described(metrics))
            )
        except KeyboardInterrupt:
            sys.exit("\nInterrupted. The same command goes on from the last checkpoint.")
        except ProcessFailedError as error:
            sys.exit(str(error))
    return run


def described(metrics: Metrics) -> dict[str, str]:
    """What the bar says once there is something to say."""
    if not metrics:
        return {}
    accuracy = [values[TEST_ACCURACY] for _, values in sorted(metrics.items()) if TEST_ACCURACY in values]
    last = metrics[max(metrics)]
    score = f", score {last[TRAIN_SCORE]:.2f}" if TRAIN_SCORE in last else ""
    return {"description": f"training{score}" + f", test accuracy {accuracy[-1]:.3f}" * bool(accuracy)}


def summarize(run: VerlRun, out: Path, options: argparse.Namespace) -> dict[str, object]:
    metrics = run.metrics()
    tested = {step: m[TEST_ACCURACY] for step, m in sorted(metrics.items()) if TEST_ACCURACY in m}
    draw_learning_curve(metrics, tested, out / "learning_curve.png", options.algo)
    summary = {
        "accuracy_before": tested[min(tested)],
        "accuracy_after": tested[max(tested)],
        "steps": max(tested),
        "seconds": round(time.time() - options.started, 1),
        "algo": options.algo,
        "seed": options.seed,
        "test_accuracy_by_step": tested,
    }
    write_whole(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    return summary


def draw_learning_curve(metrics: Metrics, tested: dict[int, float], file: Path, algo: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, accuracy = plt.subplots(figsize=(7, 4), layout="constrained")
    accuracy.plot(list(tested), list(tested.values()), "o-", color="#0072B2", label="test accuracy")
    accuracy.set(xlabel="step", ylabel="accuracy, sampled at temperature 1", ylim=(0, 1))
    accuracy.xaxis.get_major_locator().set_params(integer=True)
    accuracy.set_title(f"chain_sum, {algo}, on the CPU platform")
    score = accuracy.twinx()
    steps = sorted(step for step, m in metrics.items() if TRAIN_SCORE in m)
    score.plot(steps, [metrics[s][TRAIN_SCORE] for s in steps], "--", color="#D55E00", label="training score")
    score.set_ylabel("mean score of the training batch")
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(file, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()

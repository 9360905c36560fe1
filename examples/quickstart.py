"""Train the embedded task on verl's real trainer and show what was learned; started by quickstart.sh.

Everything a run leaves lies in one folder: ``attempt-N.jsonl`` (verl's metrics), ``attempt-N.log`` (verl's
output), ``checkpoints/``, and at the end ``learning_curve.png`` and ``summary.json``.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

TEST_ACCURACY = "val-core/chain_sum/acc/mean@1"
TRAIN_SCORE = "critic/score/mean"
STEPS = 16


def main() -> None:
    options, overrides = parse_arguments()
    prepare_task(options.seed)
    settings = " ".join([f"algo={options.algo} seed={options.seed} steps={options.steps}", *overrides])
    out = open_run_folder(options.out, settings)
    train(options, overrides, out)
    summary = summarize(out, options)
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


def train(options: argparse.Namespace, overrides: list[str], out: Path) -> None:
    """Run verl's trainer in a process of its own, with a progress bar made from its metrics."""
    attempt = out / f"attempt-{len(list(out.glob('attempt-*.log'))) + 1}"
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo"),
        *(f"+algo={options.algo}", "+platform=cpu", "+task=chain_sum", f"task.seed={options.seed}"),
        f"trainer.total_training_steps={options.steps}",
        *("trainer.test_freq=4", "trainer.save_freq=4", "trainer.max_actor_ckpt_to_keep=1"),
        f"trainer.default_local_dir={(out / 'checkpoints').resolve()}",
        *("trainer.logger=[console,file]", f"hydra.run.dir={out / 'hydra'}"),
        *overrides,
    ]
    # verl starts its metrics file anew whenever it starts, so each attempt has a file of its own.
    environment = {**os.environ, "VERL_FILE_LOGGER_PATH": str(attempt.with_suffix(".jsonl").resolve())}
    log = attempt.with_suffix(".log")
    print(f"Starting verl: {' '.join(command[1:])}\nIts output goes to {log}")
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            show_progress(process, out, options.steps)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            sys.exit("\nInterrupted. The same command goes on from the last checkpoint.")
    if process.returncode != 0:
        print(last_lines(log), file=sys.stderr)
        sys.exit(f"verl ended with status {process.returncode}; its whole output is in {log}")


def show_progress(process: subprocess.Popen[bytes], out: Path, steps: int) -> None:
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns) as progress:
        bar = progress.add_task("starting Ray, actor and rollout", total=steps)
        while process.poll() is None:
            done = read_metrics(out)
            if done:
                step = max(done)
                accuracy = [m[TEST_ACCURACY] for _, m in sorted(done.items()) if TEST_ACCURACY in m]
                tested = f", test accuracy {accuracy[-1]:.3f}" if accuracy else ""
                score = f", score {done[step][TRAIN_SCORE]:.2f}" if TRAIN_SCORE in done[step] else ""
                progress.update(bar, completed=step, description=f"training{score}{tested}")
            time.sleep(0.5)


def read_metrics(out: Path) -> dict[int, dict[str, float]]:
    """Metrics by step over all attempts; a later attempt has the last word on a step it repeated."""
    metrics: dict[int, dict[str, float]] = {}
    for file in sorted(out.glob("attempt-*.jsonl"), key=lambda f: int(f.stem.split("-")[1])):
        for record in complete_records(file):
            metrics.setdefault(record["step"], {}).update(record["data"])
    return metrics


def complete_records(file: Path) -> Iterator[dict[str, object]]:
    """Records of whole lines; a killed run may leave half a line at the end."""
    for line in file.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def last_lines(log: Path, count: int = 15) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if "arning" not in line]
    return "\n".join(lines[-count:])


def summarize(out: Path, options: argparse.Namespace) -> dict[str, object]:
    metrics = read_metrics(out)
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
    unfinished = out / "summary.json.unfinished"
    unfinished.write_text(json.dumps(summary, indent=2) + "\n")
    unfinished.rename(out / "summary.json")
    return summary


def draw_learning_curve(
    metrics: dict[int, dict[str, float]], tested: dict[int, float], file: Path, algo: str
) -> None:
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

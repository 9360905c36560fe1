"""Train the embedded task on verl's real trainer and show what was learned; started by quickstart.sh."""

import argparse
from pathlib import Path

from quickstart_arguments import QUICKSTART
from quickstart_run import OURS, go, open_run_folder, prepare, run_example, settings_of
from quickstart_stages import EXPECTED_SECONDS, Stages
from quickstart_summary import draw_learning_curve, sentence, summarize, write_summary

from grpo_verl_ext.runs.verl_run import VerlRun


def main() -> None:
    run_example(QUICKSTART, prepare_and_train)


def prepare_and_train(options: argparse.Namespace, overrides: list[str], out: Path) -> str:
    """Run all stages but the installation, write their results to ``out``, and return a report."""
    stages = Stages(options.started)
    stages.begin(
        "prepare",
        f"Preparing the task chain_sum, seed {options.seed}, and its starting model",
        EXPECTED_SECONDS["prepare"],
        ", a few seconds if they are there already",
    )
    prepare(OURS, "prepare", "chain_sum", "--seed", str(options.seed))
    open_run_folder(out, settings_of(options, overrides))
    metrics = train(options, overrides, out, stages).metrics()
    curve = out / "learning_curve.png"
    draw_learning_curve(metrics, curve, f"chain_sum, {options.algo}, on the CPU platform")
    summary = summarize(metrics, algo=options.algo, seed=options.seed, seconds=stages.seconds())
    write_summary(summary, out / "summary.json")
    return f"{sentence(summary)}\n{curve}"


def train(options: argparse.Namespace, overrides: list[str], out: Path, stages: Stages) -> VerlRun:
    settings = (
        *(f"+algo={options.algo}", "+platform=cpu", "+task=chain_sum", f"task.seed={options.seed}"),
        *("trainer.test_freq=7", "trainer.save_freq=7", "trainer.max_actor_ckpt_to_keep=1"),
        # half of the test prompts: a standard error of 0.03
        "data.val_max_samples=256",
    )
    run = VerlRun(out, [*settings, *overrides], options.steps)
    go(run, options.algo, stages, EXPECTED_SECONDS)
    return run


if __name__ == "__main__":
    main()

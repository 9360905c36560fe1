"""Run a grid with a stand-in for verl's trainer, to be killed."""

import os
from pathlib import Path
from unittest.mock import Mock

from grpo_verl_ext.ablation.declaration import Control, Expectation, GridSettings, ManipulationCheck, Primary
from grpo_verl_ext.ablation.grid import runs_of
from grpo_verl_ext.ablation.run import go


def main(folder: Path) -> None:
    """Run or resume that of this folder, and print each run that begins."""
    os.environ["PYTHONPATH"] = str(Path(__file__).with_name("fake_verl"))
    settings = GridSettings(
        folder=str(folder),
        steps=5,
        base=[],
        axes={"algo": {"base": ["+algo=grpo"], "other": ["+algo=gvpo"]}},
        seeds=[1, 2, 3],
        seed_overrides=["data.seed={seed}"],
        baseline=["base"],
        metrics=["acc"],
        primary=Primary("acc", "mean"),
        margin=0.25,
        expect=[Expectation("other", "higher")],
        checks=[ManipulationCheck("acc", "mean", at_least=0.5)],
        control=Control("other", "different"),
    )
    live = Mock()
    live.console.print = lambda line, **_: line.endswith("begins") and print(line.split()[1], flush=True)
    go(settings, runs_of(settings), live)

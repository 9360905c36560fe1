"""Fuzz the folder of a grid over many kills and failures: nothing is lost, and the state is in the files.

A state machine plays verl and the runner on real files, without training. Corrupt files are in
test_fuzz_readers.py.
"""

import json
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from strategies import fuzzing

from grpo_verl_ext.ablation.grid import GridSettings, keep_grid, runs_of
from grpo_verl_ext.ablation.state import FAILURE, State, status_of
from grpo_verl_ext.ablation.table import read_results
from grpo_verl_ext.runs.metrics import TRAINED

STEPS = 3
numbers = st.integers(0, 1)


class GridFolder(RuleBasedStateMachine):
    """Two runs. ``logged`` is what verl wrote of each."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        grid = GridSettings(
            folder=str(self.folder),
            steps=STEPS,
            base=[],
            axes={"algo": {"a": [], "b": []}},
            seeds=[1],
            baseline=["a"],
            metrics=["acc"],
        )
        keep_grid(grid)
        self.runs = runs_of(grid)
        self.logged: list[dict[int, float]] = [{}, {}]
        self.attempts = [0, 0]
        self.failures: list[str | None] = [None, None]

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def failed(self, number: int) -> Path:
        return self.runs[number].training.folder / FAILURE

    @rule(
        number=numbers,
        values=st.lists(st.sampled_from([0.25, 0.5, None]), max_size=STEPS),
        cut=st.integers(0, 30),
    )
    def an_attempt_that_is_killed_while_it_logs(
        self, number: int, values: list[float | None], cut: int
    ) -> None:
        run = self.runs[number]
        run.training.folder.mkdir(parents=True, exist_ok=True)
        record = {"overrides": [], "steps": STEPS, "git_revision": None, "versions": {}}
        (run.training.folder / "run.json").write_text(json.dumps(record))
        self.attempts[number] += 1
        lines = [json.dumps({"step": step, "data": {"acc": value}}) for step, value in enumerate(values)]
        half = json.dumps({"step": STEPS, "data": {"acc": 1.0}})[:cut]
        file = run.training.folder / f"attempt-{self.attempts[number]}.jsonl"
        file.write_text("".join(f"{line}\n" for line in lines) + half)
        self.logged[number] |= {
            step: float("nan") if value is None else value for step, value in enumerate(values)
        }

    @rule(number=numbers)
    def an_attempt_that_finishes(self, number: int) -> None:
        self.an_attempt_that_is_killed_while_it_logs(number, [0.5] * STEPS, 0)
        file = self.runs[number].training.folder / f"attempt-{self.attempts[number]}.jsonl"
        with file.open("a") as log:
            log.write(json.dumps({"step": STEPS, "data": {"acc": 0.75, TRAINED: STEPS}}) + "\n")
        self.logged[number][STEPS] = 0.75

    @rule(
        number=numbers, reason=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=9)
    )
    def a_failure(self, number: int, reason: str) -> None:
        self.failed(number).parent.mkdir(parents=True, exist_ok=True)
        self.failed(number).write_text(reason + "\n")
        self.failures[number] = reason + "\n"

    @rule(number=numbers)
    def a_failure_is_forgotten(self, number: int) -> None:
        self.failed(number).unlink(missing_ok=True)
        self.failures[number] = None

    @rule(
        name=st.sampled_from(["grid.json", "a/seed-1/run.json", "b/seed-1/failed.txt"]),
        content=st.binary(max_size=3),
    )
    def a_kill_while_a_file_is_written(self, name: str, content: bytes) -> None:
        """What `write_whole` leaves then."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_name(f".{file.name}.unfinished").write_bytes(content)

    @invariant()
    def no_step_is_lost(self) -> None:
        for number, run in enumerate(getattr(self, "runs", ())):
            found = {step: values["acc"] for step, values in status_of(run).metrics.items()}
            assert repr(sorted(found.items())) == repr(sorted(self.logged[number].items()))

    @invariant()
    def the_state_is_what_the_files_say(self) -> None:
        for number, run in enumerate(getattr(self, "runs", ())):
            status = status_of(run)
            if STEPS in self.logged[number]:
                assert status.state is State.FINISHED
            elif self.failures[number] is not None:
                assert (status.state, status.reason) == (State.FAILED, self.failures[number])
            else:
                assert status.state in (State.WAITING, State.BEGUN)
                assert status.is_to_do(retry_failed=False)

    @invariant()
    def the_whole_grid_can_be_read(self) -> None:
        if hasattr(self, "runs"):
            results = read_results(self.folder)
            assert [(run.variant, run.seed) for run in results.runs] == [("a", 1), ("b", 1)]


GridFolder.TestCase.settings = settings(fuzzing(10), stateful_step_count=15)
TestGridFolder = GridFolder.TestCase

"""Fuzz the folder of a grid over many kills and accidents: nothing is lost; corrupt files are named and kept.

A state machine plays verl, the runner and a user with an editor on real files, without training.
"""

import json
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from strategies import fuzzing

from grpo_verl_ext.ablation.grid import AblationError, GridSettings, keep_grid, runs_of
from grpo_verl_ext.ablation.run import check_records
from grpo_verl_ext.ablation.state import FAILURE, State, status_of, write_record
from grpo_verl_ext.ablation.table import read_results
from grpo_verl_ext.runs.metrics import TRAINED

STEPS = 3
numbers = st.integers(0, 1)
SPOILED = st.sampled_from([b"", b"{", b"\xff", b"[]", b"3", b'{"step": "x"}\n', b"[" * 100_000])


class GridFolder(RuleBasedStateMachine):
    """Two runs. ``logged`` is what verl wrote of each, ``spoiled`` what somebody made of a file."""

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
        self.spoiled: dict[Path, bytes] = {}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def failed(self, number: int) -> Path:
        return self.runs[number].training.folder / FAILURE

    def metrics_are_spoiled(self, number: int) -> bool:
        return any(
            file.parent == self.runs[number].training.folder
            for file in self.spoiled
            if file.suffix == ".jsonl"
        )

    @rule(
        number=numbers,
        values=st.lists(st.sampled_from([0.25, 0.5, None]), max_size=STEPS),
        cut=st.integers(0, 30),
    )
    def an_attempt_that_is_killed_while_it_logs(
        self, number: int, values: list[float | None], cut: int
    ) -> None:
        run = self.runs[number]
        write_record(run, {"overrides": [], "steps": STEPS, "git_revision": None, "versions": {}})
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

    @rule(name=st.sampled_from(["grid.json", "a/seed-1/run.json", "b/seed-1/failed.txt"]), content=SPOILED)
    def a_kill_while_a_file_is_written(self, name: str, content: bytes) -> None:
        """What `write_whole` leaves then."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_name(f".{file.name}.unfinished").write_bytes(content)

    @precondition(lambda self: any(self.attempts))
    @rule(
        content=SPOILED.filter(lambda content: content not in (b"", b"{", b"\xff", b"[]", b"3")),
        whole=st.booleans(),
    )
    def metrics_are_spoiled_by_somebody(self, content: bytes, whole: bool) -> None:
        number = 0 if self.attempts[0] else 1
        file = self.runs[number].training.folder / f"attempt-{self.attempts[number]}.jsonl"
        before = b"" if whole or not file.exists() else file.read_bytes()
        spoiled = content.rstrip(b"\n") + b"\n" + before
        file.write_bytes(spoiled)
        self.spoiled[file] = spoiled

    @precondition(lambda self: any(self.attempts))
    @rule(content=SPOILED)
    def a_record_is_spoiled_by_somebody(self, content: bytes) -> None:
        number = 0 if self.attempts[0] else 1
        file = self.runs[number].training.folder / "run.json"
        file.write_bytes(content)
        self.spoiled[file] = content

    @precondition(lambda self: self.spoiled)
    @rule()
    def somebody_moves_spoiled_files_away(self) -> None:
        """As the messages say; with the metrics of an attempt goes what it alone had logged."""
        for file in self.spoiled:
            file.unlink()
            if file.suffix == ".jsonl":
                number = next(n for n, run in enumerate(self.runs) if run.training.folder == file.parent)
                self.logged[number] = self.in_files(number)
            else:
                write_record(
                    next(run for run in self.runs if run.training.folder == file.parent),
                    {"overrides": [], "steps": STEPS, "git_revision": None, "versions": {}},
                )
        self.spoiled.clear()

    def in_files(self, number: int) -> dict[int, float]:
        """By hand: whole lines of all attempts, the later one wins."""
        found = {}
        for attempt in range(1, self.attempts[number] + 1):
            file = self.runs[number].training.folder / f"attempt-{attempt}.jsonl"
            lines = file.read_text().split("\n")[:-1] if file.exists() else []
            for line in map(json.loads, lines):
                value = line["data"]["acc"]
                found[line["step"]] = float("nan") if value is None else value
        return found

    @invariant()
    def no_step_is_lost(self) -> None:
        for number, run in enumerate(getattr(self, "runs", ())):
            if not self.metrics_are_spoiled(number):
                found = {step: values["acc"] for step, values in status_of(run).metrics.items()}
                assert repr(sorted(found.items())) == repr(sorted(self.logged[number].items()))

    @invariant()
    def the_state_is_what_the_files_say(self) -> None:
        for number, run in enumerate(getattr(self, "runs", ())):
            status = status_of(run)
            if self.metrics_are_spoiled(number):
                assert status.state is State.UNREADABLE
                assert not status.is_to_do(retry_failed=True)
            elif STEPS in self.logged[number]:
                assert status.state is State.FINISHED
            elif self.failures[number] is not None:
                assert (status.state, status.reason) == (State.FAILED, self.failures[number])
            else:
                assert status.state in (State.WAITING, State.BEGUN)
                assert status.is_to_do(retry_failed=False)

    @invariant()
    def what_is_spoiled_is_named_and_stays(self) -> None:
        for file, content in getattr(self, "spoiled", {}).items():
            number = next(n for n, run in enumerate(self.runs) if run.training.folder == file.parent)
            run = self.runs[number]
            if file.suffix == ".jsonl":
                reason = str(status_of(run).reason)
                assert any(str(each) in reason for each in self.spoiled if each.parent == file.parent)
            else:
                try:
                    check_records([run])
                except AblationError as error:
                    assert str(file) in str(error)
                else:
                    raise AssertionError(f"{file} was taken for a record")
            assert file.read_bytes() == content

    @invariant()
    def the_whole_grid_can_be_read(self) -> None:
        if hasattr(self, "runs"):
            results = read_results(self.folder)
            assert [(run.variant, run.seed) for run in results.runs] == [("a", 1), ("b", 1)]


GridFolder.TestCase.settings = settings(fuzzing(10), stateful_step_count=15)
TestGridFolder = GridFolder.TestCase

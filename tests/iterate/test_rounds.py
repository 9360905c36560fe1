"""Test the order of rounds, and that they resume when killed at any point."""

import json
import random
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import kill_rounds
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from omegaconf import OmegaConf
from processes import Spoken

from grpo_verl_ext.iterate import rounds
from grpo_verl_ext.iterate.examples import Pair, read_examples
from grpo_verl_ext.iterate.rounds import PARTS, RoundRecord, read_manifest, run_rounds
from grpo_verl_ext.iterate.settings import (
    IterateError,
    IterateSettings,
    PolicySettings,
    RewardModelSettings,
    Round,
)

KILLS = 5


class Heard:
    def __init__(self) -> None:
        self.parts: list[tuple[int, str]] = []

    def __call__(self, this: Round, title: str) -> None:
        self.parts.append((this.number, title))


def named(**parts: Any) -> dict[str, tuple[str, Any]]:
    return {name: (name, part) for name, part in parts.items()}


def nothing(this: Round, *given: object) -> dict[str, object]:
    return {}


GIVEN = OmegaConf.create({}), lambda response, truth: 0


def settings(folder: Path, rounds: int = 2) -> IterateSettings:
    return IterateSettings(
        folder=str(folder),
        rounds=rounds,
        policy=PolicySettings(overrides=[], steps=1),
        reward_model=RewardModelSettings(label="a.b"),
    )


def test_each_part_once_and_more_rounds_later(tmp_path: Path) -> None:
    parts = named(one=lambda this, *given: {"seed": this.seed}, two=nothing)
    heard = Heard()
    run_rounds(settings(tmp_path), *GIVEN, heard, parts)
    assert heard.parts == [(1, "one"), (1, "two"), (2, "one"), (2, "two")]
    run_rounds(settings(tmp_path, rounds=3), *GIVEN, heard, parts)
    assert heard.parts[4:] == [(3, "one"), (3, "two")]
    manifest = read_manifest(tmp_path, asdict(settings(tmp_path, rounds=3)))
    assert [record.parts["one"]["seed"] for record in manifest.rounds] == [1001, 1002, 1003]


def test_a_part_that_fails_is_not_written_down(tmp_path: Path) -> None:
    def fails(this: Round, *given: object) -> dict[str, object]:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        run_rounds(settings(tmp_path), *GIVEN, Heard(), named(one=nothing, two=fails))
    heard = Heard()
    run_rounds(settings(tmp_path), *GIVEN, heard, named(one=nothing, two=nothing))
    assert heard.parts == [(1, "two"), (2, "one"), (2, "two")]


def test_a_part_that_was_made_with_other_code_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(this: Round, *given: object) -> dict[str, object]:
        raise KeyboardInterrupt

    made = named(one=nothing, two=killed)
    monkeypatch.setattr(rounds, "git_revision", lambda: "aaa")
    with pytest.raises(KeyboardInterrupt):
        run_rounds(settings(tmp_path, rounds=1), *GIVEN, Heard(), made)
    monkeypatch.setattr(rounds, "git_revision", lambda: "bbb")
    run_rounds(settings(tmp_path, rounds=1), *GIVEN, Heard(), named(one=nothing, two=nothing))
    (record,) = read_manifest_of(tmp_path)
    assert record.git_revision == "aaa"
    assert record.parts == {"one": {}, "two": {"git_revision": "bbb"}}


def test_settings_that_were_changed_after_a_kill_in_the_first_part_are_refused(tmp_path: Path) -> None:
    def killed(this: Round, *given: object) -> dict[str, object]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_rounds(settings(tmp_path), *GIVEN, Heard(), named(one=killed))
    changed = settings(tmp_path)
    changed.policy.steps = 9
    with pytest.raises(IterateError, match=r"begun with another policy\.steps: 1 there, 9 now"):
        run_rounds(changed, *GIVEN, Heard(), named(one=nothing))


def test_one_process_a_folder(tmp_path: Path) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(IterateError, match="another process works in"):
        run_rounds(settings(tmp_path), *GIVEN, Heard(), {})


def test_the_parts_are_those_of_the_algorithm() -> None:
    assert list(PARTS) == ["policy", "model", "measure", "pairs", "reward_model"]


@pytest.fixture
def data(policy: Path) -> None:
    chats = [[{"role": "user", "content": f"{n}+1=?"}] for n in range(3)]
    pq.write_table(pa.table({"prompt": chats}), policy.parent / "val.parquet")


def read_manifest_of(folder: Path) -> list[RoundRecord]:
    settings = json.loads((folder / "manifest.json").read_text())["settings"]
    return read_manifest(folder, settings).rounds


@pytest.mark.long
@pytest.mark.usefixtures("data")
def test_five_kills_at_random_leave_the_manifest_of_an_unbroken_run(tmp_path: Path, policy: Path) -> None:
    def start(name: str, attempt: int = 0) -> Spoken:
        said = tmp_path / f"said-{name}-{attempt}"
        return Spoken(kill_rounds.main, str(tmp_path / name), str(policy), folder=said)

    # verl's dataset says more on the same stream.
    assert len(re.findall(r"^[12] \w+$", start("unbroken").said(), re.M)) == 2 * len(PARTS)

    rng = random.Random(20260101)
    for attempt in range(KILLS):
        process = start("killed", attempt)
        # A part has begun that was not finished before; it takes a second, or a few.
        process.first_line()
        time.sleep(rng.uniform(0, 4))
        process.kill()
    start("killed", KILLS).said()

    unbroken, killed = (
        (tmp_path / name / "manifest.json").read_text().replace(str(tmp_path / name), "FOLDER")
        for name in ("unbroken", "killed")
    )
    assert killed == unbroken
    assert not list((tmp_path / "killed").glob("**/*.partial"))
    first, second = (record.parts["reward_model"] for record in read_manifest_of(tmp_path / "killed"))
    assert first["held_out_accuracy_after"] > 0.9
    # What the policy of round 2 does is new to the reward model of round 1.
    assert second["held_out_accuracy_before"] < first["held_out_accuracy_after"]
    assert second["held_out_accuracy_after"] > 0.9
    history = set(read_examples(tmp_path / "killed" / "round-1" / "pairs.jsonl", Pair))
    mixture = read_examples(tmp_path / "killed" / "round-2" / "mixture.jsonl", Pair)
    own = read_examples(tmp_path / "killed" / "round-2" / "pairs.jsonl", Pair)
    assert set(mixture[len(own) :]) <= history
    # 10 % of the mixture, rounded to whole pairs.
    assert abs(len(mixture) - len(own) - 0.1 * len(mixture)) <= 1

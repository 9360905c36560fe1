"""Test the order of rounds, and that they resume when killed at any point."""

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import kill_rounds
import pytest
from filelock import FileLock
from omegaconf import OmegaConf
from processes import KILLS, Spoken

from grpo_verl_ext.iterate import rounds
from grpo_verl_ext.iterate.examples import Pair
from grpo_verl_ext.iterate.rounds import IterateManifest, run_rounds
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings, Round


def nothing(this: Round, *given: object) -> dict[str, object]:
    return {}


def killed(this: Round, *given: object) -> dict[str, object]:
    raise KeyboardInterrupt


def run(of: IterateSettings, **parts: Any) -> list[tuple[int, str]]:
    """The parts that were run."""
    heard: list[tuple[int, str]] = []

    def noted(name: str, part: Any) -> Any:
        def begun(this: Round, *given: object) -> Any:
            heard.append((this.number, name))
            return part(this, *given)

        return begun

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "PARTS", {name: noted(name, part) for name, part in parts.items()})
        run_rounds(of, OmegaConf.create(), max)
    return heard


def test_each_part_once_and_more_rounds_later(settings, tmp_path: Path) -> None:
    parts = {"one": lambda this, *given: {"seed": this.seed}, "two": nothing}
    assert run(settings(), **parts) == [(1, "one"), (1, "two"), (2, "one"), (2, "two")]
    assert run(settings(rounds=3), **parts) == [(3, "one"), (3, "two")]
    assert [record.parts["one"]["seed"] for record in records(tmp_path)] == [2001, 2002, 2003]
    assert {file.name for file in tmp_path.glob("*.*")} == {".lock", "manifest.json"}


def test_a_part_that_fails_is_not_written_down_and_one_made_with_other_code_says_so(
    settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "git_revision", lambda: "aaa")
    with pytest.raises(KeyboardInterrupt):
        run(settings(rounds=1), one=nothing, two=killed)
    monkeypatch.setattr(rounds, "git_revision", lambda: "bbb")
    assert run(settings(rounds=1), one=nothing, two=nothing) == [(1, "two")]
    (record,) = records(tmp_path)
    assert record.git_revision == "aaa"
    assert record.parts == {"one": {}, "two": {"git_revision": "bbb"}}


def test_a_round_without_the_policy_of_the_one_before_is_not_begun(settings) -> None:
    train = rounds.PARTS["policy"]
    with pytest.raises(IterateError, match=r"round-1/policy/.*huggingface has no policy"):
        run(settings(), policy=lambda this, *given: {} if this.number == 1 else train(this, *given))


def test_settings_that_were_changed_after_a_kill_in_the_first_part_are_refused(settings) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(settings(), one=killed)
    with pytest.raises(IterateError, match=r"begun with another policy\.steps: 4 there, 9 now"):
        run(settings(steps=9), one=nothing)


@pytest.mark.parametrize("setting", [{"trainer": {"per_device_train_batch_size": 4}}, {"launcher": ["a"]}])
def test_settings_of_the_reward_model_may_change_until_it_is_trained(settings, setting) -> None:
    """Such as those with which it was out of memory, after the policy was trained."""
    with pytest.raises(KeyboardInterrupt):
        run(settings(rounds=1), policy=nothing, reward_model=killed)
    changed = settings(rounds=1, **setting)
    assert run(changed, policy=nothing, reward_model=nothing) == [(1, "reward_model")]
    with pytest.raises(IterateError, match=r"begun with another reward_model\.(trainer|launcher)"):
        run(settings(rounds=1), policy=nothing, reward_model=nothing)


@pytest.mark.parametrize(
    "text",
    ["{", '{"rounds": [{}], "settings": {}, "format": 2}', '{"rounds": [], "settings": {}, "format": 99}'],
)
def test_what_is_no_manifest_is_named_and_left(settings, tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(IterateError, match=r"manifest\.json is not a manifest"):
        run(settings())
    assert (tmp_path / "manifest.json").read_text() == text


def test_one_process_a_folder(settings, tmp_path: Path) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(IterateError, match="another process works in"):
        run(settings())


def records(folder: Path) -> list[Any]:
    return IterateManifest.read(folder, json.loads((folder / "manifest.json").read_text())["settings"]).rounds


@pytest.mark.parametrize("kills", KILLS)
def test_kills_at_random_leave_the_manifest_of_a_whole_run(kills: int, tmp_path: Path, policy: Path) -> None:
    def start(name: str, attempt: int = 0) -> Spoken:
        said = tmp_path / f"said-{name}-{attempt}"
        return Spoken(kill_rounds.main, str(tmp_path / name), str(policy), folder=said)

    parts = ["policy", "pairs", "reward_model"]
    begun = re.findall(r"^round (\d): (\w+); .*/round-(\d) has the output$", start("unbroken").said(), re.M)
    assert begun == [(number, part, number) for number in "12" for part in parts]

    rng = random.Random(20260101)
    for attempt in range(kills):
        process = start("killed", attempt)
        # A part has begun that was not finished before; it takes a second, or a few.
        process.first_line()
        time.sleep(rng.uniform(0, 4))
        process.kill()
    start("killed", kills).said()

    folders = [tmp_path / name for name in ("unbroken", "killed")]
    texts = [(each / "manifest.json").read_text().replace(str(each), "FOLDER") for each in folders]
    assert texts[0] == texts[1]
    assert not list((tmp_path / "killed").glob("**/*.partial"))
    first, second = (record.parts["reward_model"] for record in records(tmp_path / "killed"))
    assert first["held_out_accuracy_after"] > 0.9
    # What the policy of round 2 does is new to the reward model of round 1.
    assert second["held_out_accuracy_before"] < first["held_out_accuracy_after"]
    assert second["held_out_accuracy_after"] > 0.9
    history = set(Pair.read(tmp_path / "killed" / "round-1" / "pairs.jsonl"))
    mixture = Pair.read(tmp_path / "killed" / "round-2" / "mixture.jsonl")
    own = Pair.read(tmp_path / "killed" / "round-2" / "pairs.jsonl")
    assert set(mixture[len(own) :]) <= history
    # 10 % of the mixture, rounded to whole pairs.
    assert abs(len(mixture) - len(own) - 0.1 * len(mixture)) <= 1

"""Test what becomes of a reward function's numbers and errors, in verl's own reward worker."""

import asyncio
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import replay_buffer, trainer_base

from grpo_verl_ext.verl_plugin.patches import PATCHES, watchdog


def scored(
    monkeypatch: pytest.MonkeyPatch, returned: Any, *, served: bool = False, **options: Any
) -> tuple[Any, list[str]]:
    """What the patched worker returns or raises where a function does, and what it reports."""
    reported: list[str] = []
    monkeypatch.setattr(watchdog.wire, "report_failure", lambda error: reported.append(str(error)))

    class RewardLoopWorker:
        config = OmegaConf.create({
            "algorithm": {"grpo_ext": options},
            "reward": {
                "custom_reward_function": {"path": "mine.py"},
                "reward_manager": {"name": "naive"},
                "reward_model": {"enable": served},
            },
        })  # fmt: skip

        async def compute_score(self, data: Any) -> dict[str, Any]:
            if isinstance(returned, Exception):
                raise returned
            return returned  # type: ignore[no-any-return]

    watchdog.patch_reward_worker(SimpleNamespace(RewardLoopWorker=RewardLoopWorker, aiohttp=aiohttp))
    try:
        return asyncio.run(RewardLoopWorker().compute_score(None)), reported
    except Exception as error:  # noqa: BLE001  # the caller looks at it
        return error, reported


ONES = [1, True, np.float32(1), np.float16(1), np.bool_(True), np.array(1.0), torch.tensor(1.0)]


@pytest.mark.parametrize("one", ONES, ids=lambda one: type(one).__name__)
def test_what_is_a_number_to_python_is_a_score_and_a_reported_number(
    monkeypatch: pytest.MonkeyPatch, one: Any
) -> None:
    """verl loses responses with numbers of numpy, and logs no punishment that is a tensor."""
    report = {"overlong_reward": one, "pred": "9", "none": None}
    found, reported = scored(monkeypatch, {"reward_score": one, "reward_extra_info": report})
    assert (found["reward_score"], type(found["reward_score"])) == (1.0, float)
    punished = found["reward_extra_info"]["overlong_reward"]
    assert (punished, isinstance(punished, int | float)) == (1, True)
    assert (found["reward_extra_info"]["pred"], found["reward_extra_info"]["none"]) == ("9", None)
    assert reported == []


def test_a_reward_models_score_alone_has_an_empty_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one verl ends every session with KeyError 'reward_extra_info' (verl #7368)."""
    found, _ = scored(monkeypatch, {"reward_score": 0.5}, served=True)
    assert found == {"reward_score": 0.5, "reward_extra_info": {}}


@pytest.mark.parametrize(
    ("score", "report", "said"),
    [
        (None, {}, "mine.py returned None (NoneType)"),
        ("1", {}, "mine.py returned '1' (str)"),
        (float("nan"), {}, "mine.py returned nan (float)"),
        (1.0, {"steps": [1.0]}, "mine.py reports steps=[1.0]; valid are numbers, and texts"),
        (1.0, {"why": {"a": 1}}, "mine.py reports why={'a': 1}"),
        (1.0, {"reward": 0.5}, "mine.py reports 'reward', by which verl names the score"),
    ],
)
def test_what_verl_cannot_use_ends_the_training_by_the_functions_name(
    monkeypatch: pytest.MonkeyPatch, score: Any, report: dict[str, Any], said: str
) -> None:
    error, reported = scored(monkeypatch, {"reward_score": score, "reward_extra_info": report})
    assert isinstance(error, ValueError)
    assert said in str(error)
    assert said in reported[0]


def test_what_a_function_raises_ends_the_training_but_not_what_its_server_does_nor_a_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault, lost = KeyError("answer"), ConnectionResetError("gone")
    for error, served, options, reports in (
        (fault, False, {}, 1),
        (fault, True, {}, 1),
        (lost, False, {}, 1),
        (lost, True, {}, 0),
        (fault, False, {"lost_responses": 0.1}, 0),
    ):
        found, reported = scored(monkeypatch, error, served=served, **options)
        assert found is error
        assert len(reported) == reports, (error, served, options)
    _, reported = scored(monkeypatch, fault)
    assert reported == ["the reward function mine.py raised KeyError: 'answer'"]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patch of what verl's driver reads of reports, taken back at the end."""
    monkeypatch.setattr(replay_buffer, "np", np)
    update = trainer_base.PPOTrainer._val_metrics_update
    monkeypatch.setattr(trainer_base.PPOTrainer, "_val_metrics_update", update)
    PATCHES["reports"].apply(trainer_base)


@pytest.mark.usefixtures("reports")
def test_texts_among_numbers_end_no_validation(capsys: pytest.CaptureFixture[str]) -> None:
    """numpy's mean of a prompt's numbers ends at a text."""
    reward = {"custom_reward_function": {"path": "mine.py"}, "reward_manager": {"name": "naive"}}
    trainer = SimpleNamespace(config=OmegaConf.create({"reward": reward}))
    given = {"acc": [0.25, 0.5, 0.25, 0.25], "length": [3, "none", None, 5]}
    given |= {"pred": [3, "none", "3", 3], "why": ["a", "b", "a", None]}
    found = trainer_base.PPOTrainer._val_metrics_update(trainer, ["sums"] * 4, ["prompt"] * 4, given, [])
    assert found["val-aux/sums/length/mean@2"] == 4
    assert "val-core/sums/acc/maj@4/mean" in found  # of all four: 3 has most votes
    assert "val-aux/sums/pred/mean@4" not in found
    said = capsys.readouterr().err
    assert said.count("warning: the reward function mine.py reports numbers and texts as ") == 2


@pytest.mark.usefixtures("reports")
def test_the_filter_drops_groups_of_equal_fractions(monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy's standard deviation of six times 0.7 is 1.1e-16, and verl asks whether it is 0."""
    groups = {"equal": [0.7] * 6, "other": [0.7] * 5 + [0.7 + 1e-9]}
    every = [(f"{uid}_{number}_0", acc) for uid, own in groups.items() for number, acc in enumerate(own)]
    rows = {key: {"reward_extra_info": {"acc": acc}} for key, acc in every}
    stored = SimpleNamespace(kv_batch_get=lambda keys, **_: {"extra_fields": [rows[key] for key in keys]})
    monkeypatch.setattr(replay_buffer, "tq", stored)
    buffer = object.__new__(replay_buffer.ReplayBuffer)
    buffer.filter_groups_metric, buffer._dapo_classification_cache = "acc", {"train": {}}
    buffer.finished_keys, buffer.partitions = {"train": {*groups}}, {"train": rows}
    assert buffer._dapo_filtered_keys("train") == ({"equal"}, {0.7: 1})


def test_a_filter_that_keeps_no_group_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    """verl draws prompts without end where the metric is equal in all groups (verl #926)."""

    class PPOTrainer:
        config = OmegaConf.create({
            "algorithm": {"filter_groups": {"enable": True, "metric": "acc"}},
            "data": {"train_batch_size": 4},
        })  # fmt: skip
        global_steps, drawn = 1, 0

        def fit(self) -> None: ...

        def _add_prompts_to_generate(self, num_prompts: int) -> int:
            self.drawn += num_prompts
            return self.drawn

    watchdog.patch_trainer(SimpleNamespace(PPOTrainer=PPOTrainer))
    trainer = PPOTrainer()
    for step in (1, 2, 3):
        trainer.global_steps = step
        for _ in range(15 if step == 2 else 9):
            trainer._add_prompts_to_generate(4)
    said = capsys.readouterr().err
    assert trainer.drawn == 4 * 33
    assert said.count("step 2 has drawn 40 prompts in place of those") == said.count("warning") == 1
    assert "equal in algorithm.filter_groups.metric=acc" in said

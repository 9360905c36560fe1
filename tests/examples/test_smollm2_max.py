"""Test the larger of two numbers as text: data, reward, preset, and the warm start of a tiny model."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import smollm2_max
import torch
from omegaconf import OmegaConf
from smollm2_max import MaximaSettings
from smollm2_model import MEASURED_EVERY
from transformers import AutoModelForCausalLM, AutoTokenizer
from whole_response import whole_response

from grpo_verl_ext.tasks.folders import PreparedFolder, PreparedFolderError, PreparedOutcome
from grpo_verl_ext.verl_plugin.compose import composed

SMALL = MaximaSettings(
    1, smallest=1, largest=9, test=12, start=0.0, steps=3, batch_size=4, learning_rate=1e-3
)
"""Its warm start has no step: the right answer has a probability of 0 at least."""


@pytest.fixture(scope="module")
def made(converted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("max") / "seed-1"
    return smollm2_max.prepare_smollm2_max(SMALL, converted, folder, force=False).folder


BY_HEART = MaximaSettings(
    1, smallest=1, largest=4, test=2, start=0.8, steps=400, batch_size=4, learning_rate=1e-2
)
"""Numbers up to 4 are few enough to be learnt by heart in a second."""


@pytest.fixture(scope="module")
def learnt(converted: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparedOutcome:
    folder = tmp_path_factory.mktemp("learnt") / "seed-1"
    return smollm2_max.prepare_smollm2_max(BY_HEART, converted, folder, force=False)


def test_no_test_problem_is_a_training_problem_in_either_order() -> None:
    train, test = smollm2_max.draw_numbers(MaximaSettings(1))
    assert len(test) == 512
    # 90 · 89 / 2 = 4005 pairs of different numbers; those left have both orders
    assert len(train) == len(set(train)) == 2 * (4005 - 512)
    sides = [{frozenset(terms) for terms in side} for side in (train, test)]
    assert sides[0].isdisjoint(sides[1])
    assert len(sides[1]) == 512
    assert {number for terms in train for number in terms} == set(range(10, 100))


def test_a_row_asks_for_the_larger_number_and_its_right_answer_scores_one(made: Path) -> None:
    train, test = (pq.read_table(made / f"{split}.parquet").to_pylist() for split in ("train", "test"))
    assert (len(test), test[3]["extra_info"]) == (12, {"index": 3, "split": "test"})
    for row in (*train, *test):
        (message,) = row["prompt"]
        a, b = message["content"].removeprefix("max(").removesuffix(")=").split(",")
        truth = row["reward_model"]["ground_truth"]
        assert truth == (a if int(a) > int(b) else b)
        assert whole_response(row["data_source"], truth, truth) == {"score": 1.0, "acc": 1.0}


@pytest.mark.parametrize(("response", "score"), [(" 13\n", 1.0), ("13.", 0.0), ("1 3", 0.0), ("", 0.0)])
def test_the_reward_is_for_the_number_and_nothing_else(response: str, score: float) -> None:
    for truth in ("13", "13\n"):
        assert whole_response("", response, truth, {"index": 0}) == {"score": score, "acc": score}


def test_the_same_seed_gives_the_same_bytes(converted: Path, learnt: PreparedOutcome, tmp_path: Path) -> None:
    torch.manual_seed(5)
    smollm2_max.prepare_smollm2_max(BY_HEART, converted, tmp_path / "again", force=False)
    assert PreparedFolder(tmp_path / "again").check() == PreparedFolder(learnt.folder).check()
    smollm2_max.prepare_smollm2_max(replace(BY_HEART, seed=3), converted, tmp_path / "other", force=False)
    theirs, ours = (PreparedFolder(each).check()["sha256"] for each in (tmp_path / "other", learnt.folder))
    for name in ("train.parquet", "test.parquet", "model/model.safetensors"):
        assert theirs[name] != ours[name]


def test_the_model_reads_a_message_as_it_is_and_has_its_source(made: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made / "model")
    chat = [{"role": "user", "content": "max(47,35)="}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "max(47,35)="
    assert (made / "model" / "LICENSE").read_text() == "a licence"
    note = (made / "model" / "SOURCE.md").read_text()
    assert note.startswith("a source\n")
    assert "0 steps of supervised learning" in note


def test_the_warm_start_ends_where_it_should(learnt: PreparedOutcome) -> None:
    """Where the answer, and the end of the turn behind it, have the probability that was asked for."""
    found = learnt.manifest["found"]
    assert 0.8 <= found["probability"] <= 1.0
    assert 0 < found["steps"] < 400
    assert found["steps"] % MEASURED_EVERY == 0
    tokenizer = AutoTokenizer.from_pretrained(learnt.folder / "model")
    model = AutoModelForCausalLM.from_pretrained(learnt.folder / "model").eval()
    train, _ = smollm2_max.draw_numbers(BY_HEART)
    probabilities = []
    for terms in train:
        asked = tokenizer.encode(smollm2_max.question(terms))
        wanted = [*tokenizer.encode(str(max(terms))), tokenizer.eos_token_id]
        with torch.inference_mode():
            log_probs = model(torch.tensor([asked + wanted])).logits[0].log_softmax(-1)
        steps = [log_probs[len(asked) - 1 + n, token] for n, token in enumerate(wanted)]
        probabilities.append(torch.stack(steps).sum().exp().item())
    # one row at a time, and in a batch: float32 adds in another order
    assert sum(probabilities) / len(probabilities) == pytest.approx(found["probability"], abs=1e-5)


def test_a_warm_start_that_gets_nowhere_is_refused_and_leaves_no_folder(
    converted: Path, tmp_path: Path
) -> None:
    with pytest.raises(PreparedFolderError, match=r"after 3 steps .* valid is at least 0\.9"):
        smollm2_max.prepare_smollm2_max(replace(SMALL, start=0.9), converted, tmp_path / "sums", force=False)
    assert not (tmp_path / "sums").exists()


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(PreparedFolderError, match="nowhere: no such folder"):
        smollm2_max.prepare_smollm2_max(SMALL, tmp_path / "nowhere", tmp_path / "sums", force=False)


def test_the_preset_has_the_tasks_folder_reward_and_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_VERL_EXT_CACHE", "/somewhere")
    search = f"hydra.searchpath=[file://{Path(smollm2_max.__file__).parent}]"
    config = composed([search, "+platform=cpu", "+task=smollm2_max", "+algo=gvpo", "task.seed=3"])
    OmegaConf.resolve(config)
    folder = str(smollm2_max.smollm2_max_folder(3))
    assert (config.task.folder, config.data.train_files) == (folder, f"{folder}/train.parquet")
    assert config.data.val_files == f"{folder}/test.parquet"
    assert config.actor_rollout_ref.model.path == f"{folder}/model"
    assert config.actor_rollout_ref.actor.optim.lr == 1e-5
    assert config.reward.custom_reward_function.path.endswith("examples/tasks/whole_response.py")
    assert config.reward.custom_reward_function.name == whole_response.__name__
    # max, ( and ")=" and the comma are a token each, and so is every digit
    assert config.data.max_prompt_length == smollm2_max.MAX_PROMPT_TOKENS == 4 + 4
    # two digits and the end of the turn, and room to go on where the end should be
    assert config.data.max_response_length == smollm2_max.MAX_RESPONSE_TOKENS > 2 + 1
    assert config.data.val_batch_size == MaximaSettings(1).test
    assert config.data.train_batch_size == 2 * config.actor_rollout_ref.actor.ppo_mini_batch_size

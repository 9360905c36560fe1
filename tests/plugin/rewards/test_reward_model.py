"""Test the reward manager ``rule_and_model``: inputs, outputs, refusals before training."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls

from grpo_verl_ext.preflight import CHECKS
from grpo_verl_ext.rewards.learned import LearnedReward
from grpo_verl_ext.tasks.chain_sum.model import build_tokenizer
from grpo_verl_ext.verl_plugin.compose import composed

BYTES = build_tokenizer()
MANAGER = "reward.reward_manager.name=rule_and_model"
SECTION = "algorithm.grpo_ext.reward_model"
PROMPT, RESPONSE = "user\n4+5=?\n", "<answer>9</answer>"
STEPS = "1+2=3;2+2=5;"


def classifier(policy: Path, folder: Path, architecture: Any, outputs: int) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = architecture.from_pretrained(policy, num_labels=outputs)
    model.save_pretrained(folder)
    BYTES.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reward_model(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(policy, tmp_path_factory.mktemp("whole"), AutoModelForSequenceClassification, 1)


@pytest.fixture(scope="module")
def step_model(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(policy, tmp_path_factory.mktemp("steps"), AutoModelForTokenClassification, 2)


def one_response(response: str) -> DataProto:
    """As verl pads the outputs of a session: prompts and responses apart, the mask of both together."""
    prompt_ids, response_ids = BYTES.encode(PROMPT), [*BYTES.encode(response), BYTES.eos_token_id]
    tokens = {"prompts": torch.tensor([[*prompt_ids, 0, 0]]), "responses": torch.tensor([[*response_ids, 0]])}
    tokens["attention_mask"] = torch.tensor([[*[1] * len(prompt_ids + response_ids), 0, 0, 0]])
    batch = TensorDict(tokens, batch_size=1)
    # verl's ``naive`` takes the mask's last places for the response's
    batch["attention_mask"][0, -len(response_ids) - 1 : -1] = 1
    data = DataProto(batch=batch)
    row = {"data_source": "chain_sum", "reward_model": {"ground_truth": "9"}, "extra_info": {"terms": [4, 5]}}
    row |= {"prompt_len": len(prompt_ids), "response_len": len(response_ids)}
    row["raw_prompt"] = [{"role": "user", "content": "4+5=?"}]
    for key, value in row.items():
        data.non_tensor_batch[key] = np.empty(1, dtype=object)
        data.non_tensor_batch[key][0] = value
    return data


def right_by_rule(**_: Any) -> dict[str, float]:
    return {"score": 2.0, "acc": 1.0}


def asked(config: DictConfig, rule: Any = right_by_rule, response: str = RESPONSE) -> dict[str, Any]:
    """What the manager says of one response, from inside an event loop as verl has one."""

    async def run() -> dict[str, Any]:
        of_verl = get_reward_manager_cls("rule_and_model")(config, BYTES, rule)
        of_verl.loop = asyncio.get_running_loop()
        result: dict[str, Any] = await of_verl.run_single(one_response(response))
        return result

    return asyncio.run(run())


class TestResponses:
    def test_a_score_that_is_not_finite_is_refused(self, reward_model, monkeypatch) -> None:
        monkeypatch.setattr(LearnedReward, "score", lambda *_: float("nan"))
        with pytest.raises(ValueError, match="reward_model_score of a response is nan"):
            asked(composed([MANAGER, f"+{SECTION}.path={reward_model}"]))

    def test_the_score_is_the_weighted_sum_and_both_parts_are_reported(self, reward_model: Path) -> None:
        options = (f"path={reward_model}", "weight=0.5", "rule_weight=3")
        result = asked(composed([MANAGER, *(f"+{SECTION}.{each}" for each in options)]))
        by_model = LearnedReward.load(reward_model).score(PROMPT, RESPONSE)
        assert result["reward_score"] == pytest.approx(3 * 2.0 + 0.5 * by_model, rel=1e-6)
        extra = result["reward_extra_info"]
        assert extra["reward_model_score"] == pytest.approx(by_model, rel=1e-6)
        assert (extra["rule_score"], extra["acc"], extra["score"]) == (2.0, 1.0, result["reward_score"])

    def test_the_model_alone_in_its_own_chat_template(self, reward_model: Path) -> None:
        """The template of these models closes each turn with <|im_end|> and a new line."""
        options = (f"path={reward_model}", "chat_template=true", "dtype=auto", "rule_weight=0", "weight=2")
        config = composed([MANAGER, *(f"+{SECTION}.{each}" for each in options)])
        chat = "<|im_start|>user\n4+5=?<|im_end|>\n<|im_start|>assistant\n<answer>9</answer><|im_end|>\n"
        model = AutoModelForSequenceClassification.from_pretrained(reward_model)
        with torch.inference_mode():
            by_hand = model(torch.tensor([BYTES.encode(chat)])).logits.item()
        result = asked(config, rule=None)
        assert result["reward_score"] == pytest.approx(2 * by_hand, rel=1e-6)
        assert result["reward_extra_info"] == {
            "reward_model_score": pytest.approx(by_hand, rel=1e-6),
            "score": result["reward_score"],
        }

    @pytest.mark.parametrize(("asked_for", "found"), [("auto", torch.bfloat16), ("float32", torch.float32)])
    def test_the_precision_is_that_of_the_files_where_asked(
        self, reward_model: Path, tmp_path: Path, asked_for: str, found: torch.dtype
    ) -> None:
        model = AutoModelForSequenceClassification.from_pretrained(reward_model, dtype=torch.bfloat16)
        model.save_pretrained(tmp_path)
        BYTES.save_pretrained(tmp_path)
        learned = LearnedReward.load(tmp_path, dtype=asked_for)
        assert learned.model.dtype == found
        assert isinstance(learned.score("4+5=?", "9"), float)

    def test_the_model_reads_prompt_and_response_and_one_end(self, reward_model: Path) -> None:
        """Right or wrong, the text ends with the token of the tokenizer, once."""
        learned = LearnedReward.load(reward_model)
        model = AutoModelForSequenceClassification.from_pretrained(reward_model)
        with torch.inference_mode():
            by_hand = model(torch.tensor([BYTES.encode("4+5=?9<|im_end|>")])).logits.item()
        assert learned.score("4+5=?", "9") == pytest.approx(by_hand, rel=1e-6)
        assert learned.score("4+5=?", "9<|im_end|>") == pytest.approx(by_hand, rel=1e-6)
        learned.tokenizer.eos_token = learned.tokenizer.pad_token = None  # such as a cross-encoder's
        assert learned.score("4+5=?", "9<|im_end|>") == pytest.approx(by_hand, rel=1e-6)
        assert learned.score("4+5=?", "9") != pytest.approx(by_hand)


class TestSteps:
    @staticmethod
    def asked(step_model: Path, *options: str, **reported: Any) -> dict[str, Any]:
        """What the manager says of one response for which the function returned this."""
        settings = (f"+{SECTION}.{each}" for each in (f"path={step_model}", *options))
        config = composed(["+algo=grpo_process", MANAGER, *settings])
        return asked(config, lambda **_: dict(reported), STEPS)

    @pytest.fixture
    def right(self, step_model: Path) -> list[float]:
        """The model's P(right) of both steps."""
        return LearnedReward.load(step_model, of_steps=True).scores_of_steps(PROMPT, STEPS, [6, 12])

    def test_a_row_has_both_parts_by_their_weights(self, step_model: Path, right: list[float]) -> None:
        steps = {"step_rewards": [1.0, -3.0], "step_ends": [6, 12]}
        result = self.asked(step_model, "weight=0.5", "rule_weight=2", score=1.25, **steps)
        assert result["reward_score"] == 1.25, "the outcome is the function's"
        extra = result["reward_extra_info"]
        assert extra["step_rewards"] == pytest.approx([2 + right[0] / 2, -6 + right[1] / 2], rel=1e-6)
        assert extra["step_ends"] == [6, 12]
        assert extra["step_rule_score"] == -1.0
        assert extra["step_reward_model_score"] == pytest.approx(sum(right) / 2, rel=1e-6)

    def test_the_model_alone_needs_ends_alone(self, step_model: Path, right: list[float]) -> None:
        """A token is a byte here: the steps end with tokens 5 and 11."""
        said = {"score": 0.0, "step_ends": [12, 6]}
        extra = self.asked(step_model, "rule_weight=0", **said)["reward_extra_info"]
        assert extra["step_rewards"] == pytest.approx(right[::-1], rel=1e-6)

    def test_a_response_without_steps(self, step_model: Path) -> None:
        extra = self.asked(step_model, score=0.0, step_rewards=[], step_ends=[])["reward_extra_info"]
        assert (extra["step_rewards"], extra["step_reward_model_score"]) == ([], 0.0)

    @pytest.mark.parametrize(
        "reported",
        [{}, {"step_rewards": [1.0], "step_ends": [99]}, {"step_rewards": [1.0]}, {"step_ends": [6]}],
    )
    def test_what_does_not_fit_is_left_to_the_trainer(self, step_model, reported) -> None:
        found = self.asked(step_model, score=0.0, **reported)["reward_extra_info"]
        assert found == {"score": 0.0, **reported}


class TestChecks:
    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            ([f"+{SECTION}.path=m"], rf"name is naive, but {SECTION} is set, .* calls no reward"),
            ([MANAGER], rf"rule_and_model, but {SECTION}\.path is null"),
            ([MANAGER, f"+{SECTION}.path=./nowhere"], r"there is no nowhere/config\.json"),
            (
                [MANAGER, f"+{SECTION}.path=m", "reward.reward_model.enable=true"],
                "never calls .*; valid is false",
            ),
            ([MANAGER, f"+{SECTION}.paths=m"], rf"{SECTION}\.paths='m' is not an option; valid are path"),
        ],
    )
    def test_what_cannot_work_is_refused(self, overrides: list[str], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            CHECKS["reward-model"](composed(overrides))

    @pytest.mark.parametrize(
        ("preset", "content", "message"),
        [
            ("grpo", "{", r"config\.json is not valid JSON"),
            ("grpo", "{}", "its architecture is none, not a classifier"),
            ("grpo", "XForCausalLM", "is XForCausalLM, not a classifier"),
            ("grpo", "XForTokenClassification", r"is XForTokenClassification, not a .* …ForSequenceClass"),
            ("grpo_process", "XForSequenceClassification", r"is XForSequ.*, not a .* …ForTokenClass"),
        ],
    )
    def test_a_folder_of_something_else_is_refused(self, tmp_path, preset, content, message) -> None:
        written = json.dumps({"architectures": [content]}) if content.startswith("X") else content
        (tmp_path / "config.json").write_text(written)
        with pytest.raises(ValueError, match=message):
            CHECKS["reward-model"](composed([f"+algo={preset}", MANAGER, f"+{SECTION}.path={tmp_path}"]))

    def test_a_template_that_is_not_there_is_refused(self, reward_model: Path, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_bytes((reward_model / "config.json").read_bytes())
        own = [MANAGER, f"+{SECTION}.path={tmp_path}", f"+{SECTION}.chat_template=true"]
        with pytest.raises(ValueError, match=r"its tokenizer has no chat template\. Type: .*template=false"):
            CHECKS["reward-model"](composed(own))
        BYTES.save_pretrained(tmp_path)
        CHECKS["reward-model"](composed(own))

    def test_what_works_passes(self, reward_model: Path, step_model: Path) -> None:
        CHECKS["reward-model"](composed([]))
        for preset, path in (("grpo", reward_model), ("grpo_process", step_model), ("grpo", "some/model")):
            CHECKS["reward-model"](composed([f"+algo={preset}", MANAGER, f"+{SECTION}.path={path}"]))
        rules = ["reward.custom_reward_function.path=mine.py", "reward.reward_model.enable=true"]
        CHECKS["reward-model"](composed([MANAGER, f"+{SECTION}.path={reward_model}", *rules]))

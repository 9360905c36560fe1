"""Test a process reward model in the reward manager: mixed step rewards, and refusals before training."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls

from grpo_verl_ext.preflight import findings
from grpo_verl_ext.rewards.learned import LearnedReward, LearnedStepReward
from grpo_verl_ext.tasks.chain_sum.model import build_tokenizer
from grpo_verl_ext.utils.errors import Severity
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.rewards.checks import check_reward_model
from grpo_verl_ext.verl_plugin.steps.checks import check_step_reward_model

BYTES = build_tokenizer()
MANAGER = "reward.reward_manager.name=rule_and_model"
SECTION = "algorithm.grpo_ext.step_reward_model"
FUNCTION = "reward.custom_reward_function.path=mine.py"
PROMPT, RESPONSE = "user\n1+2=?\n", "1+2=3;2+2=5;"


@pytest.fixture(scope="module")
def step_model(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token classifier with two outputs and random weights."""
    folder = tmp_path_factory.mktemp("step_model")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = AutoModelForTokenClassification.from_pretrained(policy, num_labels=2)
    model.save_pretrained(folder)
    BYTES.save_pretrained(folder)
    return folder


def one_response() -> DataProto:
    """As verl hands it over: the prompt padded on the left, the response on the right, marks inside."""
    prompt_ids, response_ids = BYTES.encode(PROMPT), [*BYTES.encode(RESPONSE), BYTES.eos_token_id]
    batch = {
        "prompts": torch.tensor([[0, *prompt_ids]]),
        "responses": torch.tensor([[*response_ids, 0]]),
        "attention_mask": torch.tensor([[0, *[1] * len(prompt_ids + response_ids), 0]]),
    }
    data = DataProto(batch=TensorDict(batch, batch_size=1))
    for key, value in {"data_source": "x", "reward_model": {"ground_truth": "9"}, "extra_info": {}}.items():
        data.non_tensor_batch[key] = np.array([value], dtype=object)
    return data


def asked(step_model: Path, *options: str, more: Sequence[str] = (), **reported: Any) -> dict[str, Any]:
    """What the manager says of one response for which the function returned this."""
    settings = [f"path={step_model}", *options]
    config = composed(["+algo=grpo_process", MANAGER, *(f"+{SECTION}.{each}" for each in settings), *more])

    async def run() -> dict[str, Any]:
        manager = get_reward_manager_cls("rule_and_model")(config, BYTES, lambda **_: dict(reported))
        manager.loop = asyncio.get_running_loop()
        result: dict[str, Any] = await manager.run_single(one_response())
        return result

    return asyncio.run(run())


@pytest.fixture(scope="module")
def right(step_model: Path) -> list[float]:
    """The model's P(right) of both steps."""
    return LearnedStepReward.load(step_model).scores(PROMPT, RESPONSE, [6, 12])


class TestMixing:
    def test_a_row_has_both_parts_by_their_weights(self, step_model: Path, right: list[float]) -> None:
        result = asked(
            step_model,
            *("weight=0.5", "rule_weight=2"),
            score=1.25,
            step_rewards=[1.0, -3.0],
            step_ends=[6, 12],
        )
        assert result["reward_score"] == 1.25, "the outcome is the function's"
        extra = result["reward_extra_info"]
        assert extra["step_rewards"] == pytest.approx([2 + right[0] / 2, -6 + right[1] / 2], rel=1e-6)
        assert extra["step_ends"] == [6, 12]
        assert extra["step_rule_score"] == -1.0
        assert extra["step_reward_model_score"] == pytest.approx(sum(right) / 2, rel=1e-6)

    def test_the_model_alone_needs_ends_alone(self, step_model: Path, right: list[float]) -> None:
        """A token is a byte here: the steps end with tokens 5 and 11."""
        for ends in ({"step_ends": [12, 6]}, {"step_end_tokens": [11, 5]}):
            extra = asked(step_model, "rule_weight=0", score=0.0, **ends)["reward_extra_info"]
            assert extra["step_rewards"] == pytest.approx(right[::-1], rel=1e-6)

    def test_a_response_without_steps(self, step_model: Path) -> None:
        extra = asked(step_model, score=0.0, step_rewards=[], step_ends=[])["reward_extra_info"]
        assert (extra["step_rewards"], extra["step_reward_model_score"]) == ([], 0.0)

    @pytest.mark.parametrize(
        "reported",
        [{}, {"step_rewards": [1.0], "step_ends": [99]}, {"step_rewards": [1.0]}, {"step_ends": [6]}],
    )
    def test_what_does_not_fit_is_left_to_the_trainer(
        self, step_model: Path, reported: dict[str, Any]
    ) -> None:
        assert asked(step_model, score=0.0, **reported)["reward_extra_info"] == {"score": 0.0, **reported}

    def test_beside_a_model_of_responses(self, step_model: Path, policy: Path, tmp_path: Path) -> None:
        model = AutoModelForSequenceClassification.from_pretrained(policy, num_labels=1)
        model.save_pretrained(tmp_path)
        BYTES.save_pretrained(tmp_path)
        of_responses = f"+algorithm.grpo_ext.reward_model.path={tmp_path}"
        reported = {"score": 1.5, "step_rewards": [1.0], "step_ends": [6]}
        result = asked(step_model, "weight=1", more=[of_responses], **reported)
        by_model = LearnedReward.load(tmp_path).scores([(PROMPT, RESPONSE)])[0]
        assert result["reward_score"] == pytest.approx(1.5 + by_model, rel=1e-6)
        assert result["reward_extra_info"]["step_rewards"][0] > 1


class TestChecks:
    PROCESS = ("+algo=grpo_process", MANAGER, FUNCTION)

    def test_what_works_passes(self, step_model: Path) -> None:
        for path in (str(step_model), "organisation/model"):
            config = composed([*self.PROCESS, f"+{SECTION}.path={path}"])
            check_step_reward_model(config)
            check_reward_model(config)
        check_step_reward_model(composed(["+algo=grpo"]))

    def test_the_embedded_task_with_it_passes_every_check_of_rewards(self, step_model: Path) -> None:
        config = composed(["+algo=grpo_process", "+task=chain_sum", MANAGER, f"+{SECTION}.path={step_model}"])
        check_step_reward_model(config)

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (
                ["+algo=grpo", MANAGER, FUNCTION],
                r"adv_estimator is grpo_outcome, but .* reads no step rewards; valid is grpo_process",
            ),
            (
                ["+algo=grpo_process", MANAGER],
                r"custom_reward_function\.path is null, but .* needs the step_ends",
            ),
            (
                ["+algo=grpo_process", "+task=gsm8k_tags", MANAGER],
                r"reward_kwargs\.step_rewards is null, but .* needs the step_ends .*step_rewards=true",
            ),
            (
                [*PROCESS, "+algorithm.grpo_ext.reward_model.rule_weight=0"],
                r"reward_model\.rule_weight is 0, but the reward function is not called then",
            ),
        ],
    )
    def test_no_steps_or_nobody_who_reads_them(
        self, step_model: Path, overrides: list[str], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            check_step_reward_model(composed([*overrides, f"+{SECTION}.path={step_model}"]))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["path=./nowhere"], r"there is no nowhere/config\.json"),
            (["weight=1.0"], rf"{SECTION}\.path is null; valid is a token classifier with two outputs"),
            (["paths=x"], rf"{SECTION}\.paths='x' is not an option; valid are path, weight"),
            (["weight=nan"], rf"{SECTION}\.weight is nan; valid is a finite number"),
        ],
    )
    def test_no_model(self, options: list[str], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            check_step_reward_model(composed([*self.PROCESS, *(f"+{SECTION}.{each}" for each in options)]))

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            (
                {"architectures": ["Qwen2ForCausalLM"]},
                r"is Qwen2ForCausalLM, not a classifier; valid is .*Token",
            ),
            (
                {"architectures": ["Qwen2ForSequenceClassification"]},
                "is Qwen2ForSequenceClassification, not a",
            ),
            (
                {
                    "architectures": ["Qwen2ForTokenClassification"],
                    "id2label": {"0": "a", "1": "b", "2": "c"},
                },
                "it has 3 outputs; valid is 2",
            ),
        ],
    )
    def test_another_model(self, tmp_path: Path, config: dict[str, Any], message: str) -> None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=message):
            check_step_reward_model(composed([*self.PROCESS, f"+{SECTION}.path={tmp_path}"]))

    @pytest.mark.parametrize("labels", [{}, {"id2label": {"0": "a", "1": "b"}}])
    def test_a_model_of_responses_with_two_outputs(self, tmp_path: Path, labels: dict[str, Any]) -> None:
        config = {"architectures": ["Qwen2ForSequenceClassification"], **labels}
        (tmp_path / "config.json").write_text(json.dumps(config))
        path = f"+algorithm.grpo_ext.reward_model.path={tmp_path}"
        with pytest.raises(ValueError, match=r"reward_model\.path is .* it has 2 outputs; valid is 1"):
            check_reward_model(composed([MANAGER, path]))

    def test_another_manager(self, step_model: Path) -> None:
        with pytest.raises(
            ValueError, match=r"name is naive, but .*step_reward_model is set, and this manager"
        ):
            check_reward_model(composed(["+algo=grpo_process", FUNCTION, f"+{SECTION}.path={step_model}"]))

    def test_it_is_one_of_the_checks_before_a_rollout(self) -> None:
        config = composed(["+algo=grpo", "+task=chain_sum", MANAGER, f"+{SECTION}.path=organisation/model"])
        (found,) = (found for found in findings(config) if found.check == "step-reward-model")
        assert found.severity is Severity.ERROR
        assert "reads no step rewards" in str(found.problem)

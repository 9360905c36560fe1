"""Test step rewards from characters to tokens, agent loop, collection and estimator."""

import math
import unicodedata
from functools import partial
from pathlib import Path
from typing import Any

import oracles
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from test_several_rewards import Ours, Verls, batch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

from grpo_verl_ext.preflight import CHECKS
from grpo_verl_ext.rewards.steps import StepRewardError, step_end_tokens
from grpo_verl_ext.tasks.chain_sum.model import TURN_END, build_tokenizer
from grpo_verl_ext.verl_plugin.agent_loops.loops import _StepRewardOutput
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.rewards import trainer
from grpo_verl_ext.verl_plugin.rewards.trainer import _collected_steps
from grpo_verl_ext.verl_plugin.wire import BatchSteps, passing

grpo_process = get_adv_estimator_fn("grpo_process")

BYTES = build_tokenizer()
FUNCTION = "reward.custom_reward_function"
AGENT_LOOP = "actor_rollout_ref.rollout.agent.default_agent_loop"


def merged_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with merges, so that a token holds several letters or a part of one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[TURN_END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["3+4=7;7+2=9; äöü 漢字漢字 😀😀 the then there"] * 50, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=TURN_END)


TOKENIZERS = {"bytes": BYTES, "merges": merged_tokenizer()}
text = st.text(st.sampled_from("3+4=7; theränö漢字😀\u200d\n"), min_size=1, max_size=20)


def by_bytes(tokenizer: Any, ids: list[int], end: int) -> int:
    """The token with the last byte of the first ``end`` characters, counted byte by byte."""
    wanted = len(tokenizer.decode(ids, skip_special_tokens=True)[:end].encode())
    letters = set(pre_tokenizers.ByteLevel.alphabet())
    seen = 0
    for position, token in enumerate(tokenizer.convert_ids_to_tokens(ids)):
        seen += len(token) if all(letter in letters for letter in token) and token != TURN_END else 0
        if seen >= wanted:
            return position
    raise AssertionError(wanted)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data(), written=text)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_characters_are_found_on_the_token_that_has_their_last_byte(name, data, written):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(unicodedata.normalize("NFC", written), add_special_tokens=False)
    for _ in range(data.draw(st.integers(0, 2))):
        ids.insert(data.draw(st.integers(0, len(ids))), tokenizer.eos_token_id)
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    end = data.draw(st.integers(1, len(decode(ids))))
    found = step_end_tokens({"step_rewards": [1], "step_ends": [end]}, ids, decode)
    assert found == [by_bytes(tokenizer, ids, end)]


class TestReported:
    def ends(self, **reported: Any) -> list[int]:
        return step_end_tokens(reported, list(b"ab;cd;"), partial(BYTES.decode, skip_special_tokens=True))

    def test_characters_become_tokens(self) -> None:
        assert self.ends(step_rewards=[1, 0], step_ends=[3, 6]) == [2, 5]
        assert self.ends(step_rewards=[], step_ends=[]) == []

    @pytest.mark.parametrize(
        ("reported", "message"),
        [
            ({"step_rewards": [1], "step_ends": [3, 6]}, "step_rewards has 1 entries and step_ends 2"),
            ({"step_rewards": [1], "step_ends": [0]}, r"step_ends has 0; valid for this response is 1 … 6"),
            ({"step_rewards": [1], "step_ends": [7]}, r"step_ends has 7; valid for this response is 1 … 6"),
            ({"step_rewards": [math.nan], "step_ends": [3]}, "step_rewards has nan; valid are finite"),
            ({"step_rewards": [1]}, r"returned \['step_rewards'\]; valid is step_rewards with step_ends"),
            ({"step_ends": [1]}, r"returned \['step_ends'\]; valid is step_rewards with"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, reported: dict[str, Any], message: str) -> None:
        with pytest.raises(StepRewardError, match=message):
            self.ends(**reported)


def scored(**reported: Any) -> dict[str, Any]:
    """A response as verl's agent-loop worker treats it: scored after it was made."""
    output = AgentLoopOutput(
        prompt_ids=[1, 2], response_ids=list(b"ab;cd;"), response_mask=[1] * 6, metrics=AgentLoopMetrics()
    )
    output = _StepRewardOutput.of(output, BYTES)
    output.reward_score = 0.5
    output.extra_fields["reward_extra_info"] = {"score": 0.5, "acc": 1.0, **reported}
    return output.as_dict()


class TestOutput:
    def test_steps_are_put_on_tokens_and_taken_out_of_what_verl_logs(self) -> None:
        fields = scored(step_rewards=[1.0, 0.0], step_ends=[3, 6])
        assert fields["extra_fields"]["steps"] == [(1.0, 2), (0.0, 5)]
        assert fields["extra_fields"]["reward_extra_info"] == {"score": 0.5, "acc": 1.0}
        assert fields["rm_scores"].tolist() == [0, 0, 0, 0, 0, 0.5], "the outcome stays verl's"

    def test_without_steps_the_fields_are_verls(self) -> None:
        tokens = {"prompt_ids": [1], "response_ids": [2, 3], "response_mask": [1, 1]}
        plain = AgentLoopOutput(**tokens, metrics=AgentLoopMetrics(), extra_fields={})
        ours = _StepRewardOutput.of(plain, BYTES)
        for output in (plain, ours):
            output.reward_score = 1.0
            output.extra_fields["reward_extra_info"] = {"acc": 1.0}
        found, expected = ours.as_dict(), plain.as_dict()
        assert found.keys() == expected.keys()
        assert found["extra_fields"] == expected["extra_fields"]
        assert found["rm_scores"].tolist() == expected["rm_scores"].tolist()

    def test_an_error_travels_to_the_trainer(self) -> None:
        fields = scored(step_rewards=[1.0], step_ends=[9])
        assert fields["extra_fields"]["step_error"].startswith("step_ends has 9; valid for this response is")


class TestCollected:
    @staticmethod
    def computed(
        monkeypatch: pytest.MonkeyPatch, *rows: Any, padding: int = 0
    ) -> tuple[Any, dict[str, float]]:
        """The steps that the estimator is shown, and the metrics."""
        meta, data = batch(*({"steps": each} for each in rows), padding=padding)
        monkeypatch.setattr(trainer, "nested", lambda *_: data)
        metrics: dict[str, float] = {}
        return Ours("grpo_process")._compute_advantage(meta, metrics)[0], metrics

    def test_rows_without_a_step_and_padding_are_passed_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steps = [[(1.0, 2), (0.5, 5)], [], [(0.0, 1)], [(9.0, 99)]]
        found, metrics = self.computed(monkeypatch, *steps, padding=1)
        assert found.rewards.tolist() == [1.0, 0.5, 0.0]
        assert found.row.tolist() == [0, 0, 2]
        assert found.end.tolist() == [2, 5, 1]
        assert metrics == {
            "critic/step_rewards/mean": 0.5,
            "critic/step_rewards/max": 1.0,
            "critic/step_rewards/min": 0.0,
            "critic/step_rewards/per_response": 1.0,
        }

    def test_a_batch_without_a_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found, metrics = self.computed(monkeypatch, [])
        assert len(found.rewards) == len(found.row) == 0
        assert metrics == {"critic/step_rewards/per_response": 0.0}

    def test_steps_that_do_not_fit_name_the_response(self) -> None:
        with pytest.raises(ValueError, match=r"steps of response p_1_0 .* do not fit it: out of range"):
            _collected_steps(*batch({"steps": []}, {"step_error": "out of range"}))

    def test_a_response_without_steps_names_the_agent_loop(self) -> None:
        with pytest.raises(ValueError, match=r"p_0_0 .* no step rewards.*grpo_ext_single_turn_agent"):
            _collected_steps(*batch({"reward_extra_info": {}}))

    def test_what_the_dump_says_of_each_response(self, monkeypatch: pytest.MonkeyPatch) -> None:
        of_another = {"steps": [(1.0, 0), (0.5, 2)]}  # verl's padding is a copy of a row, of one token
        meta, data = batch({"steps": [(1.0, 0), (0.5, 2)]}, {"steps": []}, of_another, padding=1)
        advantages = [torch.tensor([0.5, 0.25, 0.75]), torch.tensor([9.0]), torch.tensor([9.0])]
        data["advantages"] = torch.nested.as_nested_tensor(advantages, layout=torch.jagged)
        first, second, padding = meta.keys
        monkeypatch.setattr(trainer, "nested", lambda *_: data)
        dumped: list[Any] = []
        monkeypatch.setattr(Verls, "_log_rollout_data", lambda self, _batch: dumped.append(self._dumped))
        Ours("grpo_process")._log_rollout_data(meta)
        assert dumped[0] == {
            "step_rewards": {first: [1.0, 0.5], second: [], padding: []},
            "step_end_tokens": {first: [0, 2], second: [], padding: []},
            "step_advantages": {first: [0.5, 0.75], second: [], padding: []},
        }


class TestChecks:
    @staticmethod
    def check(*overrides: str) -> None:
        CHECKS["reported-steps"](composed(overrides))

    def test_a_function_of_which_nothing_is_known_passes_and_other_estimators_need_none(self) -> None:
        for word in (f"{FUNCTION}.path=mine.py", f"{AGENT_LOOP}=mine", "reward.reward_manager.name=mine"):
            self.check("+algo=grpo_process", word)
        self.check("+algo=grpo")

    def test_rows_that_ask_for_verls_own_are_refused(self, tmp_path: Path) -> None:
        pandas.DataFrame({"prompt": ["a"], "agent_name": ["tool_agent"]}).to_parquet(tmp_path / "a.parquet")
        with pytest.raises(ValueError, match=r"ask for agent_name=tool_agent, and .* keeps step rewards"):
            self.check("+algo=grpo_process", f"data.train_files={tmp_path}/a.parquet")

    @pytest.mark.parametrize(
        ("words", "wrong"),
        [
            ([], r"custom_reward_function\.path is null, .* needs the step_rewards"),
            (
                [f"{FUNCTION}.path=pkg://grpo_verl_ext.rewards.weighted_sum"],
                r"Type: \+\+reward\.custom_reward_function\.reward_kwargs\.step_rewards=true",
            ),
        ],
    )
    def test_a_function_that_reports_no_steps(self, words: list[str], wrong: str) -> None:
        with pytest.raises(ValueError, match=wrong):
            self.check("+algo=grpo_process", *words)


class TestEstimator:
    MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
    IDS = ("x", "x", "y", "pad")
    STEPS = ([(1.0, 1), (0.0, 3)], [(1.0, 1)], [(0.5, 0), (0.25, 2)], [])

    def found(self, **options: Any) -> torch.Tensor:
        flat = [(r, i, e) for i, own in enumerate(self.STEPS) for r, e in own]
        rewards, row, end = (torch.tensor(column) for column in zip(*flat, strict=True))
        config = OmegaConf.create({"adv_estimator": "grpo_process", "grpo_ext": options})
        with passing(steps=BatchSteps(rewards.double(), row, end)):
            advantages, returns = grpo_process(
                torch.zeros(4, 4, dtype=torch.float64), self.MASK, self.IDS, config
            )
        assert returns is advantages
        return advantages

    def test_equals_the_oracle(self) -> None:
        expected = oracles.process_advantages(self.STEPS, self.MASK.sum(-1).tolist(), self.IDS, eps=1e-6)
        for row, wanted in zip(self.found(), expected, strict=True):
            assert row.tolist() == pytest.approx(wanted + [0.0] * (4 - len(wanted)), abs=1e-12)

    def test_options(self) -> None:
        centred = self.found(scale_rewards="none")
        assert centred[0].tolist() == pytest.approx([-1 / 3, -1 / 3, -2 / 3, -2 / 3])
        masked = self.found(mask_truncated_completions=True, max_response_length=4)
        assert masked[0].abs().sum() == 0
        assert masked[1:].tolist() == self.found()[1:].tolist()

    def test_without_steps_it_says_what_to_type(self) -> None:
        with pytest.raises(ValueError, match=r"no step rewards to learn from.*Type: \+algo.*=grpo_process"):
            grpo_process(torch.zeros(4, 4), self.MASK, self.IDS)

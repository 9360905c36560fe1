"""Test where a process reward model is read: at the last token of each step, given only what comes before."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForTokenClassification

from grpo_verl_ext.rewards.learned import LearnedReward
from grpo_verl_ext.tasks.chain_sum.model import build_tokenizer

BYTES = build_tokenizer()


class Ramp:
    """Logits (1, 1 + position): P(right) is the logistic function of the position."""

    device = torch.device("cpu")

    def __call__(self, ids: torch.Tensor) -> SimpleNamespace:
        self.ids = ids[0].tolist()
        position = torch.arange(ids.shape[1], dtype=torch.float32)
        return SimpleNamespace(logits=torch.stack([torch.ones_like(position), 1 + position], -1)[None])


def logistic(positions: list[int]) -> Any:
    return pytest.approx([1 / (1 + math.exp(-position)) for position in positions], rel=1e-6)


class TestTokens:
    def test_by_hand(self) -> None:
        ramp = Ramp()
        learned = LearnedReward(ramp, BYTES)  # type: ignore[arg-type]
        assert learned.scores_of_steps("4+5", "a;漢;b", [5, 2, 4, 2]) == logistic([9, 4, 8, 4])
        assert ramp.ids == [*"4+5a;漢;b".encode()]
        assert learned.scores_of_steps("4+5", "a;漢;b", []) == []

    def test_trl_trains_on_the_same_tokens_at_the_same_positions(self) -> None:
        """Of a tokenizer whose texts begin with a token; the one above has none."""
        from trl.experimental.prm import PRMTrainer

        tokenizer = build_tokenizer()
        tokenizer.bos_token = "<|im_start|>"
        row = {"prompt": "4+5", "completions": ["a;", "漢;", "b"], "labels": [True, False, True]}
        uncut = {"max_length": None, "max_completion_length": None, "train_on_last_step_only": False}
        trl = PRMTrainer.tokenize_row(row, tokenizer, step_separator="", is_eval=False, **uncut)
        ramp = Ramp()
        found = LearnedReward(ramp, tokenizer).scores_of_steps("4+5", "a;漢;b", [2, 4, 5])  # type: ignore[arg-type]
        assert ramp.ids == trl["input_ids"]
        assert ramp.ids[0] == tokenizer.bos_token_id
        assert found == logistic([n for n, label in enumerate(trl["labels"]) if label != -100])
        assert [label for label in trl["labels"] if label != -100] == [1, 0, 1]


class TestScores:
    def test_a_score_is_that_of_the_prefix_alone(self, policy: Any) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = AutoModelForTokenClassification.from_pretrained(policy, num_labels=2).eval()
        found = LearnedReward(model, BYTES).scores_of_steps("4+5=?", "4+5=9;9+1=10;end", [6, 13])
        with torch.inference_mode():
            by_hand = [
                model(torch.tensor([[*f"4+5=?{prefix}".encode()]])).logits[0, -1].softmax(-1)[1].item()
                for prefix in ("4+5=9;", "4+5=9;9+1=10;")
            ]
        assert found == pytest.approx(by_hand, rel=1e-5)
        assert abs(found[0] - found[1]) > 1e-4, "the model cannot tell its inputs apart"

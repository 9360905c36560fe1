"""Test the example's reward for equations on GSM8K."""

from pathlib import Path
from types import ModuleType

import pytest
from module_files import load_module


@pytest.fixture(scope="module")
def example() -> ModuleType:
    file = Path(__file__).parents[2] / "examples" / "rewards" / "gsm8k_steps.py"
    return load_module(file)


def test_each_equation_and_the_answer_are_steps(example: ModuleType) -> None:
    text = "She sold 48/2 = 24 clips in May.\nTogether 48+24 = 71 clips.\n#### 72"
    result = example.compute_score("openai/gsm8k", text, "72")
    assert (result["score"], result["acc"]) == (1.0, 1.0)
    assert result["step_rewards"] == [1.0, 0.0, 1.0]
    assert [text[:end][-2:] for end in result["step_ends"]] == ["24", "71", "72"]
    assert example.compute_score("", "", "1")["step_rewards"] == []


@pytest.mark.parametrize(
    ("text", "rewards"),
    [
        ("$1,200 * 3 = $3,600", [1.0]),
        ("10 / 3 = 3.33", [1.0]),
        ("10 / 3 = 3.34", [0.0]),
        # 0.125 is half a digit from either neighbour
        ("1 / 8 = 0.12, 1 / 8 = 0.13, 1 / 8 = 0.11, 1 / 8 = 0.14", [1.0, 1.0, 0.0, 0.0]),
        ("2 x 3 = 6 and 6 ÷ 2 = 3", [1.0, 1.0]),
        ("5 - 7 = -2", [1.0]),
        ("1 / 0 = 0", [0.0]),
        ("no equation", []),
    ],
)
def test_an_equation_holds_to_the_digits_written(example, text, rewards) -> None:
    assert example.compute_score("", text, "1")["step_rewards"] == [*rewards, 0.0]

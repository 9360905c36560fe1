"""Test the weights of examples/anatomy.py by hand, and that it draws a dump as verl writes it."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCORES = [0.0, 1.0, 2.0, 0.0, 0.0, 2.0, 4.0, 4.0]
LENGTHS = [4, 1, 2, 1, 2, 1, 2, 3]
PROMPTS = ["a", "a", "a", "b", "b", "b", "b", "b"]
"""Prompt a: centred (−1, 0, 1), std 1. b: centred (−2, −2, 0, 2, 2), std √(16/4) = 2. B = 8, N = 16."""

BY_HAND = {
    # A/|o|: −¼ 0 ½ | −1 −½ 0 ½ ⅓. Σ|w||o| = Σ|A| = 6, so times 16/6.
    "grpo": [-2 / 3, 0, 4 / 3, -8 / 3, -4 / 3, 0, 4 / 3, 8 / 9],
    # A itself. Σ|A||o| = (4 + 2) + (1 + 2 + 2 + 3) = 14.
    "dapo": [-8 / 7, 0, 8 / 7, -8 / 7, -8 / 7, 0, 8 / 7, 8 / 7],
    # r − mean r: ∓1 and ∓2. Σ = 6 + 2 · 8 = 22.
    "dr_grpo": [-8 / 11, 0, 8 / 11, -16 / 11, -16 / 11, 0, 16 / 11, 16 / 11],
    # (r − mean r)/(k − 1): ∓1/2 and ∓2/4. Σ = 7.
    "gvpo": [-8 / 7, 0, 8 / 7, -8 / 7, -8 / 7, 0, 8 / 7, 8 / 7],
    # k/(k − 1) (r − mean r): ∓3/2 and ∓5/2. Σ = 6 · 3/2 + 8 · 5/2 = 29.
    "rloo": [-24 / 29, 0, 24 / 29, -40 / 29, -40 / 29, 0, 40 / 29, 40 / 29],
}


@pytest.fixture
def anatomy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    return importlib.import_module("anatomy")


@pytest.mark.parametrize("preset", BY_HAND)
def test_by_hand(preset: str, anatomy: ModuleType) -> None:
    step = anatomy.Step.of(SCORES, LENGTHS, PROMPTS)
    found = anatomy.relative(anatomy.token_weights(preset, step), step.lengths)
    # The ε of the standard deviation is 1e-6.
    assert found.tolist() == pytest.approx(BY_HAND[preset], abs=1e-5)


def test_a_dump_is_drawn(
    policy: Path, tmp_path: Path, anatomy: ModuleType, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A byte is a token, as is the end."""
    (tmp_path / "rollouts").mkdir()
    rows = [("a", 1.0, "12"), ("b", 0.0, "12345"), ("a", 0.0, "123456789"), ("b", 1.0, "123456789")]
    lines = [
        {"input": "", "output": text, "gts": "", "score": score, "step": 1, "uid": f"{prompt}_{number}_0"}
        for number, (prompt, score, text) in enumerate(rows)
    ]
    (tmp_path / "rollouts" / "1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    words = ["--model", str(policy), "--max-response-length", "8", "--algos", "grpo"]
    out = ["--out", str(tmp_path / "out.svg")]
    monkeypatch.setattr(sys, "argv", ["anatomy.py", str(tmp_path / "rollouts"), *words, *out])
    anatomy.main()
    # |A| is one number; 1/|o| is 1/3, 1/6 and twice 1/8, with a mean over 25 tokens of 4/25.
    told = capsys.readouterr().out.splitlines()
    assert told[:2] == ["right, 3 to 3 tokens: grpo 2.08", "right, 8 to 8 tokens: grpo 0.78"]
    assert told[2:4] == ["wrong, 6 to 6 tokens: grpo 1.04", "wrong, 8 to 8 tokens: grpo 0.78"]
    assert "wrong answers" in (tmp_path / "out.svg").read_text()

"""Test what examples/iterate_answers.sh does around its trainings: the prompts, and the table of results."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_verl_ext.iterate.examples import Pair, write_examples
from grpo_verl_ext.tasks.chain_sum.problems import every_problem
from grpo_verl_ext.tasks.folders import PreparedFolderError, read_parquet

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """The examples are scripts, which import each other from their own folder."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


def test_the_prompts_are_different_and_on_the_training_side(module, tmp_path) -> None:
    prompts = module("iterate_answers_prompts")
    made = prompts.write(3, tmp_path, prompts=3000)
    terms = [tuple(row["extra_info"]["terms"]) for row in read_parquet(made.folder / "train.parquet")]
    assert len(set(terms)) == len(terms) == 3000
    assert {len(each) for each in terms} == {3, 4, 5}
    assert {*terms} <= {each for length in (3, 4, 5) for each in every_problem(length, "train")}
    assert not prompts.write(3, tmp_path, prompts=3000).made
    with pytest.raises(PreparedFolderError, match="was made with other settings"):
        prompts.write(3, tmp_path, prompts=3001)


def test_the_auc_is_over_all_prompts(module, tmp_path, monkeypatch) -> None:
    """Of a reward model that scores a response by the number that it is."""
    summary = module("iterate_answers_summary")
    judge = SimpleNamespace(score=lambda _prompt, response: float(response))
    monkeypatch.setattr(summary.LearnedReward, "load", lambda _: judge)
    held_out = tmp_path / "held_out.jsonl"
    # right 3 and 1, wrong 2 and 0: of the four pairs only (1, 2) is in the wrong order. The second pair comes
    # twice and counts once
    write_examples(held_out, [Pair("a", "3", "2"), Pair("b", "1", "0"), Pair("b", "1", "0")])
    assert summary.auc(tmp_path, held_out) == pytest.approx(3 / 4)


def validation(folder: Path, step: int, answers: str) -> None:
    """As verl dumps it: the ground truth of prompt n is n."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for n, said in enumerate(answers):
        row = dict.fromkeys(("input", "gts", "uid"), f"{n}") | {"output": f"<answer>{said}</answer>"}
        lines.insert(0, json.dumps(row | {"score": 0.0, "step": step}) + "\n")
    (folder / f"{step}.jsonl").write_text("".join(lines))


def test_the_table_compares_two_rounds_with_one_training(module, tmp_path, monkeypatch, capsys) -> None:
    summary = module("iterate_answers_summary")
    monkeypatch.setattr(summary, "FOLDER", tmp_path)
    monkeypatch.setattr(summary, "auc", lambda model, _: 0.75 if "start" in str(model) else 0.5)
    # of the prompts 0 to 3: one right at the start, two after round 1, three after round 2, two after one
    # training; with seed 107 three, and with start 8 none
    rounds = {("two", 1, 0): "0999", ("two", 1, 8): "0199", ("two", 2, 8): "0129"}
    for seed, after_one in {7: "0993", 107: "0923", 8: "9999"}.items():
        for (run, number, step), answers in (rounds | {("one", 1, 16): after_one}).items():
            folder = tmp_path / f"{run}-seed-{seed}" / f"round-{number}" / "policy" / "validation"
            validation(folder, step, answers)

    monkeypatch.setattr("sys.argv", ["iterate_answers_summary.py", "8", "7", "107"])
    summary.main()
    _, _, seed, _, of_trainings, start, of_starts = capsys.readouterr().out.splitlines()
    # differences 0, 1, 1, −1: mean ¼, std √(11/12), t₃ = 3.182446
    half = 3.182446 * (11 / 12) ** 0.5 / 2
    shown = f"+0.250 ({0.25 - half:.3f} … {0.25 + half:.3f})"
    assert seed == f"| 7, 7 | 0.750 | 0.500 | 0.250 | 0.500 | 0.750 | 0.500 | {shown} |"
    # differences ¼ and 0: mean ⅛, std ¼/√2, t₁ = 12.706205
    half = 12.706205 * 0.25 / 2
    assert of_trainings.startswith("| 7, mean of 2 | 0.750 | 0.500 |")
    assert of_trainings.endswith(f"| 0.750 | 0.625 | +0.125 ({0.125 - half:.3f} … {0.125 + half:.3f}) |")
    assert start.startswith("| 8, 8 |")
    # ⅛ and ¾: mean 0.4375, std ⅝/√2; the two trainings of start 7 count once
    half = 12.706205 * 0.625 / 2
    assert of_starts.startswith("| mean of the starts |")
    assert of_starts.endswith(f"| +0.438 ({0.4375 - half:.3f} … {0.4375 + half:.3f}) |")

"""Test ``grpo-verl-ext anatomy`` from a dump to tables and files; each byte and the end is a token."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from grpo_verl_ext.anatomy.measure import AnatomySettings, anatomy_of
from grpo_verl_ext.anatomy.weights import alike
from grpo_verl_ext.cli import app

FILES = ["anatomy.json"] + [
    f"anatomy-{name}.{kind}" for name in ("weight-by-length", "gradient-share") for kind in ("png", "svg")
]

TWO_GROUPS = [("p", 0.0, "abc"), ("p", 2.0, "a"), ("q", 0.0, "a"), ("q", 0.0, "abc")]
"""Lengths 4, 2, 2, 4; q teaches nothing."""


@pytest.fixture
def dump(write) -> Path:
    """A step with a gradient, and one without."""
    write(2, [("p", 2.0, "x"), ("p", 2.0, "xyz")])
    folder: Path = write(1, TWO_GROUPS)
    return folder


def run(dump: Path, tokenizer: Path, out: Path, *options: str) -> Result:
    arguments = ["anatomy", str(dump), "--tokenizer", str(tokenizer), "--out", str(out), *options]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})


def by_length_and_answer(out: Path) -> dict[tuple[int, bool], dict[str, Any]]:
    cells = json.loads((out / "anatomy.json").read_text())["cells"]["by_both"]
    return {(cell["longest"], cell["right"]): cell for cell in cells}


def test_by_hand(dump: Path, policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "some" / "where"
    result = run(dump, policy, out)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    cells = by_length_and_answer(out)
    # Advantages −A and A on 4 and 2 tokens, 0 on the other 6: the step has 12 tokens.
    # grpo: A/4 and A/2 a token, Σ = 2A; times 12/2: 1.5 and 3. The others: Σ = 6A, times 12/6: 2 and 2.
    wanted = {
        "grpo": (1.5, 3.0),
        "dapo": (2, 2),
        "dapo_per_prompt": (2, 2),
        "dr_grpo": (2, 2),
        "gvpo": (2, 2),
    }
    for name, (long_wrong, short_right) in wanted.items():
        assert cells[2, True]["weight"][name] == pytest.approx(short_right, rel=1e-5)
        assert cells[2, True]["signed_weight"][name] == pytest.approx(short_right, rel=1e-5)
        # Together with the long one of q, of weight 0.
        assert cells[4, False]["weight"][name] == pytest.approx(long_wrong / 2, rel=1e-5)
        assert cells[4, False]["signed_weight"][name] == pytest.approx(-long_wrong / 2, rel=1e-5)
        assert cells[2, True]["share"][name] == pytest.approx(2 * short_right / 12, rel=1e-5)
        assert cells[2, False]["weight"][name] == 0
    assert cells[4, True]["weight"]["grpo"] is None
    written = json.loads((out / "anatomy.json").read_text())
    assert (written["responses"], written["tokens"], written["kl"]) == (6, 12 + 2 + 4, None)
    assert written["steps"] == [
        {"step": 1, "groups": 2, "without_signal": 1},
        {"step": 2, "groups": 1, "without_signal": 1},
    ]
    assert written["settings"]["right_above"] == 0.0
    assert "│ 2      │ right  │     1 │ 3.00 │" in result.stdout
    assert "│ 4      │ right  │     0 │    – │" in result.stdout
    assert "Groups with equal scores, of weight 0 in every variant: 2 of 3, 66.7 %." in result.stdout
    assert "1 of 2 steps have no gradient at all and are in no table." in result.stdout


def test_shares_of_the_terminal_by_hand(dump: Path, policy: Path, tmp_path: Path) -> None:
    lines = run(dump, policy, tmp_path / "out").stdout.splitlines()
    # Half the responses and 4 of 12 tokens are short, and one of p: half of grpo, 2 of 6 tokens of dapo.
    (short,) = (line.split("│") for line in lines if line.startswith("│ 2 ") and "50.0" in line)
    assert [cell.strip() for cell in short[2:5]] == ["50.0", "33.3", "50.0"]
    # After grpo and its like, all others weigh each token alike here.
    assert {cell.strip() for cell in short[5:-1]} == {"33.3"}
    (right,) = (line.split("│") for line in lines if line.startswith("│ right"))
    assert [cell.strip() for cell in right[2:5]] == ["25.0", "16.7", "50.0"]
    assert all(len(line) <= 80 for line in lines if line.startswith(("│", "┃")))


def test_the_budget_and_where_right_begins(write, policy: Path, tmp_path: Path) -> None:
    folder = write(1, [("p", 0.8, "abcdef"), ("p", 2.8, "ab"), ("p", 0.8, "abcde")])
    result = run(folder, policy, tmp_path, "--right-above", "1", "--max-response-length", "5")
    assert result.exit_code == 0, result.output
    assert {key: cell["responses"] for key, cell in by_length_and_answer(tmp_path).items()} == {
        (3, True): 1,
        (3, False): 0,
        (5, True): 0,
        (5, False): 2,
    }
    assert "tokenised anew: 1; each counts as that many." in result.stdout


def test_a_variant_whose_estimator_refuses_the_scores_is_left_out(
    write, policy: Path, tmp_path: Path
) -> None:
    """MaxRL divides by a mean, which is none where rewards are below 0."""
    folder = write(1, [("p", -1.0, "a"), ("p", 1.0, "ab"), ("q", 1.0, "a"), ("q", 0.0, "b")])
    result = run(folder, policy, tmp_path)
    assert result.exit_code == 0, result.output
    assert "maxrl is in no table: the reward of row 0 is -1" in " ".join(result.stdout.split())
    assert '"maxrl"' not in (tmp_path / "anatomy.json").read_text()


def test_the_local_batch_is_an_option(dump: Path, policy: Path, tmp_path: Path) -> None:
    for size, same_as in (("1", "grpo"), ("4", "dapo")):
        run(dump, policy, tmp_path, "--micro-batch-size", size)
        for cell in by_length_and_answer(tmp_path).values():
            assert cell["weight"]["bnpo"] == pytest.approx(cell["weight"][same_as])


def test_the_same_files_each_time_and_nothing_half_written(dump: Path, policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    contents = []
    for _ in range(2):
        run(dump, policy, out)
        contents.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert contents[0] == contents[1]
    assert set(contents[0]) == set(FILES)


def test_variants_that_weigh_alike_share_a_line_of_the_figures(
    dump: Path, policy: Path, tmp_path: Path
) -> None:
    anatomy = anatomy_of(AnatomySettings(dump, policy, tmp_path, micro_batch_size=4))
    lines = alike(anatomy.cells.by_both)
    known = {"grpo", "bnpo", "dapo", "dapo_per_prompt", "dr_grpo", "gvpo"}
    shared = [sorted(known.intersection(line)) for line in lines if known.intersection(line)]
    assert shared == [["grpo"], ["bnpo", "dapo", "dapo_per_prompt", "dr_grpo", "gvpo"]]
    run(dump, policy, tmp_path, "--micro-batch-size", "4")
    for name in ("weight-by-length", "gradient-share"):
        text = (tmp_path / f"anatomy-{name}.svg").read_text()
        assert all(", ".join(line) in text for line in lines)
    assert "wrong answers" in (tmp_path / "anatomy-weight-by-length.svg").read_text()


def test_control_characters_of_a_response_reach_no_terminal(write, policy: Path, tmp_path: Path) -> None:
    nasty = "\x1b[2J\x07\x00\r\u2028[bold]│"
    folder = write(1, [(f"{nasty}p", 1.0, nasty), (f"{nasty}p", 0.0, nasty * 3)])
    result = run(folder, policy, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert not set(result.output) & set("\x1b\x07\x00\r\u2028")
    assert "Responses: 2;" in result.stdout


def test_two_models(dump: Path, policy: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(3)
    model.save_pretrained(moved)
    options = ("--policy", str(moved), "--reference", str(policy), "--kl-responses", "3")
    result = run(dump, policy, tmp_path, *options)
    assert result.exit_code == 0, result.output
    kl = json.loads((tmp_path / "anatomy.json").read_text())["kl"]
    assert kl["responses"] == 3
    assert kl["estimators"]["k2"]["cosine"] == pytest.approx(1)
    rows = {line[2:4]: line.split("│") for line in result.stdout.splitlines() if line.startswith("│ k")}
    assert [rows["k1"][place].strip() for place in (3, 4, 5)] == ["0.0", "1.00", "–"]
    assert [rows["k2"][place].strip() for place in (4, 5)] == ["0.00", "1.00"]
    assert rows["k3"][3].strip() == "0.0"
    assert rows["k2"][3].strip() == f"{100 * (kl['estimators']['k2']['value'] / kl['kl'] - 1):.1f}"


class TestRefused:
    """One line each, that says what to type; nothing is written."""

    def refused(self, result: Result, out: Path) -> str:
        assert result.exit_code == 1, result.output
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("anatomy: ")
        assert not out.exists()
        return result.stderr

    def test_a_corrupt_line(self, dump: Path, policy: Path, tmp_path: Path) -> None:
        with (dump / "1.jsonl").open("a") as file:
            file.write('{"input": "cut o')
        message = self.refused(run(dump, policy, tmp_path / "out"), tmp_path / "out")
        assert f"{dump}/1.jsonl, line 5, is no response" in message

    def test_nothing_there(self, policy: Path, tmp_path: Path) -> None:
        message = self.refused(run(tmp_path / "gone", policy, tmp_path / "out"), tmp_path / "out")
        assert "trainer.rollout_data_dir=<folder>" in message
        (tmp_path / "1.jsonl").touch()
        message = self.refused(run(tmp_path, policy, tmp_path / "out"), tmp_path / "out")
        assert "has no responses" in message

    @pytest.mark.parametrize("above_and_kind", ["2.5 right", "2 right", "-1 wrong"])
    def test_none_right_or_none_wrong(self, dump, policy, tmp_path, above_and_kind: str) -> None:
        above, kind = above_and_kind.split()
        out = tmp_path / "out"
        message = self.refused(run(dump, policy, out, "--right-above", above), out)
        assert f"none of 6 responses is {kind} with --right-above {above}" in message
        assert "divides the scores 0, 2. Type: --right-above <number>" in message

    def test_many_scores_are_not_all_named(self, write, policy: Path, tmp_path: Path) -> None:
        folder = write(1, [("p", number / 10, "a") for number in range(1, 20)])
        message = self.refused(run(folder, policy, tmp_path / "out"), tmp_path / "out")
        assert "divides the scores 0.1 … 1.9." in message

    def test_no_group_has_right_and_wrong(self, write, policy: Path, tmp_path: Path) -> None:
        folder = write(1, [("p", 1.0, "a"), ("p", 1.0, "b"), ("q", 0.0, "a"), ("q", 0.0, "b")])
        message = self.refused(run(folder, policy, tmp_path / "out"), tmp_path / "out")
        assert "in each of the 2 groups" in message

    def test_one_model_alone(self, dump: Path, policy: Path, tmp_path: Path) -> None:
        message = self.refused(run(dump, policy, tmp_path / "out", "--policy", str(policy)), tmp_path / "out")
        assert "--reference is None; valid are both, or neither" in message

    def test_no_tokenizer(self, dump: Path, tmp_path: Path) -> None:
        self.refused(run(dump, tmp_path, tmp_path / "out"), tmp_path / "out")

    def test_without_the_extra(self, python, dump: Path, policy: Path, tmp_path: Path) -> None:
        result = python(
            f"""
            import sys
            sys.modules["matplotlib"] = None
            from grpo_verl_ext.cli import app
            app(["anatomy", {str(dump)!r}, "--tokenizer", {str(policy)!r}, "--out", {str(tmp_path)!r}])
            """
        )
        assert result.returncode == 1
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("anatomy: ")
        assert result.stderr.endswith("Type: pip install '.[ablation]', in a checkout of grpo_verl_ext\n")


def test_the_embedded_tasks_own_dump_as_verl_writes_it(tmp_path: Path, policy: Path) -> None:
    """Records as a training of the embedded task left them; 0.8 is a wrong answer in the right form."""
    right = "<reasoning>8+3=11;11+7=18;</reasoning><answer>18</answer>"
    wrong = "<reasoning>8+3=12;12+7=19;</reasoning><answer>19</answer>"
    uid = "187c93ba-58ea-43bc-996f-9e80aed7bad6"
    with (tmp_path / "1.jsonl").open("w", encoding="utf-8") as file:
        for number, (text, score) in enumerate(
            [(wrong, 0.800000011920929), (right, 2.799999952316284), (wrong[:40], 0.20000000298023224)]
        ):
            record = {"input": "user\n8+3+7=?\nassistant\n", "output": text, "gts": "18", "score": score}
            file.write(
                json.dumps(record | {"step": 1, "uid": f"{uid}_{number}_0"}, ensure_ascii=False) + "\n"
            )
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(policy / name, tokenizer)
    options = ("--right-above", "1.0", "--max-response-length", "44")
    result = run(tmp_path, tokenizer, tmp_path / "out", *options)
    assert result.exit_code == 0, result.output
    cells = by_length_and_answer(tmp_path / "out")
    # Four tags, 17 bytes and the end, twice; two tags, 17 bytes ("<a" is no tag) and the end.
    # r − mean = −7/15, 23/15, −16/15 of 2.8, 0.8 and 0.2.
    assert {key: cell["tokens"] for key, cell in cells.items() if cell["tokens"]} == {
        (20, False): 20,
        (22, True): 22,
        (22, False): 22,
    }
    mass = (7 + 23) / 15 * 22 + 16 / 15 * 20
    assert cells[22, True]["signed_weight"]["dr_grpo"] == pytest.approx(23 / 15 * 64 / mass, rel=1e-4)
    assert cells[20, False]["signed_weight"]["gvpo"] == pytest.approx(-16 / 15 * 64 / mass, rel=1e-4)

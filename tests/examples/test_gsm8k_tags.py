"""Test the recipe of the source material on rows made here: GSM8K's shape, its system prompt, its rewards."""

import json
from pathlib import Path
from typing import Any

import gsm8k_tags
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gsm8k_tags import prepare_gsm8k_tags

from grpo_verl_ext.tasks.folders import PreparedFolderError
from grpo_verl_ext.verl_plugin.compose import composed

PROBLEMS = [
    {"question": "Tom has 3 apples and buys 11. How many?", "answer": "3+11=<<3+11=14>>14\n#### 14"},
    {"question": "A car of $600 and one of $400: how much?", "answer": "600+400=1,000\n#### 1,000"},
]
SEARCH = f"hydra.searchpath=[file://{Path(gsm8k_tags.__file__).parent}]"
FOUND = [SEARCH, "actor_rollout_ref.rollout.name=vllm"]


def as_jsonl(file: Path) -> None:
    file.with_suffix(".jsonl").write_text("".join(json.dumps(each) + "\n" for each in PROBLEMS))


def as_parquet(file: Path) -> None:
    pq.write_table(pa.Table.from_pylist(PROBLEMS), file.with_suffix(".parquet"))


@pytest.fixture(params=[as_jsonl, as_parquet])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> list[dict[str, Any]]:
    for split in ("train", "test"):
        request.param(tmp_path / split)
    prepare_gsm8k_tags(tmp_path, tmp_path / "made", force=False)
    found: list[dict[str, Any]] = pq.read_table(tmp_path / "made" / "test.parquet").to_pylist()
    return found


def test_a_row_is_as_verl_reads_it(rows: list[dict[str, Any]]) -> None:
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["14", "1000"]
    system, user = rows[0]["prompt"]
    assert system["role"] == "system"
    for tag in ("<reasoning>", "</reasoning>", "<answer>", "</answer>"):
        assert tag in system["content"]
    assert user == {"role": "user", "content": PROBLEMS[0]["question"]}
    assert rows[0]["extra_info"] == {"index": 0, "split": "test", **PROBLEMS[0]}
    assert rows[0]["data_source"] == "gsm8k_tags"


def test_the_command_writes_both_splits_each_with_its_own_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for split, problem in zip(("train", "test"), PROBLEMS, strict=True):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(problem) + "\n")
    words = ["gsm8k_tags.py", "--source", str(tmp_path), "--folder", str(tmp_path / "made")]
    monkeypatch.setattr("sys.argv", words)
    gsm8k_tags.main()
    assert capsys.readouterr().out == f"made: {tmp_path / 'made'}\n  1 training and 1 test prompts\n"
    for split, truth in (("train", "14"), ("test", "1000")):
        (row,) = pq.read_table(tmp_path / "made" / f"{split}.parquet").to_pylist()
        assert (row["reward_model"]["ground_truth"], row["extra_info"]["split"]) == (truth, split)


def test_the_preset_reads_what_prepare_writes_and_keeps_gsm8ks_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_jsonl(tmp_path / "train")
    as_jsonl(tmp_path / "test")
    monkeypatch.setenv("GRPO_VERL_EXT_CACHE", str(tmp_path))
    made = prepare_gsm8k_tags(tmp_path, None, force=False)
    tagged, plain = (composed([*FOUND, f"+task={name}"]) for name in ("gsm8k_tags", "gsm8k"))
    assert tagged.data.train_files == str(made.folder / "train.parquet")
    for key in ("train_batch_size", "max_prompt_length", "max_response_length"):
        assert tagged.data[key] == plain.data[key]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"--source is .* has no train\.parquet or train\.jsonl; valid is a folder with"),
        ('{"question": "q", "answer": "14"}', r"train\.jsonl is not GSM8K: .* an answer has no '####': '14'"),
        ('{"question": "q"}', r"train\.jsonl is not GSM8K: KeyError: 'answer'"),
        ("{", r"train\.jsonl is not GSM8K: JSONDecodeError"),
    ],
)
def test_what_is_not_gsm8k_is_named(content: str | None, message: str, tmp_path: Path) -> None:
    as_jsonl(tmp_path / "test")
    if content is not None:
        (tmp_path / "train.jsonl").write_text(content)
    with pytest.raises(PreparedFolderError, match=message):
        prepare_gsm8k_tags(tmp_path, tmp_path / "made", force=False)

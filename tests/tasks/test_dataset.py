"""Test the parquet files: verl's columns, and equal bytes for equal problems."""

from grpo_verl_ext.tasks.chain_sum.problems import draw_problems, row, write_problems
from grpo_verl_ext.tasks.folders import read_parquet


def test_a_row_in_verls_format():
    assert row((3, 4, 2), split="train", index=5) == {
        "data_source": "chain_sum",
        "prompt": [{"role": "user", "content": "3+4+2=?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "9"},
        "extra_info": {
            "index": 5,
            "split": "train",
            "terms": [3, 4, 2],
            "response": "<reasoning>3+4=7;7+2=9;</reasoning><answer>9</answer>",
        },
    }


def test_rows_come_back_as_they_were_written_and_the_same_problems_give_the_same_bytes(tmp_path):
    problems = draw_problems("test", 20, lengths=range(3, 5), seed=1)
    for name in "ab":
        write_problems(tmp_path / name, problems, "test")
    rows = [row(terms, split="test", index=index) for index, terms in enumerate(problems)]
    assert read_parquet(tmp_path / "a") == rows
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_verls_dataset_reads_the_prompts(tiny_prepared, tmp_path):
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    # what the preset sets, and a limit that the longest prompt just meets: 28 tokens with four terms
    settings = {"max_prompt_length": 28, "filter_overlong_prompts": True, "cache_dir": str(tmp_path)}
    tokenizer = AutoTokenizer.from_pretrained(tiny_prepared.folder / "model")
    rows = RLHFDataset(str(tiny_prepared.folder / "test.parquet"), tokenizer, OmegaConf.create(settings))
    assert len(rows) == tiny_prepared.manifest["settings"]["test_problems"]
    written = read_parquet(tiny_prepared.folder / "test.parquet")
    assert rows[0]["raw_prompt"] == written[0]["prompt"]
    assert rows[0]["reward_model"] == written[0]["reward_model"]


def test_no_prompt_is_in_both_files(tiny_prepared, tiny):
    train, test = (
        {row["prompt"][0]["content"] for row in read_parquet(tiny_prepared.folder / f"{name}.parquet")}
        for name in ("train", "test")
    )
    assert (len(train), len(test)) == (tiny.train_problems, tiny.test_problems)
    assert not train & test

"""Test ``prepare chain_sum``: what the folder has, deterministic by seed, with messages on what it finds."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from grpo_verl_ext.tasks.chain_sum import prepare
from grpo_verl_ext.tasks.chain_sum.model import accuracy
from grpo_verl_ext.tasks.chain_sum.prepare import prepare_chain_sum
from grpo_verl_ext.tasks.chain_sum.prepared import TASKS, TaskSettings, place
from grpo_verl_ext.tasks.folders import PreparedFolderError, read_parquet


def test_the_folder_and_its_manifest(tiny_prepared, tiny):
    folder, manifest = tiny_prepared.folder, tiny_prepared.manifest
    there = {"train.parquet", "test.parquet", "model", "manifest.json"}
    assert {path.name for path in folder.iterdir()} == there
    assert (manifest["seed"], manifest["measured_prompts"]) == (7, 9)
    assert TaskSettings(**manifest["settings"]) == tiny
    assert manifest["versions"]["torch"] == torch.__version__
    assert place(folder).check() == manifest


def test_the_manifests_accuracy_is_what_accuracy_measures(tiny_prepared):
    model, test = (tiny_prepared.folder / name for name in ("model", "test.parquet"))
    manifest = tiny_prepared.manifest
    assert manifest["sampled_accuracy"] == accuracy(model, test, n=9, samples=4)
    assert manifest["greedy_accuracy"] == accuracy(model, test, n=9, temperature=0.0)


@pytest.mark.parametrize(
    ("accuracies", "standard"),
    [
        *(((sampled, 1.0), sampled == 0.28) for sampled in (0.28, 0.29, 0.21)),
        *(((0.25, greedy), greedy == 0.95) for greedy in (0.95, 0.94)),
    ],
)
def test_a_standard_start_samples_a_quarter(accuracies, standard, tiny_prepared, monkeypatch, capsys):
    measured = dict(zip(("sampled_accuracy", "greedy_accuracy"), accuracies, strict=True))
    made = replace(tiny_prepared, manifest=tiny_prepared.manifest | measured)
    monkeypatch.setattr(prepare, "prepare_chain_sum", lambda *_, **__: made)
    prepare.run_prepare("chain_sum", 7, force=False)
    assert ("good for a training;" not in capsys.readouterr().out) is standard


def test_the_same_seed_gives_the_same_files_and_another_seed_others(tiny_prepared, tiny, tmp_path):
    made = (prepare_chain_sum(seed, settings=tiny, root=tmp_path) for seed in (7, 8))
    again, other = (each.manifest["sha256"] for each in made)
    assert again == tiny_prepared.manifest["sha256"]
    assert other.keys() == again.keys()
    different = {name for name in again if again[name] != other[name]}
    assert different == {"train.parquet", "test.parquet", "model/model.safetensors"}


def test_a_folder_that_is_not_there_comes_with_the_line_that_makes_it(tmp_path, monkeypatch):
    """In its place, which may be another than the cache."""
    line = "grpo-verl-ext prepare chain_sum --seed 3"
    for cache, said in ((tmp_path, line), (tmp_path / "other", f"GRPO_VERL_EXT_CACHE={tmp_path} {line}")):
        monkeypatch.setenv("GRPO_VERL_EXT_CACHE", str(cache))
        with pytest.raises(PreparedFolderError) as error:
            place(tmp_path / "chain_sum" / "seed-3").check()
        assert str(error.value).endswith(f"no such folder; type: {said}")


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
    files = (read_parquet(tiny_prepared.folder / f"{name}.parquet") for name in ("train", "test"))
    train, test = ({row["prompt"][0]["content"] for row in rows} for rows in files)
    assert (len(train), len(test)) == (tiny.train_problems, tiny.test_problems)
    assert not train & test


@pytest.mark.long
def test_the_real_warm_start_is_middling_when_sampled_and_knows_better(tmp_path):
    """Of the harder task; the end-to-end tests train from the start of the other."""
    outcome = prepare_chain_sum(1, settings=TASKS["chain_sum_mixed"], root=tmp_path)
    assert outcome.manifest["measured_prompts"] >= 512
    assert 0.15 <= outcome.manifest["sampled_accuracy"] <= 0.5
    model, test = outcome.folder / "model", outcome.folder / "test.parquet"
    assert accuracy(model, test, temperature=0.0) >= 0.75
    assert all(torch.isfinite(weight).all() for weight in load_file(model / "model.safetensors").values())

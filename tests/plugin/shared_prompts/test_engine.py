"""Test that shared prompts change log-probs, entropies and gradients of verl's engine by rounding alone."""

from pathlib import Path
from typing import Any

import fsdp2_ranks
import pytest
import torch
from processes import run_ranks
from rollout_ranks import BEFORE, relative_error, trained, variant
from shared_prompt_ranks import compare, rows_of
from transformers import AutoConfig, AutoModelForCausalLM

RAGGED = rows_of([(5, [3, 7, 1, 4]), (9, [2]), (3, [6, 6, 0]), (4, [0, 0]), (7, [8, 2])])
"""Groups of one to four, one of them without a token; with two words, some responses are equal."""
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "attn_implementation": "sdpa",
}
MODELS = {"llama": {}, "qwen2": {}, "qwen3": {"head_dim": 16}}
Errors = dict[str, dict[str, tuple[float, float]]]


def save_models(folder: Path, models: dict[str, Any]) -> dict[str, str]:
    """The small GPT-NeoX with wide logits, and these models of transformers."""
    fsdp2_ranks.tiny_model(initializer_range=0.5).save_pretrained(folder / "gpt_neox")
    for name, more in models.items():
        torch.manual_seed(0)
        settings = AutoConfig.for_model(more.get("model_type", name), **SIZES, **more)
        AutoModelForCausalLM.from_config(settings).float().save_pretrained(folder / name)
    return {name: str(folder / name) for name in ("gpt_neox", *models)}


def errors(folder: Path, ranks: list[Any], variants: dict[str, Any], models: dict[str, Any] = {}) -> Errors:  # noqa: B006
    batch = {"ranks": ranks, "extra_info": None}
    job = {
        "models": save_models(folder, models),
        "variants": variants,
        "batches": dict.fromkeys(variants, batch),
    }
    torch.save(job, folder / "job.pt")
    run_ranks(compare, len(ranks), folder, folder=folder)
    found: Errors = torch.load(folder / "result.pt", weights_only=False)
    return found


OF_UPDATE: dict[str, Any] = {"worker": "ours", "of_update": True, "updates": 2}
"""Of the first of two updates; the rows of the second have a pass before it."""


def test_in_double_precision(tmp_path: Path) -> None:
    variants = {
        "dynamic": {},
        "fixed": {"micro_batch": 3},
        "temperature and entropy": {"extra": {"temperature": 0.7}, "actor": {"entropy_coeff": 0.01}},
        "checkpointing": {"gradient_checkpointing": True},
        "LoRA": {"lora_rank": 4},
        "mean of responses": {"loss": "grpo"},
        "old log-probs of the update": OF_UPDATE,
        "and an entropy bonus": OF_UPDATE | {"actor": {"entropy_coeff": 0.01}},
    }
    for name, found in errors(
        tmp_path,
        [rows_of([(5, [3, 7, 1, 4]), (9, [2]), (3, [6, 6, 0]), (4, [0]), (7, [8, 2, 5])], with_tools=True)],
        variants,
    ).items():
        assert found["log_probs"][0] <= 1e-15, name
        assert found["entropy"][0] <= 1e-15, name
        assert found["gradient"][0] <= 2e-15, name


@pytest.mark.ci
def test_in_single_precision_and_in_half(tmp_path: Path) -> None:
    """Half precision is as far from single precision as verl's own pass is."""
    variants: dict[str, Any] = {name: {"model": name, "dtype": "single"} for name in MODELS}
    variants["bf16"] = {"model": "llama", "dtype": "bf16", "exact": {"dtype": "single"}}
    found = errors(tmp_path, [RAGGED], variants, MODELS)
    for name in MODELS:
        assert found[name]["log_probs"][0] <= 3e-7, name
        assert found[name]["gradient"][0] <= 2e-6, name
    assert all(ours <= 1.2 * verls for ours, verls in found["bf16"].values()), found["bf16"]


@pytest.mark.ci
@pytest.mark.parametrize("dp_size", [1, 2])
def test_four_updates_of_a_loss_that_reads_groups(
    dp_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = {"together": (None, "micro-batch"), "parted": (1, BEFORE), "loss of tokens": (None, BEFORE)}
    losses = {"loss of tokens": {"algo": "kl_cov", "loss": "kl_cov_mini_batch"}}
    variants = {
        (name, worker): variant(*cut, **losses.get(name, {}), worker=worker)
        for name, cut in cuts.items()
        for worker in ("ours", "shared prompts")
    }
    found = trained(tmp_path, monkeypatch, dp_size, variants)
    for name in cuts:
        verls, shared = (found[name, worker]["gradients"] for worker in ("ours", "shared prompts"))
        assert len(shared) == 4
        assert all(relative_error(*pair) <= 1e-13 for pair in zip(shared, verls, strict=True)), name


@pytest.mark.parametrize(
    ("name", "settings"),
    [("mistral", {"sliding_window": 4}), pytest.param("qwen3_next", {}, marks=pytest.mark.ci)],
)
def test_a_model_that_is_no_plain_attention_is_refused_by_its_numbers(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    found = errors(tmp_path, [RAGGED], {"first": {"model": name, "dtype": "single"}}, {name: settings})
    assert "shared_prompts=false" in found["first"]["refused"]

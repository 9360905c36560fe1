"""Test which models are refused before Ray, and that a prompt's rows stay on one rank."""

from pathlib import Path

import pytest
from rollout_ranks import batch_for_workers
from transformers import AutoConfig

from grpo_verl_ext.preflight import CHECKS, findings
from grpo_verl_ext.utils.errors import SettingError, Severity
from grpo_verl_ext.verl_plugin import compose

SHARED = ("+algorithm.grpo_ext.shared_prompts=true", "trainer.v1.trainer_mode=grpo_ext_sync")
CPU = ("+platform=cpu", "actor_rollout_ref.rollout.n=8", SHARED[1])
MODEL = "actor_rollout_ref.model"


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        ("llama", {}, ""),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 4096}, ""),
        ("gpt_neox", {"classifier_dropout": 0.1}, ""),
        ("mistral", {"sliding_window": None}, ""),
        ("mistral", {}, "sliding_window=4096"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, "sliding_attention"),
        ("qwen3_next", {}, "linear_attention"),
        ("gemma2", {}, "softcapping"),
        ("llama", {"attention_dropout": 0.1}, "attention_dropout=0.1"),
        ("qwen2_5_vl", {}, "vision_config"),
    ],
)
def test_a_model_with_more_than_causal_attention_is_refused(
    kind: str, settings: dict[str, object], named: str, tmp_path: Path
) -> None:
    """The CPU platform shares prompts where that is not so."""
    AutoConfig.for_model(kind, **settings).save_pretrained(tmp_path)
    config = compose.composed([*SHARED, f"{MODEL}.path={tmp_path}"])
    on_cpu = compose.composed([*CPU, f"{MODEL}.path={tmp_path}"])
    assert on_cpu.algorithm.grpo_ext.shared_prompts is (not named)
    if not named:
        CHECKS["shared-prompts-model"](config)
        return
    with pytest.raises(SettingError, match=named) as caught:
        CHECKS["shared-prompts-model"](config)
    assert "algorithm.grpo_ext.shared_prompts=false" in str(caught.value)


def test_what_overrides_the_model_counts(tmp_path: Path) -> None:
    AutoConfig.for_model("llama").save_pretrained(tmp_path)
    words = (f"{MODEL}.path={tmp_path}", f"+{MODEL}.override_config.attention_dropout=0.1")
    config = compose.composed([*SHARED, *words])
    with pytest.raises(SettingError, match="attention_dropout"):
        CHECKS["shared-prompts-model"](config)


@pytest.mark.parametrize("word", ["trainer.v1.trainer_mode=sync", "actor_rollout_ref.rollout.n=1"])
def test_the_cpu_platform_shares_only_where_that_was_tested(word: str) -> None:
    assert compose.composed([*CPU, word]).algorithm.grpo_ext.shared_prompts is False


@pytest.mark.parametrize(
    ("words", "share"),
    [
        ([], "48%"),
        (["data.max_prompt_length=90", "data.max_response_length=16"], "29%"),
        (["+algorithm.grpo_ext.shared_prompts=false"], ""),
        (["actor_rollout_ref.actor.strategy=fsdp"], ""),
    ],
)
def test_a_training_that_leaves_it_open_is_told_once_what_it_would_save(words: list[str], share: str) -> None:
    settings = ["actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.rollout.n=8", SHARED[1], *words]
    config = compose.composed(["+algo=grpo", "actor_rollout_ref.rollout.name=vllm", *settings])
    found = [each for each in findings(config) if each.check == "shared-prompts-off"]
    assert [each.severity for each in found] == [Severity.NOTE] * bool(share)
    assert all(f"took {share} of verl's time" in str(each.problem) for each in found)


@pytest.mark.parametrize("algo", ["grpo", "gvpo"])
def test_the_rows_of_a_prompt_are_on_one_rank(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of less than four responses share a rank's places with others, which must be whole, too."""
    store, batch = batch_for_workers(monkeypatch, 2, *SHARED, algo=algo)
    ranks = [{store.rows[key]["uid"] for key in part.keys} for part in batch.chunk(2)]
    assert not any(uid.startswith("prompt") for uid in ranks[0] & ranks[1])

"""Test which models are refused before Ray, and that a prompt's rows stay on one rank."""

from pathlib import Path

import pytest
from rollout_ranks import batch_for_workers
from transformers import AutoConfig

from grpo_verl_ext.preflight import CHECKS
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin import compose

SHARED = ("+algorithm.grpo_ext.shared_prompts=true", "trainer.v1.trainer_mode=grpo_ext_sync")
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
    AutoConfig.for_model(kind, **settings).save_pretrained(tmp_path)
    config = compose.composed([*SHARED, f"{MODEL}.path={tmp_path}"])
    if not named:
        CHECKS["shared-prompts-model"](config)
        return
    with pytest.raises(SettingError, match=named) as caught:
        CHECKS["shared-prompts-model"](config)
    assert "algorithm.grpo_ext.shared_prompts=false" in str(caught.value)


def test_what_overrides_the_model_counts(tmp_path: Path) -> None:
    AutoConfig.for_model("llama").save_pretrained(tmp_path)
    config = compose.composed(
        [*SHARED, f"{MODEL}.path={tmp_path}", f"+{MODEL}.override_config.attention_dropout=0.1"]
    )
    with pytest.raises(SettingError, match="attention_dropout"):
        CHECKS["shared-prompts-model"](config)


@pytest.mark.parametrize("algo", ["grpo", "gvpo"])
def test_the_rows_of_a_prompt_are_on_one_rank(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of less than four responses share a rank's places with others, which must be whole, too."""
    store, batch = batch_for_workers(monkeypatch, 2, *SHARED, algo=algo)
    ranks = [{store.rows[key]["uid"] for key in part.keys} for part in batch.chunk(2)]
    assert not any(uid.startswith("prompt") for uid in ranks[0] & ranks[1])

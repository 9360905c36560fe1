"""How long a response is: in tokens, where the tokenizer of the run can be had."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from transformers import AutoTokenizer

from grpo_verl_ext.ablation.responses import Measure

RESOLVED = Path("hydra") / ".hydra" / "config.yaml"


def measure_of(run_folder: Path, *, right_above: float | None) -> tuple[Measure, str | None]:
    """Tokens by the run's own tokenizer, without the end token; characters and a word where it is not here.

    Nothing is fetched: a model of the hub must be in its cache.
    """
    model = None
    try:
        model = OmegaConf.load(run_folder / RESOLVED).actor_rollout_ref.model.path
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError, AttributeError, OmegaConfBaseException) as error:
        word = f"lengths are in characters, for there is no tokenizer of {model or run_folder}: {error}"
        return Measure("characters", len, right_above), word.splitlines()[0]

    def tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return Measure("tokens", tokens, right_above), None

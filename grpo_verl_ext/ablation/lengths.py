"""How long a response is: in tokens, where the tokenizer of the run can be had."""

from __future__ import annotations

import functools
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from grpo_verl_ext.ablation.responses import CHARACTERS, TOKENS, Measure

RESOLVED = Path("hydra") / ".hydra" / "config.yaml"


class Measures:
    """Of the runs of one report; a model's tokenizer is loaded when a run first asks for it, and once."""

    def __init__(self) -> None:
        self._of_model = functools.cache(_of_model)

    def of(self, run_folder: Path) -> Measure:
        """Tokens by the run's own tokenizer, without the end token; characters where it is not here.

        Nothing is fetched: a model of the hub must be in its cache.
        """
        try:
            model = OmegaConf.load(run_folder / RESOLVED).actor_rollout_ref.model.path
        except (OSError, ValueError, AttributeError, YAMLError, OmegaConfBaseException) as error:
            return _in_characters(run_folder, error)
        return self._of_model(model)


def _of_model(model: str) -> Measure:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError) as error:
        return _in_characters(model, error)
    return Measure(TOKENS, lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"]))


def _in_characters(whose: str | Path, error: Exception) -> Measure:
    caution = f"lengths are in characters, for there is no tokenizer of {whose}: {error}"
    return Measure(CHARACTERS, len, caution.splitlines()[0])

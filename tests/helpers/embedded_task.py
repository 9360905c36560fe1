"""A folder of the embedded task as `prepare chain_sum` leaves it, with a model that was never trained."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_files import write_prompts

from grpo_verl_ext.tasks.chain_sum import prepared
from grpo_verl_ext.tasks.chain_sum.model import build_model, build_tokenizer
from grpo_verl_ext.tasks.folders import TEST, TRAIN


def make_embedded_task(folder: Path) -> None:
    """Make the folder, of one prompt."""
    tiny = prepared.TaskSettings(width=32, layers=1, heads=1, feed_forward=32)

    def build(unfinished: Path) -> dict[str, Any]:
        tokenizer = build_tokenizer()
        tokenizer.save_pretrained(unfinished / "model")
        build_model(tiny, tokenizer, seed=1).save_pretrained(unfinished / "model")
        for name in (TRAIN, TEST):
            write_prompts(unfinished / name)
        numbers = {"sampled_accuracy": 0.25, "greedy_accuracy": 1.0, "temperature": 1.0, "seconds": 1.0}
        return {"seed": 1, "versions": {}, "measured_prompts": 512, **numbers}

    prepared.place(folder).make(asdict(tiny), build, force=False)

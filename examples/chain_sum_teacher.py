"""Make a teacher for the embedded task chain_sum: the warm start's model, trained on right responses alone.

    python examples/chain_sum_teacher.py FOLDER                  the policy's tokenizer, a token for a byte
    python examples/chain_sum_teacher.py FOLDER --joined-digits   one token for two digits in a row

Prints the share of right answers to 512 test prompts. Needs no GPU; a finished folder is left as it is.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from grpo_verl_ext.tasks.chain_sum.model import (
    CHAT_TEMPLATE,
    MARKS,
    WORDS,
    accuracy,
    build_model,
    build_tokenizer,
    warm_start,
)
from grpo_verl_ext.tasks.chain_sum.prepare import prepare_chain_sum
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings

DIGITS = "0123456789"


def with_joined_digits() -> PreTrainedTokenizerFast:
    """The task's tokenizer, but that two digits in a row are one token."""
    letters = [bytes_to_unicode()[byte] for byte in range(256)]
    pairs = [(one, other) for one in DIGITS for other in DIGITS]
    words = [*letters, *(one + other for one, other in pairs), *MARKS]
    raw = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, pairs))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=MARKS[2], pad_token=MARKS[0], extra_special_tokens=[MARKS[1]],
        chat_template=CHAT_TEMPLATE,
    )  # fmt: skip
    made.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    return made


def make(folder: Path, tokenizer: Any, *, seed: int) -> float:
    """Train the teacher and return its share of right answers, sampled at temperature 1."""
    settings = replace(TaskSettings(), slip_steps=0)
    model = build_model(settings, tokenizer, seed=seed)
    warm_start(model, tokenizer, settings, seed=seed, on_step=lambda _: None)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return accuracy(folder, prepare_chain_sum(seed).folder / "test.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--joined-digits", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if (given.folder / "model.safetensors").exists():
        print(f"already there, nothing to do: {given.folder}")
        return
    tokenizer = with_joined_digits() if given.joined_digits else build_tokenizer()
    print(f"{make(given.folder, tokenizer, seed=given.seed):.3f} of 512 test prompts right: {given.folder}")


if __name__ == "__main__":
    main()

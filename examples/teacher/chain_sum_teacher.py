"""Make a teacher for the embedded task: the warm start's model, trained on right responses alone.

    python examples/chain_sum_teacher.py FOLDER                  the policy's tokenizer, a token for a byte
    python examples/chain_sum_teacher.py FOLDER --joined-digits  a Llama, one token for two digits in a row
    python examples/chain_sum_teacher.py FOLDER --responses 1 2  and responses to prompts of the seeds 1 and 2
    python examples/chain_sum_teacher.py FOLDER --task chain_sum_mixed

Prints the share of right answers to 512 test prompts. Needs no GPU; what is finished is left as it is.

FOLDER/seed-1/train.parquet then has 256 prompts with eight responses each in extra_info.responses, and
FOLDER/seed-1/test.parquet the test prompts with one response each in extra_info.response.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from grpo_verl_ext.tasks.causal_lm import sample
from grpo_verl_ext.tasks.chain_sum.model import (
    accuracy,
    build_model,
    build_tokenizer,
    warm_start,
)
from grpo_verl_ext.tasks.chain_sum.prepare import prepare_chain_sum
from grpo_verl_ext.tasks.chain_sum.prepared import TASKS, TaskSettings
from grpo_verl_ext.tasks.folders import TEST, TRAIN, read_parquet, write_rows
from grpo_verl_ext.utils.files import appearing, locked

DIGITS = "0123456789"
PROMPTS, RESPONSES = 256, 8
"""Prompts that get responses for training, and responses to each: sixteen steps of the task."""
_ITS_OWN = {"model_type", "architectures", "transformers_version"}
"""Settings of a model that another architecture does not take over."""
ROUNDS = 20
"""Times that a response which does not end is sampled again."""


def with_joined_digits() -> PreTrainedTokenizerFast:
    """The task's tokenizer, but that two digits in a row are one token."""
    letters = [bytes_to_unicode()[byte] for byte in range(256)]
    pairs = [(one, other) for one in DIGITS for other in DIGITS]
    own = build_tokenizer()
    end_of_text, turn_start, turn_end, *roles_and_tags = own.get_added_vocab()
    words = [*letters, *(one + other for one, other in pairs), end_of_text, turn_start, turn_end]
    raw = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, pairs))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=turn_end, pad_token=end_of_text, extra_special_tokens=[turn_start],
        chat_template=own.chat_template,
    )  # fmt: skip
    made.add_tokens([AddedToken(word, normalized=False) for word in roles_and_tags])
    return made


def build_llama(settings: TaskSettings, tokenizer: Any, *, seed: int) -> LlamaForCausalLM:
    """Return a Llama of the policy's sizes with random weights by ``seed``.

    transformers takes Qwen2's own tokenizer for any Qwen2, and that splits digits.
    """
    policy = build_model(settings, tokenizer, seed=seed)
    given = policy.config.to_dict()
    config = LlamaConfig(
        **{name: given[name] for name in LlamaConfig().to_dict().keys() & given.keys() - _ITS_OWN}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = policy.generation_config
    return model


def make(folder: Path, tokenizer: Any, model: Any, task: TaskSettings, *, seed: int) -> float:
    """Train the teacher and return its share of right answers, sampled at temperature 1."""
    settings = replace(task, slip_steps=0)
    warm_start(model, tokenizer, settings, seed=seed)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    test = prepare_chain_sum(seed, settings=task).folder / TEST
    return accuracy(folder, test, max_response_tokens=task.max_response_tokens)


def complete_responses(folder: Path, chats: list[Any], *, budget: int, seed: int) -> list[str]:
    """Sample one response to each chat; one that does not end within the budget is sampled again.

    The budget holds in the teacher's tokens and in the policy's, of which a text with joined digits has more.

    Raises:
        SystemExit: one did not end in `ROUNDS`.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    policy = build_tokenizer()
    found: dict[int, str] = {}
    for _ in range(ROUNDS):
        missing = [number for number in range(len(chats)) if number not in found]
        if not missing:
            break
        sampled = sample(
            model, tokenizer, [chats[number] for number in missing],
            temperature=1.0, max_response_tokens=budget, seed=seed,
        )  # fmt: skip
        for number, tokens in zip(missing, sampled, strict=True):
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            # and the end of the response
            if tokenizer.eos_token_id in tokens and len(policy(text)["input_ids"]) + 1 <= budget:
                found[number] = text
        seed += 1_000_000
    if len(found) < len(chats):
        raise SystemExit(
            f"{folder}: responses to {len(chats) - len(found)} prompts do not end within {budget} tokens"
        )
    return [found[number] for number in range(len(chats))]


def write_responses(folder: Path, task: TaskSettings, *, seed: int) -> None:
    """Write the two files of one seed of the task."""
    data = prepare_chain_sum(seed, settings=task).folder
    train, test = read_parquet(data / TRAIN)[:PROMPTS], read_parquet(data / TEST)
    chats = [row["prompt"] for row in train for _ in range(RESPONSES)] + [row["prompt"] for row in test]
    texts = complete_responses(folder, chats, budget=task.max_response_tokens, seed=seed)
    for number, row in enumerate(train):
        row["extra_info"]["responses"] = texts[number * RESPONSES : (number + 1) * RESPONSES]
    for row, text in zip(test, texts[len(train) * RESPONSES :], strict=True):
        row["extra_info"]["response"] = text
    target = folder / f"seed-{seed}"
    with locked(target, on_wait=lambda: print(f"waiting for {target}")), appearing(target) as unfinished:
        write_rows(unfinished / TRAIN, train)
        write_rows(unfinished / TEST, test)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--task", choices=TASKS, default="chain_sum")
    parser.add_argument("--joined-digits", action="store_true")
    parser.add_argument("--seed", type=int, default=1, help="of the teacher")
    parser.add_argument("--responses", type=int, nargs="+", default=[], metavar="SEED", help="of the task")
    given = parser.parse_args()
    task = TASKS[given.task]
    with locked(given.folder, on_wait=lambda: print(f"waiting for {given.folder}")):
        if (given.folder / "model.safetensors").exists():
            print(f"already there: {given.folder}")
        else:
            tokenizer = with_joined_digits() if given.joined_digits else build_tokenizer()
            build = build_llama if given.joined_digits else build_model
            model = build(replace(task, slip_steps=0), tokenizer, seed=given.seed)
            with appearing(given.folder) as unfinished:
                share = make(unfinished, tokenizer, model, task, seed=given.seed)
            print(f"{share:.3f} of 512 test prompts right: {given.folder}")
    for seed in given.responses:
        if not (given.folder / f"seed-{seed}").exists():
            write_responses(given.folder, task, seed=seed)
            print(f"{PROMPTS} × {RESPONSES} responses to train on: {given.folder}/seed-{seed}")


if __name__ == "__main__":
    main()

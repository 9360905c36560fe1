"""Measure what bfloat16 gains and loses on this processor, with the SmolLM2 of `+task=smollm2_max`.

python examples/tasks/smollm2_model.py; python examples/tasks/smollm2_max.py; python benchmarks/cpu_bf16.py

Prints seconds of a forward pass, and of one with its backward pass, in float32 and under bfloat16 autocast.
Also how far the log-probs of the right answers are apart: a token's mean and largest |difference|, and the
standard deviation of a response's sum, the log-ratio of such an actor to a rollout in float32.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from grpo_verl_ext.utils.files import cache_root

Precision = Callable[[], AbstractContextManager[object]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    folder = cache_root() / "smollm2_max" / "seed-1"
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    tokens, answers = right_answers(folder, options.rows)
    table = Table("threads", "", "forward s", "with backward s", title=f"{tokens.numel()} tokens")
    precisions: dict[str, Precision] = {
        "float32": lambda: torch.autocast("cpu", torch.bfloat16, enabled=False),
        "bfloat16 autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    }
    for threads in (1, torch.get_num_threads()):
        torch.set_num_threads(threads)
        for name, precision in precisions.items():
            seconds = [timed(model, tokens, precision) for _ in range(options.repeat)]
            best = (f"{min(each):.2f}" for each in zip(*seconds, strict=True))
            table.add_row(str(threads), name, *best)
    Console(width=110).print(table)
    whole, half = (log_probs(model, tokens, precision) for precision in precisions.values())
    difference = (half - whole) * answers
    of_tokens = difference[answers].abs()
    print(
        f"|difference| of a token's log-prob: mean {of_tokens.mean():.4f}, largest {of_tokens.max():.4f}; "
        f"standard deviation of a response's sum {difference.sum(1).std():.4f}"
    )


def right_answers(folder: Path, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prompts with their right answers, (rows, T), and which of tokens 1 … T−1 belong to an answer."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    texts, lengths = [], []
    for row in pq.read_table(folder / "test.parquet").to_pylist()[:rows]:
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        texts.append(prompt + row["reward_model"]["ground_truth"] + tokenizer.eos_token)
        lengths.append(len(tokenizer.encode(prompt)))
    batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    position = torch.arange(batch["input_ids"].shape[1])
    answers = (position >= torch.tensor(lengths)[:, None]) & batch["attention_mask"].bool()
    return batch["input_ids"], answers[:, 1:]


def timed(model: PreTrainedModel, tokens: torch.Tensor, precision: Precision) -> tuple[float, float]:
    """Return the seconds of a forward pass, and of one with its backward pass."""
    start = time.perf_counter()
    with torch.inference_mode(), precision():
        model(tokens)
    between = time.perf_counter()
    with precision():
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    end = time.perf_counter()
    model.zero_grad()
    return between - start, end - between


def log_probs(model: PreTrainedModel, tokens: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Return log π(token | tokens before it), (rows, T − 1)."""
    with torch.inference_mode(), precision():
        logits = model(tokens).logits[:, :-1]
    every = torch.log_softmax(logits.float(), -1)
    return every.gather(-1, tokens[:, 1:, None]).squeeze(-1)


if __name__ == "__main__":
    main()

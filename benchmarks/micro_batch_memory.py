"""Measure the memory per token of a micro-batch in verl's FSDP2 worker on a CPU: logits and activations.

python benchmarks/micro_batch_memory.py

The resident set of the process is read every 2 ms. "Copies" are multiples of tokens × words × 4 bytes, for a
model that consists almost only of its 49,152 words; "numbers per layer" are multiples of 16 × width + 4 ×
feed-forward, for one that consists almost only of ten layers. Rows have 80 to 128 tokens, padded to the
longest.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch
from gvpo_update import Case, make_batch, make_worker

from grpo_verl_ext.verl_plugin.cpu import sizes
from grpo_verl_ext.verl_plugin.wire import StatisticSource

OPTIONS = argparse.Namespace(prompts=2, responses=4, tokens=96, losses=("grpo", "gvpo"))
CASE = Case(ranks=1, micro_batch=None, updates=1, aim=0)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29578"}
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, words=49152, width=64, feed_forward=64, layers=1)
        worker = make_worker(folder, "gvpo", CASE, OPTIONS)
        taken(worker, update=True, temperature=1.0, entropy=False)  # Adam's moments, and the heap
        for update in (True, False):
            for temperature in (1.0, 0.7):
                for entropy in (False, True):
                    each = taken(worker, update=update, temperature=temperature, entropy=entropy)
                    name = f"{'update' if update else 'log-probs'}, temperature {temperature}"
                    print(f"{name}{', entropy' * entropy}: {each / 4 / 49152:.2f} copies", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, words=256, width=576, feed_forward=1536, layers=10)
        worker = make_worker(folder, "gvpo", CASE, OPTIONS)
        taken(worker, update=True, temperature=1.0, entropy=False)
        each = taken(worker, update=True, temperature=1.0, entropy=False)
        layer = sizes.WIDTHS_SAVED * 576 + sizes.FEED_FORWARDS_SAVED * 1536
        print(f"update: {each / 4 / 10 / layer:.2f} × the numbers per layer")


def save_model(folder: str, *, words: int, width: int, feed_forward: int, layers: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 192),
        tie_word_embeddings=True,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def taken(worker: Any, *, update: bool, temperature: float, entropy: bool) -> float:
    """Return the bytes per token of one micro-batch."""
    from verl.utils import tensordict_utils as tu

    batch, rows = make_batch(0, "gvpo", CASE, OPTIONS), OPTIONS.prompts * OPTIONS.responses
    batch["input_ids"].values().remainder_(256)
    tokens = int(batch["input_ids"].offsets()[-1])
    tu.assign_non_tensor(
        batch,
        temperature=temperature,
        calculate_entropy=entropy,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=4096,
    )
    if not update:
        tu.assign_non_tensor(batch, compute_loss=False, global_token_num=None)
        return peak(lambda: worker.infer_batch(batch)) / tokens
    tu.assign_non_tensor(
        batch,
        mini_batch_size=rows,
        global_batch_size=rows,
        epochs=1,
        num_groups=OPTIONS.prompts,
        anchor_log_probs="old_log_probs",
        old_log_probs_are_current=True,
        statistic_source=StatisticSource.MICRO_BATCH.value,
        statistic_seed=0,
    )
    return peak(lambda: worker.train_mini_batch(batch)) / tokens


def peak(call: Callable[[], object]) -> int:
    """Return by how many bytes the process grows in the call."""
    process, ended = psutil.Process(), threading.Event()
    before = highest = process.memory_info().rss

    def watch() -> None:
        nonlocal highest
        while not ended.is_set():
            highest = max(highest, process.memory_info().rss)
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        call()
    finally:
        ended.set()
        watcher.join()
    return int(highest - before)


if __name__ == "__main__":
    main()

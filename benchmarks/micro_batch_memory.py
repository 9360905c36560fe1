"""Measure the memory per token of a micro-batch in verl's FSDP2 worker on a CPU: logits and activations.

python benchmarks/micro_batch_memory.py

"Copies" are multiples of tokens × words × 4 bytes, for a model that consists almost only of its 49,152 words;
"numbers per layer" are multiples of 16 × width + 4 × feed-forward, for one that consists almost only of ten
layers. Rows have 80 to 128 tokens, padded to the longest.
"""

import itertools
import os
import tempfile
from argparse import Namespace
from typing import Any

import torch
from common import grown, parser, save_model
from gvpo_update import Case, make_batch, make_plan, make_worker, spawn, train_once

from grpo_verl_ext.verl_plugin.cpu import sizes

OPTIONS = Namespace(prompts=2, responses=4, tokens=96, losses=("grpo", "gvpo"))
CASE = Case(ranks=1, micro_batch=None, updates=1, aim=0)


def main() -> None:
    parser(__doc__).parse_args()
    spawn(measure, 1)


def measure(rank: int) -> None:
    """Print the table, as the only rank."""
    torch.set_num_threads(1)
    os.environ["RANK"] = str(rank)
    worker = warm_worker(49152, 64, 64, layers=1)
    for update, temperature, entropy in itertools.product((True, False), (1.0, 0.7), (False, True)):
        each = taken(worker, update=update, temperature=temperature, entropy=entropy)
        name = f"{'update' if update else 'log-probs'}, temperature {temperature}{', entropy' * entropy}"
        print(f"{name}: {each / 4 / 49152:.2f} copies", flush=True)
    worker = warm_worker(256, 576, 1536, layers=10)
    layer = sizes.WIDTHS_SAVED * 576 + sizes.FEED_FORWARDS_SAVED * 1536
    print(f"update: {taken(worker) / 4 / 10 / layer:.2f} × the numbers per layer")
    torch.distributed.destroy_process_group()


def warm_worker(words: int, width: int, feed_forward: int, layers: int) -> Any:
    """Return a worker after one update, which makes Adam's moments and fills the heap."""
    heads = {"num_attention_heads": width // 64, "num_key_value_heads": max(1, width // 192)}
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, "llama", words, width, feed_forward, num_hidden_layers=layers, **heads)
        worker = make_worker(folder, "gvpo", CASE, OPTIONS)
    taken(worker)
    return worker


def taken(worker: Any, *, update: bool = True, temperature: float = 1.0, entropy: bool = False) -> float:
    """Return the bytes per token of one micro-batch."""
    from verl.utils import tensordict_utils as tu

    batch = make_batch(0, "gvpo", CASE, OPTIONS)
    batch["input_ids"].values().remainder_(256)
    tokens = int(batch["input_ids"].offsets()[-1])
    tu.assign_non_tensor(batch, temperature=temperature, calculate_entropy=entropy)
    tu.assign_non_tensor(batch, use_dynamic_bsz=True, max_token_len_per_gpu=4096)
    if not update:
        tu.assign_non_tensor(batch, compute_loss=False, global_token_num=None)
        return grown(lambda: worker.infer_batch(batch)) / tokens
    plan = make_plan(CASE, OPTIONS)
    return grown(lambda: train_once(worker, batch, plan, CASE, OPTIONS, current=True)) / tokens


if __name__ == "__main__":
    main()

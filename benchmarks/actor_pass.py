"""Compare actor passes with shared prompts to verl's: CPU seconds of one thread, ratio and peak memory.

python benchmarks/actor_pass.py [--pairs 3] [--json] [CASE ...]

Both are verl's engine, in turns. MODEL:P,R,nxG: G prompts of P tokens, n responses of R; "-step": two updates
and a reference; "alone": an update that gives the old log-probs. Memory is the peak of two steps with Adam.
"""

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from common import MIB, grown, own_memory, parser, save_model, worker_config

# Architecture, words, width, width of the feed-forward layers; layers, heads; tokens of a micro-batch.
MODELS: dict[str, tuple[Any, ...]] = {
    "smollm2": ("llama", 49152, 576, 1536, 30, 9, 3, 594),
    "chain": ("qwen2", 265, 96, 384, 4, 4, 4, 4096),
}
SHAPES = ("100,16,8x1", "150,150,8x1", "24,8,4x4", "6,10,4x4", "100,16,1x8")
CASES = [*map("smollm2:{}".format, SHAPES), "smollm2-step:8,3,8x32", "chain-step:18,30,8x16"]


def main() -> None:
    arguments = parser(__doc__, pairs=3)
    arguments.add_argument("cases", nargs="*", default=CASES, metavar="CASE")
    arguments.add_argument("--json", action="store_true")
    for case in (options := arguments.parse_args()).cases:
        found = in_process(ratios, case, options.pairs)
        if "-step" not in case:
            verls, ours = (in_process(peak, case, shared) for shared in (False, True))
            for name, of in verls.items():
                found |= {f"{name}_mib": [of // MIB, ours[name] // MIB], f"{name}_ratio": ours[name] / of}
        print(json.dumps({"case": case} | found) if options.json else f"{case}: {found}", flush=True)


def ratios(case: str, pairs: int) -> dict[str, Any]:
    """Return the median seconds of verl's passes, and those with shared prompts over them."""
    passes = [passes_of(case, shared) for shared in (False, True)]
    seconds: list[dict[str, list[float]]] = [{name: [] for name in passes[0]} for _ in passes]
    for pair in range(1 + pairs):  # the first one warms up
        for name in passes[0]:
            for own, taken in zip(passes, seconds, strict=True):
                started = time.process_time()
                own[name]()
                taken[name] += [time.process_time() - started] * (pair > 0)
    verl, ours = ({name: median(each) for name, each in taken.items()} for taken in seconds)
    found = {name: ours[name] / verl[name] for name in verl}
    every = sum(verl[name] for name in verl.keys() - {"alone"})
    found |= {"alone": ours.pop("alone") / every} if "alone" in ours else {}
    found["all"] = sum(ours.values()) / every
    return {"verl_seconds": verl} | {name: round(each, 3) for name, each in found.items()}


def passes_of(case: str, shared: bool, *, with_adam: bool = False) -> dict[str, Callable[[], object]]:
    name, shape = case.split(":")
    model, is_step = name.removesuffix("-step"), name.endswith("-step")
    engine, rows = make_engine(model, shared), make_rows(shape)
    budget = MODELS[model][-1] if is_step else 2**20
    parts = [rows[: len(rows) // 2], rows[len(rows) // 2 :]] if is_step else [rows]
    takes_old = shared and is_step  # the first update gives the old log-probs of its rows
    engine.compute_entropy_from_logits = torch.no_grad()(engine.compute_entropy_from_logits)

    def log_probs(batch: Any) -> None:
        with engine.eval_mode():
            engine.infer_batch(batch)

    def update(batches: list[Any]) -> None:
        for batch in batches:
            with engine.train_mode():
                engine.optimizer_zero_grad()
                (engine.train_batch if with_adam else engine.forward_backward_batch)(batch, loss)

    made = partial(batch_of, budget=budget)
    updates = [made(part, calculate_entropy=takes_old and part is parts[0]) for part in parts]
    whole = made(rows, calculate_entropy=shared and not is_step)
    more = {"reference": partial(log_probs, whole)} if is_step else {"alone": partial(update, [whole])}
    old = partial(log_probs, made(parts[-1] if takes_old else rows, calculate_entropy=True))
    return {"old_log_probs": old, "update": partial(update, updates), **more}


def peak(case: str, shared: bool) -> dict[str, int]:
    """Return by how many bytes the first pass for log-probs grows a process, and its peak after two steps."""
    passes = passes_of(case, shared, with_adam=True)
    growth = grown(passes["old_log_probs"])
    for each in [passes["update"], passes["old_log_probs"]] * 2:
        each()
    return {"growth": growth, "peak": own_memory("VmHWM")}


def make_engine(name: str, shared: bool) -> Any:
    """Return verl's engine, with shared prompts or as it is, of a model with random weights."""
    from verl.workers.engine_workers import TrainingWorker

    from grpo_verl_ext.verl_plugin.shared_prompts.engine import sharing_prompts

    torch.manual_seed(0)
    *model, layers, heads, kv_heads, _ = MODELS[name]
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, *model, **sizes)
        worker = (sharing_prompts(TrainingWorker) if shared else TrainingWorker)(worker_config(folder))
        worker.reset()
    return worker.engine


def make_rows(shape: str) -> list[dict[str, Any]]:
    """Return the rows of G prompts of P tokens with n responses of R, all tokens random."""
    prompt, response, n, groups = map(int, shape.replace("x", ",").split(","))
    ones, rows = torch.ones(response, dtype=torch.int64), []
    for of_prompt in torch.randint(256, (groups, prompt)):
        for own in torch.randint(256, (n, response)):
            ids = torch.cat([of_prompt, own])
            row = {"input_ids": ids, "position_ids": torch.arange(len(ids)), "prompts": of_prompt}
            rows.append(row | {"responses": own, "response_mask": ones, "loss_mask": ones})
    return rows


def batch_of(rows: list[dict[str, Any]], budget: int, **extra: Any) -> Any:
    from verl.utils import tensordict_utils as tu

    nested = {name: torch.nested.as_nested_tensor([row[name] for row in rows], layout=torch.jagged)
              for name in rows[0]}  # fmt: skip
    extra |= {"temperature": 1.0, "use_remove_padding": False, "max_token_len_per_gpu": budget}
    return tu.get_tensordict(nested, non_tensor_dict=extra)


def loss(model_output: Any, data: Any, **_: Any) -> tuple[Any, dict[str, Any]]:
    from verl.workers.utils.padding import response_from_nested

    return response_from_nested(model_output["log_probs"], data["responses"]).values().mean(), {}


def in_process(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Call the function in a process of its own, on one thread and the CPU platform."""
    where = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29579"}
    os.environ |= where | {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


if __name__ == "__main__":
    main()

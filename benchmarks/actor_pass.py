"""Compare actor passes with shared prompts to verl's: CPU seconds of one thread, ratio and peak memory.

python benchmarks/actor_pass.py [--pairs 3] [--json] [CASE ...]

Both are verl's FSDP2 engine on one rank, and take turns. A case is MODEL:P,R,nxG: G prompts of P tokens with
n responses of R. "update" has no optimizer's step. A model with "-step" makes what a training step with two
updates and a reference does, in micro-batches of a budget of tokens. Memory is the resident peak of a process
of its own after two steps with Adam, and what the first pass for log-probs adds to it.
"""

import itertools
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
from common import MIB, grown, own_memory, parser, save_model

MODELS: dict[str, dict[str, Any]] = {
    "smollm2": {
        "architecture": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "chain": {
        "architecture": "qwen2",
        "vocab_size": 265,
        "hidden_size": 96,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
}
CASES = [f"smollm2:{case}" for case in ("100,16,8x1", "150,150,8x1", "24,8,4x4", "6,10,4x4", "100,16,1x8")]
CASES += ["chain:18,30,8x16", "smollm2-step:8,3,8x32", "chain-step:18,30,8x16"]
BUDGETS = {"smollm2": 594, "chain": 4096}
Seconds = dict[str, list[float]]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("cases", nargs="*", default=CASES, metavar="CASE")
    arguments.add_argument("--pairs", type=int, default=3)
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    for case in options.cases:
        found = in_process(times, case, options.pairs)
        if "-step" not in case:
            peaks = [in_process(peak, case, shared) for shared in (False, True)]
            found |= {f"{name}_mib": [peak[name] // MIB for peak in peaks] for name in peaks[0]}
            found |= {f"{name}_ratio": peaks[1][name] / max(peaks[0][name], 1) for name in peaks[0]}
        said = ", ".join(
            f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in found.items()
        )
        print(json.dumps({"case": case, **found}) if options.json else f"{case}: {said}", flush=True)


def times(case: str, pairs: int) -> dict[str, Any]:
    """Return the median seconds of each pass by verl's engine and with shared prompts, and their ratios."""
    passes = [passes_of(case, shared) for shared in (False, True)]
    for each in itertools.chain(*passes):
        each[1]()
    found: list[Seconds] = [{name: [] for name, _ in own} for own in passes]
    for _ in range(pairs):
        for at in range(len(passes[0])):
            for own, seconds in zip(passes, found, strict=True):
                name, call = own[at]
                started = time.process_time()
                call()
                seconds[name].append(time.process_time() - started)
    verl, ours = ({name: median(each) for name, each in seconds.items()} for seconds in found)
    ratios = {name: ours[name] / verl[name] for name in verl}
    ratios["all"] = sum(ours.values()) / sum(verl.values())
    if "-step" not in case:
        ratios["one update, no old log-probs"] = ours["update"] / sum(verl.values())
    return {"verl_seconds": {name: round(each, 3) for name, each in verl.items()}, **ratios}


def passes_of(case: str, shared: bool) -> list[tuple[str, Callable[[], object]]]:
    """Return the passes of a case by one engine, each with its name."""
    model, shape = case.split(":")
    is_step = model.endswith("-step")
    engine, rows = make_engine(model.removesuffix("-step"), shared), make_rows(shape)
    halves = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    budget = BUDGETS[model.removesuffix("-step")] if is_step else 2**20

    def log_probs(rows: list[dict[str, Any]], entropy: bool) -> None:
        with engine.eval_mode():
            engine.infer_batch(batch_of(rows, budget, calculate_entropy=entropy))

    def update(rows: list[dict[str, Any]]) -> None:
        with engine.train_mode():
            engine.optimizer_zero_grad()
            engine.forward_backward_batch(batch_of(rows, budget, calculate_entropy=False), loss)

    if not is_step:
        return [("log_probs", partial(log_probs, rows, True)), ("update", partial(update, rows))]
    old = partial(log_probs, rows, True)
    both = [partial(update, half) for half in halves]
    return [
        ("old_log_probs", old),
        ("reference", partial(log_probs, rows, False)),
        ("updates", lambda: [each() for each in both]),
    ]


def peak(case: str, shared: bool) -> dict[str, int]:
    """Return by how many bytes the first pass for log-probs grows a process, and its peak after two steps."""
    model, shape = case.split(":")
    engine, rows = make_engine(model, shared), make_rows(shape)

    def log_probs() -> None:
        with engine.eval_mode():
            engine.infer_batch(batch_of(rows, 2**20, calculate_entropy=True))

    growth = grown(log_probs)
    for _ in range(2):
        with engine.train_mode():
            engine.train_batch(batch_of(rows, 2**20, calculate_entropy=False), loss)
        log_probs()
    return {"growth": growth, "peak": own_memory("VmHWM")}


def make_engine(model: str, shared: bool) -> Any:
    """Return verl's engine, with shared prompts or as it is, of a model with random weights."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker

    from grpo_verl_ext.verl_plugin.shared_prompts.engine import sharing_prompts

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, **MODELS[model])
        attention = {"attn_implementation": "sdpa"}
        worker = (sharing_prompts(TrainingWorker) if shared else TrainingWorker)(
            TrainingWorkerConfig(
                model_type="language_model",
                model_config=HFModelConfig(
                    path=folder,
                    load_tokenizer=False,
                    override_config=attention,
                    enable_gradient_checkpointing=False,
                ),
                engine_config=FSDPEngineConfig(
                    strategy="fsdp2",
                    mixed_precision=dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32"),
                    use_torch_compile=False,
                ),
                optimizer_config=FSDPOptimizerConfig(lr=1e-6, clip_grad=1.0),
                checkpoint_config=CheckpointConfig(),
            )
        )
        worker.reset()
    return worker.engine


def make_rows(shape: str) -> list[dict[str, Any]]:
    """Return the rows of G prompts of P tokens with n responses of R, all tokens random."""
    *lengths, last = shape.split(",")
    (prompt, response), (n, groups) = map(int, lengths), map(int, last.split("x"))
    rows = []
    for _ in range(groups):
        of_prompt = torch.randint(256, (prompt,))
        for _ in range(n):
            own = torch.randint(256, (response,))
            ids, ones = torch.cat([of_prompt, own]), torch.ones(response, dtype=torch.int64)
            row = {"input_ids": ids, "position_ids": torch.arange(len(ids)), "prompts": of_prompt}
            rows.append(row | {"responses": own, "response_mask": ones, "loss_mask": ones})
    return rows


def batch_of(rows: list[dict[str, Any]], budget: int, **extra: Any) -> Any:
    from verl.utils import tensordict_utils as tu

    nested = {
        name: torch.nested.as_nested_tensor([row[name] for row in rows], layout=torch.jagged)
        for name in rows[0]
    }
    extra |= {"temperature": 1.0, "use_remove_padding": False, "max_token_len_per_gpu": budget}
    return tu.get_tensordict(nested, non_tensor_dict=extra)


def loss(model_output: Any, data: Any, **_: Any) -> tuple[Any, dict[str, Any]]:
    """Return the mean log-prob of the response tokens."""
    from verl.workers.utils.padding import response_from_nested

    log_probs = response_from_nested(model_output["log_probs"], data["responses"]).values()
    return log_probs.sum() / data["batch_num_tokens"], {}


def in_process(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Call the function in a process of its own, on one thread and the CPU platform."""
    os.environ |= {"VERL_PLATFORM": "cpu", "RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29579"}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


if __name__ == "__main__":
    main()

"""Measure seconds and memory of verl's actor update with GVPO beside GRPO, or with two other losses.

Uses verl's FSDP2 worker on one or two ranks, a Qwen2 model with random weights, and the same rows for both.
Of four updates on a rollout, three need the mean log-ratio of each prompt: from the update itself, where a
micro-batch or those of all ranks hold whole groups, or from a forward pass. Also prints how well the two
trainers balance rows over ranks, on lengths with a long tail.
"""

import os
import socket
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import MIB, own_memory, parser, save_model, worker_config
from rich.console import Console
from rich.table import Table
from tensordict import TensorDict

from grpo_verl_ext.verl_plugin.mini_batch.plan import Cut, Plan

PROMPT, VOCABULARY = 32, 4096


class Case(NamedTuple):
    """Ranks, rows of a micro-batch (None: dynamic batching), updates on a rollout, aim for the time."""

    ranks: int
    micro_batch: int | None
    updates: int
    aim: float


CASES = {
    "one update": Case(1, 4, 1, 1.03),
    "whole groups in a micro-batch": Case(1, 4, 4, 1.03),
    "the same, dynamic batching": Case(1, None, 4, 1.03),
    "whole groups over two ranks": Case(2, 2, 4, 1.03),
    "forward pass": Case(1, 2, 4, 1.25),
}
"""With four responses to a prompt."""


def main() -> None:
    arguments = parser(__doc__, responses=4, width=512, layers=8, prompts=8, tokens=160, repeat=3)
    arguments.add_argument("--cpu-time", action="store_true", help="of the first rank; on a busy machine")
    arguments.add_argument("--only", choices=CASES, help="one case")
    arguments.add_argument("--losses", nargs=2, default=("grpo", "gvpo"), help="beside each other")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = make_model(folder, options)
        one, other = options.losses
        table = Table("", f"{one} s", f"{other} s", "ratio", "aim", f"{one} MiB", f"{other} MiB", "ratio")
        table.title = f"{size / 1e6:.0f} M parameters"
        for name, case in CASES.items():
            if options.only not in (None, name):
                continue
            spawn(measure, case.ranks, folder, case, (one, other), options)
            seconds, _ = torch.load(Path(folder) / "result.pt")
            ratios = [b / a for a, b in zip(seconds[one], seconds[other], strict=True)]
            once, memory = Namespace(**vars(options) | {"repeat": 1}), {}
            for loss in seconds:
                spawn(measure, case.ranks, folder, case, (loss,), once)
                _, memory[loss] = torch.load(Path(folder) / "result.pt")
            row = [name, *(f"{statistics.median(each):.2f}" for each in seconds.values())]
            row += [f"{statistics.median(ratios):.3f}", f"{case.aim:.2f}"]
            row += [*(f"{each / MIB:.0f}" for each in memory.values()), f"{memory[other] / memory[one]:.3f}"]
            table.add_row(*row)
        Console(width=110).print(table)
    if options.only is None and other == "gvpo":
        Console(width=110).print(imbalance())


def spawn(function: Callable[..., None], ranks: int, *arguments: Any) -> None:
    """Call a function with its rank and the arguments on new processes that find each other."""
    if not torch.cuda.is_available():
        os.environ["VERL_PLATFORM"] = "cpu"  # for the ranks, which import verl anew
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    torch.multiprocessing.spawn(function, arguments, nprocs=ranks)


def measure(rank: int, folder: str, case: Case, losses: tuple[str, ...], options: Namespace) -> None:
    """Run one rank: seconds of each loss, taken in turns, and bytes above those before the first update."""
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)  # more would wait for each other on a busy machine
    workers = {loss: make_worker(folder, loss, case, options) for loss in losses}
    seconds: dict[str, list[float]] = {loss: [] for loss in losses}
    on_gpu = torch.cuda.is_available()
    before = torch.cuda.memory_allocated() if on_gpu else own_memory("VmRSS")
    for _ in range(options.repeat + 1):
        for loss, worker in workers.items():
            seconds[loss].append(timed_update(worker, make_batch(rank, loss, case, options), case, options))
    if rank == 0:
        warm = {loss: each[1:] for loss, each in seconds.items()}
        peak = torch.cuda.max_memory_allocated() if on_gpu else own_memory("VmHWM")
        torch.save((warm, peak - before), Path(folder) / "result.pt")
    torch.distributed.destroy_process_group()


def make_model(folder: str, options: Namespace) -> int:
    shape = {"num_hidden_layers": options.layers, "num_attention_heads": 8, "num_key_value_heads": 8}
    return save_model(folder, "qwen2", VOCABULARY, options.width, 4 * options.width, **shape)


def make_worker(folder: str, loss: str, case: Case, options: Namespace, precision: str = "fp32") -> Any:
    """Return verl's FSDP2 worker, all of it in fp32, or as verl trains by default, computing in bf16."""
    from verl.workers.config import ActorConfig
    from verl.workers.utils.losses import ppo_loss

    from grpo_verl_ext.catalogue import LOSSES, mode_of
    from grpo_verl_ext.verl_plugin.gvpo import GroupTrainingWorker
    from grpo_verl_ext.verl_plugin.loss_config import LossConfig

    cut = {"use_dynamic_bsz": case.micro_batch is None, "micro_batch_size_per_gpu": case.micro_batch}
    cut["max_token_len_per_gpu"] = budget(options)
    worker = GroupTrainingWorker(worker_config(folder, precision, **cut))
    worker.reset()
    actor = ActorConfig(
        strategy="fsdp2", rollout_n=options.responses, policy_loss=LossConfig(loss_mode=loss, gvpo_beta=0.1),
        loss_agg_mode=mode_of(LOSSES[loss]) if loss in LOSSES else "token-mean",
        loss_scale_factor=options.tokens, ppo_micro_batch_size_per_gpu=1,  # the last is read by checks alone
    )  # fmt: skip
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    return worker


def budget(options: Namespace) -> int:
    """Return the tokens of a micro-batch under dynamic batching: those of one group at most."""
    return int(options.responses * (PROMPT + options.tokens))


def make_plan(case: Case, options: Namespace) -> Plan:
    """Return the plan of the trainer for the second loss, which orders the rows of both."""
    from grpo_verl_ext.catalogue import LOSSES

    loss, rows = LOSSES.get(options.losses[1]), options.prompts * options.responses // case.updates
    needs = None if loss is None else loss.needs
    of_prompts = needs is not None and needs.of_prompts
    group, longest = options.responses if of_prompts else rows, PROMPT + options.tokens
    cut = Cut("fsdp2", case.ranks, group, rows, case.micro_batch, budget(options), longest, of_prompts)
    return cut.plan()


def make_batch(rank: int, loss: str, case: Case, options: Namespace) -> TensorDict:
    """Return a rank's responses of random lengths, in the trainer's order, as it passes them to a worker."""
    from verl.utils import tensordict_utils as tu

    generator = torch.Generator().manual_seed(0)
    rows = options.prompts * options.responses
    lengths = torch.randint(options.tokens // 2, options.tokens + 1, (rows,), generator=generator)
    prompts = torch.arange(options.prompts).repeat_interleave(options.responses)
    own = order(make_plan(case, options), case, prompts.tolist(), (PROMPT + lengths).tolist())[rank]
    drawn = [torch.randint(0, VOCABULARY, (PROMPT + size,), generator=generator) for size in lengths.tolist()]
    advantages = torch.randn(rows, generator=generator)

    def nested(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    tokens = [drawn[row] for row in own]
    sizes = lengths[own].tolist()
    mask = nested([torch.ones(size, dtype=torch.int64) for size in sizes])
    fields = {
        "input_ids": nested(tokens),
        "position_ids": nested([torch.arange(len(row)) for row in tokens]),
        "prompts": nested([row[:PROMPT] for row in tokens]),
        "responses": nested([row[PROMPT:] for row in tokens]),
        "response_mask": mask,
        "loss_mask": mask,
        "old_log_probs": nested([torch.full((size,), -8.0) for size in sizes]),
        "advantages": nested([advantages[row].expand(size) for row, size in zip(own, sizes, strict=True)]),
    }
    if loss == options.losses[1]:
        fields |= {"row_number": torch.tensor(own), "group_index": prompts[own]}
        fields["group_size"] = torch.full((len(own),), options.responses)
    return tu.assign_non_tensor(TensorDict(fields, batch_size=len(own)), temperature=1.0)


def order(plan: Plan, case: Case, prompts: list[int], workload: list[int]) -> list[list[int]]:
    """Return the rows of each rank, all groups being complete."""
    units = plan.whole_groups(prompts)
    return plan.over_ranks(units, workload, case.ranks, len(prompts) // case.updates)


def timed_update(worker: Any, batch: TensorDict, case: Case, options: Namespace) -> float:
    plan = make_plan(case, options)
    now = time.process_time if options.cpu_time else time.perf_counter
    start = now()
    train_once(worker, batch, plan, case, options, current=True)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return now() - start


def train_once(
    worker: Any, batch: TensorDict, plan: Plan, case: Case, options: Namespace, *, current: bool
) -> None:
    """Train once on the batch, ``current`` if the first update's policy is the one that sampled it."""
    from verl.utils import tensordict_utils as tu

    rows = options.prompts * options.responses // case.updates
    sizes = {"mini_batch_size": rows, "global_batch_size": rows, "epochs": 1, "num_groups": options.prompts}
    statistic = {"statistic_source": plan.source.value, "statistic_seed": 0}
    anchor = {"anchor_log_probs": "old_log_probs", "old_log_probs_are_current": current}
    tu.assign_non_tensor(batch, **sizes, **statistic, **anchor)
    if plan.longest is not None and "group_index" in batch:
        tu.assign_non_tensor(batch, force_group_size=plan.unit)
    worker.train_mini_batch(batch)


def imbalance() -> Table:
    """Return a table of the busiest rank's tokens over an even share, where ranks wait after each part."""
    from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

    columns = [
        f"{whose}: {of}" for whose in ("verl", "ours") for of in ("batch", "mini-batches", "micro-batches")
    ]
    table = Table("ranks", "drift from, rows", *columns)
    table.title = "Busiest rank ÷ even share, 128 prompts × 8, 4 mini-batches, mean of 20 seeds"
    rows, group, mini_batch = 1024, 8, 256
    prompts = [row % (rows // group) for row in range(rows)]
    for ranks in (2, 4, 8, 16):
        for micro_batch in (group, group // 2, 1):
            cut = Cut("fsdp2", ranks, group, mini_batch, micro_batch, budget=0, longest=0)
            plan = cut.plan()
            found: list[list[float]] = []
            for seed in range(20):
                generator = torch.Generator().manual_seed(seed)
                lengths = (torch.randn(rows, generator=generator) + 6).exp().clamp(16, 4096).long()
                workload = calculate_workload(lengths).tolist()
                verls = get_seqlen_balanced_partitions(workload, ranks, equal_size=True)
                ours = order(plan, Case(ranks, micro_batch, rows // mini_batch, 0), prompts, workload)
                parts = (1, rows // mini_batch, rows // ranks // micro_batch)
                found.append([busiest(each, lengths, part) for each in (verls, ours) for part in parts])
            means = [f"{statistics.mean(column):.3f}" for column in zip(*found, strict=True)]
            table.add_row(str(ranks), f"{plan.source.value}, {micro_batch}", *means)
    return table


def busiest(ranks: list[list[int]], lengths: torch.Tensor, parts: int) -> float:
    """Return Σ over parts of the busiest rank's tokens, over the tokens of an even share."""
    tokens = torch.stack([lengths[rank].reshape(parts, -1).sum(dim=1) for rank in ranks])
    return int(tokens.amax(dim=0).sum()) * len(ranks) / int(lengths.sum())


if __name__ == "__main__":
    main()

"""Measure time and peak memory of this package's work in the trainer's process, for a large step.

python benchmarks/driver_cost.py [--responses 8192 --tokens 8192] [--part TEXT] [--repeat 3] [--quarter]

Lengths are log-normal: the median is an eighth of the budget, the longest is the budget. There are eight
responses per prompt and sixteen steps per response. Each part runs in its own process, through the methods
that verl's trainer calls. The rows are in memory already, as TransferQueue returns them, and verl's own work
is left out; the lines "verl: …" are its work on the same rows, for comparison.

"s" is the median of the repeats after a first call. "Peak" is the growth of the resident set in the first
call, by the kernel's high-water mark. "× 4 responses" is the time over that of a quarter of the responses: 4
is linear.
"""

import argparse
import ctypes
import gc
import importlib.metadata
import multiprocessing
import os
import platform
import timeit
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from common import MIB, grown, parser
from hydra import compose, initialize_config_module
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_to_nested

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.grpo import GRPO
from grpo_verl_ext.verl_plugin.batch import fields as rollout_batch
from grpo_verl_ext.verl_plugin.batch.sessions import row_roles
from grpo_verl_ext.verl_plugin.gvpo import GvpoMixin
from grpo_verl_ext.verl_plugin.mini_batch.trainer import MiniBatchMixin
from grpo_verl_ext.verl_plugin.reference.parts import ReferenceSyncTrainerMixin
from grpo_verl_ext.verl_plugin.rewards.trainer import OtherRewardsMixin, _collected_steps
from grpo_verl_ext.verl_plugin.wire import passing

SIZES = ((8192, 8192), (16384, 4096))
GROUP_SIZE, STEPS_EACH, MINI_BATCHES = 8, 16, 4
RANKS = (8, 64, 512)

Call = Callable[[], object]


@dataclass(frozen=True)
class Rollout:
    """The rows of a step: their keys and tags in the trainer, and their tensors in the queue."""

    batch: KVBatchMeta
    lengths: Tensor
    rows: dict[str, Tensor]

    @classmethod
    def drawn(cls, responses: int, tokens: int, seed: int) -> "Rollout":
        torch.manual_seed(seed)
        lengths = torch.from_numpy(drawn_lengths(responses, tokens, seed))
        keys = [f"{row // GROUP_SIZE:032x}_{row % GROUP_SIZE}_0" for row in range(responses)]
        tags = [{"seq_len": length + 512, "is_padding": False} for length in lengths.tolist()]
        total = int(lengths.sum())
        old = -torch.rand(total)
        rewards = torch.zeros(total)
        rewards[lengths.cumsum(0) - 1] = torch.randint(0, 3, (responses,)).float()
        rows = {
            "old_log_probs": old,
            "ref_log_prob": old + 0.1 * torch.randn(total),
            "response_mask": torch.ones(total, dtype=torch.int64),
            "rm_scores": rewards,
            "advantages": torch.repeat_interleave(torch.randn(responses), lengths),
        }
        return cls(KVBatchMeta(partition_id="train", keys=keys, tags=tags), lengths, rows)

    def ragged(self, name: str) -> Tensor:
        rows = self.rows[name].split(self.lengths.tolist())
        return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)

    def steps(self) -> list[dict[str, Any]]:
        """Return the ``extra_fields`` of each row."""
        shares = torch.linspace(0, 1, STEPS_EACH + 1)[1:]
        ends = (shares * (self.lengths - 1).unsqueeze(-1)).long().tolist()
        rewards = torch.rand(len(ends), STEPS_EACH).tolist()
        return [{"steps": list(zip(*pair, strict=True))} for pair in zip(rewards, ends, strict=True)]


def drawn_lengths(responses: int, tokens: int, seed: int) -> npt.NDArray[np.int64]:
    """Draw the lengths with numpy: the parent needs them, and torch would start threads before it forks."""
    drawn = np.random.default_rng(seed).lognormal(np.log(tokens / 8), 1.0, responses)
    lengths = drawn.astype(np.int64).clip(1, tokens)
    lengths[0] = tokens
    return lengths


class Queue:
    """Stand-in for TransferQueue that returns rows at once."""

    def __init__(self, rollout: Rollout, fields: tuple[str, ...]) -> None:
        columns: dict[str, Any] = {name: rollout.ragged(name) for name in fields if name in rollout.rows}
        if "extra_fields" in fields:
            columns["extra_fields"] = rollout.steps()
        self.rows: TensorDict = tu.get_tensordict(columns)
        self.batch = rollout.batch

    def kv_batch_get(self, *, select_fields: list[str], **_: object) -> TensorDict:
        return self.rows.select(*select_fields)

    def kv_batch_put(self, **_: object) -> KVBatchMeta:
        return self.batch


class EmptyTrainer(PPOTrainerSync):  # type: ignore[misc]
    """verl's trainer with empty methods in the place of those that ours extend."""

    def _compute_advantage(self, batch: Any, *_: Any) -> Any:
        return batch

    _compute_ref_log_prob = _compute_advantage

    def _log_rollout_data(self, batch: Any, *_: Any, **__: Any) -> None:
        pass


class Trainer(GvpoMixin, MiniBatchMixin, OtherRewardsMixin, ReferenceSyncTrainerMixin, EmptyTrainer):
    """Only this package's part of the trainer."""


def trainer(responses: int, ranks: int, *overrides: str) -> Trainer:
    prompts = responses // GROUP_SIZE
    sizes = [f"data.train_batch_size={prompts}", f"actor_rollout_ref.rollout.n={GROUP_SIZE}"]
    sizes.append(f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts // MINI_BATCHES}")
    sizes.append("actor_rollout_ref.rollout.name=vllm")
    with initialize_config_module("verl.trainer.config", version_base=None):
        config: DictConfig = compose("ppo_trainer", overrides=[*overrides, *sizes])
    made: Trainer = object.__new__(Trainer)
    made.config, made.global_steps, made.use_critic, made.local_trigger_step = config, 1, False, 0
    made.tokenizer = SimpleNamespace(eos_token_id=0)
    made.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": list(range(ranks))})
    return made


def method(name: str, *overrides: str) -> Callable[[Rollout], Call]:
    """Return a part that calls a method of our trainer on rows from the queue."""

    def made(rollout: Rollout) -> Call:
        rollout_batch.tq = Queue(rollout, (*rollout.rows, "extra_fields"))
        ours = trainer(len(rollout.batch), RANKS[0], *overrides)
        arguments = ({}, "nowhere") if name == "_log_rollout_data" else ({},)
        return partial(getattr(ours, name), rollout.batch, *arguments)

    return made


def order(ranks: int, of: type[PPOTrainerSync]) -> Callable[[Rollout], Call]:
    """Return a part that orders the rows, each time of a new batch, so that repeats do the same work."""

    def made(rollout: Rollout) -> Call:
        ours = trainer(len(rollout.batch), ranks, "+algo=grpo")

        def call() -> object:
            keys, tags = list(rollout.batch.keys), list(rollout.batch.tags)
            return of._balance_batch(ours, KVBatchMeta(partition_id="train", keys=keys, tags=tags), {})

        return call

    return made


def padded(rollout: Rollout, *fields: str) -> TensorDict:
    return Queue(rollout, fields).rows.to_padded_tensor()


def estimator(name: str, **options: object) -> Callable[[Rollout], Call]:
    def made(rollout: Rollout) -> Call:
        data = padded(rollout, "rm_scores", "response_mask")
        arguments = {"token_level_rewards": data["rm_scores"], "response_mask": data["response_mask"]}
        arguments["index"] = np.array(uids(rollout), dtype=object)
        if name not in catalogue.ESTIMATORS:
            return partial(get_adv_estimator_fn(name), **arguments)
        config = {"adv_estimator": name, "grpo_ext": options}
        extra = Queue(rollout, ("extra_fields",)).rows if name == "grpo_process" else None
        steps = None if extra is None else _collected_steps(rollout.batch, extra)

        def call() -> object:
            with passing(row_keys=rollout.batch.keys, steps=steps):
                return get_adv_estimator_fn(name)(**arguments, config=config)

        return call

    return made


def uids(rollout: Rollout) -> list[str]:
    return [key.rsplit("_", 2)[0] for key in rollout.batch.keys]


def sessions(rollout: Rollout) -> Call:
    prompts = uids(rollout)

    def call() -> object:
        with passing(row_keys=rollout.batch.keys):
            return row_roles(GRPO.estimator, prompts, torch.device("cpu"))

    return call


def verls_padding(rollout: Rollout) -> Call:
    names = ("rm_scores", "response_mask", "old_log_probs", "ref_log_prob")
    return Queue(rollout, names).rows.to_padded_tensor


def verls_ragged(rollout: Rollout) -> Call:
    advantages, mask = padded(rollout, "advantages")["advantages"], rollout.ragged("response_mask")
    return lambda: [response_to_nested(advantages, mask).values() for _ in ("advantages", "returns")]


MASKED = {"mask_truncated_completions": True, "max_response_length": 64}
ANCHOR_REF = ("+algo=gvpo", "algorithm.grpo_ext.gvpo_anchor=ref")
PARTS: dict[str, Callable[[Rollout], Call]] = {
    # gdpo_outcome reads rewards by name, which the rows do not have
    **{f"estimator {name}": estimator(name) for name in catalogue.ESTIMATORS if name != "gdpo_outcome"},
    "estimator dapo, truncated ones masked": estimator("dapo", **MASKED),
    **{f"order of the rows, {ranks} ranks": order(ranks, Trainer) for ranks in RANKS},
    "groups of gvpo": method("_compute_advantage", "+algo=gvpo"),
    "targets of gvpo, anchor ref": method("_compute_advantage", *ANCHOR_REF),
    "KL to the reference": method("_compute_ref_log_prob", "+algo=grpo"),
    "rows and sessions": sessions,
    "step rewards collected": method("_compute_advantage", "+algo=grpo_process"),
    "step rewards for the dump": method("_log_rollout_data", "+algo=grpo_process"),
    "verl: grpo": estimator("grpo"),
    "verl: grpo_vectorized": estimator("grpo_vectorized"),
    "verl: padding for the estimator": verls_padding,
    "verl: advantages and returns made ragged": verls_ragged,
    **{f"verl: order of the rows, {ranks} ranks": order(ranks, PPOTrainerSync) for ranks in RANKS},
}


def measured(*arguments: Any) -> tuple[float, float]:
    """`measure` in a new process, so that memory that an earlier part freed is not used again."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(measure, *arguments).result()


def measure(part: str, responses: int, tokens: int, seed: int, repeat: int) -> tuple[float, float]:
    """Return the seconds of a part at one size, and the MiB of its peak."""
    call = PARTS[part](Rollout.drawn(responses, tokens, seed))
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    peak = grown(call) / MIB
    return median(timeit.repeat(call, number=1, repeat=repeat)), peak


def ranks_of(part: str) -> int:
    """Return the number of ranks in a part's name; each rank needs a row of every mini-batch."""
    return next((ranks for ranks in RANKS if f" {ranks} ranks" in part), 1)


def main() -> None:
    arguments = parser(__doc__, repeat=3, seed=0)
    arguments.add_argument("--responses", type=int, help="default: both sizes of the table")
    arguments.add_argument("--tokens", type=int, default=8192, help="response budget, beside --responses")
    arguments.add_argument("--part", default="", help="parts whose name has this text")
    arguments.add_argument("--quarter", action="store_true", help="also measure a quarter of the responses")
    options = arguments.parse_args()
    versions = {name: importlib.metadata.version(name) for name in ("torch", "verl", "tensordict")}
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS')}, "
        f"Python {platform.python_version()}, {versions}, seed {options.seed}"
    )
    for responses, tokens in ((options.responses, options.tokens),) if options.responses else SIZES:
        table(responses, tokens, options)


def table(responses: int, tokens: int, options: argparse.Namespace) -> None:
    ragged = int(drawn_lengths(responses, tokens, options.seed).sum())
    padded_tokens = responses * tokens
    print(f"\n{responses} × {tokens}: {ragged / 1e6:.1f} M tokens, {padded_tokens / 1e6:.1f} M padded\n")
    print("| part | s | peak MiB | × 4 responses |\n|---|---|---|---|")
    for part in PARTS:
        if options.part not in part or responses // MINI_BATCHES < ranks_of(part):
            continue
        seconds, peak = measured(part, responses, tokens, options.seed, options.repeat)
        linear = "–"
        if options.quarter and responses // 4 // MINI_BATCHES >= ranks_of(part):
            quarter, _ = measured(part, responses // 4, tokens, options.seed, options.repeat)
            linear = f"{seconds / quarter:.1f}"
        print(f"| {part} | {seconds:.3f} | {peak:.0f} | {linear} |", flush=True)


if __name__ == "__main__":
    main()

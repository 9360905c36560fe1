"""Choose where a statistic of prompts or of the mini-batch comes from, and which row goes into which update.

verl gives each of D ranks an equal share of a mini-batch and cuts it into micro-batches: of m rows each, in
order, or, with dynamic batching, by a budget of tokens. `Cut.plan` takes the k rows of the statistic, a
prompt's responses or the whole mini-batch, for a group:

1. Dynamic batching, P prompts in a mini-batch: k consecutive rows stay together (verl's ``force_group_size``)
   if D divides P and k rows of the greatest length fit into the budget.
2. Micro-batches of m rows: each holds whole groups if k divides m.
3. Else the micro-batches with the same number on all ranks, which run in step, together hold whole groups if
   k divides D·m.
4. Else, on engines where the rest was not tested, and for a batch that does not fit (`Plan.misfit`): a
   forward pass.

verl cuts a rollout batch into one equal contiguous share for each rank, and each share into equal contiguous
mini-batches. The order of the rows therefore determines the rest: whole groups, balanced by length.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from omegaconf import DictConfig
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

from grpo_verl_ext.catalogue import STATISTIC_ENGINES
from grpo_verl_ext.utils.keys import ACTOR, BYPASS, setting
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin.wire import StatisticSource

_Rows = list[int]
_PADDING_TOKENS = 128
"""Tokens of a row with which verl fills a batch."""


@dataclass(frozen=True)
class Plan:
    """Where the statistic comes from, and what the order of the rows must do for it."""

    source: StatisticSource
    # This many consecutive rows hold whole groups: those of a rank (``MICRO_BATCH``), of all ranks'
    # micro-batches with the same number (``RANKS``), of a mini-batch (``FORWARD_PASS``).
    unit: int
    reason: str  # why, for the log
    longest: int | None = None  # most tokens of a row, where dynamic batching must keep rows together
    units_per_micro_batch: int = 1  # of a rank, without dynamic batching

    def misfit(self, largest_group: int, longest: int) -> str:
        """Return why a batch with such a group and row cannot follow the plan; "" if it can."""
        if self.source is StatisticSource.FORWARD_PASS:
            return ""
        if largest_group > self.unit:
            return f"a prompt has {largest_group} responses, more than {self.unit}"
        if self.longest is not None and longest > self.longest:
            return f"a response and its prompt have {longest} tokens, more than {self.longest}"
        return ""

    def whole_groups(self, group_of_row: Sequence[Hashable]) -> list[_Rows]:
        """Fill units with whole groups, each into the first where it fits.

        Groups are taken in the order of their first row. Groups of equal size keep that order; smaller ones,
        with failed sessions, fill gaps.
        """
        groups: dict[Hashable, _Rows] = {}
        for row, group in enumerate(group_of_row):
            groups.setdefault(group, []).append(row)
        smallest = min(map(len, groups.values()), default=0)
        units: list[_Rows] = []
        with_room: list[_Rows] = []  # searching only these keeps equal groups linear in time
        for group, rows in groups.items():
            if len(rows) > self.unit:
                raise ValueError(
                    f"prompt {group} has {len(rows)} rows, more than the {self.unit} of a mini-batch, which "
                    "must hold whole groups. Type: actor_rollout_ref.actor.ppo_mini_batch_size=<more prompts>"
                )
            place = next((i for i, m in enumerate(with_room) if len(m) + len(rows) <= self.unit), None)
            if place is None:
                place = len(with_room)
                with_room.append([])
                units.append(with_room[place])
            with_room[place].extend(rows)
            if len(with_room[place]) + smallest > self.unit:
                del with_room[place]
        return units

    def over_ranks(
        self, units: Sequence[_Rows], workload: Sequence[int], dp_size: int, mini_batch: int
    ) -> list[_Rows]:
        """Return for each rank its rows: of every mini-batch equally many, of about equal workload.

        Rows in no unit are padding: they fill the units, and the rest form further ones. The rows of a unit
        stay on one rank where the plan says so; else they spread over all. The heaviest part of a mini-batch
        goes to the rank with the least workload. Ranks run their micro-batches in step, so those of a
        mini-batch come in the order of their workload.
        """

        def work(blocks: Sequence[_Rows]) -> int:
            return sum(workload[row] for block in blocks for row in block)

        padding = iter(range(sum(map(len, units)), len(workload)))
        units = [[*unit, *islice(padding, self.unit - len(unit))] for unit in units]
        rest = list(padding)
        units += [rest[start : start + self.unit] for start in range(0, len(rest), self.unit)]
        mini_batches, micro_batch = [[[row] for row in unit] for unit in units], mini_batch
        if self.source is StatisticSource.MICRO_BATCH:
            share, micro_batch = mini_batch // self.unit, self.units_per_micro_batch
            mini_batches = [[*units[start : start + share]] for start in range(0, len(units), share)]
        ranks: list[_Rows] = [[] for _ in range(dp_size)]
        load = [0] * dp_size
        for blocks in mini_batches:
            own = [work([block]) for block in blocks]
            cut = get_seqlen_balanced_partitions(own, k_partitions=dp_size, equal_size=True)
            parts = sorted(([blocks[i] for i in part] for part in cut), key=work, reverse=True)
            lightest_first = sorted(range(dp_size), key=lambda rank: load[rank])
            for rank, part in zip(lightest_first, parts, strict=True):
                micro_batches = [part[i : i + micro_batch] for i in range(0, len(part), micro_batch)]
                for together in sorted(micro_batches, key=work, reverse=True):
                    ranks[rank].extend(row for block in together for row in block)
                load[rank] += work(part)
        return ranks


@dataclass(frozen=True)
class Cut:
    """How verl cuts the rows of a rollout batch."""

    engine: str  # ``actor.strategy``
    ranks: int  # D, data-parallel ranks
    group_size: int  # k, rows that must meet: ``rollout.n``, or all of the mini-batch
    mini_batch: int  # rows of a mini-batch on all ranks
    micro_batch: int | None  # m, rows of a micro-batch on one rank; None with dynamic batching
    budget: int  # tokens of a micro-batch on one rank, with dynamic batching
    longest: int  # most tokens of a row
    of_prompts: bool = True  # whether k is a prompt's responses, and not the mini-batch

    @property
    def rows(self) -> str:
        """What must meet, in words."""
        return f"the {self.group_size} " + (
            "responses to a prompt" if self.of_prompts else "rows of a mini-batch"
        )

    @classmethod
    def from_config(cls, config: DictConfig, ranks: int, *, of_prompts: bool) -> "Cut":
        """Read verl's configuration; ``ranks`` is known when the workers run."""
        actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
        rows = actor.ppo_mini_batch_size * rollout.n
        sequence_parallel = setting(config, f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size", 1)
        return cls(
            engine=actor.strategy,
            ranks=ranks,
            group_size=rollout.n if of_prompts else rows,
            mini_batch=rows,
            micro_batch=None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu or 0,
            budget=(actor.ppo_max_token_len_per_gpu or 0) * sequence_parallel,
            longest=max(rollout.prompt_length + rollout.response_length, _PADDING_TOKENS),
            of_prompts=of_prompts,
        )

    def plan(self) -> Plan:
        """Return the cheapest plan that is exact for every batch of this training."""
        k, rows, key = self.group_size, self.micro_batch or 0, f"{ACTOR}.ppo_micro_batch_size_per_gpu"
        groups, tokens, together = self.mini_batch // k, k * self.longest, self.ranks * rows
        have = f"{self.rows} have up to {tokens} tokens"
        if self.engine not in STATISTIC_ENGINES:
            reason = f"{ACTOR}.strategy={self.engine} was not tested with anything else"
        elif self.mini_batch % self.ranks:
            reason = f"{self.ranks} ranks do not divide the {self.mini_batch} rows of a mini-batch"
        elif self.micro_batch is None and groups % self.ranks:
            reason = f"{self.ranks} ranks do not divide a mini-batch's {groups} times {self.rows}"
        elif self.micro_batch is None and tokens > self.budget:
            reason = f"{have}, a micro-batch {self.budget} ({ACTOR}.ppo_max_token_len_per_gpu)"
        elif self.micro_batch is None:
            return Plan(StatisticSource.MICRO_BATCH, k, f"{have} and fit into a micro-batch", self.longest)
        elif not together or self.mini_batch % together:
            reason = f"{key}={rows} does not divide a mini-batch's rows on a rank"
        elif rows % k == 0:
            reason = f"{key}={rows} holds all {self.rows.removeprefix('the ')}"
            return Plan(StatisticSource.MICRO_BATCH, k, reason, units_per_micro_batch=rows // k)
        elif together % k == 0:
            reason = f"{key}={rows} on {self.ranks} ranks hold {self.rows}"
            return Plan(StatisticSource.RANKS, together, reason)
        else:
            reason = f"neither {key}={rows} nor {self.ranks} ranks × {rows} is a multiple of {k}"
        return Plan(StatisticSource.FORWARD_PASS, self.mini_batch, reason)


def policy_moves(config: DictConfig) -> bool:
    """Whether an update may see another policy than that of the old log-probs."""
    return bool(several_updates(config) or setting(config, BYPASS))


def several_updates(config: DictConfig) -> bool:
    """Whether more than one update may use a rollout."""
    keys = ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs")
    numbers = [*(setting(config, key) for key in keys), parts_of_step(config)[1]]
    if not all(is_count(number) for number in numbers):
        return True
    prompts, mini_batch, epochs, parts = numbers
    return bool(parts > 1 or epochs > 1 or prompts // parts > mini_batch)


def parts_of_step(config: DictConfig) -> tuple[str, Any]:
    """Return the key and number of a training step's parts, each with advantages and updates of its own.

    Not every trainer mode has the key.
    """
    mode = str(setting(config, "trainer.v1.trainer_mode")).removeprefix("grpo_ext_")
    key = f"trainer.v1.{mode}.parameter_sync_step"
    return key, setting(config, key, 1)

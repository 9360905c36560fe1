"""Choose where a statistic of prompts or of the mini-batch comes from, by how verl will cut a rollout batch.

verl gives each of D ranks an equal share of a mini-batch and cuts it into micro-batches: of m rows each, in
order, or, with dynamic batching, by a budget of tokens. Where the k rows of the statistic, a prompt's
responses or the whole mini-batch, can meet in the training pass, it comes from that pass; else a forward pass
before the update measures it. `choose` takes these k rows for a group:

1. Dynamic batching, P prompts in a mini-batch: k consecutive rows stay together (verl's ``force_group_size``)
   if D divides P and k rows of the greatest length fit into the budget.
2. Micro-batches of m rows: each holds whole groups if k divides m.
3. Else the micro-batches with the same number on all ranks, which run in step, together hold whole groups if
   k divides D·m.
4. Else, on engines where the rest was not tested, and for a batch that does not fit (`Plan.misfit`): a
   forward pass.
"""

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from grpo_verl_ext.catalogue import STATISTIC_ENGINES
from grpo_verl_ext.utils.keys import ACTOR, BYPASS, setting
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin.wire import StatisticSource

PADDING_TOKENS = 128
"""Tokens of a row with which verl fills a batch."""


@dataclass(frozen=True)
class Cut:
    """How verl cuts the rows of a rollout batch.

    Attributes:
        engine: ``actor.strategy``.
        ranks: D, data-parallel ranks.
        group_size: k, rows that must meet: ``rollout.n``, or all of the mini-batch.
        mini_batch: rows of a mini-batch on all ranks.
        micro_batch: m, rows of a micro-batch on one rank; None with dynamic batching.
        budget: tokens of a micro-batch on one rank, with dynamic batching.
        longest: most tokens of a row.
        of_prompts: whether k is a prompt's responses, and not the mini-batch.
    """

    engine: str
    ranks: int
    group_size: int
    mini_batch: int
    micro_batch: int | None
    budget: int
    longest: int
    of_prompts: bool = True

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
            longest=max(rollout.prompt_length + rollout.response_length, PADDING_TOKENS),
            of_prompts=of_prompts,
        )


@dataclass(frozen=True)
class Plan:
    """Where the statistic comes from, and what the order of the rows must do for it.

    Attributes:
        source: where the statistic comes from.
        unit: this many consecutive rows hold whole groups: those of a rank (``MICRO_BATCH``), of all ranks'
            micro-batches with the same number (``RANKS``), of a mini-batch (``FORWARD_PASS``).
        reason: why, for the log.
        longest: most tokens of a row, with dynamic batching; None if any.
        units_per_micro_batch: of a rank, without dynamic batching.
    """

    source: StatisticSource
    unit: int
    reason: str
    longest: int | None = None
    units_per_micro_batch: int = 1

    @property
    def is_dynamic(self) -> bool:
        """Whether dynamic batching must be told which rows stay together."""
        return self.longest is not None

    def misfit(self, largest_group: int, longest: int) -> str:
        """Return why a batch with such a group and row cannot follow the plan; "" if it can."""
        if self.source is StatisticSource.FORWARD_PASS:
            return ""
        if largest_group > self.unit:
            return f"a prompt has {largest_group} responses, more than {self.unit}"
        if self.longest is not None and longest > self.longest:
            return f"a response and its prompt have {longest} tokens, more than {self.longest}"
        return ""


def choose(cut: Cut) -> Plan:
    """Return the cheapest plan that is exact for every batch of this training."""
    if cut.engine not in STATISTIC_ENGINES:
        return by_forward_pass(
            cut.mini_batch, f"{ACTOR}.strategy={cut.engine} was not tested with anything else"
        )
    if cut.mini_batch % cut.ranks:
        return by_forward_pass(
            cut.mini_batch, f"{cut.ranks} ranks do not divide the {cut.mini_batch} rows of a mini-batch"
        )
    return _dynamic(cut) if cut.micro_batch is None else _fixed(cut, cut.micro_batch)


def by_forward_pass(mini_batch: int, reason: str) -> Plan:
    """Return the plan that is exact for any order of the rows of a mini-batch."""
    return Plan(StatisticSource.FORWARD_PASS, mini_batch, reason)


def _dynamic(cut: Cut) -> Plan:
    k = cut.group_size
    groups, tokens = cut.mini_batch // k, k * cut.longest
    if groups % cut.ranks:
        on_ranks = (
            f"{ACTOR}.ppo_mini_batch_size={groups}, which {cut.ranks} ranks do not divide"
            if cut.of_prompts
            else f"{cut.rows} are on {cut.ranks} ranks, which cut their rows by tokens"
        )
        return by_forward_pass(cut.mini_batch, on_ranks)
    have = f"{cut.rows} have up to {tokens} tokens"
    if tokens > cut.budget:
        return by_forward_pass(
            cut.mini_batch, f"{have}, a micro-batch {cut.budget} ({ACTOR}.ppo_max_token_len_per_gpu)"
        )
    return Plan(StatisticSource.MICRO_BATCH, k, f"{have} and fit into a micro-batch", cut.longest)


def _fixed(cut: Cut, rows: int) -> Plan:
    k, together = cut.group_size, cut.ranks * rows
    key = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    if not together or cut.mini_batch % together:
        return by_forward_pass(cut.mini_batch, f"{key}={rows} does not divide a mini-batch's rows on a rank")
    if rows % k == 0:
        reason = f"{key}={rows} holds all {cut.rows.removeprefix('the ')}"
        return Plan(StatisticSource.MICRO_BATCH, k, reason, units_per_micro_batch=rows // k)
    if together % k == 0:
        what = f"whole groups of {k}" if cut.of_prompts else cut.rows
        return Plan(StatisticSource.RANKS, together, f"{key}={rows} on {cut.ranks} ranks hold {what}")
    return by_forward_pass(
        cut.mini_batch, f"neither {key}={rows} nor {cut.ranks} ranks × {rows} is a multiple of {k}"
    )


def policy_moves(config: DictConfig) -> bool:
    """Whether an update may see another policy than that of the old log-probs."""
    return several_updates(config) or not old_is_current(config)


def old_is_current(config: DictConfig) -> bool:
    """Whether the old log-probs of all rows are those of the policy before the first update on a rollout.

    They are not in bypass mode.
    """
    return not setting(config, BYPASS)


def several_updates(config: DictConfig) -> bool:
    """Whether more than one update may use a rollout."""
    numbers = [
        setting(config, "data.train_batch_size"),
        setting(config, f"{ACTOR}.ppo_mini_batch_size"),
        setting(config, f"{ACTOR}.ppo_epochs"),
        parts_of_step(config),
    ]
    if not all(is_count(number) for number in numbers):
        return True
    prompts, mini_batch, epochs, parts = numbers
    return bool(parts > 1 or epochs > 1 or prompts // parts > mini_batch)


def parts_of_step(config: DictConfig) -> Any:
    """Return the number of parts of a training step; each has advantages and updates of its own."""
    return setting(config, parts_of_step_key(config), 1)


def parts_of_step_key(config: DictConfig) -> str:
    """Return the key of that number; not every trainer mode has it."""
    mode = str(setting(config, "trainer.v1.trainer_mode")).removeprefix("grpo_ext_")
    return f"trainer.v1.{mode}.parameter_sync_step"

"""All that this package's parts in verl's processes pass to each other, with the one that writes it.

- Fields of a batch, which verl carries from trainer to rollout and worker.
- Values set around a call of verl that does not forward them: the trainer or worker sets each one, the loss
  or estimator reads it inside the call, or adds to it.
- The failure of a process that serves the rollout, of which verl does not tell the trainer.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from torch import Tensor

from grpo_verl_ext.algorithms.gvpo import GroupRows


class Field:
    """Names of a batch's fields, each with the folder that owns it, who writes it and who reads it."""

    # Of stored/. Trainer → agent loop, column of a training prompt: its id, and its `StoredResponse` list.
    STORED_RESPONSES = "stored_responses"
    # Agent loop → trainer, in ``extra_fields`` of a stored response: its ``step`` and ``log_probs``.
    STORED_ORIGIN = "stored_response"

    # Of rewards/. Agent loop → trainer, in ``extra_fields``.
    STEPS = "steps"  # [(reward, position of its last token), …] of a response
    STEP_ERROR = "step_error"  # why steps do not fit; verl only logs what an agent loop raises

    # Of mini_batch/. Trainer → worker, a number for each response.
    GROUP_INDEX = "group_index"  # its prompt's in the rollout batch
    GROUP_SIZE = "group_size"  # the prompt's responses with tokens
    ROW_NUMBER = "row_number"  # its place in the rollout, before rows were put onto ranks
    # Trainer → worker, of the batch.
    STATISTIC_SOURCE = "statistic_source"  # the value of a `StatisticSource`
    STATISTIC_SEED = "statistic_seed"  # what differs between rollouts in `MiniBatchRows.seed`
    OLD_IS_CURRENT = "old_log_probs_are_current"  # whether ``old_log_probs`` are those of the policy
    OLD_OF_UPDATE = "old_log_probs_of_update"  # whether the first update takes them from its own pass
    KEEPS = "keeps_log_probs"  # whether the worker keeps what a pass returns
    KEPT = "kept_log_probs"  # whether it returns what it kept, in the place of a pass
    # Worker → its micro-batches: a row's place among this rank's.
    PLACE = "place_on_rank"
    # Worker → its micro-batches, ragged like the responses: a statistic that was measured beforehand.
    STATISTIC = "mini_batch_statistic"

    # Of gvpo/. Trainer → worker, of the batch.
    NUM_GROUPS = "num_groups"  # prompts of the rollout batch, padding included
    ANCHOR = "anchor_log_probs"  # the field with the log-probs of GVPO's anchor, verl's or a feature's
    # Worker → its micro-batches, a number for each response; see `GroupRows`.
    OLD_DEVIATION = "group_old_deviation"
    ANCHOR_DEVIATION = "group_anchor_deviation"

    # verl's own.
    OLD_LOG_PROBS, REF_LOG_PROB, ROLLOUT_LOG_PROBS = "old_log_probs", "ref_log_prob", "rollout_log_probs"


@dataclass(frozen=True)
class BatchSteps:
    """All S steps of the responses of a batch, (S,) each; see `algorithms.process`."""

    rewards: Tensor
    row: Tensor
    end: Tensor


class StatisticSource(Enum):
    """Where a statistic of the mini-batch, or one of each prompt's responses, comes from."""

    MICRO_BATCH = "micro-batch"  # the training pass: each micro-batch holds all rows of the statistic
    RANKS = "ranks"  # the same: the micro-batches with the same number on all ranks together hold them
    FORWARD_PASS = "forward pass"  # one over the mini-batch before its update


@dataclass(frozen=True)
class UpdateSums:
    """What the loss gvpo adds up over the micro-batches of an update; tensors that the worker made."""

    weights: Tensor  # (P,) for each prompt of the rollout batch, of its responses' log-likelihoods
    fit: Tensor  # (3,) Var(R), Var(f), Cov(R, f) of `gvpo_terms.Moments`, D times this rank's part


@dataclass(frozen=True)
class _Passed:
    """What `passing` has set; None outside of its block."""

    # Trainer → estimator: verl's key of each row, which identifies its session.
    row_keys: Sequence[str] | None = None
    # Trainer → estimator ``grpo_process``: the steps; verl passes rewards only.
    steps: BatchSteps | None = None
    # Trainer → estimator ``gdpo_outcome``: the rewards of each row, (B, M); verl passes their sum only.
    several_rewards: Tensor | None = None
    # Worker → loss: of `record.INPUTS` what it asks for, for the tokens of the micro-batch, (B, T) each.
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    # Worker → loss: the groups of the micro-batch's rows; verl's ``ppo_loss`` passes no prompt ids.
    groups: GroupRows | None = None
    # Worker → loss, which adds to them: verl would return each as a metric.
    update_sums: UpdateSums | None = None


PASSED: ContextVar[_Passed] = ContextVar("passed", default=_Passed())  # noqa: B039  # it is frozen
"""What estimator and loss read beside verl's arguments, per thread."""


@contextmanager
def passing(**values: Any) -> Iterator[None]:
    """Set values of `PASSED` inside the block, beside those of the blocks around it."""
    token = PASSED.set(replace(PASSED.get(), **values))
    try:
        yield
    finally:
        PASSED.reset(token)


def report_failure(error: Exception | None) -> None:
    """Keep an error for the trainer of this Ray job, None for no error; without Ray nobody waits for it.

    verl logs such an error and trains on the responses that are left. The watchdog of
    the trainer's process (`patches.watchdog`) raises an error that is reported here.
    """
    from ray.experimental.internal_kv import _internal_kv_put

    kind = type(error) if isinstance(error, RuntimeError) else RuntimeError
    if key := _failure_key():
        _internal_kv_put(key, pickle.dumps(None if error is None else kind(str(error))))


def reported_failure() -> RuntimeError | None:
    """Return the error that was reported last in this job; None: there is none."""
    from ray.experimental.internal_kv import _internal_kv_get

    key = _failure_key()
    reported = _internal_kv_get(key) if key else None
    return None if reported is None else pickle.loads(reported)


def _failure_key() -> bytes | None:
    import ray  # this module is loaded in processes that need no Ray

    if not ray.is_initialized():
        return None
    return f"grpo_verl_ext/failure/{ray.get_runtime_context().get_job_id()}".encode()

"""tunix: ``grpo_loss_fn``, and optax's ``MultiSteps``, by which its trainer accumulates micro-batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks.conformance.adapter import Row, StandIn, Task
from benchmarks.conformance.adapters.stubs import bare
from benchmarks.conformance.batch import EQUAL_CUTS, Batch, Floats

bare("tunix", "tunix.rl")  # theirs import rollouts and distillation

from tunix.rl import algo_core, common  # noqa: E402

TITLE = "tunix"
DISTRIBUTION = "google-tunix"
BESIDE = ("jax", "flax", "optax")
SOURCES = ("tunix/rl/algo_core.py", "tunix/rl/common.py", "tunix/sft/peft_trainer.py")
HAS_K3_LOSS = True
CUTS = EQUAL_CUTS
STAND_INS = (
    StandIn(
        "tunix/rl/algo_core.py",
        "common.compute_per_token_logps(",
        "the batch's log-probs",
        "def grpo_loss_fn(",
    ),
    StandIn(
        "tunix/rl/grpo/grpo_learner.py", "target_length=rollout_config.max_tokens_to_generate", "padded to L"
    ),
    StandIn("tunix/sft/peft_trainer.py", "optimizer = optax.MultiSteps(", "the same around descent"),
)
NO_MODE = {"cispo": "no such loss"}
_SEQUENCE_MEAN = "sequence-mean-token-mean"
ROWS = (
    Row(
        "grpo",
        "GRPOConfig (default)",
        {"loss_agg_mode": _SEQUENCE_MEAN},
        "a masked response leaves the B of its micro-batch; KL: low_var_kl",
    ),
    Row(
        "dapo",
        "DAPOConfig (default)",
        {"loss_agg_mode": "token-mean"},
        "a mean over micro-batches of means",
    ),
    Row("dr_grpo", "DrGRPOConfig (default)", {"loss_agg_mode": "sequence-mean-token-scale"}),
    Row(
        "gspo",
        "loss_algo=gspo-token",
        {"loss_agg_mode": _SEQUENCE_MEAN, "loss_algo": "gspo-token"},
        "a masked response leaves the B of its micro-batch",
    ),
)


class Policy(nnx.Module):
    """Holds the log-probs that it answers with."""

    def __init__(self, log_prob: jax.Array) -> None:
        self.log_prob = nnx.Param(log_prob)


def _answer(graphdef: Any, state: Any, **_: Any) -> tuple[jax.Array, jax.Array]:
    log_prob = nnx.merge(graphdef, state).log_prob.value
    return log_prob, jnp.zeros((*log_prob.shape, 2))


common.compute_per_token_logps = _answer


def gradient(task: Task) -> Floats:
    config = SimpleNamespace(
        **({"loss_algo": "grpo"} | task.row.options),
        beta=task.kl_coef,
        epsilon=task.clip_low,
        epsilon_high=task.clip_high,
        temperature=1.0,
        kl_loss_mode="low_var_kl",
        kl_clamp_value=None,
    )
    width = task.max_response_length - task.batch.mask.shape[1]
    log_prob = jnp.pad(jnp.asarray(task.batch.log_prob, jnp.float32), ((0, 0), (0, width)))
    optimizer = optax.MultiSteps(optax.sgd(1.0), every_k_schedule=len(task.micro_batches))
    state = optimizer.init(log_prob)
    for rows in task.micro_batches:
        example = _example(task.batch.select(rows), width)

        def loss(leaf: jax.Array, rows: list[int] = rows, example: SimpleNamespace = example) -> jax.Array:
            return algo_core.grpo_loss_fn(Policy(leaf[np.array(rows)]), example, config, 0, 1)[0]

        updates, state = optimizer.update(jax.grad(loss)(log_prob), state, log_prob)
    return -np.asarray(updates, dtype=np.float64)[:, : task.batch.mask.shape[1]]


def _example(part: Batch, width: int) -> SimpleNamespace:
    def padded(values: Floats) -> jax.Array:
        return jnp.pad(jnp.asarray(values, jnp.float32), ((0, 0), (0, width)))

    return SimpleNamespace(
        prompt_ids=jnp.zeros((len(part), 1), jnp.int32),
        completion_ids=jnp.zeros((len(part), part.mask.shape[1] + width), jnp.int32),
        completion_mask=padded(part.mask),
        advantages=padded(part.advantages),
        old_per_token_logps=padded(part.old_log_prob),
        ref_per_token_logps=padded(part.ref_log_prob),
    )

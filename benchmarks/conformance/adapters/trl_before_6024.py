"""TRL 1.9.0, the last release before the mend of huggingface/trl #6024: a bug that the harness must find."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from benchmarks.conformance.adapter import StandIn, Task
from benchmarks.conformance.adapters import trl
from benchmarks.conformance.batch import Floats

TITLE = "TRL 1.9.0"
DISTRIBUTION = trl.DISTRIBUTION
BESIDE = trl.BESIDE
SOURCES = trl.SOURCES
HAS_K3_LOSS = trl.HAS_K3_LOSS
CUTS = trl.CUTS
STAND_INS = (
    trl.STAND_INS[0],
    StandIn(
        "trl/trainer/grpo_trainer.py",
        'compute_loss_func="non-None value to disable scaling",',
        "the same",
    ),
    StandIn(
        "trl/trainer/grpo_trainer.py",
        "logps = selective_log_softmax(logits, completion_ids)  # compute logprobs",
        "the batch's log-probs",
    ),
)
NO_MODE: dict[str, str] = {}
ROWS = (trl.generations_of_16_steps(control=True),)


def gradient(task: Task) -> Floats:
    return trl.gradient(task, use_liger_kernel=False, _get_per_token_logps_and_entropies=_log_probs)


def _log_probs(model: nn.Module, input_ids: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
    answer = model(input_ids)
    return answer.log_probs, answer.entropy, None

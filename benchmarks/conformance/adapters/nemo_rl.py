"""NeMo-RL, from a checkout: ``ClippedPGLossFn`` with the global counts that its policy worker hands it."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from benchmarks.conformance.adapter import Row, StandIn, Task
from benchmarks.conformance.adapters.stubs import bare, stub
from benchmarks.conformance.adapters.torch_ranks import MicroBatch, accumulated, start_ranks
from benchmarks.conformance.batch import CUTS, GROUP_SIZE, REWARDS, Batch, Floats

sys.path.insert(0, os.environ["CONFORMANCE_CHECKOUT"])
bare("nemo_rl", "nemo_rl.algorithms", "nemo_rl.algorithms.loss")  # theirs set up clusters and other losses
for package in ("data", "models", "models.dtensor", "utils", "distributed", "algorithms.x_token"):
    stub(f"nemo_rl.{package}", __path__=[])
stub("nemo_rl.data.chat_templates", COMMON_CHAT_TEMPLATES=None)
stub("nemo_rl.models.policy", TokenizerConfig=None)
stub("nemo_rl.utils.fastokens", maybe_patch_fastokens=None)
stub("nemo_rl.utils.logger", Logger=None)
stub("nemo_rl.distributed.batched_data_dict", BatchedDataDict=dict)
stub("nemo_rl.models.dtensor.parallelize", to_local_if_dtensor=None)
# The names that its other losses import.
stub(
    "nemo_rl.algorithms.x_token.loss_utils",
    LocalizedAlignment=object,
    build_exact_token_map=None,
    ce_label_mask=None,
    chunk_average_log_probs=None,
    get_sparse_projection_matrix=None,
    next_token_accuracy=None,
    project_student_to_teacher_vocab=None,
    select_teacher_topk_indices=None,
    slice_sparse_projection_cols=None,
    student_next_token_ce=None,
    valid_chunk_mask=None,
)
stub(
    "nemo_rl.distributed.model_utils",
    DistributedCrossEntropy=object,
    cp_shift_next=None,
    group_all_reduce_sum=None,
    vocab_parallel_full_log_softmax=None,
    vocab_parallel_gather_columns=None,
    vocab_parallel_log_softmax=None,
)

from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossConfig, ClippedPGLossFn  # noqa: E402

sys.modules["nemo_rl.algorithms.loss"].ClippedPGLossConfig = ClippedPGLossConfig  # type: ignore[attr-defined]
from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig, GDPOAdvantageEstimator  # noqa: E402

TITLE = "NeMo-RL"
BESIDE = ("torch",)
SOURCES = (
    "nemo_rl/algorithms/loss/loss_functions.py",
    "nemo_rl/algorithms/utils.py",
    "nemo_rl/algorithms/advantage_estimator.py",
    "nemo_rl/models/policy/workers/dtensor_policy_worker.py",
)
HAS_K3_LOSS = True
_WORKER = "nemo_rl/models/policy/workers/dtensor_policy_worker.py"
STAND_INS = (
    StandIn(
        _WORKER,
        "global_valid_seqs, global_valid_toks = to_reduce[0], to_reduce[1]",
        "responses and tokens of the mini-batch, summed over ranks by gloo",
    ),
    StandIn(_WORKER, "loss *= self.dp_size * self.cp_size", "the same"),
    StandIn(_WORKER, "loss.backward()", "loss.backward()"),
)
CUTS = tuple(CUTS)
NO_MODE = {"dr_grpo": "no mode divides by a constant"}
_MASKED = "a response is masked out by `sample_mask`, which takes it from B"
ROWS = (
    Row(
        "grpo",
        "token_level_loss=false",
        {"token_level_loss": False},
        f"{_MASKED}; its KL has a score-function term, on purpose (arXiv 2506.09477)",
    ),
    Row("dapo", "token_level_loss=true (default)"),
    Row(
        "gspo",
        "sequence_level_importance_ratios=true, token_level_loss=false",
        {"sequence_level_importance_ratios": True, "token_level_loss": False},
        _MASKED,
    ),
    Row("cispo", "use_cispo=true", {"use_cispo": True}),
)


ESTIMATORS = (
    Row(
        "gdpo",
        "grpo.adv_estimator.name=gdpo, use_leave_one_out_baseline=false",
        {"use_leave_one_out_baseline": False},
    ),
    Row(
        "gdpo",
        "grpo.adv_estimator.name=gdpo, use_leave_one_out_baseline=true (default)",
        {"use_leave_one_out_baseline": True},
        "mean and standard deviation of a group are those of the other responses",
    ),
)


def advantages(row: Row, batch: Batch) -> Floats:
    estimator = GDPOAdvantageEstimator(AdvEstimatorConfig(**row.options), ClippedPGLossConfig())
    first, second = torch.tensor(REWARDS, dtype=torch.float32).T
    found = estimator.compute_advantage(
        torch.arange(len(batch)).unsqueeze(1) // GROUP_SIZE,
        first + second,
        torch.tensor(batch.mask),
        {"reward/first": first, "reward/second": second},
    )
    return found[:, 0].numpy()


def gradient(task: Task) -> Floats:
    start_ranks()
    config = ClippedPGLossConfig(
        ratio_clip_min=task.clip_low,
        ratio_clip_max=task.clip_high,
        reference_policy_kl_penalty=task.kl_coef,
        **task.row.options,
    )
    loss_fn = ClippedPGLossFn(config)

    def run(parts: list[MicroBatch]) -> None:
        counts = sum(torch.stack([part.mask.any(1).sum(), part.mask.sum()]) for part in parts)
        dist.all_reduce(counts)
        for part in parts:
            loss, _ = loss_fn(part.log_prob, _data(part), *counts)
            (loss * task.world_size).backward()

    return accumulated(task, run, trim=True)


def _data(part: MicroBatch) -> dict[str, torch.Tensor]:
    """Shift as the worker's data are: position 0 is the prompt's, which predicts the first token."""

    def shifted(values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(values, (1, 0))

    return {
        "token_mask": shifted(part.mask),
        "sample_mask": part.mask.any(1).to(part.mask.dtype),
        "advantages": shifted(part.advantages),
        "prev_logprobs": shifted(part.old_log_prob),
        "generation_logprobs": shifted(part.old_log_prob),
        "reference_policy_logprobs": shifted(part.ref_log_prob),
    }

"""ms-swift: ``_compute_loss_and_metrics`` of its GRPO trainer, through Hugging Face's ``training_step``."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from transformers.trainer_callback import TrainerState
from transformers.training_args import OptimizerNames

from benchmarks.conformance.adapter import Row, StandIn, Task
from benchmarks.conformance.adapters.stubs import bare, stub
from benchmarks.conformance.adapters.torch_ranks import MicroBatch, accumulated, start_ranks
from benchmarks.conformance.batch import EQUAL_CUTS, Floats


def _nothing(*names: str) -> dict[str, None]:
    return dict.fromkeys(names)


# Its other packages load models, templates and data sets; the names are those that the trainer imports.
bare("swift")
for package in ("rlhf_trainers", "rl_core"):
    bare(f"swift.{package}")
for package in ("infer_engine", "dataset.preprocessor"):
    stub(f"swift.{package}", __path__=[])
stub("dacite", from_dict=None)
stub("swift.infer_engine.protocol", RolloutOutput=None)
stub("swift.dataset", __path__=[], RowPreprocessor=None)
stub("swift.dataset.preprocessor.core", _pair_keys=())
stub("swift.rewards", orms=None, rm_plugins=None)
stub("swift.sequence_parallel", GatherLoss=None, sequence_parallel=None)
stub("swift.template", Template=None, TemplateInputs=None, Messages=None)
stub("swift.trainers", SwiftMixin=type("SwiftMixin", (), {}), disable_gradient_checkpointing=None)
stub(
    "swift.utils",
    get_logger=lambda: None,
    is_swanlab_available=lambda: False,
    is_wandb_available=lambda: False,
    **_nothing("JsonlWriter", "get_cu_seqlens_from_position_ids", "nanstd", "remove_response", "seed_worker"),
    **_nothing("to_device", "unwrap_model_for_generation"),
)
stub("swift.rlhf_trainers.arguments", GRPOConfig=None)
stub(
    "swift.rlhf_trainers.gkd_helpers",
    **_nothing("assemble_teacher_completion_logprobs", "build_opsd_samples", "build_teacher_requests"),
    **_nothing("encode_teacher_view", "fetch_teacher_parsed_by_routing"),
    **_nothing("remap_teacher_logps_to_student_frame", "should_compute_local_teacher_logps"),
)
stub(
    "swift.rlhf_trainers.rollout_mixin",
    DataType=dict,
    RolloutTrainerMixin=type("RolloutTrainerMixin", (), {}),
    SyncRefModelCallback=None,
)
stub(
    "swift.rlhf_trainers.utils",
    profiling_decorator=lambda function: function,
    **_nothing("_ForwardRedirection", "collate_to_grpo_micro_batch", "compute_chord_loss", "encode_sample"),
    **_nothing("get_even_process_data", "identity_data_collator", "load_pil_img", "make_chord_sft_dataset"),
    **_nothing("pad_logps_back_to_batch", "patch_save_last_checkpoint", "profiling_context"),
    **_nothing("replace_assistant_response_with_ids", "swanlab_get_run", "entropy_from_logits"),
)

from swift.rl_core.data import GRPOBatch  # noqa: E402
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer  # noqa: E402

TITLE = "ms-swift"
DISTRIBUTION = "ms-swift"
BESIDE = ("torch", "trl", "transformers", "accelerate")
SOURCES = ("swift/rlhf_trainers/grpo_trainer.py",)
HAS_K3_LOSS = True
CUTS = EQUAL_CUTS
_TRAINER = "swift/rlhf_trainers/grpo_trainer.py"
STAND_INS = (
    StandIn(
        _TRAINER,
        "num_items_in_batch = total_lengths.sum()",
        "tokens of the mini-batch, summed over ranks by gloo",
    ),
    StandIn(
        _TRAINER,
        "per_token_logps, entropies = self._get_per_token_logps_and_entropies(",
        "the batch's log-probs",
    ),
)
NO_MODE: dict[str, str] = {}
BUG = Row("dapo", "loss_type=dapo", {"loss_type": "dapo"}, bug="modelscope/ms-swift#10117")
ROWS = (
    Row("grpo", "loss_type=grpo", {"loss_type": "grpo"}),
    Row("dapo", "loss_type=dapo", {"loss_type": "dapo"}),
    Row("dr_grpo", "loss_type=dr_grpo, max_completion_length=L", {"loss_type": "dr_grpo"}),
    Row(
        "gspo",
        "importance_sampling_level=sequence, loss_type=grpo",
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    Row("cispo", "loss_type=cispo", {"loss_type": "cispo"}, "epsilon_high is the clip itself, 1.5"),
    BUG,
)


def gradient(task: Task) -> Floats:
    start_ranks()

    def run(parts: list[MicroBatch]) -> None:
        num_items = sum(part.mask.sum() for part in parts)
        dist.all_reduce(num_items)
        trainer = _trainer(task, parts, num_items)
        for _ in parts:
            trainer.training_step(trainer.model, {}, None)

    return accumulated(task, run, trim=True)


def _trainer(task: Task, parts: list[MicroBatch], num_items: Tensor) -> GRPOTrainer:
    settings = {"importance_sampling_level": "token"} | task.row.options
    remaining = iter(parts)
    trainer = object.__new__(GRPOTrainer)
    vars(trainer).update(
        args=SimpleNamespace(
            async_generate=False,
            per_device_train_batch_size=len(task.batch),
            delta=None,
            log_entropy=False,
            steps_per_generation=len(parts),
            gradient_accumulation_steps=len(parts),
            report_to=[],
            torch_empty_cache_steps=None,
            optim=OptimizerNames.ADAMW_TORCH,
            n_gpu=1,
            past_index=-1,
        ),
        accelerator=Accelerator(cpu=True),
        state=TrainerState(),
        model=nn.Module(),
        template=SimpleNamespace(sequence_parallel_size=1, padding_free=True),
        optimizer=None,
        is_deepspeed_enabled=False,
        model_accepts_loss_kwargs=False,
        compute_loss_func=None,
        num_iterations=2,
        _step=len(parts),
        _current_train_step_time=0.0,
        current_gradient_accumulation_steps=len(parts),
        _buffered_inputs=[{"model_inputs": {}, "grpo_batch": _batch(part, num_items)} for part in parts],
        _get_per_token_logps_and_entropies=lambda *_, **__: (next(remaining).log_prob, None),
        _metrics={"train": defaultdict(list)},
        compute_entropy=False,
        overlong_filter=False,
        kl_in_reward=False,
        rollout_importance_sampling_mode=None,
        log_rollout_offpolicy_metrics=False,
        disable_rollout_importance_sampling=True,
        dynamic_num_samples=False,
        use_liger_loss=False,
        off_policy_sequence_mask_delta=None,
        sdar_loss_coef=0.0,
        chord_sft_iterator=None,
        _has_teacher=False,
        max_completion_length=task.max_response_length,
        beta=task.kl_coef,
        epsilon_low=task.clip_low,
        epsilon_high=task.clip_high + (settings["loss_type"] == "cispo"),
        **settings,
    )
    return trainer


def _batch(part: MicroBatch, num_items: Tensor) -> Any:
    return GRPOBatch(
        completion_mask=part.mask.bool(),
        truncated_mask=torch.zeros(len(part.lengths), dtype=torch.bool),
        seq_lengths=torch.tensor(part.lengths),
        old_per_token_logps=part.old_log_prob,
        ref_per_token_logps=part.ref_log_prob,
        advantages=part.advantages,
        num_items_in_batch=num_items,
    )

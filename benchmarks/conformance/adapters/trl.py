"""TRL: ``GRPOTrainer.training_step``, through Hugging Face's ``Trainer.training_step`` and accelerate's
backward.

The trainer is made without its ``__init__`` and gets the attributes below; any other one that it reads is an
error. ``num_iterations=2`` lets its own ``_prepare_inputs`` hand out the buffered micro-batches instead of
generating.
"""

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
from trl import GRPOConfig, GRPOTrainer

from benchmarks.conformance.adapter import Row, StandIn, Task
from benchmarks.conformance.adapters.torch_ranks import MicroBatch, accumulated, start_ranks
from benchmarks.conformance.batch import EQUAL_CUTS, GROUP_SIZE, REWARDS, Batch, Floats

TITLE = "TRL"
DISTRIBUTION = "trl"
BESIDE = ("torch", "transformers", "accelerate")
SOURCES = ("trl/trainer/grpo_trainer.py", "trl/trainer/base_trainer.py")
HAS_K3_LOSS = True
CUTS = EQUAL_CUTS
STAND_INS = (
    StandIn(
        "trl/trainer/grpo_trainer.py",
        "num_items_in_batch = self.accelerator.gather(loss_mask.sum()).sum()",
        "tokens of the mini-batch, summed over ranks by gloo, times the updates of a generation",
    ),
    StandIn(
        "trl/trainer/base_trainer.py",
        'self.compute_loss_func = "non-None value to disable scaling"',
        "the same, as transformers is older than 5.19",
    ),
)
NO_MODE: dict[str, str] = {}


def generations_of_16_steps(*, control: bool = False) -> Row:
    """Return the row of #6024: ``num_items_in_batch`` counts a generation, of which an update is a part."""
    return Row(
        "dapo",
        "loss_type=dapo, steps_per_generation=16",
        {"loss_type": "dapo", "steps_per_generation": 16},
        control=control,
        bug="huggingface/trl#6024",
    )


ROWS = (
    Row("grpo", "loss_type=grpo", {"loss_type": "grpo"}),
    Row("dapo", "loss_type=dapo (default)", {"loss_type": "dapo"}),
    Row("dapo", "loss_type=bnpo", {"loss_type": "bnpo"}, "the micro-batch's own tokens, by definition", True),
    Row("dr_grpo", "loss_type=dr_grpo, max_completion_length=L", {"loss_type": "dr_grpo"}),
    Row(
        "gspo",
        "importance_sampling_level=sequence, loss_type=grpo",
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    Row(
        "cispo",
        "loss_type=cispo",
        {"loss_type": "cispo"},
        "epsilon_high is the clip itself, 1.5; TRL advises 5.0",
    ),
    Row(
        "luspo",
        "loss_type=luspo, importance_sampling_level=sequence",
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    ),
    Row("vespo", "loss_type=vespo", {"loss_type": "vespo"}, "k and λ are TRL's defaults"),
    generations_of_16_steps(),
)


_DEFAULTS = GRPOConfig.__dataclass_fields__
_VESPO = {name: field.default for name, field in _DEFAULTS.items() if name.startswith("vespo_")}


class Policy(nn.Module):
    """Answers with the log-probs of the micro-batch that is next."""

    is_gradient_checkpointing = False

    def __init__(self, parts: list[MicroBatch]) -> None:
        super().__init__()
        self.parts = iter(parts)

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        log_prob = next(self.parts).log_prob
        assert input_ids.shape == (len(log_prob), log_prob.shape[1] + 1)
        return SimpleNamespace(log_probs=log_prob, entropy=torch.zeros_like(log_prob))


ESTIMATORS = (Row("gdpo", "multi_objective_aggregation=normalize_then_sum", note="ε is 1e-4"),)


def advantages(_: Row, batch: Batch) -> Floats:
    """Score one token for each response; ``_generate`` and ``_calculate_rewards`` have nothing to do."""
    start_ranks()
    one_each = [[0] for _ in range(len(batch))]
    names = ["first", "second"]
    trainer = object.__new__(GRPOTrainer)
    vars(trainer).update(
        args=SimpleNamespace(
            per_device_train_batch_size=len(batch),
            steps_per_generation=1,
            gradient_accumulation_steps=1,
            gradient_checkpointing_kwargs=None,
        ),
        accelerator=Accelerator(cpu=True),
        model=Policy([]),
        num_iterations=1,
        environment_factories=None,
        environments=None,
        tools=[],
        _generate=lambda _: (one_each, one_each, None, one_each, None, {}, None, None),
        _calculate_rewards=lambda *_: torch.tensor(REWARDS),
        _tokenizer=SimpleNamespace(pad_token_id=0),
        pad_to_multiple_of=None,
        mask_truncated_completions=False,
        use_vllm=False,
        beta=0.0,
        num_generations=GROUP_SIZE,
        multi_objective_aggregation="normalize_then_sum",
        reward_weights=torch.ones(len(names)),
        reward_funcs=names,
        reward_func_names=names,
        log_multimodal=False,
        _metrics={"train": defaultdict(list)},
        _logs={key: [] for key in ("prompt", "completion", "advantages")} | {"rewards": defaultdict(list)},
        _pending_extra_logs={},
        _pending_metrics={},
    )
    return trainer._generate_and_score_completions([{"prompt": ""}] * len(batch))["advantages"].numpy()


def gradient(task: Task, **older: Any) -> Floats:
    """Return the gradient; ``older``: attributes that an older trainer reads."""
    start_ranks()

    def run(parts: list[MicroBatch]) -> None:
        num_items = sum(part.mask.sum() for part in parts)
        dist.all_reduce(num_items)
        trainer = _trainer(task, parts, num_items)
        vars(trainer).update(older)
        for _ in parts:
            trainer.training_step(trainer.model, {}, None)

    return accumulated(task, run, trim=False)


def _trainer(task: Task, parts: list[MicroBatch], num_items: Tensor) -> GRPOTrainer:
    settings = {"importance_sampling_level": "token"} | task.row.options
    cispo = settings["loss_type"] == "cispo"
    steps_per_generation = settings.pop("steps_per_generation", len(parts))
    updates_per_generation = steps_per_generation // len(parts)
    inputs = [_inputs(part, num_items * updates_per_generation) for part in parts]
    trainer = object.__new__(GRPOTrainer)
    vars(trainer).update(
        args=SimpleNamespace(
            delta=None,
            **_VESPO,
            use_bias_correction_kl=False,
            steps_per_generation=steps_per_generation,
            gradient_accumulation_steps=len(parts),
            report_to=[],
            torch_empty_cache_steps=None,
            optim=OptimizerNames.ADAMW_TORCH,
            n_gpu=1,
            past_index=-1,
        ),
        accelerator=Accelerator(cpu=True),
        state=TrainerState(),
        model=Policy(parts),
        optimizer=None,
        is_deepspeed_enabled=False,
        model_accepts_loss_kwargs=False,
        compute_loss_func="non-None value to disable scaling",
        num_iterations=2,
        _step=len(parts),
        _current_train_step_time=0.0,
        current_gradient_accumulation_steps=len(parts),
        _buffered_inputs=inputs * updates_per_generation,
        _metrics={"train": defaultdict(list)},
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        max_completion_length=task.max_response_length,
        beta=task.kl_coef,
        epsilon_low=task.clip_low,
        epsilon_high=task.clip_high + cispo,
        **settings,
    )
    return trainer


def _inputs(part: MicroBatch, num_items: Tensor) -> dict[str, Tensor]:
    """One prompt token each; a token that a tool wrote is in TRL's ``tool_mask``."""
    rows, width = part.mask.shape
    return {
        "prompt_ids": torch.zeros(rows, 1, dtype=torch.int64),
        "prompt_mask": torch.ones(rows, 1, dtype=torch.int64),
        "completion_ids": torch.zeros(rows, width, dtype=torch.int64),
        "completion_mask": part.present,
        "tool_mask": part.mask,
        "advantages": part.advantages,
        "old_per_token_logps": part.old_log_prob,
        "ref_per_token_logps": part.ref_log_prob,
        "num_items_in_batch": num_items,
    }

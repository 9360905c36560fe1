"""OpenRLHF: ``iter_grad_accum_global_norm`` and ``ActorPPOTrainer.training_step``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.conformance.adapter import Row, StandIn, Task
from benchmarks.conformance.adapters.stubs import stub
from benchmarks.conformance.adapters.torch_ranks import MicroBatch, accumulated, start_ranks
from benchmarks.conformance.batch import EQUAL_CUTS, Floats

for module in (
    "deepspeed",
    "deepspeed.runtime",
    "deepspeed.runtime.zero",
    "flash_attn",
    "flash_attn.utils",
    "vllm",
):
    stub(module, __path__=[])  # none of them installs without CUDA; nothing of them is called
stub("deepspeed.runtime.zero.partition_parameters", ZeroParamStatus=None)
stub("vllm.inputs", TokensPrompt=None)
stub("vllm.utils", random_uuid=None)
stub("flash_attn.utils.distributed", all_gather=None)
stub("flash_attn.bert_padding", index_first_axis=None, pad_input=None, rearrange=None, unpad_input=None)

from openrlhf.models import PolicyLoss  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer  # noqa: E402
from openrlhf.utils.loss_utils import iter_grad_accum_global_norm  # noqa: E402

TITLE = "OpenRLHF"
DISTRIBUTION = "openrlhf"
BESIDE = ("torch", "transformers")
SOURCES = (
    "openrlhf/models/loss.py",
    "openrlhf/models/utils.py",
    "openrlhf/utils/loss_utils.py",
    "openrlhf/trainer/ray/ppo_actor.py",
)
HAS_K3_LOSS = True
STAND_INS = (
    StandIn(
        "openrlhf/utils/deepspeed/deepspeed.py",
        "model.backward(loss)",
        "(loss / gradient accumulation steps).backward(), which is DeepSpeed's",
    ),
)
CUTS = EQUAL_CUTS
NO_MODE = {"cispo": "no such loss"}
ROWS = (
    Row(
        "grpo",
        "actor.loss_agg_mode=seq-mean-token-mean",
        {"token_level_loss": False},
        "a masked response leaves B; the KL term is a token mean in both modes",
    ),
    Row("dapo", "actor.loss_agg_mode=token-mean (default)", {"token_level_loss": True}),
    Row(
        "dr_grpo",
        "advantage.estimator=dr_grpo, token-mean (default)",
        {"token_level_loss": True},
        "its estimator leaves out the std; no mode divides by a constant",
    ),
    Row(
        "gspo",
        "actor.policy_loss_type=gspo",
        {"policy_loss_type": "gspo"},
        "a masked response leaves B",
    ),
)


def gradient(task: Task) -> Floats:
    start_ranks()
    loss = PolicyLoss(clip_eps_low=task.clip_low, clip_eps_high=task.clip_high, **task.row.options)

    def run(parts: list[MicroBatch]) -> None:
        strategy = _strategy(task, len(parts))
        trainer = SimpleNamespace(
            args=strategy.args,
            strategy=strategy,
            actor_loss_fn=loss,
            aux_loss=False,
            ema_model=None,
            actor_optim=None,
        )
        trainer.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
        data = [(_experience(part), part) for part in parts]
        for step, ((experience, part), info) in enumerate(
            iter_grad_accum_global_norm(data, strategy, len(parts), lambda item: item[0].action_mask)
        ):
            trainer.actor = _Actor(part.log_prob)
            ActorPPOTrainer.training_step(trainer, experience, task.kl_coef, step, info)

    return accumulated(task, run, trim=True)


class _Actor:
    def __init__(self, log_prob: Tensor) -> None:
        self.log_prob = log_prob

    def train(self) -> None:
        """Nothing to do."""

    def __call__(self, *_: Any, **__: Any) -> tuple[Tensor, SimpleNamespace]:
        return self.log_prob, SimpleNamespace()


def _strategy(task: Task, accumulation_steps: int) -> SimpleNamespace:
    kl = SimpleNamespace(
        use_loss=task.kl_coef > 0, init_coef=task.kl_coef, estimator="k3", unbiased_gradient=False
    )
    return SimpleNamespace(
        args=SimpleNamespace(
            algo=SimpleNamespace(kl=kl),
            actor=SimpleNamespace(entropy_coef=None, aux_loss_coef=0.0),
            train=SimpleNamespace(dynamic_batch_enable=False),
        ),
        ring_attn_group=None,
        backward=lambda loss, _model, _optimizer: (loss / accumulation_steps).backward(),
        optimizer_step=lambda *_, **__: None,
        get_grad_norm=lambda _model: 0.0,
    )


def _experience(part: MicroBatch) -> Experience:
    return Experience(
        sequences=torch.zeros_like(part.mask, dtype=torch.int64),
        attention_mask=torch.ones_like(part.mask, dtype=torch.int64),
        action_mask=part.mask.bool(),
        action_log_probs=part.old_log_prob,
        base_action_log_probs=part.ref_log_prob,
        advantages=part.advantages,
        info={},
    )

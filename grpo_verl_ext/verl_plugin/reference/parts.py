"""Move the reference towards the policy, π_ref ← α π_θ + (1 − α) π_ref, and keep it in checkpoints.

Each rank works on its own shards, without communication: policy and reference are the same model, sharded in
the same way over the same ranks, by FSDP1 (``actor.strategy=fsdp``, verl's default) or FSDP2.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_torch_device

from grpo_verl_ext.algorithms import kl
from grpo_verl_ext.catalogue import ON_FSDP2
from grpo_verl_ext.verl_plugin.batch.fields import actor_folder, nested, were_sampled
from grpo_verl_ext.verl_plugin.config import Options

_KEY = "algorithm.grpo_ext.ref_model_sync_steps"
_FILE = "world_size_{}_rank_{}.pt"
_AS_THE_ACTOR = " ".join(
    f"'actor_rollout_ref.ref.fsdp_config.{key}=${{actor_rollout_ref.actor.fsdp_config.{key}}}'"
    for key in ("fsdp_size", "use_orig_params", "wrap_policy")
)


class ReferenceSyncTrainerMixin:
    """Log the KL to the reference by three estimators; refresh it every ``ref_model_sync_steps`` steps.

    Iterative GRPO, arXiv 2402.03300 Algorithm 1, sets π_ref ← π_θ between iterations (α = 1).
    """

    config: Any
    global_steps: int
    actor_rollout_wg: Any
    use_reference_policy: bool

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """Run verl's step and log the KL before its updates, by k1, k2 and k3, means over sampled tokens.

        Then refresh, so that a checkpoint of this step has the new reference.
        """
        batch = super().step(metrics, timing_raw)  # type: ignore[misc]  # verl's trainer is next
        options = Options.from_config(self.config.algorithm)
        if self.use_reference_policy and options.ref_kl_metrics:
            rows = nested(batch, "old_log_probs", "ref_log_prob", "response_mask", "extra_fields")
            sampled, mask = torch.tensor(were_sampled(batch, rows)), rows["response_mask"]
            if sampled.any():
                counts = mask.values() * sampled.repeat_interleave(mask.offsets().diff())
                means = kl.token_means(rows["old_log_probs"].values(), rows["ref_log_prob"].values(), counts)
                metrics.update({f"actor/ref_kl_{name}": mean.item() for name, mean in means.items()})
        if options.ref_model_sync_steps and self.global_steps % options.ref_model_sync_steps == 0:
            self.actor_rollout_wg.refresh_reference(options.ref_model_mixup_alpha)
        return batch

    def _save_checkpoint(self) -> None:
        """Save the reference beside the actor's shards, before verl's marker of a complete step."""
        if Options.from_config(self.config.algorithm).ref_model_sync_steps:
            self.actor_rollout_wg.save_reference(str(actor_folder(self) / "reference"))
        super()._save_checkpoint()  # type: ignore[misc]

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()  # type: ignore[misc]
        refreshes = Options.from_config(self.config.algorithm).ref_model_sync_steps
        if refreshes and self.global_steps > 0:
            self.actor_rollout_wg.load_reference(str(actor_folder(self) / "reference"))


class ReferenceSyncWorkerMixin:
    """Methods that synchronise the reference, for a worker that has both the actor and the reference."""

    actor: Any
    ref: Any

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]  # verl ships no types
    @torch.no_grad()
    def refresh_reference(self, mixup_alpha: float) -> None:
        """Set every parameter of the reference to α · policy + (1 − α) · reference; α = 1 copies bit for bit.

        The mixture is computed in single precision or better, then rounded to the reference's dtype. Either
        model may be offloaded.
        """
        shards, targets = _shards(self.ref.engine.module), _shards(self.actor.engine.module)
        _check_alike(shards, targets, "in the policy", _AS_THE_ACTOR)
        for name, shard in shards.items():
            target = targets[name]
            wide = torch.promote_types(torch.promote_types(shard.dtype, target.dtype), torch.float32)
            mixed = shard.to(wide)  # the shard itself, if it already has this dtype
            mixed.lerp_(target.to(shard.device, wide), mixup_alpha)
            shard.copy_(mixed)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def save_reference(self, folder: str) -> None:
        """Write this rank's shards of the reference to the folder, atomically."""
        shards = _shards(self.ref.engine.module)
        file = Path(folder, _FILE.format(dist.get_world_size(), dist.get_rank()))
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished")
        torch.save({name: shard.cpu() for name, shard in shards.items()}, unfinished)
        unfinished.rename(file)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def load_reference(self, folder: str) -> None:
        """Read this rank's shards of the reference; without them, this would be another run."""
        file = Path(folder, _FILE.format(dist.get_world_size(), dist.get_rank()))
        if not file.is_file():
            raise FileNotFoundError(
                f"{_KEY} is set, but without {file} there is no reference to resume with; valid is a "
                f"checkpoint of such a run on as many ranks. Type: trainer.resume_mode=disable, or ~{_KEY}"
            )
        shards = _shards(self.ref.engine.module)
        saved = torch.load(file, weights_only=True, mmap=True)
        _check_alike(shards, saved, f"in {file}", "trainer.resume_mode=disable")
        for name, shard in shards.items():
            shard.copy_(saved[name])


def _shards(module: nn.Module) -> dict[str, Tensor]:
    """Return this rank's shards by parameter; writing into the tensors changes the model.

    A forward pass leaves gathered copies behind, which the next one would read in the place of the shards, so
    these are freed first.
    """
    if isinstance(module, FullyShardedDataParallel):
        module.check_is_root()  # before its first forward pass FSDP1 makes here the shards that it will read
        for unit in FullyShardedDataParallel.fsdp_modules(module):
            # Private; the public `summon_full_params` would gather each unit in full precision.
            if (handle := unit._handle) is not None:
                handle.reshard(handle.uses_sharded_strategy)
    elif isinstance(module, FSDPModule):
        for each in module.modules():  # the method reshards one unit
            if isinstance(each, FSDPModule):
                each.reshard()
    else:
        raise ValueError(
            f"{_KEY} is set, but the model is a {type(module).__name__}, which the reference refresh "
            f"cannot read; valid are FSDP1's and FSDP2's. Type: {' '.join(ON_FSDP2)}, or ~{_KEY}"
        )
    get_torch_device().synchronize()  # verl 0.9.1 offloads to pinned memory without waiting for the copies
    return {
        name: (each.to_local() if isinstance(each, DTensor) else each).detach()
        for name, each in module.named_parameters()
    }


def _check_alike(shards: Mapping[str, Tensor], others: Mapping[str, Tensor], where: str, line: str) -> None:
    for name in {**shards, **others}:
        here, there = (tuple(s[name].shape) if name in s else "missing" for s in (shards, others))
        if here != there:
            raise ValueError(
                f"this rank's shard of {name} is {here} in the reference and {there} {where}; valid is the "
                f"same strategy, fsdp_size, use_orig_params and wrap_policy for both. Type: {line}"
            )

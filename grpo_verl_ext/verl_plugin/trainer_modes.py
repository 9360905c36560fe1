"""The trainer modes of this package, verl's with additions: ``trainer.v1.trainer_mode=grpo_ext_sync`` etc."""

from pkgutil import resolve_name
from typing import Any, ClassVar

import ray
from omegaconf import DictConfig, open_dict
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.engine_workers import ActorRolloutRefWorker

from grpo_verl_ext.verl_plugin.features import all_features
from grpo_verl_ext.verl_plugin.gvpo import GroupTrainingWorker, GvpoMixin
from grpo_verl_ext.verl_plugin.mini_batch.trainer import MiniBatchMixin
from grpo_verl_ext.verl_plugin.usage import PREFIX

_PARTS: Any = tuple(resolve_name(feature.trainer) for feature in all_features() if feature.trainer)
"""The parts of features in the trainer: classes on verl's trainer, each of which calls the next."""


class _GroupTrainer(GvpoMixin, MiniBatchMixin, *_PARTS):  # type: ignore[misc]  # known when they are imported
    """All additions to a trainer of verl, mixed in before its class."""

    worker_cls: ClassVar[type] = ActorRolloutRefWorker

    def __init__(self, config: DictConfig) -> None:
        # verl picks its replay buffer and section of settings by the name of its own mode.
        with open_dict(config):
            config.trainer.v1.trainer_mode = config.trainer.v1.trainer_mode.removeprefix(PREFIX)
        super().__init__(config)

    @classmethod
    def worker_with_parts(cls, config: DictConfig) -> type:
        """Return verl's worker class with our actor, and the parts of the features that a training uses."""
        used = (each.worker for each in all_features() if each.worker and each.used(config))
        ours = type(cls.worker_cls.__name__, (cls.worker_cls,), {"actor_worker_cls": GroupTrainingWorker})
        return type(ours.__name__, (*map(resolve_name, used), ours), {})

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        worker = self.worker_with_parts(self.config)
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef, Role.RefPolicy):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(worker)


@register_trainer("grpo_ext_sync")
class GroupTrainerSync(_GroupTrainer, PPOTrainerSync):  # type: ignore[misc]  # verl ships no types
    """verl's ``sync`` with the additions: rollout and training take turns."""


@register_trainer("grpo_ext_colocate_async")
class _GroupTrainerColocateAsync(_GroupTrainer, PPOTrainerColocateAsync):  # type: ignore[misc]
    """verl's ``colocate_async`` with the additions: unfinished responses continue in the next step."""


@register_trainer("grpo_ext_separate_async")
class _GroupTrainerSeparateAsync(_GroupTrainer, PPOTrainerSeparateAsync):  # type: ignore[misc]
    """verl's ``separate_async`` with the additions: the rollout runs on machines of its own."""

    worker_cls = DetachActorWorker

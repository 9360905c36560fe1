"""Patches of verl and TransferQueue where they have no hook, each with its reason.

A patch is applied only in the processes of a training that needs it. The driver writes the names of the
patches into the environment variable `PATCHES_VARIABLE` of the processes of a training (`driver`), and
each process reads it when it loads the plugin (`registration`).
"""

import functools
from collections.abc import Callable, Mapping
from sys import modules
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from grpo_verl_ext.utils.console import say
from grpo_verl_ext.verl_plugin.patches import watchdog


class _Patch(NamedTuple):
    """A function that changes a module right after its import, and what happens without it."""

    module: str
    apply: Callable[[Any], None]
    without: str


def _own_queue(interface: Any) -> None:
    """Make TransferQueue look up and create its controller in a namespace of this job.

    It is an actor with a fixed name in a fixed namespace, so a second training, another job, would silently
    join the queue of the first and take its samples, and the first to end would stop the queue. No setting
    changes this; ``ablate`` sets ``algorithm.grpo_ext.own_queue`` for the trainings that it submits.
    """
    ray, controller = interface.ray, interface.TransferQueueController
    job = ray.get_runtime_context  # not known before Ray is there
    interface.ray = ModuleType(ray.__name__)
    vars(interface.ray).update(
        vars(ray), get_actor=lambda name, namespace: ray.get_actor(name, f"{namespace}-{job().get_job_id()}")
    )
    interface.TransferQueueController = SimpleNamespace(
        options=lambda *, namespace, **others: controller.options(
            namespace=f"{namespace}-{job().get_job_id()}", **others
        )
    )


def _use_reports(trainer_base: Any) -> None:
    """Keep texts from the numbers of verl's validation, and groups of equal numbers from its updates.

    Its mean of a prompt's numbers ends at a text; its votes ask which texts ``pred`` are equal. Its filter of
    groups asks whether ``np.std`` is 0, which of six times 0.7 is 1.1e-16.
    """
    trainer, buffer = trainer_base.PPOTrainer, modules[trainer_base.ReplayBuffer.__module__]
    update, numpy = trainer._val_metrics_update, buffer.np

    @functools.wraps(update)
    def of_numbers(self: Any, sources: Any, uids: Any, reports: Any, *args: Any, **kwargs: Any) -> Any:
        reward, kept = self.config.reward, dict(reports)
        function = reward.custom_reward_function.path or reward.reward_manager.name
        for key, values in reports.items():
            if {isinstance(each, str) for each in values if each is not None} == {True, False}:
                left = "numbers become texts" if key == "pred" else "texts are left out"
                kept[key] = [None if isinstance(each, str) else each for each in values]
                if key == "pred":
                    kept[key] = [None if each is None else str(each) for each in values]
                say(f"warning: the reward function {function} reports numbers and texts as {key}; {left}")
        return update(self, sources, uids, kept, *args, **kwargs)

    trainer._val_metrics_update, own = of_numbers, ModuleType(numpy.__name__)
    vars(own).update(vars(numpy), std=lambda values: numpy.std(numpy.subtract(values, values[0])))
    vars(buffer)["np"] = own


PATCHES: Mapping[str, _Patch] = {
    "reports": _Patch(
        "verl.trainer.ppo.v1.trainer_base",
        _use_reports,
        "a text among a reward function's numbers ends the validation, and the filter keeps equal fractions",
    ),
    "lost_parts": _Patch(
        "verl.trainer.ppo.v1.trainer_base",
        watchdog.patch_trainer,
        "a training whose agent loop or reward process dies waits forever",
    ),
    "rewards": _Patch(
        "verl.experimental.reward_loop.reward_loop",
        watchdog.patch_reward_worker,
        "a training goes on without the responses for which its reward function fails",
    ),
    "engine_death": _Patch(
        "verl.workers.rollout.vllm_rollout.vllm_async_server",
        watchdog.patch_vllm_server,
        "a training whose vLLM engine dies waits forever",
    ),
    "own_queue": _Patch(
        "transfer_queue.interface", _own_queue, "two trainings that share a Ray cluster mix their samples"
    ),
}


def apply_or_warn(apply: Callable[[Any], None], name: str, without: str, module: ModuleType) -> None:
    """Patch the module, or print a warning where the target has moved: the training can run without it."""
    try:
        apply(module)
    except (AttributeError, ImportError) as error:
        say(
            f"warning: the patch {name} of {module.__name__} is not applied: this version differs from "
            f"the tested one ({error}); without it {without}"
        )

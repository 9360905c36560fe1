"""The section ``ray_kwargs.ray_init`` of a training with ``+platform=cpu``, made fit for the Ray it uses."""

from omegaconf import DictConfig, OmegaConf, open_dict

from grpo_verl_ext.utils.which_ray import OWN, WhichRay, by_address
from grpo_verl_ext.verl_plugin.cpu import forked_worker

SIZES = ("num_cpus", "num_gpus", "_system_config")
"""What the preset gives a Ray of its own; ``ray.init`` refuses them where it joins one."""
PYTHON = "runtime_env.py_executable"
"""What Ray runs to start a worker."""


def settle(config: DictConfig) -> WhichRay:
    """Write the address of a Ray of its own and how it starts workers; drop the sizes if another was given.

    Args:
        config: verl's; changed in place, in the driver, before verl calls ``ray.init``.
    """
    section = config.ray_kwargs.ray_init
    ray = by_address(section.get("address"))
    with open_dict(section):
        if ray.address == OWN:
            section.address = OWN
            if not OmegaConf.select(section, PYTHON):
                OmegaConf.update(section, PYTHON, forked_worker.command())
        else:
            for name in SIZES:
                section.pop(name, None)
    return ray

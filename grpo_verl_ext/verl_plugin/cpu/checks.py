"""Check that shared memory has room for the buffers through which weights travel to vLLM."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from grpo_verl_ext.utils.errors import Problem
from grpo_verl_ext.utils.keys import ROLLOUT, setting
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin.cpu.sizes import MEBI
from grpo_verl_ext.verl_plugin.features import Feature

_BUCKET = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
_SHARED_MEMORY = Path("/dev/shm")


def _advise_shared_memory(config: DictConfig) -> Iterator[Problem]:
    """Warn if /dev/shm is too small for the weight buffers; writing beyond its end is a bare "bus error"."""
    bucket, ranks = setting(config, _BUCKET), config.trainer.n_gpus_per_node
    if config.trainer.device != "cpu" or not is_count(bucket) or not _SHARED_MEMORY.exists():
        return
    there, needed = shutil.disk_usage(_SHARED_MEMORY).total, bucket * ranks
    if there < needed * MEBI:
        size = f"size={2 * needed}m"
        yield Problem(
            _BUCKET,
            bucket,
            seen=f"{_BUCKET} is {bucket} for each of {ranks} ranks",
            why=f"{_SHARED_MEMORY}, through which the weights travel, has {there // MEBI} MiB here",
            valid=f"a size ≥ {needed} MiB",
            fix=f"mount -o remount,{size} {_SHARED_MEMORY}, or docker run --shm-{size} …",
        )


_CPU = Feature(advice={"cpu-shared-memory": _advise_shared_memory})

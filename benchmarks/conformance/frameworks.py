"""Every framework of the table and its pinned environment."""

from __future__ import annotations

from dataclasses import dataclass

BASE = ("torch==2.13.0", "verl==0.9.1", "filelock", "psutil", "rich", "typer", "wrapt")
"""verl's environment, which the others see behind their own packages; pins: constraints/cpu.txt."""


@dataclass(frozen=True)
class Framework:
    """A framework that the command runs.

    Attributes:
        version: that was tested; of a checkout, the commit.
        packages: pip requirements, installed without their dependencies; empty for one that runs in the base.
        repository: of one that runs from a user's checkout: ``--checkout NAME=PATH``.
        world_sizes: numbers of ranks; one process where ranks are shards of the same array.
    """

    version: str
    packages: tuple[str, ...] = ()
    repository: str = ""
    world_sizes: tuple[int, ...] = (1, 2)


FRAMEWORKS = {
    "grpo_verl_ext": Framework("0.9.1"),
    "verl": Framework("0.9.1"),
    "trl": Framework("1.16.0", ("trl==1.16.0",)),
    "trl_before_6024": Framework("1.9.0", ("trl==1.9.0",)),
    "ms_swift": Framework("4.6.0", ("ms-swift==4.6.0", "trl==0.29.1")),
    "ms_swift_before_10117": Framework("4.5.3", ("ms-swift==4.5.3", "trl==0.29.1")),
    "skyrl": Framework(
        "0.3.0", ("skyrl==0.3.0", "jaxtyping==0.3.11", "loguru==0.7.3", "wadler-lindig==0.1.8")
    ),
    "openrlhf": Framework("0.11.2", ("openrlhf==0.11.2",)),
    "areal": Framework(
        "1.0.4",
        (
            *("areal==1.0.4", "aiofiles==25.1.0", "colorlog==6.12.0", "einops==0.8.2", "lark==1.3.1"),
            *("llvmlite==0.47.0", "numba==0.65.0", "tabulate==0.10.0", "tenacity==9.2.1", "uvloop==0.23.0"),
        ),
    ),
    "tunix": Framework(
        "0.1.7",
        (
            *("google-tunix==0.1.7", "jax==0.10.2", "jaxlib==0.10.2", "flax==0.12.8", "optax==0.2.8"),
            *(
                "etils==1.15.0",
                "humanize==4.17.0",
                "jaxtyping==0.3.11",
                "ml_dtypes==0.6.0",
                "opt_einsum==3.4.0",
            ),
            *("orbax-checkpoint==0.12.8", "scipy==1.17.1", "simplejson==4.3.0", "tensorstore==0.1.86"),
            *("treescope==0.1.10", "wadler-lindig==0.1.8", "aiofiles==25.1.0", "uvloop==0.23.0"),
        ),
        world_sizes=(1,),
    ),
    "nemo_rl": Framework("7ea279a", repository="NVIDIA-NeMo/RL"),
    "prime_rl": Framework(
        "559b447",
        ("beartype==0.22.9", "jaxtyping==0.3.11", "wadler-lindig==0.1.8"),
        repository="PrimeIntellect-ai/prime-rl",
    ),
}
"""Adapter → framework, in the order of the table; the only place where a version stands."""

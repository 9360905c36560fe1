"""Test that a training that uses nothing of the package runs as if it were not installed.

Each process of such a training is compared, in fresh processes, with and without the package's entry point:
functions in verl's modules, threads, platform, environment.
"""

import json
import os
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import ray
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from processes import run_forked
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

from grpo_verl_ext import driver
from grpo_verl_ext.utils.keys import LOSS
from grpo_verl_ext.verl_plugin import patches, usage
from grpo_verl_ext.verl_plugin.compose import composed

VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"
HOOK = {
    "verl.utils.config.validate_config",
    "verl.trainer.main_ppo.validate_config",
    "verl.trainer.main_ppo.run_ppo",
}
"""Where the driver asks: verl's validation, by both its names, and the start of a training."""
PROCESSES = {
    "driver": ["verl.utils.config", "verl.trainer.main_ppo", "verl.utils.distributed", "verl.utils.model"],
    # What the trainer's, the workers' and the vLLM servers' processes import, all in one.
    "actor": [
        *("verl.trainer.ppo.v1.trainer_base", "verl.trainer.ppo.v1", "transfer_queue.interface"),
        *("verl.workers.engine_workers", "verl.workers.engine.fsdp.transformer_impl"),
        "verl.workers.rollout.vllm_rollout.vllm_async_server",
    ],
}
"""The modules in which this package has ever changed anything, by the process that imports them."""


def seen(modules: list[str], **environment: str) -> dict[str, Any]:
    """What a process looks like that has these variables and no others of verl's or ours."""
    others = dict.fromkeys(name for name in os.environ if name.startswith(("VERL_", "GRPO_")))
    code = f"import json, process_snapshot; print(json.dumps(process_snapshot.snapshot({modules!r})))"
    finished = run_forked(code, **others | environment)
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("process", ["driver", pytest.param("actor", marks=pytest.mark.ci)])
def test_a_process_looks_the_same_with_and_without_the_package(process: str) -> None:
    modules = PROCESSES[process]
    without, installed = seen(modules, VERL_USE_EXTERNAL_PLUGINS="none"), seen(modules)
    changed = {
        name
        for name, origin in (installed.pop("attributes").items() - without.pop("attributes").items())
        if "grpo_verl_ext" in origin or name not in HOOK
    }
    assert changed <= HOOK, changed
    assert installed.pop("finders")[1:] == without.pop("finders"), "wrapt's finder waits for verl's imports"
    assert installed == without
    assert installed["vllm"] == "CpuPlatform"


class TestAsked:
    """The same processes in a training that asks: the test above can see a patch, a platform, a variable."""

    @pytest.mark.ci
    def test_patches(self) -> None:
        found = seen(PROCESSES["actor"], GRPO_VERL_EXT_PATCHES=",".join(patches.PATCHES))["attributes"]
        fit = found["verl.trainer.ppo.v1.trainer_base.PPOTrainer.fit"]
        assert "contextlib.py" in fit, "inside `watchdog.watched`"
        assert found["transfer_queue.interface.TransferQueueController"] == "types.SimpleNamespace"
        server = "verl.workers.rollout.vllm_rollout.vllm_async_server.vLLMHttpServer.run_server"
        assert "watchdog.py" in found[server]

    def test_platform(self) -> None:
        assert seen([], VERL_PLATFORM="cpu")["platform"] == "PlatformCPU"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the driver's steps that were taken."""
    taken: list[str] = []
    for name in ("_choose_platform", "_refuse_or_warn", "_set_variables"):
        monkeypatch.setattr(driver, name, lambda *_, name=name: taken.append(name))
    return taken


class TestDriver:
    @pytest.mark.parametrize(
        "overrides",
        [
            [],
            ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=5"],
            ["actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm"],
            ["reward.reward_manager.name=dapo", "trainer.v1.trainer_mode=colocate_async"],
            ["actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent", "trainer.use_v1=false"],
            ["+task.name=math", "+task.folder=/mine"],
            ["algorithm.adv_estimator=my_own", f"{LOSS}=my_own"],
            [f"{LOSS}=my_grpo", "actor_rollout_ref.model.external_lib=my_losses"],
            ["algorithm.adv_estimator=grpo_custom", f"+{VARIABLES}.VERL_USE_EXTERNAL_MODULES=my_estimators"],
            ["trainer.project_name=gvpo", f"+{VARIABLES}.VERL_PLATFORM=nvidia"],
        ],
    )
    def test_a_training_of_verl_alone_is_not_looked_at(self, overrides: list[str], calls: list[str]) -> None:
        config = composed(overrides)
        before = OmegaConf.to_yaml(config)
        assert list(usage.used_settings(config)) == []
        validated(config, calls)
        assert calls == ["verl"]
        assert OmegaConf.to_yaml(config) == before

    def test_a_loss_that_the_package_made_of_a_users_function_is_the_packages(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may need a trainer mode of the package, which is checked before a rollout."""

        def mine(**_: object) -> None: ...

        setattr(mine, usage.RECORD, object())
        monkeypatch.setitem(POLICY_LOSS_REGISTRY, "mine", mine)
        key = "actor_rollout_ref.actor.policy_loss.loss_mode=mine"
        assert list(usage.used_settings(composed([key]))) == [key]

    @pytest.mark.parametrize(
        ("override", "by"),
        [
            ("algorithm.adv_estimator=dr_grpo", ""),
            ("actor_rollout_ref.actor.policy_loss.loss_mode=dapo", ""),
            ("trainer.v1.trainer_mode=grpo_ext_sync", ""),
            ("actor_rollout_ref.rollout.agent.default_agent_loop=grpo_ext_tool_agent", ""),
            ("reward.reward_manager.name=rule_and_model", ""),
            ("reward.custom_reward_function.path=pkg://grpo_verl_ext.rewards.weighted_sum", ""),
            ("+algorithm.grpo_ext.ref_model_sync_steps=5", "algorithm.grpo_ext"),
            ("+algo=ppo", "algorithm.grpo_ext"),
            ("+task=gsm8k", "task.package=grpo_verl_ext"),
            ("trainer.v1.trainer_mode=grpo_ext_synk", ""),
            ("algorithm.adv_estimator=gvop", ""),
            ("actor_rollout_ref.actor.policy_loss.loss_mode=dapoo", ""),
            ("+platform=cpu", "VERL_PLATFORM=cpu"),
        ],
    )
    def test_one_that_names_something_of_ours_is(self, override: str, by: str, calls: list[str]) -> None:
        config = composed([override])
        assert (by or override) in list(usage.used_settings(config))
        validated(config, calls)
        assert calls == ["_choose_platform", "_refuse_or_warn", "_set_variables", "verl"]

    @pytest.mark.parametrize(
        ("module", "steps"),
        [
            ("verl.trainer.main_ppo", ["_choose_platform", "_refuse_or_warn", "_set_variables", "verl"]),
            ("their_package.runner", ["verl"]),
        ],
    )
    def test_a_task_runner_of_anothers_may_know_a_name_like_ours(
        self, module: str, steps: list[str], calls: list[str]
    ) -> None:
        main_ppo = SimpleNamespace(run_ppo=lambda *_, **__: calls.append("verl"))
        driver._patch("run_ppo", main_ppo)
        runner = type("Runner", (), {"__module__": module})
        main_ppo.run_ppo(composed(["algorithm.adv_estimator=gvpo2"]), task_runner_class=runner)
        assert calls == steps

    @pytest.mark.parametrize(
        ("mode", "number", "left"),
        [("MULTIRUN", 1, 1), ("MULTIRUN", 0, 0), ("RUN", 1, 0), (None, 1, 0)],
        ids=str,
    )
    def test_of_hydras_multirun_the_ray_of_the_training_before_is_left(
        self, mode: str | None, number: int, left: int, calls: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ended: list[str] = []
        monkeypatch.setattr(ray, "shutdown", lambda: ended.append("ray"))
        hydra = OmegaConf.create({"hydra": {"mode": mode, "job": {"num": number}}})
        if mode is not None:
            hydra.hydra.mode = RunMode[mode]
            monkeypatch.setattr(HydraConfig.instance(), "cfg", hydra)
        validated(composed(["algorithm.adv_estimator=dr_grpo"]), calls)
        assert len(ended) == left


def validated(config: DictConfig, calls: list[str]) -> None:
    """Through the driver's hook, with a stand-in for verl's own validation behind it."""
    module = SimpleNamespace(validate_config=lambda _config: calls.append("verl"))
    driver._patch("validate_config", module)
    module.validate_config(config)


class TestHandOn:
    """What a training's processes have to know goes into Ray's runtime environment."""

    def test_the_patches_and_the_platform(self) -> None:
        assert variables("+algo=gvpo", "+platform=cpu") == {
            "VERL_PLATFORM": "cpu",
            "GRPO_VERL_EXT_PATCHES": "rewards,reports,lost_parts,engine_death",
        }

    def test_a_training_is_prepared_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Its configuration passes both of verl's functions where somebody imports verl's main."""
        old = ["custom_reward_function.path=never_read.py", "+algorithm.grpo_ext.watch=false"]
        config = composed(["+algo=grpo", "actor_rollout_ref.rollout.n=4", *old])
        driver._prepare_training(config)
        assert "never_read.py" in capsys.readouterr().err
        driver._prepare_training(config)
        assert capsys.readouterr().err == ""

    def test_a_platform_that_only_the_environment_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VERL_PLATFORM", "cpu")
        assert variables("algorithm.adv_estimator=gae")["VERL_PLATFORM"] == "cpu"

    def test_the_watch_can_be_turned_off_and_the_own_queue_on(self) -> None:
        options = ["+algorithm.grpo_ext.watch=false", "+algorithm.grpo_ext.own_queue=true"]
        assert variables("+algo=grpo", *options) == {"GRPO_VERL_EXT_PATCHES": "rewards,reports,own_queue"}

    def test_what_the_job_has_set_is_left_to_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ray refuses a variable that is set twice, even to the same value."""
        job = {"runtime_env": {"env_vars": {"VERL_PLATFORM": "cpu"}}}
        monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
        found = variables("+algo=grpo", "+platform=cpu")
        assert found == {"GRPO_VERL_EXT_PATCHES": "rewards,reports,lost_parts,engine_death"}


def variables(*words: str) -> dict[str, str]:
    """What the driver adds to the environment of a training's processes."""
    config = composed(words)
    driver._set_variables(config)
    return dict(config.ray_kwargs.ray_init.runtime_env.env_vars)


@pytest.mark.parametrize("name", patches.PATCHES)
def test_a_patch_whose_target_has_moved_is_one_warning(name: str) -> None:
    """The module is there, and has nothing of what the patch looks for."""
    patch = patches.PATCHES[name]
    moved = ModuleType(patch.module)
    with redirect_stderr(StringIO()) as said:
        patches.apply_or_warn(patch.apply, name, patch.without, moved)
    (line,) = said.getvalue().splitlines()
    assert line.startswith(f"grpo_verl_ext: warning: the patch {name} of {patch.module} is not applied")
    assert line.endswith(patch.without)
    assert not set(vars(moved)) - set(vars(ModuleType("empty")))

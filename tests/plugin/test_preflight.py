"""Bad input is refused in one message, in the driver, before Ray starts."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from processes import Python
from safetensors.torch import save_file

from grpo_verl_ext.verl_plugin import driver, preflight


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    save_file({"weight": torch.zeros(2)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "train.parquet"
    pandas.DataFrame({"prompt": ["1+1=?"]}).to_parquet(file)
    return file


Config = Callable[..., DictConfig]


@pytest.fixture
def config(model: Path, data: Path) -> Config:
    def made(**changes: object) -> DictConfig:
        whole = OmegaConf.create(
            {
                "algorithm": {"adv_estimator": "gae"},
                "trainer": {"device": "cpu"},
                "reward": {"custom_reward_function": {"path": None}},
                "data": {"train_files": str(data), "val_files": [str(data)]},
                "actor_rollout_ref": {
                    "model": {"path": str(model)},
                    "rollout": {"name": "vllm"},
                    "actor": {"policy_loss": {"loss_mode": "vanilla"}},
                },
            }
        )
        for key, value in changes.items():
            OmegaConf.update(whole, key.replace("__", "."), value)
        return whole

    return made


def refusal(config: DictConfig) -> str:
    with pytest.raises(ValueError, match=r"Type: |[Mm]ake it again|type:? ") as refused:
        preflight.check(config)
    return str(refused.value)


def test_a_good_configuration_passes(config: Config) -> None:
    assert preflight.check(config()) is None


class TestData:
    def test_a_missing_file(self, config: Config) -> None:
        message = refusal(config(data__train_files="/nowhere/train.parquet"))
        assert message == (
            "data.train_files names /nowhere/train.parquet, which is not a file. "
            "Type: data.train_files=<existing .parquet file>"
        )

    def test_a_corrupt_file_is_named_and_left_in_place(self, config: Config, tmp_path: Path) -> None:
        corrupt = tmp_path / "half.parquet"
        corrupt.write_bytes(b"PAR1 and no more")
        message = refusal(config(data__val_files=[str(corrupt)]))
        assert message.startswith(f"data.val_files names {corrupt}, which is not a readable parquet file")
        assert "left in place" in message
        assert corrupt.read_bytes() == b"PAR1 and no more"

    def test_a_remote_file_is_left_to_verl(self, config: Config) -> None:
        assert preflight.check(config(data__train_files="hdfs://host/train.parquet")) is None


class TestModel:
    def test_a_missing_folder(self, config: Config) -> None:
        message = refusal(config(actor_rollout_ref__model__path="/nowhere/model"))
        assert message == (
            "actor_rollout_ref.model.path is /nowhere/model, but there is no /nowhere/model/config.json. "
            "Type: actor_rollout_ref.model.path=<folder of a Hugging Face model>"
        )

    def test_a_corrupt_config(self, config: Config, model: Path) -> None:
        (model / "config.json").write_text("{half")
        assert f"{model / 'config.json'} is not valid JSON" in refusal(config())

    def test_cut_weights(self, config: Config, model: Path) -> None:
        weights = model / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[: len(whole) // 2])
        assert f"{weights} is not a readable safetensors file" in refusal(config())
        assert weights.read_bytes() == whole[: len(whole) // 2]

    def test_a_model_on_a_hub_is_left_to_verl(self, config: Config) -> None:
        assert preflight.check(config(actor_rollout_ref__model__path="Qwen/Qwen2.5-0.5B")) is None


class TestDevice:
    def test_cpu_preset_on_a_machine_with_an_accelerator(
        self, config: Config, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(preflight, "accelerator", lambda: "nvidia")
        monkeypatch.setattr(preflight, "is_cpu_chosen", lambda: False)
        assert refusal(config()) == (
            "trainer.device is cpu, but verl finds the accelerator platform 'nvidia' here. Leave out "
            "+platform=cpu to train on it, or hide it from verl. Type: VERL_PLATFORM=cpu python3 -m …"
        )

    def test_no_cpu_preset_on_a_machine_without_an_accelerator(self, config: Config) -> None:
        assert refusal(config(trainer__device="cuda")) == (
            "trainer.device is cuda, but verl finds no accelerator here. Type: +platform=cpu"
        )


def test_a_missing_vllm(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    assert refusal(config()) == (
        "actor_rollout_ref.rollout.name is vllm, but vLLM is not installed. "
        "Type: pip install 'grpo-verl-ext[cpu]'"
    )


def test_an_unprepared_task(config: Config, tmp_path: Path) -> None:
    whole = config()
    whole.task = {"name": "chain_sum", "folder": str(tmp_path / "seed-7")}
    message = refusal(whole)
    assert str(tmp_path / "seed-7") in message
    assert "grpo-verl-ext prepare chain_sum" in message


class TestSettings:
    def test_a_wrong_option_of_an_estimator(self, config: Config) -> None:
        message = refusal(
            config(algorithm={"adv_estimator": "grpo_outcome", "grpo_ext": {"scale_rewards": "std"}})
        )
        assert message.startswith("algorithm.grpo_ext.scale_rewards is 'std'; valid are group, batch, none.")

    def test_an_aggregation_against_the_loss(self, config: Config) -> None:
        actor = {"policy_loss": {"loss_mode": "grpo"}, "loss_agg_mode": "token-mean"}
        message = refusal(config(actor_rollout_ref__actor=actor))
        assert message.endswith("Type: actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean")

    def test_other_peoples_estimators_and_losses_are_none_of_our_business(self, config: Config) -> None:
        assert preflight.check(config(algorithm__adv_estimator="rloo")) is None


class TestRewards:
    def test_a_weight_that_names_no_reward(self, config: Config) -> None:
        reward = {
            "path": "pkg://grpo_verl_ext.rewards.weighted_sum",
            "reward_kwargs": {"weights": {"corectness": 1.0}},
        }
        message = refusal(config(reward__custom_reward_function=reward))
        assert "names 'corectness'; valid names are ['correctness', 'format', 'steps']" in message

    def test_somebody_elses_reward_is_left_to_verl(self, config: Config) -> None:
        reward = {"path": "/my/reward.py", "reward_kwargs": {"weights": "mine"}}
        assert preflight.check(config(reward__custom_reward_function=reward)) is None


class TestDriver:
    """The patch of verl's own check."""

    def test_ours_runs_first_and_verls_after_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[str] = []
        module = SimpleNamespace(validate_config=lambda config, **kwargs: calls.append(f"verl {kwargs}"))
        monkeypatch.setattr(preflight, "check", lambda config: calls.append("ours"))
        driver.patch(module)
        module.validate_config(OmegaConf.create(), use_critic=False)
        assert calls == ["ours", "verl {'use_critic': False}"]

    def test_a_refusal_is_one_message_on_stderr_and_no_traceback(self, python: Python) -> None:
        found = python(
            """
            import sys
            sys.argv = ["main_ppo", "+algo=grpo", "+platform=cpu", "data.train_files=/nowhere.parquet",
                        "hydra.run.dir=/tmp", "hydra.output_subdir=null", "hydra/job_logging=disabled"]
            from verl.trainer.main_ppo import main
            main()
            """
        )
        assert found.returncode == 1
        assert "grpo_verl_ext: data.train_files names /nowhere.parquet, which is not a file." in found.stderr
        assert "Traceback" not in found.stderr

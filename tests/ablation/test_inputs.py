"""Test the hashes of a run's record: of models, data, rewards and code of the user's."""

import hashlib
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from grpo_verl_ext.ablation.run import inputs_of


def test_models_and_data_on_this_machine(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "part").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "part" / "weights").write_bytes(b"12")
    (tmp_path / "train").write_bytes(b"abc")
    teachers = "distillation.teacher_models"
    config = OmegaConf.from_dotlist(
        [
            *(f"actor_rollout_ref.model.path={model}", f"reward.reward_model.model_path={model}"),
            *(f"data.train_files=[{tmp_path}/train,{tmp_path}/train]", "data.val_files=hdfs://elsewhere"),
            f"reward.custom_reward_function.path={tmp_path}/train",
            "algorithm.grpo_ext.gold_responses.files=${data.train_files}",
            *(f"{teachers}.teacher_model.model_path={model}", f"{teachers}.unused.model_path=null"),
        ]
    )
    # sha256sum of abc; of {} and 12; and of the two lines that sha256sum prints for the folder
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    lines = (
        "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a  config.json\n"
        "6b51d431df5d7f141cbececcf79edf3dd861c3b4069f0b11661a3eefacbba918  part/weights\n"
    )
    found, of_model = inputs_of(config), hashlib.sha256(lines.encode()).hexdigest()
    files = ("data.train_files", "algorithm.grpo_ext.gold_responses.files")
    models = ("actor_rollout_ref.model.path", "reward.reward_model.model_path")
    assert found == {
        **dict.fromkeys((*files, *(f"{key}[1]" for key in files), "reward.custom_reward_function.path"), abc),
        **dict.fromkeys((*models, f"{teachers}.teacher_model.model_path"), of_model),
    }
    (model / "part" / "weights").write_bytes(b"13")
    assert inputs_of(config)["actor_rollout_ref.model.path"] != found["actor_rollout_ref.model.path"]


def test_reward_models_and_code_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function or a loss is the file of its module, which is not imported."""
    for name in ("model", "by_file.py", "inputs_test_rewards.py", "inputs_test_losses.py"):
        (tmp_path / name).write_text("raise AssertionError\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "json, inputs_test_losses, not_installed")
    model = str(tmp_path / "model")
    of_files = (f"{tmp_path}/by_file.py:f", "inputs_test_rewards.f")
    models = ("algorithm.grpo_ext.reward_model.path", "critic.model.path")
    functions = "reward.custom_reward_function.reward_kwargs.weights"
    config = OmegaConf.from_dotlist([f"{key}={model}" for key in models])
    OmegaConf.update(config, functions, dict.fromkeys(("correctness", *of_files, "not_installed.f"), 0.5))
    found = inputs_of(config)
    modules = ("VERL_USE_EXTERNAL_MODULES", "VERL_USE_EXTERNAL_MODULES[1]")
    assert found.keys() == {*models, *(f"{functions}.{name}" for name in of_files), *modules}
    (tmp_path / "inputs_test_losses.py").write_text("x = 1\n")
    again = inputs_of(config)
    assert {key for key in found if again[key] != found[key]} == {"VERL_USE_EXTERNAL_MODULES[1]"}

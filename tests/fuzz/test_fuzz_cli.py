"""Fuzz the command line with any arguments and files: exit status 0, 1 or 2 and a message, no traceback.

Files are fuzzed more often in test_fuzz_readers.py; `prepare` and trainings are left out.
"""

import copy
import json
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

import pytest
from data_files import write_prompts
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from strategies import DEEP, as_json, fuzzing, json_files, texts, values
from test_fuzz_readers import GRID_OF_TWO, yaml_files
from typer.testing import CliRunner

from grpo_verl_ext import preflight
from grpo_verl_ext.cli import app
from grpo_verl_ext.preflight.tested_values import all_needs
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin.compose import composed

MODEL, REWARD_MODEL = "actor_rollout_ref.model.path", "algorithm.grpo_ext.reward_model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, and a model of 2048 positions."""
    folder = tmp_path_factory.mktemp("fuzz")
    write_prompts(folder / "train.parquet")
    (folder / "model").mkdir()
    return folder


def training(folder: Path) -> list[str]:
    files = [f"data.{name}={folder}/train.parquet" for name in ("train_files", "val_files")]
    return ["+algo=grpo", "+platform=cpu", f"{MODEL}={folder}/model", "actor_rollout_ref.rollout.n=4", *files]


@pytest.fixture(scope="module")
def config(folder: Path) -> DictConfig:
    whole = composed(training(folder))
    OmegaConf.set_struct(whole, False)
    return whole


def ends_with_a_word(*arguments: str) -> int:
    finished = CliRunner().invoke(app, list(arguments))
    assert finished.exception is None or isinstance(finished.exception, SystemExit), finished.exception
    assert finished.exit_code in (0, 1, 2)
    assert finished.output.strip()
    return finished.exit_code


@fuzzing(40)
@given(
    arguments=st.lists(
        st.sampled_from(["report", "ablate", "iterate", "plan", "invariance", "prepare", "--seed", "--help"])
        | st.sampled_from(["g.yaml", "--jobs", "--output", "nan", "-1", "/nowhere", "--json"])
        | texts,
        max_size=4,
    ).filter(lambda words: words[:1] not in (["doctor"], ["invariance"]) and "chain_sum" not in words)
)
@example(arguments=["ablate", "report", "\x00"])
@example(arguments=["ablate", "report", "."])
@example(arguments=["ablate", "\ud800.yaml"])
@example(arguments=["ablate", "plan", "\x00"])
@example(arguments=["iterate", "plan", "\x00"])
@example(arguments=["ablate", "plan", "."])
@example(arguments=["ablate", "run", "."])
@example(arguments=["iterate", "run", "\x00"])
def test_any_arguments(arguments: list[str]) -> None:
    ends_with_a_word(*arguments)


OF_ONE_SEED = GRID_OF_TWO | {"seeds": [1]}


@fuzzing(2)
@given(content=yaml_files(OF_ONE_SEED))
@example(content=as_json(OF_ONE_SEED))
@example(content=as_json(OF_ONE_SEED | {"base": ["trainer.nnodes=${nowhere}"]}))
@example(content=as_json(OF_ONE_SEED | {"base": ["=", ""]}))
@example(content=as_json(OF_ONE_SEED | {"folder": "a\0b"}))
@example(content=as_json(OF_ONE_SEED | {"steps": 10**30}))
def test_ablate(folder: Path, content: bytes) -> None:
    file = folder / "grid.yaml"
    file.write_bytes(content)
    ends_with_a_word("ablate", "plan", str(file))


OF_NO_ROW = """
actor_rollout_ref.actor.clip_ratio_c actor_rollout_ref.actor.kl_loss_type data.max_prompt_length
actor_rollout_ref.actor.policy_loss.gvpo_beta actor_rollout_ref.actor.ulysses_sequence_parallel_size
actor_rollout_ref.model.lora_rank actor_rollout_ref.model.path actor_rollout_ref.rollout.name
algorithm.grpo_ext.reward_model algorithm.grpo_ext.silence data.custom_cls data.max_response_length
data.train_files reward.custom_reward_function.path reward.custom_reward_function.reward_kwargs task
reward.reward_model trainer.device trainer.n_gpus_per_node trainer.nnodes
"""
OF_CHECKS = {*OF_NO_ROW.split(), *(row.key for _, rows in all_needs() for row in rows)}
KEYS = sorted({part for key in OF_CHECKS for part in accumulate(key.split("."), "{}.{}".format)})
NAMES = "gvpo dapo dr_grpo grpo_process grpo_ext_sync rule_and_model dapo_per_prompt ??? ${a}"
SETTINGS = values | st.sampled_from(NAMES.split())


def test_what_is_not_spoiled_passes(folder: Path, config: DictConfig) -> None:
    (folder / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    assert list(preflight.findings(config)) == []


def none_in_another(keys: Iterable[str]) -> bool:
    return not any(other.startswith(f"{key}.") for key in keys for other in keys)


def examined(config: DictConfig) -> None:
    try:
        found = list(preflight.findings(config))
    except OmegaConfBaseException as error:  # a value that cannot be resolved; the doctor says which
        assert str(error)
    else:
        assert all(str(each.problem) and each.check for each in found)
        json.dumps([str(each.problem.value) for each in found])


@fuzzing(40)
@given(
    changes=st.dictionaries(st.sampled_from(KEYS), SETTINGS, min_size=1, max_size=3).filter(none_in_another)
)
@example(changes={"data.max_prompt_length": "abc"})
@example(changes={"actor_rollout_ref.actor": 3})
@example(changes={"trainer.nnodes": None})
@example(changes={"actor_rollout_ref.actor.ulysses_sequence_parallel_size": None})
@example(changes={"data.train_files": 0})
@example(changes={"data.train_files": "~nobody/train.parquet"})
@example(changes={MODEL: "~nobody/model"})
@example(changes={"reward.reward_manager.name": "rule_and_model", REWARD_MODEL: {"path": "~nobody/model"}})
@example(changes={"algorithm": "gvpo"})
@example(changes={"algorithm.grpo_ext": "abc"})
@example(changes={"algorithm.grpo_ext.silence": 3})
@example(changes={"algorithm.grpo_ext.silence": [{}]})
def test_what_the_driver_checks(folder: Path, config: DictConfig, changes: dict[str, object]) -> None:
    (folder / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    changed = copy.deepcopy(config)
    for key, value in changes.items():
        try:
            OmegaConf.update(changed, key, value, merge=False)
        except OmegaConfBaseException:  # no configuration can hold it
            return
    examined(changed)


CONFIG_JSON = {"model_type": "qwen2", "max_position_embeddings": 2048, "rope_scaling": None}


@fuzzing(10)
@given(content=json_files(CONFIG_JSON))
@example(content=b"{")
@example(content=b"[]")
@example(content=DEEP)
@example(content=as_json(CONFIG_JSON | {"max_position_embeddings": "many"}))
def test_the_description_of_a_model(folder: Path, config: DictConfig, content: bytes) -> None:
    file = folder / "model" / "config.json"
    file.write_bytes(content)
    examined(config)
    try:
        preflight.check_training(config)
    except SettingError as error:
        assert error.key in str(error) or str(file) in str(error)
    assert file.read_bytes() == content


def test_the_doctor_of_a_broken_model_names_it_once(folder: Path) -> None:
    (folder / "model" / "config.json").write_text("{")
    finished = CliRunner().invoke(app, ["doctor", *training(folder)])
    assert finished.stdout.count("is not valid JSON of a model") == 1


@fuzzing(1)
@given(changes=st.lists(st.builds("{}={}".format, st.sampled_from(KEYS), texts) | texts, max_size=2))
@example(changes=["trainer.nnodes=${nowhere}"])
@example(changes=["data.max_prompt_length=abc"])
@example(changes=["trainer.nnodes=???"])
def test_doctor(folder: Path, changes: list[str]) -> None:
    (folder / "model" / "config.json").write_text("{}")
    ends_with_a_word("doctor", *training(folder), *changes)

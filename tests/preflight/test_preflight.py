"""Test that wrong settings are refused in one message, in the driver, before Ray starts."""

import copy
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from data_files import COUNT, write_prompts
from omegaconf import DictConfig, OmegaConf
from processes import Python

from grpo_verl_ext import driver, preflight
from grpo_verl_ext.catalogue.requires import OUR_MODES
from grpo_verl_ext.preflight import environment
from grpo_verl_ext.utils.errors import Finding, Problem, SettingError, Severity
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.config import Options


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "train.parquet"
    write_prompts(file)
    return file


Config = Callable[..., DictConfig]
MODES, ONES = ("sync", *OUR_MODES), torch.ones(2)
GROUP = ("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.n=8")


@pytest.fixture(scope="module")
def verls_own() -> DictConfig:
    words = ["trainer.device=cpu", "actor_rollout_ref.rollout.name=vllm", "+data.custom_cls.path=null"]
    whole = composed(words)
    OmegaConf.set_struct(whole, False)
    return whole


@pytest.fixture
def config(verls_own: DictConfig, model: Path, data: Path) -> Config:
    def made(**changes: object) -> DictConfig:
        whole = copy.deepcopy(verls_own)
        files = {"data.train_files": str(data), "data.val_files": [str(data)]}
        changed = {key.replace("__", "."): value for key, value in changes.items()}
        for key, value in ({"actor_rollout_ref.model.path": str(model)} | files | changed).items():
            OmegaConf.update(whole, key, value)
        return whole

    return made


def refusal(config: DictConfig) -> str:
    with pytest.raises(ValueError, match=r"Type: |[Mm]ake it again|type:? ") as refused:
        preflight.check_training(config)
    return str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm.adv_estimator": "rloo"},  # verl's
        {"reward.custom_reward_function": {"path": "/my/reward.py", "reward_kwargs": {"weights": "mine"}}},
        # There is no accelerator here, as on a login node.
        *({"trainer.device": device} for device in ("cpu", "cuda", "npu")),
        # a loss without groups
        *({"trainer.v1.trainer_mode": mode, "actor_rollout_ref.actor.shuffle": True} for mode in MODES),
    ],
    ids=str,
)
def test_what_is_right_or_none_of_our_business_passes(config: Config, changes: dict[str, object]) -> None:
    assert preflight.check_training(config(**changes)) is None


def advice(config: DictConfig, check: str) -> list[str]:
    """What one check warns of; it refuses nothing."""
    assert preflight.check_training(config) is None
    return [str(finding.problem) for finding in preflight.findings(config) if finding.check == check]


def told(config: DictConfig, check: str) -> list[str]:
    return [str(problem) for problem in preflight.ADVICE[check](config)]  # in a hundredth of the time


class TestFiles:
    """What is here and broken is named; what is not here may be where the workers are."""

    @pytest.mark.parametrize(
        ("key", "names", "is_local"),
        [
            ("data.train_files", "/nowhere/train.parquet", True),
            ("actor_rollout_ref.model.path", "~/nowhere/model", True),
            ("data.train_files", ["nowhere.parquet"], True),
            ("reward.custom_reward_function.path", "nowhere.py", True),
            # which are verl's to find
            ("data.train_files", "hdfs://host/train.parquet", False),
            ("actor_rollout_ref.model.path", "Qwen/Qwen2.5-0.5B", False),
            ("reward.custom_reward_function.path", "pkg://my_package.reward", False),
        ],
    )
    def test_a_path_that_is_not_here_may_be_where_the_workers_are(self, config, key, names, is_local) -> None:
        said = f"{key} is {names if isinstance(names, str) else names[0]}, but that is not on this machine"
        assert [each[: len(said)] for each in advice(config(**{key: names}), "files")] == [said] * is_local

    @pytest.mark.parametrize(
        ("name", "content", "said"),
        [
            ("half.parquet", b"PAR1 and no more", "is not a readable parquet file"),
            ("model/config.json", b"{half", "is not valid JSON"),
            ("model/config.json", b"[]", "is not valid JSON of a model (Input should be an object)"),
        ],
    )
    def test_a_corrupt_file_is_named_and_left_in_place(self, config, tmp_path, name, content, said) -> None:
        file = tmp_path / name
        file.write_bytes(content)
        files = [str(file)] if file.suffix == ".parquet" else []
        (message,) = advice(config(data__val_files=files), "files")
        assert str(file) in message
        assert said in message
        assert file.read_bytes() == content

    def test_a_data_set_of_the_users_own_may_be_anything(self, config: Config, tmp_path: Path) -> None:
        own = tmp_path / "own.parquet"
        own.write_bytes(b"not parquet at all")
        changes = {"data__val_files": [str(own)], "data__custom_cls__path": "pkg://my.dataset"}
        assert advice(config(**changes), "files") == []


class TestRows:
    """verl's loader and reward workers find out when Ray has started, or drop the rows without an end."""

    def test_fewer_prompts_than_a_step_takes(self, config: Config, data: Path) -> None:
        assert told(config(), "rows") == []
        larger: dict[str, object] = {"data__train_batch_size": COUNT + 1}
        (message,) = told(config(**larger), "rows")
        assert message.endswith("has 2048 prompts, and a step takes 2049. Type: data.train_batch_size=2048")
        assert told(config(**larger, data__train_files=[str(data)] * 2), "rows") == []
        assert "has 9 prompts" in told(config(data__train_max_samples=9), "rows")[0]

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"prompt": None}, "verl reads a column prompt in every row"),
            ({"prompt": "1+1=?"}, "its column prompt has "),
            ({"reward_model": None}, "verl reads a column reward_model in every row"),
        ],
    )
    def test_a_column_that_verl_reads(self, config, tmp_path, changes, said) -> None:
        write_prompts(file := tmp_path / "other.parquet", **changes)
        (message,) = told(config(data__val_files=str(file)), "rows")
        assert f"data.val_files is {file}, but {said}" in message
        own = {"reward__reward_manager__source": "importlib"}  # which reads what it likes
        assert len(told(config(data__val_files=str(file), **own), "rows")) == ("prompt" in changes)


SIZES: dict[str, object] = {
    "trainer__n_gpus_per_node": 6,
    "actor_rollout_ref__rollout__n": 4,
    "data__train_batch_size": 96,
    "actor_rollout_ref__actor__ppo_mini_batch_size": 24,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"ppo_mini_batch_size": 32}, "6 ranks cannot share its 128 responses; .* of 3. Type: {}=33"),
        ({"ppo_mini_batch_size": 32, "ulysses_sequence_parallel_size": 3}, ""),
        ({"ppo_mini_batch_size": 32, "strategy": "megatron"}, ""),  # which has ranks of other kinds
        ({"ppo_micro_batch_size_per_gpu": 6}, "a rank has 16 responses; .* divisor of 16. Type: {}=2, or "),
        ({"ppo_micro_batch_size_per_gpu": 6, "use_dynamic_bsz": True}, ""),
    ],
    ids=str,
)
def test_sizes_that_do_not_divide(config: Config, changes: dict[str, object], said: str) -> None:
    """verl's workers assert the same after a rollout: ``train_mini_batch``, ``prepare_micro_batches``."""
    actor = "actor_rollout_ref.actor"
    found = told(config(**SIZES, **{f"{actor}.{key}": value for key, value in changes.items()}), "sizes")
    assert len(found) == bool(said)
    assert all(re.search(said.format(f"{actor}.{next(iter(changes))}"), each) for each in found)


def test_sizes_of_passes_and_of_fetches(config: Config) -> None:
    rollout = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"
    assert told(config(**SIZES, **{rollout: 48}), "sizes") == []  # a critic may have other mini-batches
    (message,) = told(config(**SIZES, **{rollout: 48}, algorithm__adv_estimator="grpo"), "sizes")
    assert "a rank has 64 responses; valid is a divisor of 64" in message
    fetched = {"data__gen_batch_size": 36}
    (message,) = told(config(**SIZES, **fetched), "sizes")
    assert "this many prompts at a time, and a step has 96. Type: data.gen_batch_size=null" in message
    by_filter = {"algorithm__filter_groups": {"enable": True}}
    for singly in ({"trainer__v1__trainer_mode": "colocate_async"}, by_filter):
        assert told(config(**SIZES, **fetched, **singly), "sizes") == []
    assert advice(config(**SIZES, **fetched, trainer__val_only=True), "sizes") == []


class TestFolder:
    """verl resumes whatever checkpoints it finds, with their learning rate."""

    @pytest.fixture
    def begun(self, config: Config, data: Path, tmp_path: Path) -> dict[str, object]:
        """Changes that place a training into a folder with checkpoints."""
        place: dict[str, object] = {
            "trainer__default_local_dir": str(tmp_path / "runs"),
            "trainer__save_freq": 5,
            "data__train_files": str(data),
        }
        environment.note_training(config(**place))
        (tmp_path / "runs" / "latest_checkpointed_iteration.txt").write_text("5")
        return place

    def test_the_same_training_goes_on_with_whatever_its_preset_leaves_alone(self, config, begun) -> None:
        preflight.check_training(config(**begun, trainer__total_epochs=9))

    def test_another_loss_or_other_data_are_refused_with_both_lines(self, config, begun, data) -> None:
        message = refusal(config(**begun, algorithm__adv_estimator="rloo"))
        assert "another training's: algorithm.adv_estimator was gae, and is rloo here" in message
        assert "Type: 'trainer.default_local_dir=<another folder>', or to go on from there: ++" in message
        write_prompts(data, data_source="other sums")
        assert "another training's: data.train_files was " in refusal(config(**begun))
        for passing in ({"trainer__resume_mode": "disable"}, {"algorithm__grpo_ext__silence": ["folder"]}):
            preflight.check_training(config(**begun, **passing))

    def test_a_file_is_no_folder(self, config, data) -> None:
        for place in (data, data / "new"):
            message = refusal(config(trainer__default_local_dir=str(place)))
            assert message.startswith(f"trainer.default_local_dir is {place}, but it is a file, or in one;")
            assert message.endswith("valid is a folder. Type: 'trainer.default_local_dir=<another folder>'")

    def test_a_note_that_is_not_one_is_named_and_left(self, config, begun, tmp_path) -> None:
        (file := tmp_path / "runs" / "grpo_verl_ext.json").write_text("[")
        assert f"{file} is not what a training was begun with" in refusal(config(**begun))
        assert file.read_text() == "["


class TestDevice:
    """Two ways to ask for a platform, and one platform."""

    def test_the_preset_beside_another_platform(self, config, monkeypatch) -> None:
        """Whatever device verl's main has made of it by then."""
        monkeypatch.setenv("VERL_PLATFORM", "nvidia")
        preset = {"ray_kwargs__ray_init__runtime_env": {"env_vars": {"VERL_PLATFORM": "cpu"}}}
        for device in ("cpu", "cuda"):
            message = refusal(config(trainer__device=device, **preset))
            assert message.startswith("+platform=cpu is given, but the environment has VERL_PLATFORM=nvidia;")

    def test_the_variable_without_the_preset(self, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VERL_PLATFORM", "cpu")
        message = refusal(config(trainer__device="cuda"))
        assert message.startswith("trainer.device is cuda, but the environment has VERL_PLATFORM=cpu;")


def test_a_missing_vllm(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: name != "vllm" or None)
    monkeypatch.setattr(environment.importlib.metadata, "version", lambda _: "1.12")  # of trl
    (message,) = advice(config(trainer__use_v1=False), "packages")
    assert message.endswith("rollout.name is vllm, but vLLM is not installed here. Type: pip install vllm")


def test_a_missing_compiler(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    (message,) = advice(config(trainer__use_v1=False, trainer__device="cpu"), "packages")
    assert "there is no C++ compiler here. Type: apt-get install g++, or CXX=" in message


def test_a_missing_queue(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = config()
    there = lambda name: name != "transfer_queue" or None  # noqa: E731
    monkeypatch.setattr(environment.importlib.util, "find_spec", there)
    (message,) = advice(whole, "packages")
    assert message.startswith("trainer.use_v1 is true, but TransferQueue is not installed: ")
    assert " Type: pip install 'TransferQueue>=" in message
    whole.trainer.use_v1 = False
    assert advice(whole, "packages") == []


def test_an_unprepared_task(config: Config, tmp_path: Path) -> None:
    whole = config()
    whole.task = {"package": "grpo_verl_ext", "name": "chain_sum", "folder": str(tmp_path / "seed-7")}
    message = refusal(whole)
    assert str(tmp_path / "seed-7") in message
    assert "grpo-verl-ext prepare chain_sum" in message


def test_the_modes_are_those_that_exist() -> None:
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    from grpo_verl_ext.verl_plugin import trainer_modes

    ours = [name for name, mode in TRAINER_REGISTRY.items() if mode.__module__ == trainer_modes.__name__]
    assert tuple(ours) == OUR_MODES


class TestGvpo:
    """Options of ``+algo=gvpo``."""

    def gvpo(self, key: str, value: object) -> DictConfig:
        whole = composed(["+algo=gvpo", *GROUP])
        OmegaConf.update(whole, key, value, force_add=True)
        return whole

    @pytest.mark.parametrize(
        ("beta", "shown"), [(0, "0"), (float("inf"), "inf"), ("0.1", "'0.1'"), (None, "null")]
    )
    def test_a_wrong_beta(self, beta: object, shown: str) -> None:
        key = "actor_rollout_ref.actor.policy_loss.gvpo_beta"
        message = refusal(self.gvpo(key, beta))
        assert message.startswith(f"{key} is {shown}, but policy_loss.loss_mode=gvpo needs its β; valid is a")
        assert f"Type: {'+algo@_global_=gvpo, or' if beta is None else f'{key}=0.1'}" in message

    def test_a_wrong_anchor(self) -> None:
        message = refusal(self.gvpo("algorithm.grpo_ext.gvpo_anchor", "reference"))
        assert "gvpo_anchor is reference; valid are old, ref. Type: algorithm.grpo_ext" in message

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"scale_rewards": "group"}, r"scale_rewards is group, but .*=gvpo divides by no "),
            ({"mask_truncated_completions": True, "max_response_length": 8}, "weights must sum to zero"),
        ],
    )
    def test_an_option_that_makes_another_target(self, options: dict[str, object], said: str) -> None:
        with pytest.raises(SettingError, match=said):
            Options.for_estimator(self.gvpo("algorithm.grpo_ext", options).algorithm)


class TestDriver:
    """The patch of verl's own check."""

    def test_warnings_are_printed_and_verls_own_validation_follows(self, monkeypatch, capsys) -> None:
        found = Finding("budgets", Severity.WARNING, Problem("a.key", 1, "a.key=2", valid="two"))
        monkeypatch.setattr(preflight, "findings", lambda config: iter([found]))
        driver._refuse_or_warn(OmegaConf.create())
        assert capsys.readouterr().err == (
            "grpo_verl_ext: warning: a.key is 1; valid is two. Type: a.key=2 "
            "(to skip this check: '++algorithm.grpo_ext.silence=[budgets]')\n"
        )

    def test_a_refusal_is_one_message_on_stderr_and_no_traceback(self, python: Python) -> None:
        found = python(
            """
            import sys
            sys.argv = ["main_ppo", "+algo=grpo", "+platform=cpu", "actor_rollout_ref.rollout.n=1",
                        "hydra.run.dir=/tmp", "hydra.output_subdir=null", "hydra/job_logging=disabled"]
            from verl.trainer.main_ppo import main
            main()
            """
        )
        assert found.returncode == 1
        (which_ray, line) = [line for line in found.stderr.splitlines() if line.startswith("grpo_verl_ext: ")]
        assert which_ray.startswith("grpo_verl_ext: Ray: one of its own")
        assert "group-size is tested with actor_rollout_ref.rollout.n ≥ 2; it is 1, which leaves" in line
        assert line.endswith("(to skip this check: '++algorithm.grpo_ext.silence=[group-size]')")
        assert "Traceback" not in found.stderr


def test_a_run_that_only_validates_is_refused_nothing_of_updates() -> None:
    """verl then calls neither estimator nor loss."""
    wrong = ["+algo=gvpo", "actor_rollout_ref.rollout.n=1", "trainer.use_v1=false"]
    errors = [
        {found.check for found in preflight.findings(composed(words)) if found.severity is Severity.ERROR}
        for words in (wrong, [*wrong, "trainer.val_only=true"])
    ]
    assert {"gvpo", "group-size"} <= errors[0]
    assert not {"gvpo", "group-size"} & errors[1]
    silent = [*wrong, "trainer.val_only=true", "trainer.val_before_train=false"]  # which trains
    with pytest.raises(ValueError, match="group-size"):
        preflight.check_training(composed(silent))

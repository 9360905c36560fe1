"""Test that a grid with a declaration refuses starting models outside the standard before its first run."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

from grpo_verl_ext.ablation import checks, inputs
from grpo_verl_ext.ablation.grid import AblationError, GridRun
from grpo_verl_ext.cli import app
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.tasks.folders import PreparedFolderError

Accuracies = dict[int, tuple[float, float]]
"""Seed of a task → greedy and sampled."""


@pytest.fixture
def prepared(plugin, monkeypatch: pytest.MonkeyPatch):
    """Folders ``seed-N`` that count as prepared; returns what `check_starts` takes."""

    def prepared(accuracies: Accuracies, *, task_seed: int | None = None, name: str = "chain_sum_mixed"):
        def read(folder: Path) -> dict[str, float]:
            greedy, sampled = accuracies.get(int(folder.name.removeprefix("seed-")), (0.9, 0.25))
            return {"sampled_accuracy": sampled, "greedy_accuracy": greedy}

        monkeypatch.setattr(checks, "read_checked", read)
        runs = [
            GridRun(label, seed, VerlRun(Path("out") / label / f"seed-{seed}", [], 2))
            for seed in accuracies
            for label in ("a", "b")
        ]
        seeds = {run.name: task_seed or run.seed for run in runs}
        ours = {"package": "grpo_verl_ext", "name": name}
        tasks = {run: ours | {"seed": seed, "folder": f"seed-{seed}"} for run, seed in seeds.items()}
        return runs, {run: OmegaConf.create({"task": task}) for run, task in tasks.items()}, plugin

    return prepared


def test_standard_starts_pass(prepared) -> None:
    checks.check_starts(*prepared({1: (0.95, 0.28), 2: (1.0, 0.22), 3: (0.99, 0.25)}))


@pytest.mark.parametrize(("greedy", "sampled"), [(0.949, 0.25), (0.99, 0.281), (0.99, 0.219)])
def test_one_outside_is_named_with_both_accuracies_and_another_seed(prepared, greedy, sampled) -> None:
    with pytest.raises(
        AblationError,
        match=re.escape(
            "starting models outside the standard: "
            f"task.seed=2 (greedy {greedy:.3f}, sampled {sampled:.3f}); "
            "valid is an accuracy of at least 0.95 greedy, and of 0.25 ± 0.03 sampled. "
            "Type another seed: 'seeds=[1,3,4]'"
        ),
    ):
        checks.check_starts(*prepared({1: (0.99, 0.25), 2: (greedy, sampled), 3: (0.99, 0.25)}))


def test_all_outside_are_named_at_once(prepared) -> None:
    with pytest.raises(AblationError, match=r"task\.seed=1 .*; task\.seed=3 .*'seeds=\[2,4,5\]'"):
        checks.check_starts(*prepared({1: (0.9, 0.25), 2: (0.99, 0.25), 3: (0.9, 0.25)}))


def test_a_task_that_does_not_follow_the_seed(prepared) -> None:
    with pytest.raises(AblationError, match=r"task\.seed=7 .*another seed: task\.seed=<another> in base"):
        checks.check_starts(*prepared({1: (0.99, 0.25), 2: (0.99, 0.25)}, task_seed=7))


def test_other_tasks_are_not_checked(prepared) -> None:
    checks.check_starts(*prepared({1: (0.1, 0.1)}, name="my_task"))
    runs, _, plugin = prepared({1: (0.1, 0.1)})
    checks.check_starts(runs, {run.name: OmegaConf.create({"data": {}}) for run in runs}, plugin)


def test_a_corrupt_folder_names_the_run(prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = prepared({1: (0.99, 0.25)})

    def corrupt(folder: Path) -> None:
        raise PreparedFolderError(f"task.folder={folder}: it is missing")

    monkeypatch.setattr(checks, "read_checked", corrupt)
    with pytest.raises(AblationError, match=r"^a/seed-1: task\.folder=seed-1: it is missing"):
        checks.check_starts(*checked)


@pytest.mark.parametrize("declared", [True, False])
def test_only_a_grid_with_a_declaration_is_refused(
    prepared, declared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first run, and for the seeds that an extension may use too."""
    _, configs, _ = prepared(dict.fromkeys(range(1, 5), (0.99, 0.25)) | {5: (0.9, 0.25)})
    trained: list[str] = []
    monkeypatch.setattr(
        checks, "compose_runs", lambda runs, plugin: {run.name: configs[run.name] for run in runs}
    )
    monkeypatch.setattr(checks, "tasks_to_prepare", lambda *_: [])
    monkeypatch.setattr(checks, "check_runs", lambda configs, plugin: None)
    monkeypatch.setattr(VerlRun, "go", lambda run, on_metrics: trained.append(run.folder.name))
    claims = {
        "primary": {"metric": "acc", "measure": "final"},
        "margin": 0.05,
        "starts": {"first": 3, "most": 5},
        "expect": [{"variant": "b", "is": "equal"}],
        "control": {"grid": "elsewhere"},
    }
    file = tmp_path / "grid.yaml"
    file.write_text(
        json.dumps(
            {
                **{
                    "folder": str(tmp_path / "out"),
                    "steps": 2,
                    "base": [],
                    "axes": {"x": {"a": [], "b": []}},
                },
                **{"seeds": [1, 2, 3, 4, 5], "baseline": ["a"], "metrics": ["acc"]},
                **(claims if declared else {}),
            }
        )
    )
    shown = CliRunner().invoke(app, ["ablate", "run", str(file), *["--until-decided"] * declared])
    assert ("task.seed=5 (greedy 0.900, sampled 0.250)" in shown.stderr) == declared
    assert (trained == []) == declared
    assert shown.exit_code == 1


class TestInputs:
    """Of a run's record."""

    def test_models_and_data_on_this_machine(self, tmp_path: Path) -> None:
        model = tmp_path / "model"
        (model / "part").mkdir(parents=True)
        (model / "config.json").write_text("{}")
        (model / "part" / "weights").write_bytes(b"12")
        (tmp_path / "train").write_bytes(b"abc")
        config = OmegaConf.create(
            {
                "actor_rollout_ref": {"model": {"path": str(model)}},
                "data": {"train_files": [str(tmp_path / "train")] * 2, "val_files": "hdfs://elsewhere"},
                "reward": {
                    "custom_reward_function": {"path": str(tmp_path / "train")},
                    "reward_model": {"model_path": str(model)},
                },
                "algorithm": {
                    "grpo_ext": {"gold_responses": {"files": "${data.train_files}"}},
                },
                "distillation": {
                    "teacher_models": {
                        "teacher_model": {"model_path": str(model)},
                        "unused": {"model_path": None},
                    }
                },
            }
        )
        # sha256sum of abc; of {} and 12; and of the two lines that sha256sum prints for the folder
        abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        lines = (
            "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a  config.json\n"
            "6b51d431df5d7f141cbececcf79edf3dd861c3b4069f0b11661a3eefacbba918  part/weights\n"
        )
        found = inputs.inputs_of(config)
        assert found == {
            "actor_rollout_ref.model.path": hashlib.sha256(lines.encode()).hexdigest(),
            "data.train_files": abc,
            "data.train_files[1]": abc,
            "reward.custom_reward_function.path": abc,
            "reward.reward_model.model_path": hashlib.sha256(lines.encode()).hexdigest(),
            "algorithm.grpo_ext.gold_responses.files": abc,
            "algorithm.grpo_ext.gold_responses.files[1]": abc,
            "distillation.teacher_models.teacher_model.model_path": hashlib.sha256(
                lines.encode()
            ).hexdigest(),
        }

        (model / "part" / "weights").write_bytes(b"13")
        assert (
            inputs.inputs_of(config)["actor_rollout_ref.model.path"] != found["actor_rollout_ref.model.path"]
        )

    def test_reward_models_and_code_of_the_users(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A function or a loss is the file of its module, which is not imported."""
        for name in ("model", "by_file.py", "inputs_test_rewards.py", "inputs_test_losses.py"):
            (tmp_path / name).write_text("raise AssertionError\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "json, inputs_test_losses, not_installed")
        model = str(tmp_path / "model")
        weights = {
            "correctness": 1.0,
            f"{tmp_path}/by_file.py:f": 1.0,
            "inputs_test_rewards.f": 0.5,
            "not_installed.f": 0.5,
        }
        config = OmegaConf.create(
            {
                "algorithm": {"grpo_ext": {"reward_model": {"path": model}}},
                "critic": {"model": {"path": model}},
                "reward": {"custom_reward_function": {"reward_kwargs": {"weights": weights}}},
            }
        )
        found = inputs.inputs_of(config)
        functions = "reward.custom_reward_function.reward_kwargs.weights"
        assert found.keys() == {
            "algorithm.grpo_ext.reward_model.path",
            "critic.model.path",
            f"{functions}.{tmp_path}/by_file.py:f",
            f"{functions}.inputs_test_rewards.f",
            *("VERL_USE_EXTERNAL_MODULES", "VERL_USE_EXTERNAL_MODULES[1]"),
        }
        (tmp_path / "inputs_test_losses.py").write_text("x = 1\n")
        again = inputs.inputs_of(config)
        assert {key for key in found if again[key] != found[key]} == {"VERL_USE_EXTERNAL_MODULES[1]"}

"""Test the folder for verl-recipe: its commands compose for 8 GPUs, with the settings of GVPO's authors.

Not covered: the trainings, which need GPUs.
"""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import datasets
import pandas
import pytest
from omegaconf import OmegaConf
from scripts import Run, Started, configured
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from grpo_verl_ext.ablation.declaration import GridSettings
from grpo_verl_ext.ablation.grid import read_grid, runs_of
from grpo_verl_ext.ablation.run import compose_runs
from grpo_verl_ext.doctor.configuration import all_findings
from grpo_verl_ext.utils import which_verl

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipe" / "grpo_verl_ext"
TRAIN, TABLE = (str(RECIPE / name) for name in ("run_qwen2.5_math_7b.sh", "table1.sh"))
ALGORITHMS = ("gvpo", "grpo", "dr_grpo")


@pytest.mark.filterwarnings("ignore:Disabled critic")  # verl says so for every algorithm but PPO
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_doctor_and_verl_accept_the_settings_of_gvpos_authors(
    algo: str, started: Started, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 8 GPUs; the settings are those of gvpo/run_qwen2-7b_math_gvpo.sh of verl-recipe."""
    monkeypatch.setenv("VERL_PLATFORM", "nvidia")  # as on a machine with GPUs
    arguments = started(TRAIN, ALGO=algo, **files)
    assert list(all_findings(arguments[2:])) == []
    config = configured(arguments)
    validate_config(config, need_reference_policy(config), need_critic(config))
    assert (config.trainer.n_gpus_per_node, config.trainer.nnodes) == (8, 1)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (config.data.train_batch_size, rollout.n, actor.ppo_mini_batch_size) == (1024, 4, 256)
    assert (actor.ppo_epochs, config.trainer.total_epochs, actor.optim.lr) == (1, 15, 1e-6)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (1024, 1024)
    assert actor.entropy_coeff == 0
    assert config.algorithm.grpo_ext.preset == algo
    if algo == "gvpo":
        assert (actor.policy_loss.gvpo_beta, actor.use_kl_loss) == (0.1, False)
        assert config.algorithm.use_kl_in_reward is False
    if algo == "dr_grpo":
        assert (actor.loss_scale_factor, actor.use_kl_loss) == (1024, False)


def test_gvpo_is_what_a_plain_call_trains(started: Started) -> None:
    config = configured(started(TRAIN, "data.seed=7"))
    assert (config.algorithm.adv_estimator, config.data.seed) == ("gvpo", 7)
    assert config.actor_rollout_ref.model.path == "Qwen/Qwen2.5-Math-7B"
    assert config.data.train_files == "/home/somebody/data/math/train.parquet"
    assert config.data.val_files == "/home/somebody/data/math/benchmarks.parquet"
    assert config.reward.custom_reward_function.path == str(RECIPE / "reward.py")


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> GridSettings:
    """The grid, with the variables that table1.sh exports."""
    knobs = {"DATA": "/d", "MODEL": "org/m", "N_GPUS": "8", "N_NODES": "1", "RECIPE": str(RECIPE)}
    for name, value in knobs.items():
        monkeypatch.setenv(name, value)
    return read_grid(RECIPE / "table1.yaml")


class TestTable:
    def test_the_grid_trains_what_the_script_does(self, grid: GridSettings, started: Started) -> None:
        """But for seeds, names, folders, and how long it trains."""
        first = [run for run in runs_of(grid) if run.seed == grid.seeds[0]]
        configs = {config.algorithm.grpo_ext.preset: config for config in compose_runs(first).values()}
        assert {*configs} == {*ALGORITHMS}
        for algo, config in configs.items():
            alone = configured(started(TRAIN, ALGO=algo, DATA="/d", MODEL="org/m"))
            for of_both in (config, alone):
                for key in ("data.seed", "actor_rollout_ref.rollout.seed", "actor_rollout_ref.rollout.trace"):
                    OmegaConf.update(of_both, key, None, merge=False)
            for section in ("algorithm", "data", "actor_rollout_ref", "reward"):
                assert config[section] == alone[section]
            assert config.trainer.test_freq == alone.trainer.test_freq

    def test_its_steps_are_the_authors_epochs(self, grid: GridSettings) -> None:
        """MATH has 7500 problems for training; verl drops a batch that is not full."""
        assert grid.steps == 15 * (7500 // 1024)

    @pytest.mark.parametrize("command", ["plan", "run"])
    def test_the_script_starts_ablate(self, command: str, started: Started) -> None:
        given = ["ablate", command, str(RECIPE / "table1.yaml"), "seeds=[1]"]
        assert started(TABLE, command, "seeds=[1]") == given

    def test_the_report(self, started: Started) -> None:
        assert started(TABLE, "report") == ["ablate", "report", "outputs/grpo_verl_ext/table1"]

    def test_another_command_is_refused(self, run: Run) -> None:
        found = run(TABLE, "train")
        assert found.returncode == 1
        assert "the command is 'train'; valid are plan, run, report. Type: bash " in found.stderr


SUITE: dict[str, list[dict[str, object]]] = {
    "aime": [{"problem": "p", "answer": "025"}],
    "amc": [{"problem": "p", "answer": 142.0}],
    "math": [{"problem": "p", "answer": r"\$32"}],
    "minerva": [{"problem": "p", "answer": ["4.4e7\n", r"4.4 \times 10^7"]}],
    "olympiad_bench": [{"problem": "p", "answer": ["$(0,2)$,$(0,-2)$"]}],
}
ANSWERS: dict[str, list[str]] = {
    "aime24": ["25"],
    "amc": ["142"],
    "math500": [r"\$32"],
    "minerva": ["4.4e7", r"4.4 \times 10^7"],
    "olympiad": ["(0,2),(0,-2)"],
}


class TestData:
    def test_the_file_has_the_answers_and_aime_32_times(self, tmp_path: Path) -> None:
        suite = {name: datasets.Dataset.from_list(rows) for name, rows in SUITE.items()}
        datasets.DatasetDict(suite).save_to_disk(str(tmp_path / "suite"))
        command = [sys.executable, str(RECIPE / "prepare_benchmarks.py"), "suite", "data/benchmarks.parquet"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        rows = pandas.read_parquet(tmp_path / "data/benchmarks.parquet")
        assert dict(rows.data_source.value_counts()) == {
            "aime24": 32,
            "amc": 1,
            "math500": 1,
            "minerva": 1,
            "olympiad": 1,
        }
        for name, rule in zip(rows.data_source, rows.reward_model, strict=True):
            assert json.loads(rule["ground_truth"]) == ANSWERS[name]
        asked = "p Let's think step by step and output the final answer within \\boxed{}."
        assert {prompt[0]["content"] for prompt in rows.prompt} == {asked}

    def test_each_accepted_answer_scores_and_another_does_not(self) -> None:
        score = runpy.run_path(str(RECIPE / "reward.py"))["compute_score"]
        for name, accepted in ANSWERS.items():
            for answer in accepted:
                assert score(name, rf"so \boxed{{{answer}}}", json.dumps(accepted)) == 1
            assert score(name, r"so \boxed{7}", json.dumps(accepted)) == 0
            assert score(name, f"so {accepted[0]}", json.dumps(accepted)) == 0
        math = "DigitalLearningGmbH/MATH-lighteval"
        assert score(math, r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", extra_info={}) == 1
        assert score(math, r"\boxed{2}", "[2]", extra_info={}) == 0


def test_the_fields_of_required_verl() -> None:
    """Those that verl-recipe's install_verl.sh reads of a pinned tag; the tag is of a tested verl."""
    lines = (RECIPE / "REQUIRED_VERL.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    fields = dict(line.split("=", 1) for line in lines[1:])
    assert list(fields) == ["UPSTREAM", "MODE", "TAG", "PIP_INSTALL", "NOTES"]
    assert fields["MODE"] == "pinned_tag"
    version = fields["TAG"].removeprefix("v")
    assert version in which_verl.TESTED
    assert fields["PIP_INSTALL"] == f"pip install verl=={version}"

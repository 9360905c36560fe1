"""Test that verl accepts what the scripts of examples/train start, on one GPU and on sixteen."""

import os
import sys
from pathlib import Path

import pytest
import yaml
from embedded_task import make_embedded_task
from processes import run_program
from ray_cluster import QUIET, free_ports, ray_head
from scripts import Run, Started, assert_that_verls_workers_would_accept, configured, noted
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from grpo_verl_ext.preflight import findings, report

ROOT = Path(__file__).parents[3]
TRAIN = ROOT / "examples" / "train"

ESTIMATORS = {
    preset.stem: yaml.safe_load(preset.read_text(encoding="utf-8"))["algorithm"]["adv_estimator"]
    for preset in sorted(ROOT.glob("grpo_verl_ext/config/algo/*.yaml"))
}
NAMED_ALONE = [algo for algo in ESTIMATORS if algo != "gdpo"]
"""Presets that need no more than their name, and no reward function with several rewards."""
# Of the tasks after the first, which have other budgets, that these read.
RANK = {algo: [] if algo in ("dapo", "dr_grpo", "ppo") else [pytest.mark.ci] for algo in NAMED_ALONE}
TRAININGS = [
    *(("gsm8k", algo) for algo in NAMED_ALONE),
    *(pytest.param("math", algo, marks=RANK[algo]) for algo in NAMED_ALONE if algo != "grpo_process"),
]
ON_ONE_GPU = [*(pytest.param("chain_sum", a, marks=RANK[a]) for a in NAMED_ALONE), ("smollm2", "gvpo")]
BUDGET = {"gsm8k": 1024, "math": 3000}
# a fifth, rounded down
OVERLONG_BUFFER = {"gsm8k": 204, "math": 600}


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chain_sum") / "seed-1"
    make_embedded_task(folder)
    return folder


@pytest.mark.filterwarnings("ignore:Disabled critic")  # verl says so for every algorithm but PPO
class TestTrainings:
    @pytest.mark.parametrize(("task", "algo"), TRAININGS)
    def test_verl_accepts_it_at_every_size_as_the_algorithm_on_the_task(
        self, task: str, algo: str, started: Started, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VERL_PLATFORM", "nvidia")  # as on a machine with GPUs
        config = configured(started(f"{task}.sh", ALGO=algo, **files, N_GPUS="8", N_NODES="2"))
        assert (config.trainer.n_gpus_per_node, config.trainer.nnodes) == (8, 2)
        assert list(findings(config)) == []
        for gpus, nodes in [(8, 2), (1, 1)]:
            config.trainer.update(n_gpus_per_node=gpus, nnodes=nodes)
            validate_config(config, need_reference_policy(config), need_critic(config))
            assert_that_verls_workers_would_accept(config, ranks=gpus * nodes)
        actor, reward = config.actor_rollout_ref.actor, config.reward
        assert (config.task.name, config.algorithm.adv_estimator) == (task, ESTIMATORS[algo])
        assert config.data.max_response_length == BUDGET[task]
        assert need_critic(config) == (algo in ("ppo", "ppo_kl"))
        constant_length = actor.loss_agg_mode == "seq-mean-token-sum-norm"
        assert actor.loss_scale_factor == (BUDGET[task] if constant_length else None)
        if algo == "dapo":
            assert reward.reward_kwargs.max_resp_len == BUDGET[task]
            assert reward.reward_kwargs.overlong_buffer_cfg.len == OVERLONG_BUFFER[task]
        steps = str(TRAIN / ".." / "rewards" / "gsm8k_steps.py") if algo == "grpo_process" else None
        assert steps is None or Path(steps).is_file()
        function = reward.custom_reward_function
        assert (function.path, function.name) == (steps, "compute_score")

    @pytest.mark.parametrize(("task", "algo"), ON_ONE_GPU)
    def test_verl_accepts_a_prepared_task_on_one_gpu(
        self, task: str, algo: str, started: Started, embedded: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VERL_PLATFORM", "nvidia")
        words = [f"{task}.sh", f"task.folder={embedded}"]
        config = configured(started(*words, ALGO=algo, OUTPUTS=str(embedded)))
        assert report.exit_status([*findings(config)]) == 0
        validate_config(config, need_reference_policy(config), need_critic(config))
        assert_that_verls_workers_would_accept(config, ranks=1)
        name = config.task.name.removesuffix("_max")
        assert (name, config.algorithm.adv_estimator) == (task, ESTIMATORS[algo])

    @pytest.mark.parametrize("task", ["gsm8k", "math"])
    def test_knobs_and_arguments_are_handed_on(self, task: str, started: Started) -> None:
        knobs = {"DATA": "/d", "OUTPUTS": "/o", "LOGGER": '["console","wandb"]', "MODEL": "org/small"}
        arguments = started(f"{task}.sh", "trainer.total_epochs=2", "data.seed=7", ALGO="gvpo", **knobs)
        assert arguments[-2:] == ["trainer.total_epochs=2", "data.seed=7"]
        config = configured(arguments)
        assert config.data.train_files == "/d/train.parquet"
        assert config.trainer.default_local_dir == f"/o/{task}/small-gvpo"
        assert config.trainer.logger == ["console", "wandb"]
        assert config.actor_rollout_ref.model.path == "org/small"
        assert config.trainer.total_epochs == 2

    @pytest.mark.parametrize("offload", [True, False])
    def test_offloading_is_that_of_policy_and_critic(self, offload: bool, started: Started) -> None:
        config = configured(started("math.sh", ALGO="ppo", OFFLOAD=str(offload).lower()))
        for engine in (config.actor_rollout_ref.actor.fsdp_config, config.critic.fsdp):
            assert (engine.param_offload, engine.optimizer_offload) == (offload, offload)


class TestSeveralNodes:
    @pytest.mark.ci
    def test_ray_runs_what_the_script_alone_would(self, started: Started, run: Run, notes: Path) -> None:
        """A real Ray, whose python3 is the stand-in."""
        knobs = {"ALGO": "dapo", "DATA": "/d a t a", "OUTPUTS": "/o", "N_GPUS": "4", "OFFLOAD": "true"}
        awkward = ['trainer.logger=["console","wandb"]', "trainer.experiment_name='$HOME a b'"]
        alone = started("math.sh", *awkward, N_NODES="2", **knobs)
        (notes / "arguments").unlink()
        with ray_head(cpus=1, PATH=f"{notes}:{os.environ['PATH']}") as address:
            asked = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "disabled", **knobs}
            found = run("several_nodes.sh", "math", *awkward, **asked)
        assert found.returncode == 0, found.stdout + found.stderr
        assert noted(notes) == alone
        assert "trainer.nnodes=2" in alone


SLURM = {
    "sbatch": 'exec env SLURM_JOB_NODELIST=n[1-2] SLURM_JOB_NUM_NODES=2 SLURM_SUBMIT_DIR="$PWD" bash "$@"',
    # as for a list of many nodes, the second comes when a reader of one line has gone
    "scontrol": "echo n1; sleep 0.2; echo n2",
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    "hostname": "echo 127.0.0.1 ::1",
}
"""Stand-ins for SLURM's commands: two nodes, which are this machine, and the address of each."""


class TestSlurm:
    @pytest.mark.ci
    def test_a_ray_of_all_nodes_runs_what_the_script_alone_would(
        self, started: Started, run: Run, notes: Path, tmp_path: Path
    ) -> None:
        """Two real Rays, and a python3 that is the stand-in."""
        knobs = {"ALGO": "dapo", "DATA": "/d a t a", "OUTPUTS": "/o", "N_GPUS": "4"}
        alone = started("math.sh", "trainer.experiment_name='a b'", N_NODES="2", **knobs)
        (notes / "arguments").unlink()
        for name, does in SLURM.items():
            (notes / name).write_text(f"#!/bin/bash\n{does}\n")
            (notes / name).chmod(0o755)
        (port,) = map(str, free_ports(1))
        environment = {"HOME": str(tmp_path), "PORT": port, **QUIET, **knobs}
        environment["PATH"] = f"{notes}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment["RAY_START"] = "--disable-usage-stats --num-cpus=1 --object-store-memory=134217728"
        words = ["sbatch", "examples/train/slurm.sh", "math", "trainer.experiment_name='a b'"]
        found = run_program(words, env=environment, cwd=ROOT)
        assert found.returncode == 0, found.stdout + found.stderr
        assert noted(notes) == alone
        assert f"RAY_ADDRESS=127.0.0.1:{port}" in found.stderr


class TestData:
    @pytest.mark.parametrize(("task", "script"), [("gsm8k", "gsm8k.py"), ("math", "math_dataset.py")])
    def test_verls_own_preprocessing_writes_where_training_reads(
        self, task: str, script: str, started: Started
    ) -> None:
        of_verl = f"/verl/examples/data_preprocess/{script}"
        where = f"/home/somebody/data/{task}"
        assert started("prepare_data.sh", task, VERL="/verl") == [of_verl, "--local_save_dir", where]
        more = started("prepare_data.sh", task, "--local_dataset_path", "/raw", VERL="/verl", DATA="/d")
        assert more == [of_verl, "--local_save_dir", "/d", "--local_dataset_path", "/raw"]
        data = configured(started(f"{task}.sh")).data
        assert (data.train_files, data.val_files) == (f"{where}/train.parquet", f"{where}/test.parquet")


@pytest.mark.parametrize(
    ("words", "knobs", "said"),
    [
        (["math.sh"], {"ALGO": "grpo_process"}, "ALGO is grpo_process, but"),
        (["several_nodes.sh", "prepare_data"], {}, "the task is 'prepare_data'; valid are gsm8k, math"),
        (["several_nodes.sh", "math"], {}, "RAY_ADDRESS: is missing"),
        (["slurm.sh", "math"], {}, "SLURM_JOB_NUM_NODES: is missing"),
        (["prepare_data.sh"], {}, "the task is ''; valid are gsm8k, math"),
        (["prepare_data.sh", "math"], {}, "VERL: is missing"),
    ],
)
def test_what_cannot_be_started_is_refused(
    words: list[str], knobs: dict[str, str], said: str, run: Run, notes: Path
) -> None:
    found = run(*words, **knobs)
    assert found.returncode == 1
    assert said in found.stderr
    assert not (notes / "arguments").exists()

"""Test that verl accepts what the scripts start, and that a teacher's samples become stored responses."""

import sys
from pathlib import Path

import pandas
import pytest
from scripts import Run, Started, assert_that_verls_workers_would_accept, configured, noted
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from grpo_verl_ext import preflight
from grpo_verl_ext.verl_plugin.compose import composed


@pytest.mark.filterwarnings("ignore:Disabled critic")  # verl says so for every algorithm but PPO
def test_distillation_is_accepted_at_every_size(
    started: Started, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_PLATFORM", "nvidia")
    for gpus, reads in [(1, "text"), (2, "tokens"), (4, "text")]:
        sizes = {"N_GPUS": str(gpus), "TEACHER_GPUS": "2", "READS": reads, "TEACHER": files["MODEL"]}
        config = configured(started("../teacher/distill.sh", **files, **sizes))
        assert list(preflight.findings(config)) == []
        validate_config(config, need_reference_policy(config), need_critic(config))
        assert_that_verls_workers_would_accept(config, ranks=gpus)
        assert config.algorithm.grpo_ext.teacher.reads == reads
        teachers = omega_conf_to_dataclass(config.distillation).teacher_models
        assert [each.num_replicas for each in teachers.values()] == [1]


class TestTeacherSamples:
    GENERATES = (
        '#!/bin/sh\n[ "$1" = -m ] || exec {python} "$@"\n'
        "printf '%s\\0' \"$@\" > '{notes}/arguments'\n[ ! -e {made} ] || cp {made} {wanted}\n"
    )
    """A python3 that notes what is asked of verl's server, has a file in its place, and runs the rest."""

    def test_responses_of_the_teacher_become_stored_ones(
        self, run: Run, notes: Path, tmp_path: Path, files: dict[str, str]
    ) -> None:
        data, sampled, made = tmp_path / "data", tmp_path / "sampled", tmp_path / "made.parquet"
        data.mkdir()
        rows = pandas.DataFrame(
            {"prompt": [[{"role": "user", "content": "1+1=?"}], [{"role": "user", "content": "2+2=?"}]]}
        )
        rows["extra_info"] = [{"index": 7}, None]
        for name in ("train", "test"):
            rows.to_parquet(data / f"{name}.parquet")
        rows.assign(responses=[["2", "two"], ["4", "four"]]).to_parquet(made)
        words = {"python": sys.executable, "notes": notes, "made": made}
        (notes / "python3").write_text(self.GENERATES.format(**words, wanted=sampled / "generated.parquet"))

        knobs = {"DATA": str(data), "SAMPLED": str(sampled), "TEACHER": files["MODEL"], "N_GPUS": "4"}
        found = run("../teacher/teacher_samples.sh", "actor_rollout_ref.rollout.seed=5", **knobs)
        assert found.returncode == 0, found.stderr
        arguments = noted(notes)
        assert arguments[:2] == ["-m", "verl.trainer.main_generation_server"]
        config = composed(arguments[2:])
        assert config.data.train_files == str(data / "train.parquet")
        assert config.data.output_path == str(sampled / "generated.parquet")
        rollout = config.actor_rollout_ref.rollout
        assert rollout.load_format == "auto", "verl's own has random weights"
        assert (rollout.n, rollout.temperature, rollout.top_p, rollout.top_k) == (2, 1, 1, -1)
        assert (rollout.tensor_model_parallel_size, config.trainer.n_gpus_per_node) == (2, 4)
        assert rollout.seed == 5

        trained = pandas.read_parquet(sampled / "train.parquet")
        assert list(trained.columns) == ["prompt", "extra_info"]
        infos = [{**info, "responses": list(info["responses"])} for info in trained["extra_info"]]
        assert infos[0] == {"index": 7, "responses": ["2", "two"]}
        assert infos[1]["responses"] == ["4", "four"]
        assert (sampled / "test.parquet").read_bytes() == (data / "test.parquet").read_bytes()

    def test_without_what_the_server_writes_nothing_is_made(
        self, run: Run, notes: Path, tmp_path: Path
    ) -> None:
        words = {"python": sys.executable, "notes": notes, "made": tmp_path / "no", "wanted": tmp_path / "no"}
        (notes / "python3").write_text(self.GENERATES.format(**words))
        found = run("../teacher/teacher_samples.sh", DATA=str(tmp_path), SAMPLED=str(tmp_path / "sampled"))
        assert found.returncode == 1
        assert "generated.parquet" in found.stderr
        assert list((tmp_path / "sampled").iterdir()) == []

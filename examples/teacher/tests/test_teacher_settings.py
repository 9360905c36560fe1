"""Test what is said of settings around a teacher, and that commands find the installed feature."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_verl_ext.doctor.configuration import all_findings
from grpo_verl_ext.preflight.tested_values import untested
from grpo_verl_ext.utils.errors import Severity
from grpo_verl_ext.verl_plugin.compose import composed

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
VLLM = (f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.n=4")
CORRECTION, OURS = "algorithm.rollout_correction", "algorithm.grpo_ext"
FILTER = "algorithm.filter_groups.enable=true"
TOP_TOKENS = "distillation.distillation_loss.loss_mode=forward_kl_topk"
SERVED = ["distillation.teacher_models.teacher_model.model_path=m", "distillation.nnodes=1"]
RECORDED_TEACHER = [f"++{OURS}.teacher.source=recorded", f"++{OURS}.stored_responses={{share: 1}}"]
RECORDED_TEACHER += ["distillation.enabled=false"]
R, W = Severity.ERROR, Severity.WARNING

MUST_BE_FOUND: list[tuple[list[str], str, Severity]] = [
    ([*SERVED, f"{OURS}.gvpo_anchor=old"], "gvpo_distill gvpo_anchor", R),
    ([*SERVED, f"{ROLLOUT}.temperature=0.7"], "teacher temperature", W),
    (["distillation.nnodes=0"], "teacher nnodes", R),
    ([*SERVED, f"++{OURS}.watch=false"], "teacher watch", R),
    ([*SERVED, f"++{OURS}.teacher.source=recorded"], "teacher share", R),
    ([*RECORDED_TEACHER, f"{CORRECTION}.rollout_rs=seq_mean_k1"], "teacher rollout_rs", R),
    ([*RECORDED_TEACHER, f"++{OURS}.teacher.reads=text"], "teacher reads", R),
    ([*SERVED, FILTER], "gvpo enable", W),
    ([*SERVED, TOP_TOKENS], "gvpo loss_mode", R),
]


@pytest.mark.parametrize(("changes", "name", "severity"), MUST_BE_FOUND, ids=str)
def test_a_wrong_pair_is_found(changes: list[str], name: str, severity: Severity) -> None:
    config = composed(["+algo=gvpo_distill", *SERVED, *VLLM, *changes])
    found = [each for each in untested(config) if each.severity is severity]
    assert name in {f"{each.check} {each.problem.key.rpartition('.')[2]}" for each in found}


@pytest.fixture(scope="module")
def right(files: dict[str, str]) -> list[str]:
    return [
        "+algo=gvpo_distill",
        f"distillation.teacher_models.teacher_model.model_path={files['MODEL']}",
        "distillation.nnodes=1",
        f"data.train_files={files['DATA']}/train.parquet",
        f"data.val_files={files['DATA']}/test.parquet",
        f"actor_rollout_ref.model.path={files['MODEL']}",
        *(f"{ROLLOUT}.n=4", "data.train_batch_size=64", f"{ACTOR}.ppo_mini_batch_size=32"),
        *("data.max_prompt_length=512", "data.max_response_length=512", f"{ACTOR}.use_dynamic_bsz=true"),
    ]


@pytest.mark.parametrize("line", ["+algo=gvpo_distill", "+algo@_global_=gvpo_distill"])
def test_the_doctor_has_nothing_to_say_of_a_right_one(right: list[str], line: str) -> None:
    assert list(all_findings(["+platform=cpu", line, *right[1:]])) == []


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ("distillation.distillation_loss.loss_mode=k2", "distillation-loss"),
        (f"{ROLLOUT}.temperature=0.7", "teacher"),
        ("algorithm.adv_estimator=gvpo", "gradient"),
        (f"{OURS}.gvpo_anchor=old", "gvpo_distill"),
    ],
)
def test_the_doctor_names_a_wrong_value(right: list[str], change: str, check: str) -> None:
    assert check in {each.check for each in all_findings(["+platform=cpu", *right, change])}


def test_servers_are_counted_before_they_are_started(right: list[str]) -> None:
    """By verl's own class, which its trainer makes after the workers; a server takes two GPUs by default."""
    (found,) = all_findings([*right, f"{ROLLOUT}.name=vllm", "distillation.n_gpus_per_node=1"])
    assert "must divide the distillation resource pool size" in found.problem.reason


def test_the_cpu_platform_has_sizes_for_the_servers(right: list[str]) -> None:
    config = composed(["+platform=cpu", *right])
    inference = config.distillation.teacher_models.teacher_model.inference
    assert inference.engine_kwargs.vllm.kv_cache_memory_bytes >= 2**28
    assert (config.distillation.n_gpus_per_node, config.ray_kwargs.ray_init.num_gpus) == (1, 2)


def test_a_training_without_a_teacher_is_told_nothing(right: list[str]) -> None:
    assert list(all_findings(["+platform=cpu", "+algo=grpo", *right[3:]])) == []


def test_verls_own_loss_for_distillation_is_left_out_for_it_alone() -> None:
    from gvpo_teacher.worker import WithoutVerlsLoss

    from grpo_verl_ext.verl_plugin import trainer_modes

    worker = trainer_modes.GroupTrainerSync.worker_with_parts
    with_teacher = composed(["+algo=gvpo_distill", *SERVED, *VLLM])
    assert issubclass(worker(with_teacher), WithoutVerlsLoss)
    assert not issubclass(worker(composed(["+algo=grpo", *VLLM])), WithoutVerlsLoss)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel, without this session's own entry points."""
    folder, pip = tmp_path_factory.mktemp("site"), [sys.executable, "-m", "pip", "install", "--quiet"]
    example = Path(__file__).parents[1]
    subprocess.run([*pip, "--no-deps", "--target", folder, example], check=True, timeout=300)
    return folder


def command(site: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), str(site)])}
    line = [sys.executable, "-m", "grpo_verl_ext", *words]
    found = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    return found.stdout


def test_commands_know_the_installed_package(site: Path, right: list[str]) -> None:
    assert "algorithm.grpo_ext.gvpo_anchor" in command(site, "show", "gvpo_distill", *right[1:])
    found = json.loads(command(site, "doctor", "+platform=cpu", *right, "--json"))
    assert [each for each in found["findings"] if each["check"] != "packages"] == []

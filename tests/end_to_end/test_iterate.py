"""Test two rounds of iterative GRPO: verl trains the policy, TRL a reward model for verl."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from grpo_verl_ext.runs.verl_run import read_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

EXAMPLE = Path(__file__).parents[2] / "examples" / "iterate_chain_sum.yaml"
ACCURACY = "val-core/chain_sum/acc/mean@1"


@pytest.mark.timeout(1600)
def test_two_rounds_of_the_example(tmp_path: Path) -> None:
    settings = yaml.safe_load(EXAMPLE.read_text())
    # For its metric of the distance to the reference before the first update, of which no pass is left.
    of_update = "+algorithm.grpo_ext.old_log_probs_from_update=true"
    settings["policy"]["overrides"] += ["trainer.v1.trainer_mode=grpo_ext_sync", of_update]
    (tmp_path / "rounds.yaml").write_text(yaml.safe_dump(settings))
    command = [
        *(Path(sys.executable).with_name("grpo-verl-ext"), "iterate", "run", tmp_path / "rounds.yaml"),
        *(f"folder={tmp_path / 'out'}", "policy.steps=5"),
        # The model's order of responses of one form is by chance: with 0.5 a policy followed it from 0.504 of
        # right answers to 0.326.
        "reward_model.weight=0.1",
    ]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "held_out_accuracy_after" in finished.stdout

    rounds = [
        record["parts"] for record in json.loads((tmp_path / "out" / "manifest.json").read_text())["rounds"]
    ]
    (before, after), (again, last) = (
        (record["policy"]["validation_before"][ACCURACY], record["policy"]["validation_after"][ACCURACY])
        for record in rounds
    )
    # 512 sampled responses each: the standard error of a difference is 0.03.
    assert last > before + 0.15, "over both rounds: one round's five steps gain 0.12 to 0.39"
    assert abs(again - after) < 0.1, "round 2 begins with the policy of round 1"
    # Over both rounds: round 2 holds out some thirty pairs, with a standard error of 0.07 and more.
    held_out = [record["pairs"]["held_out"] for record in rounds]
    right = [record["reward_model"]["held_out_accuracy_after"] for record in rounds]
    assert sum(map(math.prod, zip(held_out, right, strict=True))) / sum(held_out) > 0.7
    # 10 % of the mixture, in whole pairs.
    pairs = rounds[1]["pairs"]
    assert abs(pairs["replayed"] - 0.1 * (pairs["pairs"] + pairs["replayed"])) <= 0.5

    first, second = (
        read_metrics((tmp_path / "out" / f"round-{number}" / "policy").glob("attempt-*.jsonl"))
        for number in (1, 2)
    )
    assert "val-aux/chain_sum/reward_model_score/mean@1" in second[0], "verl asked the reward model"
    assert first[5]["actor/ref_kl_k3"] > 1e-3
    assert abs(first[5]["rollout_corr/kl"]) < 1e-4 < first[5]["actor/entropy"]
    assert second[1]["actor/ref_kl_k3"] <= 1e-9, "its reference is the policy it starts from"

"""Test process supervision with a reference and a history, killed and resumed: verl's whole pipeline."""

import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from limits import largest
from transformers import AutoModelForTokenClassification, AutoTokenizer
from verl_runs import UNTESTED, killed_after, train

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

MODEL_WEIGHT = 0.1


def test_process_supervision_killed_and_resumed_with_reference_and_history(tmp_path: Path) -> None:
    """Step rewards learnt from, logged beside the outcome; SIGKILL of the driver, then the same command.

    A quarter of the responses are earlier ones, to prompts that come again in every step. A process reward
    model adds ``MODEL_WEIGHT`` · P(right) to the rule's 0 or 1 of each step.
    """
    steps = (
        *of_a_step_model(tmp_path / "step_model"),
        f"trainer.rollout_data_dir={tmp_path / 'rollouts'}",
        *("trainer.n_gpus_per_node=2", "trainer.total_training_steps=3", "trainer.save_freq=2"),
        *("trainer.resume_mode=auto", *UNTESTED),
        "+algorithm.grpo_ext.ref_model_sync_steps=2",
        "data.train_max_samples=16",
        "+algorithm.grpo_ext.stored_responses={share: 0.25, source: history, max_age: 2}",
    )
    first, processes = killed_after(2, *steps, algo="grpo_process", folder=tmp_path)
    assert all(0 < share < 1 for share in first.series("critic/step_rewards/mean"))
    # Two to five additions and an answer.
    assert all(2 < number < 7 for number in first.series("critic/step_rewards/per_response"))
    assert largest(first.series("critic/score/max")) <= 2.8 + 1e-6, "what verl logs is still the outcome"
    assert all(norm > 0 for norm in first.series("actor/grad_norm"))
    assert all(0 < share < 1 for share in first.series("training_reward/step_reward_model_score"))
    rows = [json.loads(line) for line in (tmp_path / "rollouts" / "1.jsonl").read_text().splitlines()]
    right_steps_of_wrong_answers_are_reinforced(rows)
    at_start, moved = first.series("actor/ref_kl_k3")
    assert at_start <= 1e-9, "the first step starts at the reference"
    assert moved > 1e-6
    assert first.series("stored/share") == [0, 0.25]
    assert first.series("stored/age") == [1]

    resumed = train(*steps, algo="grpo_process", folder=tmp_path).require_success()
    assert sorted(resumed.metrics) == [3], "training began anew instead of resuming"
    assert "Resuming from" in resumed.log.read_text(errors="replace")
    assert resumed.series("actor/ref_kl_k3")[0] <= 1e-9, "the policy of step 2 is the reference of step 3"
    assert resumed.series("stored/share") == [0.25], "the history of the killed run"
    assert resumed.series("stored/age") == [1]
    # Ray's agents of the killed run notice it after about a minute; everything else is gone at once.
    wait_for_the_end_of(processes, seconds=120)


def of_a_step_model(folder: Path) -> tuple[str, ...]:
    """Settings of a token classifier on the embedded task's model, whose head is drawn."""
    base = Path(os.environ["GRPO_VERL_EXT_CACHE"]) / "chain_sum" / "seed-1" / "model"
    AutoModelForTokenClassification.from_pretrained(base, num_labels=2).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    section = "algorithm.grpo_ext.reward_model"
    return (
        "reward.reward_manager.name=rule_and_model",
        *(f"+{section}.path={folder}", f"+{section}.weight={MODEL_WEIGHT}"),
    )


def right_steps_of_wrong_answers_are_reinforced(rows: list[dict[str, Any]]) -> None:
    """arXiv 2402.03300, §4.1.3, from verl's dump: r̃ = (r − mean R) / std R of the prompt, Â = Σ r̃ to come."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["uid"].rsplit("_", 2)[0]].append(row)
    reinforced = 0
    for group in groups.values():
        every = torch.tensor([r for row in group for r in row["step_rewards"]], dtype=torch.float64)
        for row in group:
            scaled = (torch.tensor(row["step_rewards"], dtype=torch.float64) - every.mean()) / every.std()
            wanted = scaled.flip(0).cumsum(0).flip(0)
            # Single precision; the estimator adds 1e-6 to the standard deviation.
            assert row["step_advantages"] == pytest.approx(wanted.tolist(), rel=1e-4, abs=1e-4)
            # What exceeds the rule's 0 or 1 is the model's part.
            rewards = row["step_rewards"]
            assert all(0 < reward - (reward >= 1) < MODEL_WEIGHT for reward in rewards)
            wrong_answer, first_right = rewards[-1] < 1, rewards[0] >= 1
            reinforced += wrong_answer and first_right and row["step_advantages"][0] > 0
    assert reinforced > 0, "no wrong answer had a right step with a positive advantage"


def wait_for_the_end_of(processes: list[psutil.Process], *, seconds: float) -> None:
    """Poll until none runs; one that has ended but whom nobody has collected (a zombie) does not run."""
    end = time.monotonic() + seconds
    while left := [name for process in processes if (name := name_if_running(process))]:
        assert time.monotonic() < end, f"still running {seconds} s after the run was killed: {left}"
        time.sleep(0.5)


def name_if_running(process: psutil.Process) -> str | None:
    try:
        return process.name() if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None

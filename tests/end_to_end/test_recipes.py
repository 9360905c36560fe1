"""Test recipes for two steps: GSM8K with tags, a task of reasoning-gym, and a reward model alone."""

import json
import math
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from gsm8k_tags import prepare_gsm8k_tags
from limits import largest
from reasoning_gym_data import GymSettings, prepare_reasoning_gym
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from verl_runs import Run, train

from grpo_verl_ext.rewards.rules import TAGS, answer_of
from grpo_verl_ext.tasks.folders import verl_row, write_rows

pytestmark = [pytest.mark.e2e, pytest.mark.long]

TASKS = Path(__file__).parents[2] / "examples" / "tasks"
STEPS, PROMPTS, SAMPLES = 2, 4, 8
SUMS_OF_TWO_DIGITS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def policy() -> Path:
    """The embedded task's warm-started model: its tags are what both recipes see of a language model."""
    return Path(os.environ["GRPO_VERL_EXT_CACHE"]) / "chain_sum" / "seed-1" / "model"


def two_steps(*overrides: str, task: str, folder: Path, algo: str) -> tuple[Run, list[dict[str, Any]]]:
    """The finished training, and the rows of its rollout dumps."""
    run = train(
        *(f"task.folder={folder / 'data'}", f"task.model={policy()}"),
        *("data.max_prompt_length=140", "data.max_response_length=44", "data.val_batch_size=8"),
        *(f"data.train_batch_size={PROMPTS}", f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}"),
        *(f"actor_rollout_ref.rollout.n={SAMPLES}", "actor_rollout_ref.actor.optim.lr=1e-4"),
        *(f"trainer.total_training_steps={STEPS}", f"trainer.test_freq={STEPS}", "trainer.save_freq=-1"),
        *("trainer.val_before_train=false", "trainer.v1.trainer_mode=grpo_ext_sync"),
        f"trainer.rollout_data_dir={folder / 'rollouts'}",
        *overrides,
        algo=algo,
        folder=folder,
        presets=("+platform=cpu", f"+task={task}"),
    ).require_success()
    assert sorted(run.metrics) == [1, STEPS]
    dumps = [folder / "rollouts" / f"{step}.jsonl" for step in range(1, STEPS + 1)]
    rows = [json.loads(line) for dump in dumps for line in dump.read_text().splitlines()]
    assert len(rows) == STEPS * PROMPTS * SAMPLES
    assert largest(map(abs, run.series("rollout_corr/kl"))) < 1e-4
    for step, norm in enumerate(run.series("actor/grad_norm")):
        scores: dict[str, set[float]] = defaultdict(set)
        for row in rows[step * PROMPTS * SAMPLES :][: PROMPTS * SAMPLES]:
            scores[row["uid"].rsplit("_", 2)[0]].add(row["score"])
        assert len(scores) == PROMPTS
        differ = any(len(group) > 1 for group in scores.values())
        assert (norm > 0, norm < math.inf) == (differ, True), (
            "a prompt's responses are told apart, or no gradient"
        )
    return run, rows


def test_gsm8k_with_tags(tmp_path: Path) -> None:
    """Rows in GSM8K's form, whose questions the policy can answer."""
    source = tmp_path / "source"
    source.mkdir()
    for split, first in (("train", 1), ("test", 2)):
        problems = [(f"{a}+{b}=?", f"So <<{a}+{b}={a + b}>>\n#### {a + b}") for a, b in pairs(first)]
        lines = [json.dumps({"question": asked, "answer": answer}) for asked, answer in problems]
        (source / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    prepare_gsm8k_tags(source, tmp_path / "data", force=False)

    found = f"hydra.searchpath=[file://{TASKS}]"
    run, rows = two_steps(found, task="gsm8k_tags", folder=tmp_path, algo="gvpo")
    form = [0.2 * sum(tag in row["output"] for tag in TAGS) for row in rows]
    # 2.0 for the ground truth to the letter, 1.5 for the number written differently.
    rest = [row["score"] - own for row, own in zip(rows, form, strict=True)]
    assert all(min(abs(each - value) for value in (0, 1.5, 2)) < 1e-5 for each in rest)
    assert all(
        f"<answer>{row['gts']}</answer>" in row["output"]
        for row, own in zip(rows, rest, strict=True)
        if own > 1.9
    )
    assert max(form) > 0
    assert all("Respond in the following format" in row["input"] for row in rows)
    # Means by name over a step's responses; single precision.
    half = len(rows) // STEPS
    for name, values in (("format", form), ("correctness", rest)):
        wanted = [sum(values[:half]) / half, sum(values[half:]) / half]
        assert run.series(f"training_reward/{name}") == pytest.approx(wanted, abs=1e-5)
    (accuracy,) = run.series("val-core/gsm8k_tags/acc/mean@1")
    assert 0 <= accuracy <= 1
    assert run.series("val-aux/gsm8k_tags/format/mean@1")


def pairs(first: int) -> list[tuple[int, int]]:
    return [(first, second) for second in range(8)]


def test_a_task_of_reasoning_gym(tmp_path: Path) -> None:
    """Sums of two digits; the verifier gives 1 for the answer, and less where it stands among more."""
    of = GymSettings("chain_sum", SUMS_OF_TWO_DIGITS, train=8, test=8, seed=1, system="")
    prepare_reasoning_gym(of, tmp_path / "data", force=False)

    own = (f"hydra.searchpath=[file://{TASKS}]", "task.dataset=chain_sum")
    run, rows = two_steps(*own, task="reasoning_gym", folder=tmp_path, algo="gvpo")
    right = [answer_of(row["output"]) == row["gts"] for row in rows]
    assert [row["score"] == 1.0 for row in rows] == right
    assert all(0 <= row["score"] <= 1 for row in rows)
    half = len(rows) // STEPS
    wanted = [sum(right[:half]) / half, sum(right[half:]) / half]
    assert run.series("training_reward/acc") == pytest.approx(wanted, abs=1e-6)
    assert run.series("training_reward/verifier_raised") == [0.0, 0.0]
    assert run.series("val-core/reasoning_gym/chain_sum/acc/mean@1")


def test_a_reward_model_alone(tmp_path: Path) -> None:
    """Posts without a ground truth, scored in the model's own chat template."""
    posts = [f"Post {number}: my cat sleeps all day." for number in range(8)]
    for split in ("train", "test"):
        (tmp_path / "data").mkdir(exist_ok=True)
        rows = [
            verl_row("tldr", post, "", system="", ability="summary", extra_info={"index": index})
            for index, post in enumerate(posts)
        ]
        write_rows(tmp_path / "data" / f"{split}.parquet", rows)
    tokenizer = AutoTokenizer.from_pretrained(policy())
    model = AutoModelForSequenceClassification.from_pretrained(policy(), num_labels=1).eval()
    model.save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")

    judge = f"task.reward_model={tmp_path / 'judge'}"
    run, rows = two_steps(judge, task="tldr", folder=tmp_path, algo="grpo")
    by_hand = []
    with torch.inference_mode():
        for row in rows:
            (post,) = (post for post in posts if post in row["input"])
            turns = (("user", post), ("assistant", row["output"]))
            chat = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns)
            by_hand.append(model(**tokenizer(chat, return_tensors="pt")).logits.item())
    assert [row["score"] for row in rows] == pytest.approx(by_hand, rel=1e-3, abs=1e-4)
    assert max(by_hand) > min(by_hand)
    half = len(rows) // STEPS
    wanted = [sum(by_hand[:half]) / half, sum(by_hand[half:]) / half]
    name = "reward_model_score"
    assert run.series(f"training_reward/{name}") == pytest.approx(wanted, rel=1e-3, abs=1e-4)
    assert run.series(f"training_reward_group_std/{name}")[0] > 0
    assert run.series(f"val-aux/tldr/{name}/mean@1")

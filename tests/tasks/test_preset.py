"""Test the preset ``+task=chain_sum``: it composes and points to where ``prepare`` writes."""

import pytest
from omegaconf import DictConfig

from grpo_verl_ext.rewards.weighted_sum import check_weights, compute_score
from grpo_verl_ext.tasks.chain_sum.model import build_tokenizer
from grpo_verl_ext.tasks.chain_sum.prepared import TASKS
from grpo_verl_ext.tasks.chain_sum.problems import prompt, response
from grpo_verl_ext.utils.files import cache_root
from grpo_verl_ext.verl_plugin import compose


def composed(*overrides: str, task: str = "chain_sum") -> DictConfig:
    return compose.composed([f"+task={task}", "actor_rollout_ref.rollout.name=vllm", *overrides])


@pytest.mark.parametrize(
    "environment",
    [
        {"GRPO_VERL_EXT_CACHE": "/somewhere", "XDG_CACHE_HOME": "/else", "HOME": "/h"},
        {"XDG_CACHE_HOME": "/else", "HOME": "/h"},
        {"GRPO_VERL_EXT_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/h"},
        {"GRPO_VERL_EXT_CACHE": "/somewhere"},
    ],
    ids=["own first", "xdg", "home", "own without home"],
)
def test_the_folder_is_the_one_prepare_writes(environment, monkeypatch):
    for name in ("GRPO_VERL_EXT_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config, folder = composed("task.seed=4"), cache_root() / "chain_sum" / "seed-4"
    assert config.task.folder == str(folder)
    assert config.data.train_files == f"{folder}/train.parquet"
    assert config.data.val_files == f"{folder}/test.parquet"
    assert config.actor_rollout_ref.model.path == f"{folder}/model"


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_its_preset_with_its_budget(name):
    config = composed(task=name)
    folder = cache_root() / name / "seed-1"
    assert config.task.folder == str(folder)
    assert config.actor_rollout_ref.model.path == f"{folder}/model"
    assert config.actor_rollout_ref.rollout.response_length == TASKS[name].max_response_tokens
    assert config.data.val_batch_size == TASKS[name].test_problems
    # two updates a step
    assert config.data.train_batch_size == 2 * config.actor_rollout_ref.actor.ppo_mini_batch_size
    longest = (9,) * TASKS[name].max_terms
    tokenizer = build_tokenizer()
    assert len(tokenizer.encode(response(longest))) + 1 <= TASKS[name].max_response_tokens
    chat = [{"role": "user", "content": prompt(longest)}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
    assert len(asked["input_ids"]) <= config.data.max_prompt_length
    if name == "chain_sum":
        assert (len(asked["input_ids"]), len(tokenizer.encode(response(longest)))) == (19, 37)


def test_the_reward_is_ours_and_takes_the_presets_weights():
    from verl.trainer.ppo.reward import get_custom_reward_fn

    config = composed("+reward.custom_reward_function.reward_kwargs.weights.steps=0.5")
    weights = config.reward.custom_reward_function.reward_kwargs.weights
    check_weights(weights)
    row = {"solution_str": "<reasoning>1+2=3;", "ground_truth": "3", "extra_info": {"terms": [1, 2]}}
    score = get_custom_reward_fn(config)(data_source="chain_sum", **row)
    weights = {"correctness": 1.0, "format": 1.0, "steps": 0.5}
    assert score == compute_score("chain_sum", **row, weights=weights)
    assert score["score"] == pytest.approx(0.2 + 0.5, abs=1e-15)

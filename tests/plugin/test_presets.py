"""Test presets on verl's command line: they compose, change what they say, and misspellings are named."""

import asyncio
import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.config import omega_conf_to_dataclass

import grpo_verl_ext.config
from grpo_verl_ext.tasks.chain_sum.model import build_tokenizer
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.verl_plugin.compose import composed

CONFIG = Path(grpo_verl_ext.config.__file__).parent
PRESETS = sorted(f"{file.parent.name}={file.stem}" for file in CONFIG.glob("*/*.yaml"))
ALGORITHMS = sorted(file.stem for file in CONFIG.glob("algo/*.yaml"))
BUFFER = {256: 51, 512: 102, 2048: 409, 8192: 1638, 20480: 4096}
"""DAPO's overlong buffer by budget, worked by hand: ⌊L · 4096 / 20480⌋ = ⌊L / 5⌋."""
OVERLONG = ("cispo", "dapo")
"""Presets with DAPO's punishment of long responses; CISPO's paper takes it over (arXiv 2506.13585, §3.1)."""
KL = {"grpo": ["loss"], "grpo_process": ["loss"], "ppo_kl": ["reward"], "rloo": ["reward"]}
"""Where a paper's objective has the KL to the reference; GVPO has one of its own, the others have none."""
BYTES = build_tokenizer()


@pytest.mark.parametrize("task", [preset for preset in PRESETS if preset.startswith("task=")])
def test_the_cpu_platform_may_be_named_before_the_task(task: str) -> None:
    """A task says nothing about kernels, which a processor may lack."""
    before, after = (
        composed(words) for words in (["+platform=cpu", f"+{task}"], [f"+{task}", "+platform=cpu"])
    )
    for section in ("actor_rollout_ref.model", "actor_rollout_ref.actor.fsdp_config", "critic.model"):
        both = [OmegaConf.to_container(OmegaConf.select(each, section)) for each in (before, after)]
        assert both[0] == both[1], section


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_composes_with_verls_config(preset: str) -> None:
    config = composed([f"+{preset}", "actor_rollout_ref.rollout.name=vllm"])
    values = OmegaConf.to_container(OmegaConf.load(CONFIG / f"{preset.replace('=', '/')}.yaml"))
    values.pop("defaults", None)  # Hydra's list of presets to begin with
    for key, value in leaves(values):
        if not (isinstance(value, str) and "${" in value):
            assert OmegaConf.select(config, key, throw_on_missing=True) == value, key


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_preset_has_the_kl_of_its_paper_and_no_entropy_bonus(algorithm: str) -> None:
    config = composed([f"+algo={algorithm}"])
    actor = config.actor_rollout_ref.actor
    has_kl = {
        "loss": bool(actor.use_kl_loss and actor.kl_loss_coef),
        "reward": bool(config.algorithm.use_kl_in_reward),
    }
    assert [place for place, is_there in has_kl.items() if is_there] == KL.get(algorithm, [])
    assert actor.entropy_coeff == 0


def test_gvpo_loads_the_reference_for_the_anchor_that_needs_it() -> None:
    from verl.trainer.ppo.utils import need_reference_policy

    config = composed(["+algo=gvpo"])
    actor = config.actor_rollout_ref.actor
    assert (actor.policy_loss.loss_mode, actor.policy_loss.gvpo_beta) == ("gvpo", 0.1)
    assert (actor.loss_agg_mode, config.trainer.v1.trainer_mode) == ("seq-mean-token-sum", "grpo_ext_sync")
    assert not need_reference_policy(config)
    anchored = composed(["+algo=gvpo", "algorithm.grpo_ext.gvpo_anchor=ref"])
    assert need_reference_policy(anchored)
    assert anchored.actor_rollout_ref.actor.kl_loss_coef == 0


def test_the_embedded_task_has_settings_of_its_own_for_gvpo() -> None:
    config = composed(["+algo=gvpo", "+task=chain_sum", "actor_rollout_ref.rollout.name=vllm"])
    actor = config.actor_rollout_ref.actor
    assert (actor.policy_loss.gvpo_beta, actor.optim.lr, actor.ppo_epochs) == (0.5, 2e-4, 2)
    others = composed(["+algo=grpo", "+task=chain_sum", "actor_rollout_ref.rollout.name=vllm"])
    assert others.actor_rollout_ref.actor.optim.lr == 5e-4
    assert others.actor_rollout_ref.actor.ppo_epochs == 1


def test_the_actor_of_a_preset_is_what_verls_dataclass_accepts() -> None:
    rows = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"
    actor = omega_conf_to_dataclass(composed(["+algo=grpo", "+platform=cpu", rows]).actor_rollout_ref.actor)
    assert actor.strategy == "fsdp2"
    assert actor.fsdp_config.mixed_precision["param_dtype"] == "fp32"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_verls_reward_worker_can_be_built_at_any_budget(algorithm: str) -> None:
    whole = composed([f"+algo={algorithm}", "actor_rollout_ref.rollout.name=vllm"])
    budgets = BUFFER if algorithm in OVERLONG else {512: 0}  # which the others do not read
    for budget, buffer in budgets.items():
        config = copy.deepcopy(whole)
        config.data.max_response_length = budget
        OmegaConf.resolve(config)  # as verl's TaskRunner does
        manager = load_reward_manager(config, BYTES)
        if algorithm in OVERLONG:
            assert (manager.max_resp_len, manager.overlong_buffer_cfg.len) == (budget, buffer)


@pytest.mark.parametrize("algorithm", OVERLONG)
@pytest.mark.parametrize(("tokens", "added"), [(410, 0.0), (461, -0.5), (512, -1.0)])
def test_dapo_adds_what_eq_13_says(algorithm: str, tokens: int, added: float) -> None:
    """L = 512 and C = 102: (410 − |y|) / 102 beyond 410 tokens."""
    function = "reward.custom_reward_function"
    words = [f"+algo={algorithm}", "data.max_response_length=512"]
    words += [f"{function}.path=pkg://grpo_verl_ext.rewards.weighted_sum"]
    config = composed([*words, f"+{function}.reward_kwargs.weights={{correctness: 1.0}}"])
    OmegaConf.resolve(config)

    async def scored() -> dict[str, object]:
        return await load_reward_manager(config, BYTES).run_single(right_response(tokens))

    # 2.0 for the right answer; the lengths are whole numbers and the shares halves: exact
    assert asyncio.run(scored())["reward_score"] == 2.0 + added


def right_response(tokens: int) -> DataProto:
    """As verl hands it to its reward manager: so many tokens behind a prompt of one, then one of padding."""
    answer = BYTES.encode("<answer>9</answer>")
    ids = [*BYTES.encode(".") * (tokens - len(answer)), *answer]
    assert len(ids) == tokens
    batch = {
        "responses": torch.tensor([[*ids, 0]]),
        "attention_mask": torch.tensor([[1] * (1 + tokens) + [0]]),
    }
    row = {"data_source": "chain_sum", "reward_model": {"ground_truth": "9"}}
    return DataProto(
        batch=TensorDict(batch, batch_size=1),
        non_tensor_batch={key: np.array([value], dtype=object) for key, value in row.items()},
    )


@given(st.integers(1, 10**9), st.integers(1, 10**6), st.integers(0, 10**6))
def test_a_share_is_a_whole_number_of_at_least_one_and_within_the_whole(
    whole: int, part: int, rest: int
) -> None:
    found = OmegaConf.create({"share": f"${{grpo_ext.share:{whole},{part},{part + rest}}}"}).share
    assert type(found) is int
    assert 1 <= found <= whole
    # no rounding of floats: at most the share, and one more would be above it
    assert found * (part + rest) <= whole * part or found == 1
    assert (found + 1) * (part + rest) > whole * part

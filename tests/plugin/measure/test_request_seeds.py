"""Test the seeds of requests: what they depend on, both agent loops, the order of rows, refusals."""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from queue_store import Store, trainer_with
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from grpo_verl_ext.preflight import CHECKS
from grpo_verl_ext.tasks.chain_sum.model import build_tokenizer
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin.agent_loops import loops
from grpo_verl_ext.verl_plugin.agent_loops.loops import (
    _ExtendedSingleTurnAgentLoop,
    _ExtendedToolAgentLoop,
    _SeededServer,
)
from grpo_verl_ext.verl_plugin.compose import composed

TOKENIZER = build_tokenizer()
OPTION = "algorithm.grpo_ext.seed_requests"
ROLLOUT = "actor_rollout_ref.rollout"
small, prompts = st.integers(0, 3), st.lists(st.integers(0, 3), max_size=3)
arguments = st.fixed_dictionaries(
    {"seed": small, "step": small, "index": small, "session": small, "turn": small, "prompt_ids": prompts}
)


@given(arguments, arguments)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_equal_seeds_are_of_equal_requests(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (loops._request_seed(**one) == loops._request_seed(**other)) == (one == other)


def test_a_seed_is_one_that_torch_and_vllm_take() -> None:
    fixed = {"seed": 1, "index": 0, "session": 0, "turn": 0, "prompt_ids": [1, 2]}
    seeds = [loops._request_seed(step=step, **fixed) for step in range(200)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62 > min(seeds), "all 63 bits are used"
    torch.Generator().manual_seed(max(seeds))


def test_numpys_numbers_are_numbers() -> None:
    """verl's rows have both."""
    plain = loops._request_seed(1, step=2, index=3, session=4, turn=0, prompt_ids=[5])
    found = loops._request_seed(
        1, step=np.int64(2), index=np.int64(3), session=np.int64(4), turn=0, prompt_ids=np.array([5])
    )
    assert found == plain


class Server:
    """Answers every request with one token and the end of the turn, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def generate(self, **request: Any) -> TokenOutput:
        self.asked.append(request)
        return TokenOutput(token_ids=[65, TOKENIZER.eos_token_id], log_probs=None, num_preempted=0)


LOOPS: list[Callable[..., Any]] = [
    _ExtendedSingleTurnAgentLoop,
    partial(_ExtendedToolAgentLoop, tools=ToolListWrap([])),
]


def configured(*overrides: str) -> DictConfig:
    made = composed(["+algo=grpo", f"{ROLLOUT}.name=vllm", "data.max_prompt_length=64", *overrides])
    OmegaConf.set_struct(made, False)
    return made


def agent_loop(
    loop: Callable[..., Any], config: DictConfig, server: Server, tokenizer: Any = TOKENIZER
) -> Any:
    """As verl's worker makes it."""
    wrapped = {"trainer_config": DictConfigWrap(config), "data_config": DictConfigWrap(config.data)}
    made = {"server_manager": server, "tokenizer": tokenizer, "processor": None, "dataset_cls": RLHFDataset}
    return loop(**wrapped, **made, hf_model_type="qwen2")


def seeds_of(loop: Callable[..., Any], config: DictConfig, params: dict[str, Any], step: int) -> list[Any]:
    """Seeds of the requests for two responses to each of three prompts, two with one text and one index."""
    server = Server()
    texts = [("1+2=?", 0), ("1+3=?", 0), ("1+2=?", 7)]

    async def run() -> None:
        for (text, index), session in product(texts, range(2)):
            row = {"raw_prompt": [{"role": "user", "content": text}], "uid": "random", "index": index}
            await agent_loop(loop, config, server).run(params, session_id=session, global_steps=step, **row)

    asyncio.run(run())
    return [request["sampling_params"].get("seed") for request in server.asked]


@pytest.mark.parametrize("loop", LOOPS, ids=["single turn", "tools"])
def test_each_request_has_a_seed_of_its_own(loop: Callable[..., Any]) -> None:
    config, params = configured(f"+{OPTION}=1"), {"temperature": 1.0}
    first = seeds_of(loop, config, params, step=4)
    assert len(set(first)) == len(first) == 6
    assert params == {"temperature": 1.0}, "shared by all responses"
    assert seeds_of(loop, config, params, step=4) == first
    assert not set(seeds_of(loop, config, params, step=5)) & set(first)
    assert not set(seeds_of(loop, configured(f"+{OPTION}=2"), params, step=4)) & set(first)
    assert seeds_of(loop, configured(), params, step=4) == [None] * 6, "verl's, without the option"


def test_later_turns_depend_on_no_answer() -> None:
    """What a policy said in its first turn leaves the randomness of the second as it is."""
    row = {"global_steps": 1, "index": 0, "session_id": 0}

    def seeds(answer: int) -> list[int]:
        server = Server()

        async def run() -> None:
            seeded = _SeededServer(server, 3, row)
            await seeded.generate(prompt_ids=[1, 2], sampling_params={"stop_token_ids": [9]})
            await seeded.generate(prompt_ids=[1, 2, answer, 4], sampling_params={"stop_token_ids": [9]})

        asyncio.run(run())
        assert [request["prompt_ids"] for request in server.asked] == [[1, 2], [1, 2, answer, 4]]
        assert all(request["sampling_params"]["stop_token_ids"] == [9] for request in server.asked)
        return [request["sampling_params"]["seed"] for request in server.asked]

    assert seeds(5) == seeds(6)
    assert len(set(seeds(5))) == 2


ROWS = {
    "b_1_0": (0, [5, 6]),
    "a_0_0": (0, [5]),
    "c_0_0": (10, [5]),
    "a_0_10": (0, [5]),
    "a_0_2": (0, [5]),
    "b_0_0": (0, [5, 6]),
    "c_1_0": (10, [5]),
}
"""Key → index and tokens of its prompt; in the data set all but the last prompt have no index."""


def balanced(monkeypatch: pytest.MonkeyPatch, config: DictConfig, keys: tuple[str, ...]) -> list[str]:
    """Keys of the batch as it is handed to the workers, without padding."""
    store = Store()
    for key in keys:
        index, prompt = ROWS[key]
        store.rows[key] = {
            "uid": key[0], "index": index, "prompts": torch.tensor(prompt), "responses": torch.tensor([1]),
        }  # fmt: skip
    trainer = trainer_with(monkeypatch, store, config)
    tags = [{"seq_len": 3} for _ in keys]
    batch = trainer._balance_batch(KVBatchMeta(partition_id="train", keys=[*keys], tags=tags), {})
    return [key for key in batch.keys if not key.startswith("pad")]


def test_the_rows_have_one_order_whichever_response_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the mini-batches of two runs with the same responses would differ."""
    own = ("a_0_0", "b_0_0", "b_1_0", "c_0_0", "c_1_0")
    arrivals = [order for number, order in enumerate(permutations(own)) if number % 23 == 0]
    plain = configured(f"{ROLLOUT}.n=2", "actor_rollout_ref.actor.ppo_mini_batch_size=1")
    seeded = OmegaConf.merge(plain, {"algorithm": {"grpo_ext": {"seed_requests": 1}}})
    assert {tuple(balanced(monkeypatch, seeded, order)) for order in arrivals} == {own}
    assert len({tuple(balanced(monkeypatch, plain, order)) for order in arrivals}) > 1


def test_the_order_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = f"{ROLLOUT}.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=1"
    found = balanced(monkeypatch, configured(f"+{OPTION}=1", *sizes), tuple(ROWS))
    assert found == ["a_0_0", "a_0_2", "a_0_10", "b_0_0", "b_1_0", "c_0_0", "c_1_0"]


class TestRefused:
    @pytest.mark.parametrize("names", [["single_turn_agent", None], ["mine", "mine"]])
    def test_rows_that_ask_for_such_a_loop(self, names: list[str | None], tmp_path: Path) -> None:
        """verl takes a row's loop before its default."""
        rows = pandas.DataFrame({"prompt": ["a", "b"], "agent_name": names})
        rows.to_parquet(file := tmp_path / "a.parquet")
        config = OmegaConf.merge(configured(f"+{OPTION}=1"), {"data": {"train_files": [str(file)]}})
        with pytest.raises(SettingError, match=f"ask for agent_name={names[0]}, and .* passes seeds on"):
            CHECKS["seeds"](config)
        CHECKS["seeds"](configured(f"data.train_files={file}"))  # without the option nothing is asked

    @pytest.mark.parametrize("names", [["grpo_ext_tool_agent", None], [None, None]])
    def test_rows_that_ask_for_ours_or_for_none(self, names: list[str | None], tmp_path: Path) -> None:
        rows = pandas.DataFrame({"prompt": ["a", "b"], "agent_name": names})
        rows.to_parquet(file := tmp_path / "a.parquet")
        (tmp_path / "b.parquet").write_text("no parquet")
        files = [str(file), str(tmp_path / "b.parquet"), "hdfs://c.parquet"]
        CHECKS["seeds"](OmegaConf.merge(configured(f"+{OPTION}=1"), {"data": {"train_files": files}}))

"""A rollout and a trainer's step up to the workers, in one process: verl's own code, without Ray.

verl's agent-loop worker runs the package's agent loop, and the package's trainer calls verl's methods. Put in
their places are: the inference server (`Server`), the rewards (a function), the actor's log-probs (a model),
and TransferQueue (`queue_store.Store`).
"""

import asyncio
import functools
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest
import torch
from fsdp2_ranks import run_rank, tiny_model
from omegaconf import DictConfig, OmegaConf
from processes import run_ranks
from queue_store import Store, trainer_with
from tensordict import TensorDict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transfer_queue import KVBatchMeta
from transformers import GPTNeoXForCausalLM, PreTrainedTokenizerFast
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from grpo_verl_ext import preflight
from grpo_verl_ext.verl_plugin.compose import composed

LETTERS = ("a", "b", "c", "d")
END = "<end>"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def small_tokenizer() -> PreTrainedTokenizerFast:
    """Four letters and an end of turn; a letter is a token."""
    words = {letter: number for number, letter in enumerate((*LETTERS, END))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=END))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, chat_template=TEMPLATE
    )


def small_model(seed: int = 0) -> GPTNeoXForCausalLM:
    """As `fsdp2_ranks.tiny_model`, for the five tokens; wide enough for any table of two tokens."""
    sizes = {"vocab_size": 5, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 32}
    return tiny_model(seed, **sizes, tie_word_embeddings=False)


def token_log_probs(model: torch.nn.Module, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
    """log π of the tokens of a response: (T,)."""
    logits = model(torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
    return logits[len(prompt) - 1 : -1].gather(-1, torch.tensor(response).unsqueeze(-1)).squeeze(-1)


class Server:
    """Answers every request with the next of its responses, and counts the requests."""

    def __init__(self, responses: Sequence[Sequence[int]], log_prob: float = -1.0) -> None:
        self.left = list(responses)
        self.log_prob = log_prob
        self.asked = 0

    async def generate(self, *, sampling_params: Mapping[str, Any], **_: Any) -> TokenOutput:
        self.asked += 1
        await asyncio.sleep(0.001)
        token_ids = self.left.pop(0)
        log_probs = [self.log_prob] * len(token_ids) if sampling_params["logprobs"] else None
        versions = {"min_global_steps": 0, "max_global_steps": 0}
        return TokenOutput(token_ids=token_ids, log_probs=log_probs, extra_fields=versions)


Reward = Callable[[list[int]], float]
VerlsWorker = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class


class AgentLoopWorker(VerlsWorker):
    """verl's worker in this process, with a reward function of its own."""

    def __init__(self, config: DictConfig, tokenizer: Any, server: Server, reward: Reward) -> None:
        self.config = config
        self.rollout_config = config.actor_rollout_ref.rollout
        self.llm_client, self.tokenizer, self.processor = server, tokenizer, None
        self.hf_model_type, self.tools = None, []
        self.dataset_cls = RLHFDataset
        self.distillation_enabled = False
        self.background_tasks = set()
        self.reward = reward

    async def _compute_score(self, outputs: Any, kwargs: Any) -> None:
        outputs[-1].reward_score = self.reward(outputs[-1].response_ids)
        outputs[-1].extra_fields["reward_extra_info"] = {}

    def run(self, batch: TensorDict) -> None:
        """All sessions of all prompts of the batch."""

        async def settled() -> None:
            await self.generate_sequences(batch)
            await asyncio.gather(*self.background_tasks)

        asyncio.run(settled())


class Rollout:
    """A trainer of this package, and the queue, worker and server of its rollout."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        folder: Path,
        rows: Sequence[Mapping[str, Any]],
        *,
        algo: str = "gvpo",
        server: Server | None = None,
        reward: Reward = len,
        model: torch.nn.Module | None = None,
        worker: type = AgentLoopWorker,
        **settings: Any,
    ) -> None:
        self.patch, self.queue = monkeypatch, Store()
        monkeypatch.setattr(agent_loop_tq, "tq", self.queue)
        self.config, self.tokenizer = training(folder, rows, algo, settings), small_tokenizer()
        self.server = server or Server([])
        self.worker = worker(self.config, self.tokenizer, self.server, reward)
        self.model = model or small_model()
        self.trainer = self.made_trainer()
        self.handed_over: list[KVBatchMeta] = []

    def made_trainer(self) -> Any:
        """As after verl's ``__init__``, on one rank."""
        trainer = trainer_with(self.patch, self.queue, self.config, tokenizer=self.tokenizer, processor=None)
        trainer.trainer_mode, trainer.local_trigger_step, trainer.parameter_sync_step = "sync", 0, 1
        if self.config.distillation.enabled:
            trainer.distillation_config = omega_conf_to_dataclass(self.config.distillation)
        trainer.train_dataloader_it = None
        trainer.agent_loop_manager = SimpleNamespace(generate_sequences=self.worker.run)
        trainer.actor_rollout_wg = SimpleNamespace(
            _dispatch_info={"actor": [0]},
            compute_log_prob=self.compute_log_prob,
            update_actor=self.update_actor,
            save_checkpoint=lambda *_, **__: None,
            load_checkpoint=lambda **_: None,
        )
        trainer.checkpoint_callback = SimpleNamespace(on_save=lambda **_: None)
        return trainer

    def compute_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        """As the actor writes them: of all positions, one early."""
        for key in batch.keys:
            row = self.queue.rows[key]
            prompt, response = row["prompts"].tolist(), row["responses"].tolist()
            with torch.no_grad():
                found = token_log_probs(self.model, prompt, response)
            whole = torch.zeros(len(prompt) + len(response), dtype=found.dtype)
            whole[len(prompt) - 1 : -1] = found
            row.update(log_probs=whole, entropy=torch.zeros_like(whole))
        return batch

    def update_actor(self, batch: KVBatchMeta) -> dict[str, Any]:
        self.handed_over.append(batch)
        return {"metrics": {"mfu": [0.0]}}

    def generate(self) -> KVBatchMeta:
        """One batch of prompts; its responses are in the queue afterwards."""
        self.queue.rows.clear()
        self.trainer._submit_batch_to_rollout(self.trainer._next_train_batch())
        return self.queue.batch()

    def step(self) -> tuple[KVBatchMeta, dict[str, Any]]:
        """A training step up to what the workers are handed, and its metrics."""
        metrics: dict[str, Any] = {}
        batch = self.generate()
        batch.extra_info["temperature"] = 1.0
        batch = self.trainer._balance_batch(batch, metrics)
        batch = self.trainer._compute_old_log_prob(batch, metrics)
        batch = self.trainer._compute_advantage(batch, metrics)
        self.trainer._update_actor(batch, metrics)
        return self.handed_over[-1], metrics


@functools.cache
def preset(algo: str) -> bytes:
    """What verl composes, pickled."""
    return pickle.dumps(composed([f"+algo={algo}", "actor_rollout_ref.rollout.name=vllm"]))


def training(
    folder: Path, rows: Sequence[Mapping[str, Any]], algo: str, settings: Mapping[str, Any]
) -> DictConfig:
    """A training on these rows, each with a prompt of letters and ``extra_info``.

    ``settings`` are of the section ``stored_responses`` by their names, others with ``__`` for dots.
    """
    file = folder / "train.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame(
        [
            {
                "prompt": [{"role": "user", "content": row["prompt"]}],
                "data_source": "table",
                **{name: value for name, value in row.items() if name != "prompt"},
            }
            for row in rows
        ]
    ).to_parquet(file)
    config = pickle.loads(preset(algo))
    OmegaConf.set_struct(config, False)
    common = {
        "data.train_files": str(file),
        "data.val_files": str(file),
        "data.train_batch_size": len(rows),
        "data.max_prompt_length": 4,
        "data.max_response_length": 2,
        "data.shuffle": False,
        "data.dataloader_num_workers": 0,
        "data.filter_overlong_prompts": False,
        "actor_rollout_ref.rollout.calculate_log_probs": False,
        "actor_rollout_ref.actor.ppo_mini_batch_size": len(rows),
        "trainer.v1.trainer_mode": "grpo_ext_sync",
        "trainer.default_local_dir": str(folder / "checkpoints"),
        "trainer.total_epochs": 10,
    }
    stored = "algorithm.grpo_ext.stored_responses."
    own = {key.replace("__", ".") if "__" in key else stored + key: value for key, value in settings.items()}
    for key, value in (common | own).items():
        OmegaConf.update(config, key, value, force_add=True)
    preflight.check_training(config)
    return config


def rows_for_worker(queue: Store, batch: KVBatchMeta) -> list[dict[str, Any]]:
    """What a worker reads of the rows: tensors, and the prompt's id."""
    found = []
    for key in batch.keys:
        row = {name: value for name, value in queue.rows[key].items() if isinstance(value, torch.Tensor)}
        found.append({"uid": queue.rows[key]["uid"], **row})
    return found


def trained(
    folder: Path, start: torch.nn.Module, variants: Mapping[str, Any], batches: Mapping[str, Any], **job: Any
) -> dict[str, torch.nn.Module]:
    """Return the model of each variant after the updates of `fsdp2_ranks` on one rank."""
    start.save_pretrained(folder / "model")
    job |= {"model": str(folder / "model"), "variants": variants, "batches": batches}
    torch.save(job, folder / "job.pt")
    run_ranks(run_rank, 1, folder, folder=folder)
    models = {}
    for name, result in torch.load(folder / "result.pt", weights_only=False).items():
        models[name] = small_model()
        models[name].load_state_dict(result["parameters"])
    return models

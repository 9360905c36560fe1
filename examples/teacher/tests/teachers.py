"""Teachers for tests: tokenizers that cut text differently, small models, and a server that scores by one."""

import asyncio
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

CORPUS = [
    "the sum of 12 and 34 is 46.\n\nSo: 46 ",
    "Größe, naïve café, 東京 🙂, x ≤ y",
    "    def f(x):\n\treturn x",
]
USER, ASSISTANT = "<|user|>", "<|assistant|>"


def tokenizer(words: int, end: str, *, template: bool = True) -> PreTrainedTokenizerFast:
    """Byte-level BPE with this many tokens; 256 + 3 has no merges, so that a byte is a token."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = [end, USER, ASSISTANT]
    trainer = trainers.BpeTrainer(
        vocab_size=words, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=special, show_progress=False, min_frequency=1,
    )  # fmt: skip
    raw.train_from_iterator(CORPUS * 3, trainer)
    chat = (
        f"{{% for m in messages %}}{USER}{{{{ m['content'] }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{ASSISTANT}{{% endif %}}"
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=end, pad_token=end, extra_special_tokens=special[1:]
    )
    made.chat_template = chat if template else None
    return made


def model(words: int, seed: int = 0) -> GPTNeoXForCausalLM:
    config = GPTNeoXConfig(
        vocab_size=words, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=512, attn_implementation="sdpa",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPTNeoXForCausalLM(config).double().eval()


def log_probs(scorer: torch.nn.Module, sequence: list[int]) -> torch.Tensor:
    """log π of tokens 1, 2, … of the sequence."""
    with torch.no_grad():
        logits = scorer(torch.tensor([sequence])).logits[0].log_softmax(-1)
    return logits[:-1].gather(-1, torch.tensor(sequence[1:]).unsqueeze(-1)).squeeze(-1)


class ScoringManager:
    """In the place of verl's client of teacher servers; position t has the value of token t + 1."""

    def __init__(self, scorer: torch.nn.Module, config: Any = None) -> None:
        self.scorer, self.asked = scorer, 0
        self.teacher_model_configs = {"default": config}
        self.failures: list[Exception | float] = []
        """What the next answers are: an error, or the seconds that they take."""

    def _resolve_teacher_key(self, routing_key: Any) -> str:
        return "default"

    async def compute_teacher_logprobs_single(self, sequence_ids: list[int], **_: Any) -> Any:
        self.asked += 1
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            await asyncio.sleep(failure)
        found = torch.cat([log_probs(self.scorer, sequence_ids), torch.zeros(1).double()])
        return torch.tensor(sequence_ids), found.unsqueeze(-1)

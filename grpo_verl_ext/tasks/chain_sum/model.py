"""The tokenizer, the starting model and its accuracy; the model is a Qwen2 of half a million parameters.

The tokenizer works on bytes: an id below 256 *is* its byte. Roles and tags are one token each; as bytes they
would be half of every prompt and response, and of the time that training on them takes.

The warm start is supervised training to a medium accuracy, which reinforcement learning can then improve. The
model learns first from right responses, then briefly from responses with slips (`problems.response`): the
right sum stays its most likely one, but it samples a wrong one about as often as the slips taught it. So it
often fails although it knows the answer, and a policy gradient improves it within a few steps. A model that
was only trained for too short a time improves far more slowly.
"""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from grpo_verl_ext.rewards.rules import TAGS, correctness
from grpo_verl_ext.tasks.causal_lm import Part, encode, sample, train_model
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings
from grpo_verl_ext.tasks.chain_sum.problems import every_problem, prompt, response
from grpo_verl_ext.tasks.folders import read_parquet

_END_OF_TEXT, _TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# Qwen's template without its default system prompt, which would be most of every prompt here.
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tokenizer() -> Qwen2Tokenizer:
    """Return the tokenizer; decoding gives any text back in Unicode's composed form (NFC), as Qwen2's do.

    Ids 256 to 258 are the special tokens, and 259 to 264 words of one token each.
    """
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    tokenizer = Qwen2Tokenizer(
        vocab=letters | {_END_OF_TEXT: 256, _TURN_START: 257, TURN_END: 258},
        merges=[],
        unk_token=_END_OF_TEXT,
        eos_token=TURN_END,
        pad_token=_END_OF_TEXT,
        extra_special_tokens=[_TURN_START],
        chat_template=_CHAT_TEMPLATE,
    )
    # Not special, so that they stay in a text decoded without special tokens.
    words = ("user", "assistant", *TAGS)
    tokenizer.add_tokens([transformers.AddedToken(word, normalized=False) for word in words])
    return tokenizer


def build_model(settings: TaskSettings, tokenizer: Qwen2Tokenizer, *, seed: int) -> Qwen2ForCausalLM:
    """Return a float32 model with random weights by ``seed``, without changing torch's random state."""
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.width,
        intermediate_size=settings.feed_forward,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=256,
        # Qwen2's 1e6 and 0.02 suit long contexts and wide models; with them this model learns too slowly.
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def warm_start(
    model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, settings: TaskSettings, *, seed: int
) -> None:
    """Train ``model`` in place on the problems of the training split, as `causal_lm.train_model` does."""
    rng = random.Random(f"warm start/{seed}")
    problems = [
        every_problem(n, "train", by_set=settings.split_by_set)
        for n in range(settings.min_terms, settings.max_terms + 1)
    ]

    def batches() -> Iterator[list[Part]]:
        for step in range(settings.steps):
            has_slips, texts = step >= settings.steps - settings.slip_steps, []
            for _ in range(settings.batch_size):
                terms = rng.choice(rng.choice(problems))
                share = settings.short_slip_share if len(terms) <= 3 else settings.slip_share
                how = {"slip_share": share * has_slips, "rewrite_share": settings.rewrite_share}
                texts.append((prompt(terms), response(terms, **how, rng=rng)))
            yield [
                encode(tokenizer, texts[part :: settings.workers], settings.max_response_tokens)
                for part in range(settings.workers)
            ]

    train_model(model, batches(), steps=settings.steps, learning_rate=settings.learning_rate)


def accuracy(
    model_folder: Path | str,
    parquet: Path | str,
    *,
    n: int = 512,
    temperature: float = 1.0,
    max_response_tokens: int = TaskSettings.max_response_tokens,
    seed: int = 0,
    samples: int = 1,
) -> float:
    """Return the share of right answers in ``samples`` responses to each of the first ``n`` prompts, 0 … 1.

    ``parquet`` has verl's format and at least ``n`` rows. With one sample it is verl's validation metric
    ``acc`` under the task's preset; its standard error is √(a(1−a)/n), 0.02 at n = 512. Temperature 0 takes
    the most likely token every time.
    """
    rows = read_parquet(Path(parquet))[:n]
    if len(rows) < n:
        raise ValueError(f"n={n} prompts wanted, but {parquet} has {len(rows)}; ask for at most that many")
    rows *= samples
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    how: dict[str, Any] = {"temperature": temperature, "max_response_tokens": max_response_tokens}
    tokens = sample(model, tokenizer, [row["prompt"] for row in rows], **how, seed=seed)
    responses = tokenizer.batch_decode(tokens, skip_special_tokens=True)  # as verl strips them
    truths = [row["reward_model"]["ground_truth"] for row in rows]
    return sum(correctness(*both) > 0 for both in zip(responses, truths, strict=True)) / len(rows)


_COLDEST, _HOTTEST = 0.4, 2.5


def standardise(
    model_folder: Path, test_file: Path, *, wanted: float, n: int, max_response_tokens: int
) -> float:
    """Divide the model's logits so that the share ``wanted`` of its answers to ``n`` test prompts is right.

    Returns the temperature, found by bisection of its logarithm, with the same random numbers in every trial;
    where none between `_COLDEST` and `_HOTTEST` reaches the share, the end that comes nearest.
    """
    low, high = math.log(_COLDEST), math.log(_HOTTEST)
    how = {"n": n, "max_response_tokens": max_response_tokens, "seed": 1, "samples": 2}
    for _ in range(8):
        middle = (low + high) / 2
        share = accuracy(model_folder, test_file, temperature=math.exp(middle), **how)
        if abs(share - wanted) <= 0.01:
            break
        low, high = (middle, high) if share > wanted else (low, middle)
    model: Qwen2ForCausalLM = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    with torch.no_grad():  # the last norm, whose output the unembedding multiplies
        model.model.norm.weight /= math.exp(middle)
    model.save_pretrained(model_folder)
    return math.exp(middle)

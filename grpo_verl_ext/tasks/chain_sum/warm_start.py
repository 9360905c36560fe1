"""Supervised training to a medium accuracy, which reinforcement learning can then improve.

The model learns first from right responses, then briefly from responses with slips (`problems.response`): the
right sum stays its most likely one, but it samples a wrong one about as often as the slips taught it. So it
often fails although it knows the answer, and a policy gradient improves it within a few steps. A model that
was only trained for too short a time improves far more slowly.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import torch
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

from grpo_verl_ext.tasks.chain_sum.prepared import SHORT_TERMS, TaskSettings
from grpo_verl_ext.tasks.chain_sum.problems import Terms, every_problem, prompt, response

IGNORED_LABEL = -100
"""Label that transformers' loss ignores."""


def warm_start(
    model: Qwen2ForCausalLM,
    tokenizer: Qwen2Tokenizer,
    settings: TaskSettings,
    *,
    seed: int,
    on_step: Callable[[int], None],
) -> None:
    """Train ``model`` in place on the problems of the training split.

    The result is bit-identical for the same seed, settings, initial weights, torch build and kind of
    processor. The number of cores and torch's number of threads do not matter: a batch is always cut into
    ``settings.workers`` parts, each is computed on one thread, and their gradients are added in order.
    Threads inside torch's operators would spin while they wait for each other, and take many times as long on
    a busy machine.

    Args:
        on_step: called with the number of steps done, after each.
    """
    rng = random.Random(f"warm start/{seed}")
    problems = [
        every_problem(n, "train", by_set=settings.split_by_set)
        for n in range(settings.min_terms, settings.max_terms + 1)
    ]
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _lr_factor(step, settings.steps))
    model.train()
    with _one_thread_an_operator(), ThreadPoolExecutor(settings.workers) as pool:
        for step in range(settings.steps):
            slips = step >= settings.steps - settings.slip_steps
            texts = [
                _example(rng.choice(rng.choice(problems)), settings, slips, rng)
                for _ in range(settings.batch_size)
            ]
            parts = [
                encode(tokenizer, texts[part :: settings.workers], settings.max_response_tokens)
                for part in range(settings.workers)
            ]
            of_parts = list(pool.map(partial(_gradients, model, parameters), parts))
            for parameter, gradients in zip(parameters, zip(*of_parts, strict=True), strict=True):
                parameter.grad = torch.stack(gradients).mean(dim=0)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            on_step(step + 1)
    model.eval()


def encode(
    tokenizer: Qwen2Tokenizer, examples: list[tuple[str, str]], max_response_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and labels, (B, T) each, padded on the right.

    Only the response and its end of turn are labelled, and no more of them than the budget.

    Args:
        examples: pairs of a problem's text and a response.
    """
    asked = [_chat(tokenizer, question) for question, _ in examples]
    said = [
        [*tokenizer.encode(answer), tokenizer.eos_token_id][:max_response_tokens] for _, answer in examples
    ]
    rows = [torch.tensor(a + s) for a, s in zip(asked, said, strict=True)]
    labels = [torch.tensor([IGNORED_LABEL] * len(a) + s) for a, s in zip(asked, said, strict=True)]
    pad = torch.nn.utils.rnn.pad_sequence
    return (
        pad(rows, batch_first=True, padding_value=tokenizer.pad_token_id),
        pad(labels, batch_first=True, padding_value=IGNORED_LABEL),
    )


def _gradients(
    model: Qwen2ForCausalLM, parameters: list[torch.nn.Parameter], part: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    input_ids, labels = part
    return torch.autograd.grad(model(input_ids=input_ids, labels=labels, use_cache=False).loss, parameters)


def _example(terms: Terms, settings: TaskSettings, slips: bool, rng: random.Random) -> tuple[str, str]:
    share = settings.short_slip_share if len(terms) <= SHORT_TERMS else settings.slip_share
    text = response(
        terms,
        slip_share=share if slips else 0.0,
        rng=rng,
        rewrite_share=settings.rewrite_share,
    )
    return prompt(terms), text


def _chat(tokenizer: Qwen2Tokenizer, question: str) -> list[int]:
    chat = [{"role": "user", "content": question}]
    text: str = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids: list[int] = tokenizer.encode(text)
    return ids


def _lr_factor(step: int, steps: int) -> float:
    """Return the factor of the learning rate: up over ten steps, then half a cosine down to a tenth."""
    return min(1.0, (step + 1) / 10) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))


@contextmanager
def _one_thread_an_operator() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

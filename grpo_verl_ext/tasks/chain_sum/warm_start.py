"""Supervised training to a medium accuracy, which reinforcement learning can then improve.

The model learns first from right responses, then briefly from responses with slips (`problems.response`): the
right sum stays its most likely one, but it samples a wrong one about as often as the slips taught it. So it
often fails although it knows the answer, and a policy gradient improves it within a few steps. A model that
was only trained for too short a time improves far more slowly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

from grpo_verl_ext.tasks.chain_sum.prepared import SHORT_TERMS, TaskSettings
from grpo_verl_ext.tasks.chain_sum.problems import Terms, every_problem, prompt, response
from grpo_verl_ext.tasks.supervised import Part, encode, fit


def warm_start(
    model: Qwen2ForCausalLM,
    tokenizer: Qwen2Tokenizer,
    settings: TaskSettings,
    *,
    seed: int,
    on_step: Callable[[int], None],
) -> None:
    """Train ``model`` in place on the problems of the training split.

    The result is bit-identical as `supervised.fit` says.

    Args:
        on_step: called with the number of steps done, after each.
    """
    rng = random.Random(f"warm start/{seed}")
    problems = [
        every_problem(n, "train", by_set=settings.split_by_set)
        for n in range(settings.min_terms, settings.max_terms + 1)
    ]

    def batches() -> Iterator[list[Part]]:
        for step in range(settings.steps):
            slips = step >= settings.steps - settings.slip_steps
            texts = [
                _example(rng.choice(rng.choice(problems)), settings, slips, rng)
                for _ in range(settings.batch_size)
            ]
            yield [
                encode(tokenizer, texts[part :: settings.workers], settings.max_response_tokens)
                for part in range(settings.workers)
            ]

    fit(model, batches(), steps=settings.steps, learning_rate=settings.learning_rate, on_step=on_step)


def _example(terms: Terms, settings: TaskSettings, slips: bool, rng: random.Random) -> tuple[str, str]:
    share = settings.short_slip_share if len(terms) <= SHORT_TERMS else settings.slip_share
    text = response(
        terms,
        slip_share=share if slips else 0.0,
        rng=rng,
        rewrite_share=settings.rewrite_share,
    )
    return prompt(terms), text

"""Train a causal language model on prompts with responses, and sample responses from one, outside of verl."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_verl_ext.utils.console import make_console

IGNORED_LABEL = -100
"""Label that transformers' loss ignores."""

Part = tuple[Tensor, Tensor]
"""Token ids and labels, (B, T) each."""


def train_model(
    model: PreTrainedModel, batches: Iterator[Sequence[Part]], *, steps: int, learning_rate: float
) -> None:
    """Train ``model`` in place with AdamW, one step a batch, until the batches end, with a progress bar.

    The result is bit-identical for the same batches, initial weights, torch build and kind of processor. The
    number of cores and torch's number of threads do not matter: each part of a batch is computed on one
    thread, and gradients are averaged in order. Threads inside operators would spin while they wait.

    Over ``steps``, the largest number of batches, the learning rate falls.
    """
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.01)
    # up over ten steps, then half a cosine down to a tenth
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / 10) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps))),
    )

    def gradients(part: Part) -> tuple[Tensor, ...]:
        input_ids, labels = part
        loss = model(input_ids=input_ids, labels=labels, use_cache=False).loss
        return torch.autograd.grad(loss, parameters)

    model.train()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor() as pool, Progress(console=make_console(), transient=True) as progress:
            for parts in progress.track(batches, total=steps, description="warm start"):
                of_parts = list(pool.map(gradients, parts))
                for parameter, of_parameter in zip(parameters, zip(*of_parts, strict=True), strict=True):
                    parameter.grad = torch.stack(of_parameter).mean(dim=0)
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                schedule.step()
    finally:
        torch.set_num_threads(threads)
    model.eval()


def encode(
    tokenizer: PreTrainedTokenizerBase, examples: list[tuple[str, str]], max_response_tokens: int
) -> Part:
    """Return token ids and labels of messages with responses, (B, T) each, padded on the right.

    Only the response and its end of turn are labelled, and no more of them than the budget.
    """
    chats = [[{"role": "user", "content": question}] for question, _ in examples]
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    asked = [tokenizer.encode(text) for text in texts]
    end = tokenizer.eos_token_id
    said = [[*tokenizer.encode(answer), end][:max_response_tokens] for _, answer in examples]
    rows = [torch.tensor(a + s) for a, s in zip(asked, said, strict=True)]
    labels = [torch.tensor([IGNORED_LABEL] * len(a) + s) for a, s in zip(asked, said, strict=True)]
    pad = torch.nn.utils.rnn.pad_sequence
    return (
        pad(rows, batch_first=True, padding_value=tokenizer.pad_token_id),
        pad(labels, batch_first=True, padding_value=IGNORED_LABEL),
    )


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    chats: list[list[dict[str, str]]],
    *,
    temperature: float,
    max_response_tokens: int,
    seed: int,
) -> Tensor:
    """Generate one response per prompt, (B, R), without changing torch's global random state.

    All chats are one batch, padded on the left by ``tokenizer``; tokens are drawn from the whole distribution
    (no top-k, top-p or penalty). Temperature 0 takes the most likely token every time.
    """
    batch = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    how: dict[str, Any] = {"do_sample": temperature > 0, "repetition_penalty": 1.0}  # not the model's own
    if temperature > 0:
        how |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tokens: Tensor = model.generate(**batch, **how, max_new_tokens=max_response_tokens)
    return tokens[:, batch["input_ids"].shape[1] :]

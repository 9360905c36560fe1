"""Measure what GVPO's sums over tokens do as responses get longer: noise, gradient and size of an update.

    python benchmarks/gvpo_long_responses.py MODEL

Samples from a causal language model. A response of T tokens is T/252 segments, each behind the prompt, so
that a small model, such as the embedded task's, stays within its context. For several T:

- spread: standard deviation of log π(y) over the responses, nats;
- noise: that of the error of Δ, between bf16 passes before and after an update and the same in fp32;
- share: β · noise over the standard deviation of the rewards, half of them 0 and half 1: the part of the
  residual d_i that is rounding;
- norm: the gradient's norm at the first update, and that of GRPO's loss, which divides by T;
- moved: standard deviation of Δ after one AdamW step on these responses alone.

As verl's FSDP engine by default: fp32 weights, cast to bf16 for a pass; log-softmax of bf16 logits in fp32.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

PROMPT = [1, 2, 3, 4]
SEGMENT = 252
"""Tokens of a segment; with the prompt, the context of the embedded task's model."""
TOGETHER = 8
"""Segments in one pass."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="folder of a causal language model")
    parser.add_argument("--segments", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--responses", type=int, default=8)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=1e-6)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    responses = sampled(model, options.responses * max(options.segments)).unflatten(
        0, (options.responses, -1)
    )
    old = {dtype: log_probs(model, responses, dtype) for dtype in (torch.float32, torch.bfloat16)}
    table = Table("tokens", "spread", "noise", "share", "norm", "GRPO's", "moved")
    table.title = (
        f"{model.num_parameters() / 1e6:.1f} M parameters, {options.responses} responses, "
        f"{-old[torch.float32].mean() / SEGMENT:.2f} nats a token, β {options.beta:g}, lr {options.lr:g}"
    )
    rewards = (torch.arange(options.responses) % 2).double()
    for segments in options.segments:
        own = responses[:, :segments]
        start = {name: weight.clone() for name, weight in model.state_dict().items()}
        norm = gradient(model, own, options.beta * (rewards - rewards.mean()))
        torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.01).step()
        moved = {d: (log_probs(model, own, d) - before[:, :segments]).sum(-1) for d, before in old.items()}
        model.load_state_dict(start)
        noise = std(moved[torch.bfloat16] - moved[torch.float32])
        tokens = segments * SEGMENT
        table.add_row(
            str(tokens),
            *(
                f"{cell:.3g}"
                for cell in (
                    std(old[torch.float32][:, :segments].sum(-1)), noise, options.beta * noise / std(rewards),
                    norm, norm / options.beta / tokens, std(moved[torch.float32]),
                )
            ),
        )  # fmt: skip
    Console(width=110).print(table)


@torch.no_grad()
def sampled(model: PreTrainedModel, rows: int) -> Tensor:
    """Prompt and segment of each row, at temperature 1: (rows, prompt + segment)."""
    found = latest = torch.tensor([PROMPT] * rows)
    cache = None
    for _ in range(SEGMENT):
        output = model(latest, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        latest = torch.multinomial(output.logits[:, -1].softmax(-1), 1)
        found = torch.cat((found, latest), dim=1)
    return found


def log_probs(model: PreTrainedModel, responses: Tensor, dtype: torch.dtype) -> Tensor:
    """log π of each segment, from weights cast to the dtype: (responses, segments)."""
    with torch.no_grad(), cast(model, dtype):
        parts = responses.flatten(0, 1).split(TOGETHER)
        return torch.cat([segment_log_probs(model, part) for part in parts]).view(responses.shape[:2])


def segment_log_probs(model: PreTrainedModel, rows: Tensor) -> Tensor:
    logits = model(rows, use_cache=False).logits[:, len(PROMPT) - 1 : -1].float()
    of_tokens = logits.log_softmax(-1).gather(-1, rows[:, len(PROMPT) :].unsqueeze(-1)).squeeze(-1)
    return of_tokens.double().sum(-1)


@contextmanager
def cast(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[None]:
    """The model's weights in another dtype, and as they were afterwards."""
    kept = {name: weight.data for name, weight in model.named_parameters()}
    try:
        for weight in model.parameters():
            weight.data = weight.data.to(dtype)
        yield
    finally:
        for name, weight in model.named_parameters():
            weight.data = kept[name]


def gradient(model: PreTrainedModel, responses: Tensor, weights: Tensor) -> float:
    """Leave the gradient of −Σ_i w_i log π(y_i) / (k − 1) in the weights; return its norm."""
    model.zero_grad()
    for response, weight in zip(responses, weights.tolist(), strict=True):
        for part in response.split(TOGETHER):
            (-weight / (len(responses) - 1) * segment_log_probs(model, part).sum()).backward()
    return torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()]).item()


def std(values: Tensor) -> float:
    return values.double().std().item()


if __name__ == "__main__":
    main()

"""Draw how much each algorithm weighs the tokens of short and long, right and wrong responses of a training.

    python examples/anatomy.py ROLLOUTS --model FOLDER --right-above 1 --max-response-length 44

ROLLOUTS is a training's `trainer.rollout_data_dir`, FOLDER its `actor_rollout_ref.model.path`.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import AutoTokenizer

from grpo_verl_ext.proof.batch import Rollout
from grpo_verl_ext.proof.gradient import Training
from grpo_verl_ext.runs.verl_run import CorruptFileError, read_dump
from grpo_verl_ext.utils import plotting
from grpo_verl_ext.utils.console import one_message
from grpo_verl_ext.verl_plugin.compose import composed

BINS = 5


@dataclass(frozen=True)
class Step:
    """The responses of one training step; those to one prompt are adjacent.

    Attributes:
        rewards: (B,)
        lengths: tokens, ≥ 1; (B,)
        prompts: number of each response's prompt, from 0; (B,)
    """

    rewards: Tensor
    lengths: Tensor
    prompts: Tensor

    @classmethod
    def of(cls, rewards: Sequence[float], lengths: Sequence[int], prompts: Sequence[str]) -> "Step":
        numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
        prompt = torch.tensor([numbers[each] for each in prompts])
        order = prompt.argsort(stable=True)
        reward = torch.tensor(rewards, dtype=torch.float64)
        return cls(reward[order], torch.tensor(lengths)[order], prompt[order])

    def has_gradient(self) -> bool:
        """Whether two responses to one prompt have different rewards."""
        prompts = self.prompts.tolist()
        return len({*zip(prompts, self.rewards.tolist(), strict=True)}) > len({*prompts})


def token_weights(preset: str, step: Step) -> Tensor:
    """Return −∂L/∂log π of a token of each response, by verl's functions: (B,).

    The step is one mini-batch, at its first update: π = π_old = π_ref, so no clip acts and no KL has a
    gradient, and all tokens of a response have one weight.
    """
    rows, n = len(step.rewards), int(step.prompts.bincount().max())
    config = composed(
        [
            f"+algo@_global_={preset}",
            f"actor_rollout_ref.rollout.n={n}",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
            # No response is at the budget, for overlong filtering would leave it out.
            f"data.max_response_length={int(step.lengths.max()) + 1}",
        ]
    )
    lengths = step.lengths.tolist()
    given = torch.arange(max(lengths)) < step.lengths.unsqueeze(-1)
    log_prob = -given.double()
    rollout = Rollout(
        prompt=step.prompts,
        lengths=lengths,
        response_mask=given.long(),
        rewards=step.rewards.unsqueeze(-1),
        of_anchor=torch.zeros(rows),
        **dict.fromkeys(("log_prob", "old_log_prob", "ref_log_prob", "rollout_log_prob"), log_prob),
        **dict.fromkeys(("entropy", "values", "advantages"), torch.zeros_like(log_prob)),
    )
    training = Training(config)
    weights = training.weights(training.rows(rollout))[: sum(lengths)]
    return torch.stack([each.mean() for each in weights.split(lengths)])


def relative(weights: Tensor, lengths: Tensor) -> Tensor:
    """Divide the weights by the mean of |w| over the tokens: (B,)."""
    return weights * lengths.sum() / (weights.abs() * lengths).sum()


def read_steps(dump: Path, model: Path, budget: int) -> Iterator[Step]:
    """Yield the steps of a dump; a length is that of the text tokenised again, and of the end token."""
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    files = [dump] if dump.is_file() else [each for each in dump.glob("*.jsonl") if each.stem.isdigit()]
    for file in sorted(files, key=lambda each: int(each.stem)):
        responses = sorted(read_dump(file), key=lambda each: each.step)
        for _, of_step in groupby(responses, key=lambda each: each.step):
            rows = list(of_step)
            ids = tokenizer([each.output for each in rows], add_special_tokens=False)["input_ids"]
            yield Step.of(
                [each.score for each in rows],
                [min(len(each) + 1, budget) for each in ids],
                [each.prompt_id for each in rows],
            )


@dataclass(frozen=True)
class Bin:
    """Responses of similar lengths, right or wrong; the weight is the mean of |w| over their tokens."""

    is_right: bool
    shortest: int
    longest: int
    mean_length: float
    weights: dict[str, float]


def bins_of(steps: Sequence[Step], presets: Sequence[str], right_above: float) -> list[Bin]:
    """Return each preset's weights in at most `BINS` ranges of lengths with equally many responses."""
    lengths = torch.cat([step.lengths for step in steps]).double()
    right = torch.cat([step.rewards for step in steps]) > right_above
    weights = {
        preset: torch.cat([relative(token_weights(preset, step), step.lengths).abs() for step in steps])
        for preset in presets
    }
    last = [math.ceil(len(lengths) * each / BINS) - 1 for each in range(1, BINS + 1)]
    upper = lengths.sort().values[last].unique()
    number = torch.bucketize(lengths, upper)
    found = []
    for is_right in (True, False):
        for each in range(len(upper)):
            inside = number == each
            here = inside & (right == is_right)
            if here.any():
                own = lengths[here]
                means = {name: float((of[here] * own).sum() / own.sum()) for name, of in weights.items()}
                shortest, longest = int(lengths[inside].min()), int(lengths[inside].max())
                found.append(Bin(is_right, shortest, longest, float(own.mean()), means))
    return found


def drawn(bins: Sequence[Bin], presets: Sequence[str]) -> Figure:
    figure = Figure(figsize=(8.5, 4.4), layout="constrained")
    for axes, is_right in zip(figure.subplots(1, 2), (True, False), strict=True):
        chosen = [each for each in bins if each.is_right == is_right]
        lengths = [each.mean_length for each in chosen]
        for number, preset in enumerate(presets):
            weights = [each.weights[preset] for each in chosen]
            axes.plot(lengths, weights, **plotting.looks(number), label=preset)
        axes.axhline(1, color="0.6", linewidth=1, zorder=0)
        axes.grid(alpha=0.3)
        axes.set(xlabel="length of the response, tokens")
        axes.set(title="right answers" if is_right else "wrong answers")
    figure.axes[0].set_ylabel("weight of a token (1: the average token)")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(presets), frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rollouts", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="folder with the tokenizer")
    parser.add_argument(
        "--right-above", type=float, default=0.0, help="a right response's score is higher (0)"
    )
    parser.add_argument("--max-response-length", type=int, required=True, help="the training's, in tokens")
    parser.add_argument("--algos", nargs="+", default=["grpo", "dapo", "dr_grpo"], metavar="PRESET")
    parser.add_argument("--out", type=Path, default=Path("outputs/anatomy.png"), help="PNG or SVG")
    given = parser.parse_args()
    with one_message("anatomy.py", CorruptFileError):
        read = read_steps(given.rollouts, given.model, given.max_response_length)
        steps = [step for step in read if step.has_gradient()]
        rewards = torch.cat([step.rewards for step in steps]) if steps else torch.zeros(0)
        if not (rewards > given.right_above).any() or not (rewards <= given.right_above).any():
            sys.exit(
                f"anatomy.py: {given.rollouts} has {len(rewards)} responses, none of them right, or none "
                f"wrong, with --right-above {given.right_above:g}; their scores are "
                f"{rewards.unique().tolist()}. Type: --right-above <a number between them>"
            )
        bins = bins_of(steps, given.algos, given.right_above)
        figure = drawn(bins, given.algos)
        given.out.write_bytes(plotting.drawn(figure, given.out.suffix[1:]))
    for each in bins:
        weights = ", ".join(f"{name} {weight:.2f}" for name, weight in each.weights.items())
        print(f"{'right' if each.is_right else 'wrong'}, {each.shortest} to {each.longest} tokens: {weights}")
    print(given.out)


if __name__ == "__main__":
    main()

"""Measure how far the cut into micro-batches moves an update's gradient, through verl's FSDP2 worker.

On a GPU where there is one. One rank, a Qwen2 model with random weights, the mini-batch of `gvpo_update.py`,
old log-probs that are not the policy's. For each loss: ‖g − g₀‖ / ‖g₀‖, where g₀ is the gradient of the
mini-batch in one micro-batch and g with 1, 2 or 4 rows in each or with dynamic batching, whichever is
farther. Rounding is what remains where a loss is exact.
"""

import os
import tempfile
from argparse import Namespace
from typing import Any

import torch
from common import parser
from gvpo_update import Case, make_batch, make_model, make_plan, make_worker, spawn, train_once
from torch import Tensor

VERLS = ("vanilla", "kl_cov")
"""Losses of verl beside ours; verl's kl_cov depends on the cut."""
CUTS = (1, 2, 4, None)


def main() -> None:
    arguments = parser(__doc__, responses=4, width=64, layers=2, prompts=4, tokens=64)
    arguments.add_argument("--losses", nargs="+", default=[])
    arguments.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=("fp32", "bf16"))
    spawn(measure, 1, arguments.parse_args())


def measure(rank: int, options: Namespace) -> None:
    """Print the table, as the only rank."""
    from grpo_verl_ext.catalogue import LOSSES

    os.environ["RANK"] = str(rank)
    print("on", torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU")
    print(f"\n| loss | {' | '.join(options.precision)} |\n{'|---' * (1 + len(options.precision))}|")
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, options)
        for loss in options.losses or (*LOSSES, *VERLS):
            found = [f"{worst(folder, loss, options, precision):.1e}" for precision in options.precision]
            print(f"| {loss} | {' | '.join(found)} |", flush=True)
    torch.distributed.destroy_process_group()


def worst(folder: str, loss: str, options: Namespace, precision: str) -> float:
    """Return the largest relative difference over the cuts."""
    options.losses = ("grpo", loss)
    cases = [Case(1, cut, 1, 0) for cut in (options.prompts * options.responses, *CUTS)]
    whole, *others = (gradient(folder, loss, case, options, precision) for case in cases)
    return max(float((other - whole).norm() / whole.norm()) for other in others)


def gradient(folder: str, loss: str, case: Case, options: Namespace, precision: str) -> Tensor:
    """Return the gradient of one update in float64, all parameters in one row."""
    worker = make_worker(folder, loss, case, options, precision)
    found: list[Tensor] = []
    step = worker.engine.optimizer_step

    def optimizer_step() -> Any:
        parameters = worker.engine.module.parameters()
        found.append(torch.cat([each.grad.full_tensor().double().flatten() for each in parameters]))
        return step()

    worker.engine.optimizer_step = optimizer_step
    batch, plan = make_batch(0, loss, case, options), make_plan(case, options)
    train_once(worker, batch, plan, case, options, current=False)
    return found[0]


if __name__ == "__main__":
    main()

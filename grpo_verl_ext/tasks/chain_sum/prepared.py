"""Settings, location and manifest of the embedded tasks; like `folders` quick to import."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_verl_ext.tasks.folders import PreparedFolder
from grpo_verl_ext.utils.files import cache_root


@dataclass(frozen=True)
class TaskSettings:
    """Sizes of the data and the model, and the schedule of the warm start.

    Every problem has ``min_terms`` to ``max_terms`` terms, each length equally often as far as its problems
    reach; the others share the rest.

    Attributes:
        max_response_tokens: the longest right response has 38 (five terms, end of turn), plus six.
        name: verl's ``data_source`` of every row, part of the names of its validation metrics.
        split_by_set: problems with the same terms in another order are on the same side of the split. Without
            it the split is by the text: most test problems then are permutations of training problems.
        rewrite_share: probability that the steps are written once more, again and again, in the responses of
            the warm start, so that lengths vary between responses to one prompt. Below a half: the most
            likely response then has no repetition.
        slip_steps: number of the last steps, which are on responses with wrong additions.
        slip_share: probability that an addition in such a response is wrong on purpose.
        short_slip_share: the same for problems of at most three terms.
        standardise: divide the logits afterwards so that it is a standard start (`model.standardise`).
        workers: threads that share each batch; a setting because the weights depend on it.
    """

    name: str = "chain_sum"
    min_terms: int = 3
    max_terms: int = 5
    train_problems: int = 2048
    test_problems: int = 512
    split_by_set: bool = False
    rewrite_share: float = 0.0
    max_response_tokens: int = 44

    width: int = 128
    layers: int = 3
    heads: int = 4
    feed_forward: int = 256

    steps: int = 480
    slip_steps: int = 100
    slip_share: float = 0.32
    short_slip_share: float = 0.32
    batch_size: int = 24
    learning_rate: float = 2.2e-3
    standardise: bool = False
    workers: int = 2


_MIXED = TaskSettings(
    name="chain_sum_mixed",
    min_terms=2,
    max_terms=6,
    split_by_set=True,
    max_response_tokens=52,
    steps=900,
    slip_steps=120,
    slip_share=0.2,
    short_slip_share=0.15,
    standardise=True,
)
_VERBOSE = replace(_MIXED, name="chain_sum_verbose", rewrite_share=0.4, max_response_tokens=90)

TASKS: Mapping[str, TaskSettings] = {each.name: each for each in (TaskSettings(), _MIXED, _VERBOSE)}
"""The embedded tasks by name: one problem, three mixtures of lengths."""


def place(folder: Path | str) -> PreparedFolder:
    """Return the prepared folder at a path, with the command line that makes it.

    Its manifest has ``sampled_accuracy``, the share of right answers to ``measured_prompts`` test prompts at
    temperature 1; ``greedy_accuracy``, that of the most likely tokens; ``temperature``, by which the logits
    were divided to make a standard start; and ``versions`` and ``seconds``, which are not compared.
    """
    path = Path(folder)
    seed = re.fullmatch(r"seed-([0-9]+)", path.name)
    task = path.parent.name if path.parent.name in TASKS else "chain_sum"
    command = f"grpo-verl-ext prepare {task} --seed {seed[1] if seed else 'N'}"
    root = path.parent.parent
    if seed and path.parent.name == task and root.absolute() != cache_root().absolute():
        command = f"GRPO_VERL_EXT_CACHE={root} {command}"
    return PreparedFolder(path, command, "task.folder", format=2)

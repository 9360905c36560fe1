"""Find the rows of a rollout batch that are responses: no padding, and the last output of each session.

verl's keys are ``{uid}_{session}_{index}``: an agent loop may return several outputs for one of a prompt's
``rollout.n`` sessions, each a row with the session's reward. verl's own ``grpo`` computes advantages from the
last output of each session and copies them to the others; any other estimator gets every row and no keys.
The trainers of this package pass the keys (`wire.PASSED`). Under verl's own, sessions are read from the
queue, and one with several outputs is refused.

An empty mask does not mean padding: rollout rejection (``algorithm.rollout_correction.rollout_rs``) empties
the mask of a response whose reward still counts.
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_verl_ext.catalogue import Estimator, Loss
from grpo_verl_ext.catalogue.requires import OUR_MODES
from grpo_verl_ext.utils.keys import ESTIMATOR, LOSS
from grpo_verl_ext.verl_plugin import wire


def row_roles(estimator: Estimator, prompts: Sequence[object], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return which rows of the current batch are responses, and the row of each session's last output.

    (B,) each. A response is no padding, and the last output of its session; ``prompts`` are the prompt ids.
    """
    # verl's padding rows have the prompt id pad and a UUID
    padding = [re.fullmatch(r"pad[0-9a-f]{32}", str(prompt)) is not None for prompt in prompts]
    member = ~torch.tensor(padding, dtype=torch.bool, device=device)
    own = torch.arange(len(prompts), device=device)
    keys = wire.PASSED.get().row_keys
    if keys is None:  # under verl's own trainers, of which the v1 ones have a queue
        queue: Any = sys.modules.get("transfer_queue")
        try:
            has_client = queue is not None and queue.get_client() is not None  # `kv_list` would make one
        except AssertionError:
            has_client = False
        known, there = set(prompts), queue.kv_list("train").get("train", {}) if has_client else {}
        keys = [key for key in there if key.count("_") >= 2 and key.rsplit("_", 2)[0] in known]
        refuse_several_outputs(estimator, keys, are_shown=False)
        return member, own
    refuse_several_outputs(estimator, keys)
    last = torch.tensor(last_outputs(keys), dtype=torch.int64, device=device)
    return member & (last == own), last


def last_outputs(keys: Sequence[str]) -> list[int]:
    """Return for each row the row with the last output of its session."""
    parts = [key.rpartition("_") for key in keys]
    last: dict[str, int] = {}
    for row in sorted(range(len(keys)), key=lambda row: int(parts[row][2])):
        last[parts[row][0]] = row
    return [last[session] for session, _, _ in parts]


def refuse_several_outputs(
    record: Estimator | Loss | None, keys: Sequence[str], *, are_shown: bool = True
) -> None:
    """Refuse a session of several outputs where the record says why; others do as verl's ``grpo``.

    They cannot where the trainer shows its estimators no sessions.
    """
    if record is None or (are_shown and not record.one_output):
        return
    valid = f"one, or a trainer that passes sessions to its estimators: {', '.join(OUR_MODES)}"
    line = "trainer.v1.trainer_mode=grpo_ext_sync"
    if record.one_output:
        valid = f"one, because {record.one_output}"
        more = "or take an agent loop that returns one: actor_rollout_ref.rollout.agent.default_agent_loop=…"
        line = f"+algo@_global_=grpo {line}, {more}"
    key = ESTIMATOR if isinstance(record, Estimator) else LOSS
    for session, outputs in Counter(each.rpartition("_")[0] for each in keys).items():
        if outputs > 1:
            raise ValueError(
                f"{key}={record.name}: the agent loop answered session {session} ({{prompt}}_{{session}}) by "
                f"{outputs} outputs; valid is {valid}. Type: {line}"
            )

"""Metrics of a rollout batch by origin: ``stored/…`` and ``sampled/…``."""

from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from grpo_verl_ext.algorithms import ragged
from grpo_verl_ext.verl_plugin.stored.rollout import Origin


def by_origin(
    rows: TensorDict,
    *,
    origins: Sequence[Origin | None],
    prompts: Sequence[str],
    member: Tensor,
    behaviour: Tensor,
    step: int,
) -> dict[str, float]:
    """Return share, reward, log-prob, ratio and age of stored and of sampled responses.

    Args:
        rows: ``responses``, ``response_mask``, ``rm_scores`` and ``old_log_probs``, ragged: B rows, N tokens.
        origins: origin of each stored response, None of a sampled one.
        prompts: prompt id of each row.
        member: (B,) bool, False for padding.
        behaviour: (N,) log-probs of the policy that wrote the tokens, NaN where not recorded.
        step: the training step.
    """
    stored = torch.tensor([origin is not None for origin in origins]) & member
    metrics = {
        "stored/share": float(stored.sum() / member.sum()),
        "stored/groups_of_one_text": float(_groups_of_one_text(rows["responses"], stored, prompts, member)),
    }
    mask, offsets = rows["response_mask"].values(), rows["response_mask"].offsets()
    old, rewards = rows["old_log_probs"].values(), rows["rm_scores"].values()
    everywhere = torch.ones_like(mask)
    ratio, recorded = (old - behaviour).exp(), _recorded(behaviour, mask, offsets)
    for name, chosen in (("stored", stored), ("sampled", member & ~stored)):
        if chosen.any():
            of_response = ragged.sequence_sums(rewards, everywhere, offsets)[chosen]
            metrics[f"{name}/reward"] = float(of_response.mean())
            metrics[f"{name}/log_prob"] = ragged.token_mean(old, mask, offsets, chosen)
        if (chosen & recorded).any():
            metrics[f"{name}/ratio"] = ragged.token_mean(ratio, mask, offsets, chosen & recorded)
    ages = [step - origin["step"] for origin in origins if origin and origin["step"] is not None]
    return metrics | ({"stored/age": sum(ages) / len(ages)} if ages else {})


def _recorded(behaviour: Tensor, mask: Tensor, offsets: Tensor) -> Tensor:
    unknown = ragged.sequence_sums(behaviour.isnan().double(), mask, offsets)
    return (unknown == 0) & ragged.has_tokens(mask, offsets)


def _groups_of_one_text(responses: Tensor, stored: Tensor, prompts: Sequence[str], member: Tensor) -> int:
    """Count the prompts whose responses are all stored and equal, and so have no variance."""
    texts: dict[str, set[tuple[int, ...] | None]] = {}
    for row, prompt, is_stored, counts in zip(
        responses.unbind(), prompts, stored.tolist(), member.tolist(), strict=True
    ):
        if counts:
            texts.setdefault(prompt, set()).add(tuple(row.tolist()) if is_stored else None)
    return sum(None not in found and len(found) == 1 for found in texts.values())

"""Process supervision: a reward for every step of a response, spread over the tokens that led to it.

GRPO, arXiv 2402.03300 §4.1.3. Of all S steps of a batch, step j belongs to the response ``row[j]`` and ends
at its token ``end[j]``; a response may have any number of steps, including none. No gradient flows.
"""

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.advantages import Baseline, group_scaled
from grpo_verl_ext.algorithms.ragged import BLOCK
from grpo_verl_ext.algorithms.validation import TensorError, check_dtype, check_rows, check_same_shape


def process_advantages(
    step_rewards: Tensor,
    row: Tensor,
    end: Tensor,
    response_mask: Tensor,
    group: Tensor,
    *,
    baseline: Baseline = group_scaled,
) -> Tensor:
    """Â_{i,t} = Σ r̃_j over the steps j of response i with end[j] ≥ t, r̃ = (r − mean R)/(std R + ε): (B, T).

    R pools all steps of all responses to the prompt; the last token of a step counts that step. Tokens after
    a response's last step, and all tokens of a response without one, have advantage 0. One step at the last
    token of each response is outcome supervision. Beside arguments and result it takes the memory of
    `ragged.BLOCK` tokens, or of one longer row.

    Args:
        step_rewards: (S,) reward units, fp32 or better.
        row: (S,) int64, the response of each step.
        end: (S,) int64, position of its last token in the response; several steps may share one.
        response_mask: (B, T), nonzero on the tokens that the policy wrote; elsewhere the advantage is 0.
        group: (B,) int64 from `groups.dense_group_ids`.
        baseline: computes r̃ from r; `advantages.group_scaled` is the paper's.
    """
    check_rows(response_mask, group)
    check_same_shape(step_rewards=step_rewards, row=row, end=end)
    check_dtype(torch.int64, row=row, end=end)
    for name, place, size in (("row", row, response_mask.shape[0]), ("end", end, response_mask.shape[1])):
        if (outside := (place < 0) | (place >= size)).any():  # waits for a GPU, as `torch.unique` does anyway
            step = int(outside.nonzero()[0])
            raise TensorError(
                f"{name} of step {step} is {int(place[step])}; valid is 0 … {size - 1}. Pass {name} as "
                f"positions in response_mask"
            )
    # Renumbered: group ids must be below the number of values, and there may be fewer steps than prompts.
    _, prompt = torch.unique(group[row], return_inverse=True)
    normalised = baseline(step_rewards, prompt, torch.ones_like(row, dtype=torch.bool))
    advantages = torch.zeros(response_mask.shape, dtype=normalised.dtype, device=normalised.device)
    advantages.index_put_((row, end), normalised, accumulate=True)
    rows = max(1, BLOCK // response_mask.shape[1])
    for start in range(0, len(response_mask), rows):
        at_end, mask = (each[start : start + rows] for each in (advantages, response_mask))
        to_come = at_end.flip(-1).cumsum(-1).flip(-1)  # Σ_{s ≥ t}
        at_end.copy_(torch.where(mask.bool(), to_come, 0))
    return advantages

"""GRPO and its relatives for verl; this module has their pure mathematics and does not import verl."""

from grpo_verl_ext.algorithms import (
    advantages,
    aggregation,
    groups,
    gvpo,
    gvpo_terms,
    kl,
    process,
    surrogate,
)
from grpo_verl_ext.algorithms.advantages import (
    batch_scaled,
    centred,
    group_scaled,
    leave_one_out,
    outcome_advantages,
    per_prompt_token,
    without_truncated,
)
from grpo_verl_ext.algorithms.aggregation import (
    local_token_mean,
    prompt_mean,
    sequence_mean_constant_length,
    sequence_mean_token_mean,
    token_mean,
)
from grpo_verl_ext.algorithms.groups import dense_group_ids
from grpo_verl_ext.algorithms.kl import k1, k2, k3, with_k2_gradient
from grpo_verl_ext.algorithms.process import process_advantages
from grpo_verl_ext.algorithms.surrogate import (
    clipped_surrogate,
    dual_clipped_surrogate,
    geometric_mean_surrogate,
)

__version__ = "0.1.0"

__all__ = [
    "advantages",
    "aggregation",
    "batch_scaled",
    "centred",
    "clipped_surrogate",
    "dense_group_ids",
    "dual_clipped_surrogate",
    "geometric_mean_surrogate",
    "group_scaled",
    "groups",
    "gvpo",
    "gvpo_terms",
    "k1",
    "k2",
    "k3",
    "kl",
    "leave_one_out",
    "local_token_mean",
    "outcome_advantages",
    "per_prompt_token",
    "process",
    "process_advantages",
    "prompt_mean",
    "sequence_mean_constant_length",
    "sequence_mean_token_mean",
    "surrogate",
    "token_mean",
    "with_k2_gradient",
    "without_truncated",
]

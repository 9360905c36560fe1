"""DPPO by KL: Qi et al., Rethinking the Trust Region in LLM RL, arXiv 2602.04879."""

from grpo_verl_ext.catalogue.dppo import dppo

_DPPO_KL = dppo("dppo_kl", "eq. 14", "dppo_kl")

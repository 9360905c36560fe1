"""VESPO: Shen et al., Variational Sequence-Level Soft Policy Optimization, arXiv 2602.10693."""

from typing import Annotated

from pydantic import Field

from grpo_verl_ext.algorithms.vespo import vespo_loss
from grpo_verl_ext.catalogue.averages import AVERAGES
from grpo_verl_ext.catalogue.grpo import GRPO
from grpo_verl_ext.catalogue.record import Algorithm, TokenLoss
from grpo_verl_ext.catalogue.requires import ONE_OUTPUT, weighs_responses
from grpo_verl_ext.utils.options import PositiveFloat, Section, option

_Power = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _VespoOptions(Section):
    """VESPO's keys of ``actor.policy_loss``; the defaults are the authors' code's."""

    vespo_k_pos: _Power = option(2.0, "power of W where A ≥ 0", "a finite number ≥ 0", "2.0")
    vespo_lambda_pos: PositiveFloat = option(3.0, "decay in W where A ≥ 0", "a finite number > 0", "3.0")
    vespo_k_neg: _Power = option(3.0, "power of W where A < 0", "a finite number ≥ 0", "3.0")
    vespo_lambda_neg: PositiveFloat = option(2.0, "decay in W where A < 0", "a finite number > 0", "2.0")


_VESPO = Algorithm(
    "vespo",
    "arXiv 2602.10693",
    GRPO.estimator,
    TokenLoss(
        "vespo",
        vespo_loss,
        AVERAGES["token-mean"],
        keywords=lambda config: {
            name.removeprefix("vespo_"): config.policy_loss.get(name, field.default)
            for name, field in _VespoOptions.model_fields.items()
        },
        options=_VespoOptions,
        one_output=ONE_OUTPUT,
        requires=weighs_responses(
            "counts π/π_rollout twice, which is in VESPO's kernel (arXiv 2602.10693, §3.4)"
        ),
    ),
    title="Shen et al., Variational Sequence-Level Soft Policy Optimization",
    fixes="weights of whole responses that explode in old rollouts: a smooth kernel bounds them",
)

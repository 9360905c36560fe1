"""The record of the feature ``old_log_probs_from_update``: what it was tested with."""

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import ON_FSDP2, STATISTIC_ENGINES, GroupLoss
from grpo_verl_ext.catalogue.gvpo import ANCHOR
from grpo_verl_ext.catalogue.requires import If, In, Null, Off, Trainer, refused
from grpo_verl_ext.utils.errors import Line
from grpo_verl_ext.utils.keys import ACTOR, BYPASS, CORRECTION, ESTIMATOR, LOSS, POLICY_LOSS, ROLLOUT, SECTION
from grpo_verl_ext.verl_plugin.features import Feature

_KEY = f"{SECTION}.old_log_probs_from_update"
_OFF = Line(f"{_KEY}=false")
_EARLY = "reads old log-probs before the update has made them"


def _has_no_statistic(_: object, config: DictConfig) -> bool:
    loss = catalogue.loss_of(config)
    return loss is None or loss.needs is None or isinstance(loss, GroupLoss)


_OLD_LOG_PROBS = Feature(
    name="old-log-probs",
    used=If(_KEY),
    requires=refused(
        Trainer(("grpo_ext_sync",), "computes old log-probs of its own, or may train on other policies'"),
        In(
            f"{ACTOR}.strategy",
            STATISTIC_ENGINES,
            "was not tested",
            line=Line(*ON_FSDP2),
        ),
        Off(BYPASS, "takes the rollout's log-probs, and no pass for them either"),
        *(Null(f"{CORRECTION}.{name}", _EARLY) for name in ("rollout_is", "rollout_rs")),
        Off("algorithm.use_kl_in_reward", _EARLY),
        In(
            ESTIMATOR,
            (None,),
            _EARLY,
            test=lambda value, _: not str(value).endswith("optimal_token_baseline"),
            words="without optimal_token_baseline",
            line=_OFF,
        ),
        In(
            LOSS,
            ("vanilla",),
            _EARLY,
            test=_has_no_statistic,
            words="without a statistic",
            line=_OFF,
        ),
        In(f"{POLICY_LOSS}.gvpo_terms", ("all", None), _EARLY),
        In(ANCHOR, ("old", None), _EARLY, line=Line(f"~{ANCHOR}")),
        Off(f"{SECTION}.stored_responses.share", _EARLY),
        In(f"{ACTOR}.ppo_epochs", (1,), "uses the rows again after the policy has moved"),
        Off(f"{ACTOR}.shuffle", "leaves open which rows the first update has"),
        Off(f"{ACTOR}.calculate_sum_pi_squared", "is computed in the pass that is left out"),
        In(f"{ROLLOUT}.calculate_log_probs", (True,), "leaves no log-probs until the update has made them"),
        In("trainer.critic_warmup", (0,), "has steps without an update of the actor"),
    ),
    trainer=f"{__package__}.trainer:OldLogProbsMixin",
)

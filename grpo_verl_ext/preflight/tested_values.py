"""Find what a training asks for beyond what its features, estimator and loss were tested with, by their rows.

Where verl's driver does not run this check, losses with a statistic refuse at their first call, features not.
"""

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import ESTIMATORS, ON_FSDP2, STATISTIC_ENGINES, Estimator, Loss, requires
from grpo_verl_ext.catalogue.gvpo import ANCHOR, ANCHORS
from grpo_verl_ext.catalogue.requires import AtLeast, If, In, NoneWith, Null, Off, Trainer, Where, refused
from grpo_verl_ext.catalogue.verls import PUNISHES, overlong_punishment
from grpo_verl_ext.utils import keys
from grpo_verl_ext.utils.errors import Finding, Line
from grpo_verl_ext.utils.keys import ACTOR, BYPASS, CORRECTION, MODE, ROLLOUT, SECTION, setting
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS
from grpo_verl_ext.verl_plugin.features import Feature, all_features
from grpo_verl_ext.verl_plugin.mini_batch.plan import policy_moves

_STRATEGY, _KL = f"{ACTOR}.strategy", f"{ACTOR}.use_kl_loss"
_ONE_UPDATE = (f"{ACTOR}.ppo_epochs=1", f"{ACTOR}.ppo_mini_batch_size=${{data.train_batch_size}}")
_BYPASS_LOSS = "bypass_mode"
"""verl's loss that applies weights and rejection in bypass mode itself."""
_SAMPLER = "trainer.v1.sampler.custom_sampler"
_BUFFER = PUNISHES.removesuffix(".enable")
_BUDGET = "reward.reward_kwargs.max_resp_len"
_TASK_REWARDS = f"{keys.DISTILLATION}.use_task_rewards"

_OF_BATCH = If(f"{SECTION}.scale_rewards", ("batch",))
_IS_OURS = Where("the estimator is this package's", lambda config: catalogue.estimator_of(config) is not None)


def _distils(config: DictConfig) -> bool:
    """Whether verl's distillation loss takes part, beside the algorithm or in its place."""
    is_replaced = catalogue.has_groups(config) and setting(config, ANCHOR, "old") not in ANCHORS
    return bool(setting(config, "distillation.enabled")) and not is_replaced


def _by_verls_loss(name: str) -> In:
    """Return the row of weights or rejection, which in bypass mode verl's own loss alone applies."""
    key, of_loss = f"{CORRECTION}.{name}", f"{keys.POLICY_LOSS}.rollout_correction.{name}"
    is_verls, line = If(keys.LOSS, (_BYPASS_LOSS,)), Line(f"{key}=null", more=f", or {BYPASS}=false")
    when = Where(
        "bypass mode has another loss than verl's of that name, or that one does something else",
        lambda config: (
            setting(config, BYPASS)
            and not (is_verls(config) and setting(config, of_loss) == setting(config, key))
        ),
    )
    why = f"is applied by verl's loss {_BYPASS_LOSS} alone, as its {keys.POLICY_LOSS}.rollout_correction says"
    return Null(key, why, refuse=True, when=when, line=line)


_STATISTIC = refused(
    Trainer(requires.OUR_MODES, "passes a loss nothing but verl's arguments"),
    In(
        _STRATEGY,
        STATISTIC_ENGINES,
        "computes no statistic of other responses between the updates on one rollout",
        when=policy_moves,
        line=Line(*ON_FSDP2, more=f", or {Line(*_ONE_UPDATE)}"),
    ),
    Off(
        f"{ACTOR}.shuffle",
        "has each rank shuffle the rows that one optimizer step needs together",
        when=If(MODE, requires.OUR_MODES),
    ),
    NoneWith(
        f"{keys.DISTILLATION}.loss_mode",
        "forward_kl_topk",
        "makes verl call the loss on the logits, too, where other responses are not available",
        when=Where(
            "verl may distil by top tokens, beside the algorithm",
            lambda config: (
                setting(config, "distillation.enabled")
                and not (_distils(config) and not setting(config, _TASK_REWARDS, True))
            ),
        ),
        line=Line(f"{keys.DISTILLATION}.loss_mode=k3"),
    ),
)
"""What a loss that needs a statistic of the mini-batch was tested with."""
_INPUTS = {
    name: In(key, (True,), f"gives the loss no {name}", refuse=True, line=line)
    for name, key, line in (
        ("rollout_log_prob", f"{ROLLOUT}.calculate_log_probs", ""),
        ("ref_log_prob", _KL, Line(f"{_KL}=true", f"{ACTOR}.kl_loss_coef=0")),
        ("entropy", f"{ACTOR}.calculate_entropy", ""),
    )
}
"""Input of a loss → the row of the key with which verl computes it."""

_ROWS: tuple[tuple[Any, ...], ...] = (
    (
        "gvpo-anchor",
        lambda config: not catalogue.has_groups(config),
        *refused(In(ANCHOR, ("old", None), "is read by the loss gvpo alone", line=Line(f"~{ANCHOR}"))),
    ),
    (
        "groups",
        lambda config: catalogue.counts_prompts(catalogue.loss_of(config)),
        requires.Same(
            f"{ACTOR}.rollout_n",
            f"{ROLLOUT}.n",
            "is not the number of responses to a prompt, from which the loss counts the prompts",
            refuse=True,
        ),
    ),
    ("rollout-correction", catalogue.knows, _by_verls_loss("rollout_is"), _by_verls_loss("rollout_rs")),
    (
        "distillation",
        catalogue.knows,
        In(
            _TASK_REWARDS,
            (True, None),
            "makes the distillation the whole loss: the algorithm does nothing",
            refuse=True,
            when=_distils,
        ),
    ),
    (
        "dynamic-sampling",
        If(keys.FILTER),
        Trainer(
            (*requires.OUR_MODES, *requires.VERLS_MODES),
            "reads no algorithm.filter_groups: every prompt would be trained on",
            refuse=True,
            when=_IS_OURS,
        ),
        Null(
            f"{_SAMPLER}.path",
            "takes the place of verl's dynamic sampling, and need not read algorithm.filter_groups",
            when=If(f"{_SAMPLER}.name"),
            line=Line(f"{_SAMPLER}.path=null", more=f", or {keys.FILTER}=false"),
        ),
    ),
    (
        "batch-scale",
        lambda config: _OF_BATCH(config) or catalogue.learns_from_several_rewards(config),
        Off(
            keys.FILTER,
            "changes the batch by whose standard deviation advantages are divided",
            when=_OF_BATCH,
        ),
        In(
            "trainer.v1.separate_async.parameter_sync_step",
            (1, None),
            "divides advantages by the standard deviation of a part of the batch",
            when=If(MODE, ("grpo_ext_separate_async", "separate_async")),
        ),
    ),
    (
        "mask-truncated",
        If(f"{SECTION}.mask_truncated_completions"),
        NoneWith(
            f"{CORRECTION}.rollout_rs",
            "token",
            "may reject the last token of a response, which shows whether it was truncated",
            refuse=True,
            when=_IS_OURS,
            line=Line(
                f"{CORRECTION}.rollout_rs=null",
                more=", or algorithm.grpo_ext.mask_truncated_completions=false",
            ),
        ),
    ),
    (
        "group-size",
        _IS_OURS,
        AtLeast(
            f"{ROLLOUT}.n",
            2,
            "leaves a response nothing to be compared with: every advantage would be 0",
            refuse=True,
            line=Line(f"{ROLLOUT}.n=8"),
        ),
        Off(
            f"{ROLLOUT}.full_determinism",
            "gives the responses to a prompt the same seed: they are one text, and every advantage is 0",
            refuse=True,
            when=Where(
                "vLLM gets no seeds of this package, nor perhaps of a user's agent loop",
                lambda config: (
                    setting(config, f"{ROLLOUT}.name") == "vllm"
                    and requires.runs_v1(config)
                    and setting(config, keys.AGENT_LOOP) in (*AGENT_LOOPS, *AGENT_LOOPS.values())
                    and setting(config, f"{SECTION}.seed_requests") is None
                ),
            ),
        ),
        *(
            In(
                f"{ROLLOUT}.{name}",
                (usual,),
                "samples the likeliest token alone: responses to a prompt are one text, every advantage is 0",
                refuse=True,
                when=If(f"{ROLLOUT}.{name}", (greedy,)),
            )
            for name, usual, greedy in (("top_k", -1, 1), ("temperature", 1, 0))
        ),
    ),
    (
        "overlong-punishment",
        overlong_punishment,
        In(
            f"{_BUFFER}.len",
            (f"${{{_BUDGET}}}",),
            "verl's reward manager refuses in its workers",
            refuse=True,
            test=lambda length, config: is_count(length) and length <= setting(config, _BUDGET, 0),
            words=f"from 1 to {_BUDGET}",
            line=Line(f"{_BUDGET}=${{data.max_response_length}}", f"{_BUFFER}.len=${{{_BUDGET}}}"),
        ),
        AtLeast(f"{_BUFFER}.penalty_factor", 0, "rewards long responses", refuse=True),
    ),
    (
        "critic-warmup",
        lambda config: _IS_OURS(config) and not setting(config, "critic.enable"),
        requires.AtMost(
            "trainer.critic_warmup",
            1,
            "keeps verl from training the policy before this step, for a critic that is not there",
            line=Line("trainer.critic_warmup=0"),
        ),
    ),
)
"""What several algorithms were tested with alike: a name, whether a training uses it, and its rows."""
_SHARED = [Feature(name=name, used=used, requires=tuple(rows)) for name, used, *rows in _ROWS]


def all_needs() -> Iterator[tuple[str, tuple[In, ...]]]:
    """Yield name and rows of every feature, estimator and loss."""
    yield from ((each.name, each.requires) for each in (*_SHARED, *all_features()) if each.name)
    for table in (ESTIMATORS, catalogue.LOSSES, catalogue.VERLS_LOSSES):
        yield from map(_of_record, table.values())


def _of_record(record: Estimator | Loss) -> tuple[str, tuple[In, ...]]:
    asked = [_INPUTS[name] for name in getattr(record, "inputs", ()) if name in _INPUTS]
    rows = _STATISTIC if isinstance(record, Loss) and record.needs else _STATISTIC[: bool(asked)]
    return record.name, (*rows, *asked, *record.requires)


def untested(config: DictConfig) -> Iterator[Finding]:
    """Yield a finding for each row with whose values a training does not agree, under the feature's name.

    A training with a loss of verl's and nothing of this package is refused nothing.
    """
    asked = [(each.name, each.requires) for each in (*_SHARED, *all_features()) if each.used(config)]
    is_known = catalogue.knows(config)
    for record in (catalogue.estimator_of(config), catalogue.loss_of(config)):
        if record is not None:
            name, rows = _of_record(record)
            asked.append((name, tuple(row for row in rows if is_known or not row.refuse)))
    yield from filter(None, (row.unmet(name, config) for name, rows in asked for row in rows))

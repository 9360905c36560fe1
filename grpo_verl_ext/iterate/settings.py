"""What a user writes for ``grpo-verl-ext iterate``: typed, read once, refused in one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from grpo_verl_ext.utils.typed_yaml import read_typed_yaml

SERVED = ("embedded", "server")


class IterateError(ValueError):
    """The settings, or the folder they name, cannot be used; the message has the line to type."""


@dataclass
class PolicySettings:
    """The policy's training: verl's own trainer."""

    overrides: list[str] = MISSING
    """verl's command line: presets, data, the first policy (``actor_rollout_ref.model.path``), …"""
    steps: int = MISSING
    """M: training steps a round."""
    save_freq: int = 4
    """Checkpoint every so many steps; a killed round goes on from the last one."""


@dataclass
class RewardModelSettings:
    """The reward model: trained by TRL on pairs, asked by the policy's training."""

    start: str | None = None
    """Folder or hub name of a reward model for round 1. None: the first policy with a new head is trained
    after round 1 and asked from round 2 on; round 1 has the rules alone."""
    weight: float = 1.0
    """Its factor in the reward; 0 trains it without asking it."""
    rule_weight: float = 1.0
    """Factor of what verl's reward function returns. With 0, ``start`` is needed."""
    served: str = "embedded"
    """``embedded``: in verl's reward processes, on CPU. ``server``: verl's reward-model server."""
    label: str = MISSING
    """Dotted name of the rule ``(solution_str, ground_truth) → number`` that says which response of a prompt
    is better."""
    pairs_per_prompt: int = 4
    """At most so many pairs of the responses to a prompt in one step."""
    held_out: float = 0.1
    """Share of prompts whose pairs measure the reward model and never train it."""
    replay: float = 0.1
    """Share of the training pairs that come from all earlier rounds; Algorithm 1: 10 % historical data."""
    launcher: list[str] | None = None
    """Starts the training module; None: ``python -m``. For several GPUs: [accelerate, launch, -m]."""
    trainer: dict[str, Any] = field(default_factory=dict)
    """Fields of TRL's ``RewardConfig``."""


@dataclass
class MeasureSettings:
    """What is measured after each round beside verl's validation."""

    prompts: int = 256
    """First so many rows of ``data.val_files`` for the KL to the first policy; 0: not measured."""
    batch_size: int = 64


@dataclass
class IterateSettings:
    """All of it."""

    folder: str = MISSING
    """Where everything goes."""
    rounds: int = MISSING
    seed: int = 1
    policy: PolicySettings = field(default_factory=PolicySettings)
    reward_model: RewardModelSettings = field(default_factory=RewardModelSettings)
    measure: MeasureSettings = field(default_factory=MeasureSettings)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the manifest."""
        return asdict(self)


def read_settings(file: Path, overrides: Sequence[str] = ()) -> IterateSettings:
    """Read the file, let ``key=value`` of the command line win, and check every value.

    Raises:
        IterateError: no such file, no YAML, an unknown key, a missing or a wrong value.
    """
    settings = read_typed_yaml(file, overrides, IterateSettings, IterateError)
    _check_values(settings)
    return settings


def _check_values(settings: IterateSettings) -> None:
    policy, reward, measure = settings.policy, settings.reward_model, settings.measure
    for key, number, least in (
        ("rounds", settings.rounds, 1),
        ("seed", settings.seed, 0),
        ("policy.steps", policy.steps, 1),
        ("policy.save_freq", policy.save_freq, 1),
        ("reward_model.pairs_per_prompt", reward.pairs_per_prompt, 1),
        ("measure.prompts", measure.prompts, 0),
        ("measure.batch_size", measure.batch_size, 1),
    ):
        if number < least:
            raise IterateError(f"{key} is {number}; valid is an integer ≥ {least}. Type: {key}={least}")
    for key, share, typical in (
        ("reward_model.held_out", reward.held_out, 0.1),
        ("reward_model.replay", reward.replay, 0.1),
    ):
        if not 0 <= share < 1:
            raise IterateError(f"{key} is {share}; valid is 0 ≤ share < 1. Type: {key}={typical}")
    if reward.held_out == 0:
        raise IterateError(
            "reward_model.held_out is 0.0, and nothing would measure the reward model; valid is "
            "0 < share < 1. Type: reward_model.held_out=0.1"
        )
    if reward.served not in SERVED:
        raise IterateError(
            f"reward_model.served is {reward.served!r}; valid are {', '.join(SERVED)}. "
            f"Type: reward_model.served=embedded"
        )
    if reward.rule_weight == 0 and reward.start is None:
        raise IterateError(
            "reward_model.rule_weight is 0.0 and reward_model.start is not given, so round 1 would have no "
            "reward. Type: reward_model.start=<folder of a reward model>, or reward_model.rule_weight=1.0"
        )

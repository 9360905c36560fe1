"""Settings of ``grpo-verl-ext iterate``, and the seed, folders and overrides of each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpo_verl_ext.runs.verl_run import VerlRun, hydra_value
from grpo_verl_ext.utils.documents import Document, read_yaml

_SERVED = ("embedded", "server")


class IterateError(ValueError):
    """The settings, or the folder they name, cannot be used; the message has the line to type."""


@dataclass
class PolicySettings:
    """Settings of the policy's training by verl's trainer.

    Attributes:
        overrides: verl's command line: presets, data, the first policy (``actor_rollout_ref.model.path``), …
        steps: M, training steps per round.
        save_freq: steps between checkpoints; a killed round resumes from the last one.
    """

    overrides: list[str]
    steps: int
    save_freq: int = 4


@dataclass
class RewardModelSettings:
    """Settings of the reward model, which TRL trains on pairs and the policy's training uses.

    Attributes:
        start: folder or hub name of a reward model for round 1. None: the first policy with a new head is
            trained after round 1 and used from round 2 on; round 1 has only the rules.
        weight: its factor in the reward; 0 trains the reward model without using it.
        rule_weight: factor of the reward function's score in rounds that use a reward model; in round 1
            without ``start`` it is 1. With 0, ``start`` is needed.
        served: ``embedded``: in verl's reward processes, on CPU. ``server``: verl's reward-model server.
        label: dotted name of the rule ``(solution_str, ground_truth) → number`` that says which response of a
            prompt is better.
        step_label: instead of ``label``, a reward function in verl's form that returns ``step_rewards`` and
            ``step_ends``: the model becomes a classifier of steps, and a step counts as right if its reward
            is above 0. The function gets the prompt's text as ``extra_info["prompt"]``.
        pairs_per_prompt: largest number of pairs from the responses to a prompt in one step; with
            ``step_label`` of responses.
        held_out: share of prompts whose pairs only measure the reward model and never train it.
        replay: share of the training pairs that come from all earlier rounds; Algorithm 1: 10 % historical
            data.
        replay_from: ``pairs.jsonl`` of another run, such as the one that trained ``start``; its pairs count
            as those of an earlier round, except those of prompts that are held out here.
        launcher: starts the training module; None: ``python -m``. With several GPUs: [accelerate, launch,
            -m].
        trainer: fields of TRL's ``RewardConfig``; with ``step_label`` of its ``PRMConfig``.
    """

    start: str | None = None
    weight: float = 1.0
    rule_weight: float = 1.0
    served: str = "embedded"
    label: str | None = None
    step_label: str | None = None
    pairs_per_prompt: int = 4
    held_out: float = 0.1
    replay: float = 0.1
    replay_from: str | None = None
    launcher: list[str] | None = None
    trainer: dict[str, Any] = field(default_factory=dict)


@dataclass
class MeasureSettings:
    """Settings of the measurement after each round, in addition to verl's validation.

    Attributes:
        prompts: rows of ``data.val_files``, from the first, for the KL to the first policy; 0: not measured.
    """

    prompts: int = 256
    batch_size: int = 64


@dataclass(kw_only=True)
class IterateSettings(Document):
    """All settings of ``grpo-verl-ext iterate``.

    Attributes:
        folder: path for everything that is written.
    """

    folder: str
    rounds: int
    seed: int = 1
    policy: PolicySettings
    reward_model: RewardModelSettings = field(default_factory=RewardModelSettings)
    measure: MeasureSettings = field(default_factory=MeasureSettings)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, for the manifest."""
        return asdict(self)


def read_settings(file: Path, overrides: Sequence[str] = ()) -> IterateSettings:
    """Read the YAML file and the command line's ``key=value``, which win, and check every value.

    Raises:
        IterateError: no such file, not YAML, an unknown key, a missing or a wrong value.
    """
    settings = read_yaml(file, IterateSettings, IterateError, overrides)
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
    if reward.served not in _SERVED:
        raise IterateError(
            f"reward_model.served is {reward.served!r}; valid are {', '.join(_SERVED)}. "
            f"Type: reward_model.served=embedded"
        )
    _check_label(reward)
    if reward.weight == 0 and reward.rule_weight != 1:
        raise IterateError(
            f"reward_model.rule_weight is {reward.rule_weight}, but reward_model.weight is 0.0: no round "
            "uses a reward model, beside which it would count. Type: reward_model.rule_weight=1.0"
        )
    if reward.rule_weight == 0 and reward.start is None:
        raise IterateError(
            "reward_model.rule_weight is 0.0 and reward_model.start is not given, so round 1 would have no "
            "reward. Type: reward_model.start=<folder of a reward model>, or reward_model.rule_weight=1.0"
        )


def _check_label(reward: RewardModelSettings) -> None:
    if reward.label is None and reward.step_label is None:
        raise IterateError(
            "reward_model.label is not given, and has no default. Type: reward_model.label=<value>, or for a "
            "classifier of steps reward_model.step_label=<value>"
        )
    if reward.step_label is None:
        return
    if reward.label is not None:
        raise IterateError(
            f"reward_model.step_label is {reward.step_label!r}, but reward_model.label is {reward.label!r}; "
            "valid is one of them. Type: reward_model.label=null"
        )
    if reward.served == "server":
        raise IterateError(
            "reward_model.served is 'server', but verl's server gives no scores of steps; with "
            "reward_model.step_label valid is embedded. Type: reward_model.served=embedded"
        )


_SEEDS_PER_RUN = 1000
"""Below this number of rounds, two runs with different seeds have no seed in common."""

_SECTION = "algorithm.grpo_ext"


@dataclass(frozen=True)
class Round:
    """Round ``number`` ≥ 1 of a run: its seed, its folders and its command line for verl."""

    settings: IterateSettings
    number: int

    @property
    def before(self) -> Round:
        """The round before this one."""
        return Round(self.settings, self.number - 1)

    @property
    def seed(self) -> int:
        """Seed of the order of prompts, sampling, pairs and the reward model's training."""
        return self.settings.seed * _SEEDS_PER_RUN + self.number

    @property
    def folder(self) -> Path:
        """Folder for everything of this round."""
        return Path(self.settings.folder) / f"round-{self.number}"

    @property
    def rollouts(self) -> Path:
        """Folder of the responses that verl dumps."""
        return self.folder / "rollouts"

    @property
    def model(self) -> Path:
        """The policy after this round, as a Hugging Face folder."""
        return self.folder / "model"

    @property
    def training_pairs(self) -> Path:
        """This round's own training pairs."""
        return self.folder / "pairs.jsonl"

    @property
    def replayable(self) -> list[Path]:
        """The files of training pairs that this round may replay."""
        before = self.settings.reward_model.replay_from
        earlier = [Round(self.settings, number).training_pairs for number in range(1, self.number)]
        return [*([] if before is None else [Path(before)]), *earlier]

    @property
    def mixture(self) -> Path:
        """This round's and the replayed pairs, on which the reward model is trained."""
        return self.folder / "mixture.jsonl"

    @property
    def held_out_pairs(self) -> Path:
        """This round's pairs that are never used for training."""
        return self.folder / "held_out.jsonl"

    @property
    def own_reward_model(self) -> Path:
        """The reward model trained in this round; not there if there was nothing to train it on."""
        return self.folder / "reward_model"

    @property
    def reward_model(self) -> str | None:
        """The newest reward model after this round; after round 0 ``reward_model.start``."""
        if self.number == 0:
            return self.settings.reward_model.start
        nothing_to_train_on = self.mixture.exists() and self.mixture.stat().st_size == 0
        return self.before.reward_model if nothing_to_train_on else str(self.own_reward_model)

    def overrides(self) -> list[str]:
        """Return verl's command line: the user's, then policy and reward model of the round before."""
        # The reference is loaded from the same folder: each round begins with π_ref = π_θ.
        later = self.number > 1
        policy = [f"actor_rollout_ref.model.path={hydra_value(self.before.model.resolve())}"] if later else []
        return [
            f"trainer.save_freq={self.settings.policy.save_freq}",
            f"trainer.test_freq={self.settings.policy.steps}",
            "trainer.max_actor_ckpt_to_keep=1",
            *self.settings.policy.overrides,
            f"trainer.rollout_data_dir={hydra_value(self.rollouts.resolve())}",
            f"data.seed={self.seed}",
            f"++actor_rollout_ref.rollout.seed={self.seed}",
            *policy,
            *self._reward_overrides(),
        ]

    def run(self) -> VerlRun:
        """Return the policy's training."""
        tracked_as = (self.folder.resolve().parent.name, self.folder.name)
        return VerlRun(self.folder / "policy", self.overrides(), self.settings.policy.steps, tracked_as)

    def _reward_overrides(self) -> list[str]:
        asked, reward = self.before.reward_model, self.settings.reward_model
        if asked is None or reward.weight == 0:
            return []
        own = self.number > 1 and asked != self.settings.reward_model.start
        path = hydra_value(Path(asked).resolve() if own or Path(asked).exists() else asked)
        section = f"{_SECTION}.{'reward_model' if reward.step_label is None else 'step_reward_model'}"
        weights = [
            "reward.reward_manager.name=rule_and_model",
            f"++{section}.weight={reward.weight}",
            f"++{section}.rule_weight={reward.rule_weight}",
        ]
        if reward.served == "server":
            return [*weights, "reward.reward_model.enable=true", f"reward.reward_model.model_path={path}"]
        return [*weights, f"++{section}.path={path}"]

"""Settings of ``grpo-verl-ext iterate``, and the seed, files and command line of each round."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from grpo_verl_ext.runs.verl_run import VerlRun, hydra_value
from grpo_verl_ext.utils.documents import Document, read_yaml
from grpo_verl_ext.utils.files import check_folder
from grpo_verl_ext.utils.keys import ACTOR, MODEL, REWARD_MANAGER, ROLLOUT, SECTION
from grpo_verl_ext.utils.options import Count


class IterateError(ValueError):
    """The settings, or the folder they name, cannot be used; the message has the line to type."""


@dataclass
class PolicySettings:
    """verl's command line with the first policy, and M steps per round."""

    overrides: list[str]
    steps: Count


@dataclass
class RewardModelSettings:
    """Settings of the reward model, which TRL trains and the policy's training uses.

    Attributes:
        start: folder or hub name for round 1. None: the first policy with a new head, used from round 2 on.
        weight: its factor in the reward; 0 trains the reward model without using it.
        rule_weight: factor of the reward function's score in rounds that use a reward model.
        label: name of the rule ``(solution_str, ground_truth) → number`` that says which response of a prompt
            is better, such as ``my_package.rules.f`` or ``path/to/file.py:f``.
        step_label: instead, a reward function that returns ``step_rewards`` and ``step_ends``, for a
            classifier of steps, right with a reward above 0. ``extra_info["prompt"]`` is the prompt's text.
        pairs_per_prompt: largest number of pairs, or of responses cut into steps, per prompt and step.
        held_out: share of prompts that only measure the reward model and never train it.
        replay: share of the training pairs that come from all earlier rounds; Algorithm 1: 10 %.
        replay_from: ``pairs.jsonl`` of another run, which counts as an earlier round.
        launcher: starts the training module, such as [accelerate, launch, -m]; None: ``python -m``.
        trainer: fields of TRL's ``RewardConfig``; with ``step_label`` of its ``PRMConfig``.
    """

    start: str | None = None
    weight: float = 1.0
    rule_weight: float = 1.0
    label: str | None = None
    step_label: str | None = None
    pairs_per_prompt: Count = 4
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1
    replay: Annotated[float, Field(ge=0, lt=1)] = 0.1
    replay_from: str | None = None
    launcher: list[str] | None = None
    trainer: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class IterateSettings(Document):
    """All settings of ``grpo-verl-ext iterate``; ``folder`` gets everything that is written."""

    folder: str
    rounds: Count
    seed: Annotated[int, Field(ge=0)] = 1
    policy: PolicySettings
    reward_model: RewardModelSettings = field(default_factory=RewardModelSettings)


def read_settings(file: Path, overrides: Sequence[str] = ()) -> IterateSettings:
    """Read the YAML file and the command line's ``key=value``, which win, and check every value."""
    settings = read_yaml(file, IterateSettings, IterateError, overrides)
    check_folder(settings.folder)
    reward = settings.reward_model
    key, weight = "reward_model", reward.rule_weight
    if (reward.label is None) == (reward.step_label is None):
        raise IterateError(f"{key}: valid is either label or step_label. Type: {key}.label=<value>")
    if reward.weight == 0 and weight != 1:
        raise IterateError(f"{key}.rule_weight is {weight}, and weight 0. Type: {key}.rule_weight=1.0")
    if weight == 0 and reward.start is None:
        raise IterateError(f"{key}.rule_weight is 0: round 1 has no reward. Type: {key}.start=<folder>")
    if reward.replay == 0 and reward.replay_from is not None:
        raise IterateError(f"{key}.replay is 0: replay_from is not read. Type: {key}.replay=0.1")
    return settings


class Round:
    """Round ``number`` ≥ 1 of a run: its seed, its files and its command line for verl.

    Runs of fewer than 1000 rounds with different seeds share no ``seed``. ``own_reward_model`` is trained on
    ``mixture``, this round's pairs and some of ``replayable``; with an empty one it is not there.
    """

    def __init__(self, settings: IterateSettings, number: int) -> None:
        self.settings, self.number, self.seed = settings, number, settings.seed * 1000 + number
        self.folder = Path(settings.folder) / f"round-{number}"
        saved = VerlRun(self.folder / "policy", (), settings.policy.steps).last_checkpoint
        self.model, self.own_reward_model = saved / "actor" / "huggingface", self.folder / "reward_model"
        self.mixture, self.held_out_pairs = self.folder / "mixture.jsonl", self.folder / "held_out.jsonl"
        self.training_pairs = self.folder / "pairs.jsonl"
        earlier = (self.folder.with_name(f"round-{each}") / "pairs.jsonl" for each in range(1, number))
        other = settings.reward_model.replay_from
        self.replayable = [*([] if other is None else [Path(other)]), *earlier]

    @property
    def reward_model_before(self) -> str | None:
        """The newest reward model of the rounds before; ``reward_model.start`` where none trained one."""
        for number in range(self.number - 1, 0, -1):
            earlier = Round(self.settings, number)
            if not (earlier.mixture.exists() and earlier.mixture.stat().st_size == 0):
                return str(earlier.own_reward_model)
        return self.settings.reward_model.start

    def run(self) -> VerlRun:
        """Return the policy's training, from policy and reward model of the round before."""
        reward, steps = self.settings.reward_model, self.settings.policy.steps
        words = [
            *(f"trainer.test_freq={steps}", "trainer.save_freq=4", "trainer.max_actor_ckpt_to_keep=1"),
            f"{ACTOR}.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
            *self.settings.policy.overrides,
            *(f"data.seed={self.seed}", f"++{ROLLOUT}.seed={self.seed}"),
        ]
        if self.number > 1:
            # The reference is loaded from the same folder: each round begins with π_ref = π_θ.
            before = Round(self.settings, self.number - 1).model.resolve()
            words.append(f"{MODEL}={hydra_value(before)}")
        if (asked := self.reward_model_before) is not None and reward.weight != 0:
            is_folder = asked != reward.start or Path(asked).exists()
            path, section = Path(asked).resolve() if is_folder else asked, f"++{SECTION}.reward_model"
            words += [f"reward.reward_manager.name={REWARD_MANAGER}", f"{section}.path={hydra_value(path)}"]
            words += [f"{section}.weight={reward.weight}", f"{section}.rule_weight={reward.rule_weight}"]
        tracked_as = (self.folder.resolve().parent.name, self.folder.name)
        return VerlRun(self.folder / "policy", words, steps, tracked_as)

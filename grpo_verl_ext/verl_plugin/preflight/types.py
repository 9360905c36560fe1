"""Are the settings that the other checks read texts, counts and sections where verl has such?"""

from collections.abc import Callable
from typing import NamedTuple

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.verl_plugin.findings import SettingError
from grpo_verl_ext.verl_plugin.keys import ACTOR, MODEL, ROLLOUT
from grpo_verl_ext.verl_plugin.options import is_count, is_number


class Kind(NamedTuple):
    """What some settings must be."""

    is_one: Callable[[object], bool]
    words: str
    example: str
    keys: tuple[str, ...]
    may_be_null: bool = False


SECTIONS = (
    "data",
    "trainer",
    "trainer.v1",
    "algorithm",
    "actor_rollout_ref",
    "actor_rollout_ref.model",
    ACTOR,
    f"{ACTOR}.policy_loss",
    ROLLOUT,
    f"{ROLLOUT}.agent",
    "reward",
    "reward.reward_manager",
    "reward.custom_reward_function",
    "reward.reward_model",
)
SECTIONS_OR_NULL = (
    "task",
    "algorithm.filter_groups",
    "algorithm.rollout_correction",
    "actor_rollout_ref.model.lora",
    "reward.custom_reward_function.reward_kwargs",
    "reward.reward_kwargs",
    "reward.reward_kwargs.overlong_buffer_cfg",
)
COUNTS = (
    "data.max_prompt_length",
    "data.max_response_length",
    "data.train_batch_size",
    f"{ACTOR}.ppo_mini_batch_size",
    f"{ACTOR}.ppo_epochs",
    f"{ROLLOUT}.n",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
)
COUNTS_OR_NULL = (
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{ACTOR}.ulysses_sequence_parallel_size",
    f"{ROLLOUT}.max_model_len",
)
NUMBERS = (f"{ROLLOUT}.top_p", f"{ROLLOUT}.top_k")
NUMBERS_OR_NULL = ("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank")
TEXTS = (
    "algorithm.adv_estimator",
    "trainer.device",
    "trainer.v1.trainer_mode",
    MODEL,
    f"{ACTOR}.policy_loss.loss_mode",
    f"{ROLLOUT}.name",
    "reward.reward_manager.name",
)

KINDS = (
    Kind(OmegaConf.is_dict, "a section", "'{}'", SECTIONS),
    Kind(OmegaConf.is_dict, "a section", "null", SECTIONS_OR_NULL, may_be_null=True),
    Kind(is_count, "an integer ≥ 1", "1", COUNTS),
    Kind(is_count, "an integer ≥ 1", "1", COUNTS_OR_NULL, may_be_null=True),
    Kind(is_number, "a number", "1.0", NUMBERS),
    Kind(is_number, "a number", "0", NUMBERS_OR_NULL, may_be_null=True),
    Kind(lambda value: isinstance(value, str), "a text", "<text>", TEXTS),
)


def check_types(config: DictConfig) -> None:
    """Refuse what no check, and no part of verl, could calculate with.

    Raises:
        SettingError: the first such setting.
    """
    for kind in KINDS:
        for key in kind.keys:
            value = OmegaConf.select(config, key, throw_on_missing=True)
            if not kind.is_one(value) and not (kind.may_be_null and value is None):
                raise SettingError(
                    f"{key} is {value!r}; valid is {kind.words}{', or null' * kind.may_be_null}. "
                    f"Type: {key}={kind.example}",
                    key=key,
                )

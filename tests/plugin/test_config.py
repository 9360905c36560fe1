"""Test the package's keys: each has a rule that its default obeys, and the page is written from them."""

from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import write_settings_page
from omegaconf import OmegaConf

from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import SECTION
from grpo_verl_ext.utils.options import read
from grpo_verl_ext.utils.rules import DESCRIPTION, RULE
from grpo_verl_ext.verl_plugin.config import NESTED, NESTED_BY_NAME, Options
from grpo_verl_ext.verl_plugin.loss_config import option_models
from grpo_verl_ext.verl_plugin.reward_options import RewardModelOptions

KEYS = [
    *((f"{SECTION}.{field.name}", field) for field in fields(Options)),
    *((f"{SECTION}.{name}.{field.name}", field) for name, read in NESTED.items() for field in fields(read)),
    *(
        (f"{SECTION}.{of}.some.{field.name}", field)
        for of, read in NESTED_BY_NAME.items()
        for field in fields(read)
    ),
]


def test_the_page_is_written_from_the_keys() -> None:
    written = write_settings_page.PAGE.read_text(encoding="utf-8")
    assert written == write_settings_page.page(), "Type: python tests/helpers/write_settings_page.py"


@pytest.mark.parametrize(("name", "field"), KEYS, ids=[name for name, _ in KEYS])
def test_a_key_has_a_rule_that_its_default_obeys_and_a_description(name: str, field: Any) -> None:
    field.metadata[RULE].check(name, field.default)
    assert field.metadata[DESCRIPTION]


@pytest.mark.parametrize(("name", "field"), KEYS, ids=[name for name, _ in KEYS])
def test_what_a_key_does_not_take_is_refused_by_its_full_name(name: str, field: Any) -> None:
    if field.name == "silence":  # names of checks, which `preflight` knows
        return
    with pytest.raises(SettingError) as refused:
        field.metadata[RULE].check(name, object())
    assert refused.value.problem.key == name
    assert refused.value.problem.valid
    assert f"{name}=" in refused.value.problem.fix


OF_LOSSES = [(model, name) for model in option_models() for name in model.model_fields]


@pytest.mark.parametrize(("model", "name"), OF_LOSSES, ids=[name for _, name in OF_LOSSES])
def test_a_key_of_a_loss_has_a_default_that_it_takes_a_description_and_a_refusal(
    model: Any, name: str
) -> None:
    field = model.model_fields[name]
    default = 0.1 if name == "gvpo_beta" else field.default  # the one key without: the loss needs it
    others = {"gvpo_beta": 0.1} if "gvpo_beta" in model.model_fields else {}
    assert getattr(read(model, others | {name: default}, "policy_loss"), name) == default
    assert field.description
    with pytest.raises(SettingError) as refused:
        read(model, others | {name: object()}, "policy_loss")
    assert refused.value.problem.key == f"policy_loss.{name}"
    assert refused.value.problem.valid
    assert f"policy_loss.{name}=" in refused.value.problem.fix


def test_no_section_means_all_defaults() -> None:
    assert Options.from_config(None) == Options.from_config({}) == Options()
    assert Options.from_config({"grpo_ext": None}) == Options()


def test_a_section_of_omegaconf_is_read_like_a_plain_one() -> None:
    section = {"scale_rewards": "batch", "reward_model": {"weight": 0.5}}
    read = Options.from_config(OmegaConf.create({"grpo_ext": section}))
    assert read == Options.from_config({"grpo_ext": section})
    assert read.reward_model == RewardModelOptions(weight=0.5)
    assert is_dataclass(read.reward_model)

"""Test the package's keys: each has a rule that its default obeys, and the page is written from them."""

from typing import Any

import pytest
import write_settings_page
from omegaconf import OmegaConf

from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import SECTION
from grpo_verl_ext.utils.options import Section
from grpo_verl_ext.verl_plugin.config import Options, RewardModelOptions
from grpo_verl_ext.verl_plugin.loss_config import option_models

KEYS = [(full, *place) for full, place in Options.all_keys(f"{SECTION}.").items()]
CASES = pytest.mark.parametrize(("full", "model", "name"), KEYS, ids=[full for full, _, _ in KEYS])


def test_the_page_is_written_from_the_keys() -> None:
    written = write_settings_page.PAGE.read_text(encoding="utf-8")
    assert written == write_settings_page.page(), "Type: python tests/helpers/write_settings_page.py"


@CASES
def test_a_key_has_a_rule_that_its_default_obeys_and_a_description(
    full: str, model: type[Section], name: str
) -> None:
    field = model.model_fields[name]
    assert getattr(model.read({name: field.default}, full), name) == field.default
    assert field.description


@CASES
def test_what_a_key_does_not_take_is_refused_by_its_full_name(
    full: str, model: type[Section], name: str
) -> None:
    if name == "silence":  # names of checks, which `preflight` knows
        return
    *section, _ = full.removeprefix(f"{SECTION}.").split(".")
    values: dict[str, Any] = {name: object()}
    for each in reversed(section):
        values = {each: values}
    with pytest.raises(SettingError) as refused:
        Options.from_config({"grpo_ext": values})
    assert refused.value.problem.key == full
    assert refused.value.problem.valid
    assert f"{full}=" in refused.value.problem.fix


OF_LOSSES = [(model, name) for model in option_models() for name in model.model_fields]


@pytest.mark.parametrize(("model", "name"), OF_LOSSES, ids=[name for _, name in OF_LOSSES])
def test_a_key_of_a_loss_has_a_default_that_it_takes_a_description_and_a_refusal(
    model: Any, name: str
) -> None:
    field = model.model_fields[name]
    default = 0.1 if name == "gvpo_beta" else field.default  # the one key without: the loss needs it
    others = {"gvpo_beta": 0.1} if "gvpo_beta" in model.model_fields else {}
    assert getattr(model.read(others | {name: default}, "policy_loss"), name) == default
    assert field.description
    with pytest.raises(SettingError) as refused:
        model.read(others | {name: object()}, "policy_loss")
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
    assert isinstance(read.reward_model, Section)

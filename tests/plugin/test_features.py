"""Test the list of features: what their records name exists, and general code has all of it."""

from collections import Counter
from importlib.metadata import EntryPoint
from pkgutil import resolve_name

import pytest
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls

from grpo_verl_ext.catalogue.requires import OUR_MODES
from grpo_verl_ext.preflight import ADVICE, CHECKS
from grpo_verl_ext.verl_plugin import features
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS, STORED_AGENT_LOOP
from grpo_verl_ext.verl_plugin.features import all_features


def test_every_part_in_the_trainer_is_mixed_into_every_mode():
    parts = [resolve_name(feature.trainer) for feature in all_features() if feature.trainer]
    names = ("ReferenceSyncTrainer", "Measure", "StoredResponses", "OtherRewards", "OldLogProbs")
    assert [part.__name__ for part in parts] == [f"{name}Mixin" for name in names]
    for mode in OUR_MODES:
        lineage = get_trainer_cls(mode).__mro__
        assert [each for each in lineage if each in parts] == parts


def test_every_agent_loop_is_registered_by_the_module_that_its_record_names():
    loops = {name: module for feature in all_features() for name, module in feature.agent_loops.items()}
    assert loops.keys() == {*AGENT_LOOPS.values(), STORED_AGENT_LOOP}
    for name, module in loops.items():
        assert _agent_loop_registry[name]["_target_"].startswith(f"{module}.")


def test_no_two_features_share_a_name():
    for names, table in (("checks", CHECKS), ("advice", ADVICE)):
        of_features = Counter(name for feature in all_features() for name in getattr(feature, names))
        assert set(of_features.values()) == {1}
        assert of_features.keys() <= table.keys()


def test_a_feature_of_another_package_that_fails_to_load_is_named(monkeypatch: pytest.MonkeyPatch):
    """Whole packages are tested in examples/teacher."""
    entries = [EntryPoint("no", "no_such_module:X", "any"), EntryPoint("other", "pathlib:Path", "any")]
    monkeypatch.setattr(features, "entry_points", lambda group: entries)
    monkeypatch.setattr(features, "FAILED", {})
    assert features.foreign_features.__wrapped__() == ()
    said = [str(each) for each in ADVICE["features"](OmegaConf.create())]
    assert "the feature no of another package could not be loaded: no_such_module:X (ModuleNot" in said[0]
    assert "pathlib:Path (TypeError: it must name a Feature)" in said[1]

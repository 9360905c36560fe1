"""Test reward functions of a user's own as parts of the weighted sum."""

import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from grpo_verl_ext.preflight import CHECKS
from grpo_verl_ext.rewards.functions import load_function
from grpo_verl_ext.rewards.weighted_sum import check_weights, compute_score

RIGHT = "<reasoning>…</reasoning><answer>9</answer>"
OURS = {"path": "pkg://grpo_verl_ext.rewards.weighted_sum", "name": "compute_score"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `mine_to_load` with functions of all kinds, as a user has them."""
    file = tmp_path / "mine_to_load.py"
    file.write_text(
        """
        def length(data_source, solution_str, ground_truth, extra_info=None, **_):
            return len(solution_str)

        def judged(data_source, solution_str, ground_truth, extra_info=None, **_):
            return {"score": 0.25, "acc": extra_info["acc"], "distance": 3, "why": "text"}

        def says(data_source, solution_str, ground_truth, extra_info=None, **_):
            return extra_info["returned"]

        def router(reward_router_address, **_):
            return float(reward_router_address == "localhost:1")

        CONSTANT = 3
        """.replace("\n        ", "\n")
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield file
    sys.modules.pop("mine_to_load", None)
    load_function.cache_clear()


def test_a_function_of_a_module_or_file_counts_by_its_weight_and_is_reported_by_name(package: Path) -> None:
    for name in ("mine_to_load.length", f"{package}:length"):
        result = compute_score("any", "four", "9", weights={"format": 1.0, name: 0.5})
        assert result == {"score": 2.0, "format": 0.0, "mine_to_load.length": 4.0}


@pytest.mark.usefixtures("package")
def test_the_number_of_a_function_alone_is_the_accuracy_and_of_several_none_is_unless_by_our_rule() -> None:
    """As verl's reward manager reports it; the rule would look for tags that a task need not have."""
    row, says = {"returned": 0.5}, {"mine_to_load.says": 2.0}
    assert compute_score("any", "9", "9", row, weights=says)["acc"] == 0.5
    assert "acc" not in compute_score("any", "9", "9", row, weights=says | {"format": 1.0})
    assert compute_score("any", RIGHT, "9", row, weights=says | {"correctness": 1.0})["acc"] == 1.0


@pytest.mark.usefixtures("package")
def test_the_first_that_says_what_is_right_decides_and_more_numbers_are_reported() -> None:
    weights = {"length": 0.0, "judged": 2.0, "says": 0.0, "router": 0.0}
    weights = {f"mine_to_load.{name}": weight for name, weight in weights.items()}
    row = {"acc": 0.0, "returned": {"score": 1.0, "acc": 0.75}}
    passed = {"reward_router_address": "localhost:1", "reward_model_tokenizer": None}
    result = compute_score("any", RIGHT, "9", row, weights=weights, **passed)
    assert result["mine_to_load.router"] == 1.0, "what verl passes with a reward model reaches it"
    assert (result["score"], result["acc"]) == (0.5, 0.0)
    assert (result["mine_to_load.judged"], result["mine_to_load.judged.distance"]) == (0.25, 3.0)
    assert not {"mine_to_load.judged.why", "mine_to_load.judged.acc"} & result.keys()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    "returned",
    [
        *("0.5", None, [1.0], float("nan"), 1e16, 10**400),
        *({"scores": 1.0}, {"score": "1"}, {"score": 1.0, "acc": "yes"}),
    ],
    ids=repr,
)
def test_another_type_is_refused_with_the_functions_name(returned: object) -> None:
    said = rf"\.says' returned {re.escape(repr(returned)[:200])} \({type(returned).__name__}\)"
    with pytest.raises(ValueError, match=said):
        compute_score("any", "", "9", {"returned": returned}, weights={"mine_to_load.says": 1.0})


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("returned", [True, 1, np.float32(1), {"score": np.int64(1)}], ids=repr)
def test_any_real_number_is_a_reward(returned: object) -> None:
    result = compute_score("any", "", "9", {"returned": returned}, weights={"mine_to_load.says": 1.0})
    assert (result["score"], type(result["mine_to_load.says"])) == (1.0, float)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mine_to_load.lenght", r"cannot be loaded \(AttributeError: .* has no attribute 'lenght'"),
        ("no_such_package.f", r"cannot be loaded \(ModuleNotFoundError: No module named 'no_such_package'"),
        ("no_such_file.py:f", r"cannot be loaded \(ImportError: no_such_file.py is not a Python file"),
        ("README.md:f", r"cannot be loaded \(ImportError: README.md is not a Python file"),
        ("mine_to_load.CONSTANT", "is a int"),
    ],
)
@pytest.mark.usefixtures("package")
def test_what_cannot_be_loaded_is_named_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"{re.escape(repr(name))} {why}"):
        load_function(name)


@pytest.mark.parametrize("name", ["corectness", ".f", "a..f", "a.f()", ":f", "a.py:", 3])
def test_what_cannot_be_a_function_is_an_unknown_name(name: object) -> None:
    said = r"weights names .* valid names are .* and functions such as my_package"
    with pytest.raises(ValueError, match=said):
        check_weights({name: 1.0})


def test_two_functions_of_one_reported_name_are_refused() -> None:
    said = r"two functions that would both be reported as rewards\.f; rename one"
    with pytest.raises(ValueError, match=said):
        check_weights({"a/rewards.py:f": 1.0, "b/rewards.py:f": 1.0, "other.f": 1.0})


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("mine_to_load.length", False),
        ("mine_to_load.lenght", True),
        ("only_on_workers.f", False),
        ("mine_to_load.of_workers.f", False),
        ("/only/on/workers.py:f", False),
    ],
)
def test_the_driver_refuses_what_is_here_and_does_not_load(name: str, refused: bool) -> None:
    function = OURS | {"reward_kwargs": {"weights": {name: 1.0}}}
    config = OmegaConf.create({"reward": {"custom_reward_function": function}})
    raises = pytest.raises(ValueError, match=r"'mine_to_load\.lenght' cannot be loaded")
    with raises if refused else nullcontext():
        CHECKS["reward-weights"](config)

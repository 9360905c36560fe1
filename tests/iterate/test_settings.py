"""Test the YAML of ``iterate``: every wrong value is refused in one message that names it."""

from pathlib import Path

import pytest

from grpo_verl_ext.iterate.settings import IterateError, read_settings

EXAMPLES = Path(__file__).parents[2] / "examples"

SMALL = """
folder: somewhere
rounds: 2
policy: {steps: 3, overrides: [+algo=grpo]}
reward_model: {label: a.b}
"""


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str = SMALL) -> Path:
        file = tmp_path / "it.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def test_defaults_and_what_wins(written) -> None:
    settings = read_settings(written(), ["rounds=5", "reward_model.trainer.learning_rate=1e-3"])
    assert (settings.folder, settings.rounds, settings.seed) == ("somewhere", 5, 1)
    assert settings.policy.overrides == ["+algo=grpo"]
    assert settings.reward_model.replay == 0.1, "arXiv 2402.03300, Algorithm 1: 10 %"
    assert settings.reward_model.trainer == {"learning_rate": 1e-3}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("iterate*.yaml")), ids=lambda file: file.name)
@pytest.mark.usefixtures("eight_gpus")
def test_the_examples_are_read(file: Path) -> None:
    settings = read_settings(file).reward_model
    # rounds that continue another run's reward model replay that run's pairs; else Algorithm 1's share
    assert settings.replay == (0.1 if settings.replay_from is None else 0.9)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["round=3"], r"round=3 is not known; valid are folder, rounds, seed, policy, reward_model, measure"),
        (["policy.step=3"], r"policy\.step=3 is not known; valid are policy\.overrides, policy\.steps"),
        (["rounds=two"], r"rounds: Value 'two'.*could not be converted to Integer.*Type: rounds=<value>"),
        (["rounds=0"], r"rounds is 0: .* greater than or equal to 1\. Type: rounds="),
        (["seed=-1"], r"seed is -1: .* 0"),
        (["policy.steps=0"], r"policy\.steps is 0"),
        (["policy.save_freq=0"], r"policy\.save_freq is 0"),
        (["reward_model.pairs_per_prompt=0"], r"reward_model\.pairs_per_prompt is 0"),
        (["measure.prompts=-1"], r"measure\.prompts is -1"),
        (["measure.batch_size=0"], r"measure\.batch_size is 0"),
        (["reward_model.replay=1.0"], r"reward_model\.replay is 1\.0: .* less than 1"),
        (["reward_model.replay=.nan"], r"reward_model\.replay is nan"),
        (["reward_model.held_out=0.0"], r"reward_model\.held_out is 0\.0: .* greater than 0"),
        (
            ["reward_model.rule_weight=0.5", "reward_model.weight=0"],
            r"rule_weight is 0\.5, and weight 0\. Type: .*rule_weight=1\.0$",
        ),
        (["reward_model.rule_weight=0"], r"round 1 has no reward\. Type: reward_model\.start="),
        (
            ["reward_model.step_label=a.c"],
            r"valid is either label or step_label\. Type: reward_model\.label=",
        ),
        (["reward_model.label=null"], r"valid is either label or step_label\. Type: reward_model\.label="),
        (["reward_model.replay=0", "reward_model.replay_from=a"], r"replay is 0: replay_from is not read"),
        (["policy=3"], r"policy is 3; valid is a section"),
        (
            ["policy.overrides=3"],
            r"policy\.overrides is 3; valid is list\[str\]\. Type: 'policy\.overrides=\[3\]'",
        ),
    ],
)
def test_a_wrong_value_is_named(written, overrides: list[str], message: str) -> None:
    with pytest.raises(IterateError, match=message):
        read_settings(written(), overrides)


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("folder", "folder: somewhere"),
        ("rounds", "rounds: 2"),
        ("policy.steps", "steps: 3, "),
        ("policy.overrides", ", overrides: [+algo=grpo]"),
    ],
)
def test_what_has_no_default_must_be_there(written, key: str, line: str) -> None:
    assert line in SMALL
    with pytest.raises(IterateError, match=rf"{key} is not given, and has no default\. Type: {key}=<value>"):
        read_settings(written(SMALL.replace(line, "")))


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2\n", "", "3", "\x00", "a: !!python/object:os.system {}"])
def test_what_is_no_settings_file_is_refused(written, text: str) -> None:
    with pytest.raises(IterateError):
        read_settings(written(text))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(IterateError, match=r"nothing\.yaml cannot be read"):
        read_settings(tmp_path / "nothing.yaml")

"""Test `grpo-verl-ext show`: each value with its source, and what differs from the paper."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_verl_ext.cli import app
from grpo_verl_ext.launch.values import configured, shown
from grpo_verl_ext.utils.errors import SettingError

ACTOR = "actor_rollout_ref.actor"
WEIGHTS = "reward.custom_reward_function.reward_kwargs.weights"
TASK = ["+platform=cpu", "+task=chain_sum"]


def shown_of(preset: str, *overrides: str) -> dict[str, Any]:
    return shown(preset, configured(preset, overrides), overrides)


def sources(preset: str, *overrides: str) -> dict[str, tuple[object, str]]:
    return {each["key"]: (each["value"], each["source"]) for each in shown_of(preset, *overrides)["values"]}


def test_a_value_is_the_papers_the_commands_the_tasks_or_verls() -> None:
    weights = [f"~{WEIGHTS}.format", f"+{WEIGHTS}.steps=0.5"]
    mine = ["data.train_batch_size=32", f"{ACTOR}.kl_loss_coef=0.001", "trainer.nnodes=1", *weights]
    found = sources("grpo", *TASK, *mine)
    assert found[f"{ACTOR}.loss_agg_mode"] == (
        "seq-mean-token-mean",
        "preset grpo: eq. 3: mean over the tokens of a response, then over responses",
    )
    # without a comment of its own: the record's paper
    assert found[f"{ACTOR}.policy_loss.loss_mode"] == ("grpo", "preset grpo: arXiv 2402.03300, §4.1")
    assert found[f"{ACTOR}.kl_loss_coef"] == (0.001, "command line")
    assert found["data.train_batch_size"] == (32, "command line")
    assert found["actor_rollout_ref.rollout.n"] == (8, "+task=chain_sum")
    assert found[WEIGHTS] == ({"correctness": 1.0, "steps": 0.5}, "+task=chain_sum, command line")
    begins_with_it = sources("gvpo", "+platform=cpu", "+task=chain_sum_mixed")
    for key, value in (("max_response_length", 52), ("train_batch_size", 16)):
        assert begins_with_it[f"data.{key}"] == (value, "+task=chain_sum_mixed")
    assert found["trainer.nnodes"] == (1, "command line")
    assert found["actor_rollout_ref.rollout.top_p"] == (1, "verl's default")


def test_an_interpolation_is_shown_as_its_value() -> None:
    found = sources("dr_grpo", "data.max_response_length=300")
    assert found[f"{ACTOR}.loss_scale_factor"][0] == 300
    assert not any("_target_" in key for key in found)


def test_what_the_command_replaces_is_a_sentence_with_the_papers_place() -> None:
    same = f"{ACTOR}.clip_ratio_high=0.2"
    assert shown_of("grpo", f"{ACTOR}.kl_loss_coef=0.001", same)["yours"] == [
        f"{ACTOR}.kl_loss_coef=0.001 (command line); the preset has 0.04: §4.2: KL coefficient 0.04"
    ]


def test_what_follows_from_another_key_is_not_replaced() -> None:
    """The preset derives use_kl_loss from the anchor, true where it is the reference."""
    usual_of = {"algorithm.grpo_ext.gvpo_anchor=ref": "old", f"{ACTOR}.use_kl_loss=true": "false"}
    for word, usual in usual_of.items():
        (sentence,) = shown_of("gvpo", word)["yours"]
        assert sentence.startswith(f"{word} (command line); the preset has {usual}")


def test_what_the_algorithm_does_not_leave_to_its_user_is_replaced_and_not_yours() -> None:
    words = f"{ACTOR}.loss_agg_mode=token-mean", f"{ACTOR}.kl_loss_coef=0.001", "algorithm.gamma=0.9"
    found = shown_of("grpo", *words)
    (own,), (other,), (nothing,) = (found[key] for key in ("yours", "replaced", "changes_nothing"))
    assert (f"{ACTOR}.kl_loss_coef" in own, f"{ACTOR}.loss_agg_mode" in other) == (True, True)
    assert nothing.startswith("algorithm.gamma is 0.9, but it changes nothing of what is trained")


def test_what_the_paper_does_not_give_is_named() -> None:
    assert shown_of("dapo")["not_of_the_paper"] == [
        f"{ACTOR}.clip_ratio_c=10.0: not in the paper; dual clip of the authors' verl recipe"
    ]


def test_a_preset_that_is_none_is_named_with_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"ALGO is DR-GRPO; valid are .*\. Type: dr_grpo$"):
        configured("DR-GRPO", [])


def test_the_command_prints_both_as_a_table_and_as_json() -> None:
    words = ["show", "gvpo", f"{ACTOR}.entropy_coeff=0.01"]
    table = CliRunner().invoke(app, words)
    assert table.exit_code == 0
    assert "differs from arXiv 2504.19599:" in table.stdout
    assert "entropy_coeff=0.01 (command line); the preset has 0" in table.stdout
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert (found["preset"], found["paper"]) == ("gvpo", "arXiv 2504.19599")
    rows = {each["key"]: each for each in found["values"]}
    changed = {"key": f"{ACTOR}.entropy_coeff", "value": 0.01, "source": "command line"}
    assert rows[f"{ACTOR}.entropy_coeff"] == changed
    assert len(found["replaced"]) == 1


def test_a_wrong_key_is_one_message_and_no_table() -> None:
    result = CliRunner().invoke(app, ["show", "gvpo", "trainer.total_epoch=3"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Type: trainer.total_epochs=3" in result.stderr

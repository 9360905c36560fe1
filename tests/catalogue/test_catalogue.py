"""Test the records: none contradicts itself or another."""

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import create_model

import grpo_verl_ext
from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import Algorithm, RecordError, TokenLoss
from grpo_verl_ext.catalogue.grpo import GRPO
from grpo_verl_ext.preflight import CHECKS
from grpo_verl_ext.verl_plugin import loss_config
from grpo_verl_ext.verl_plugin.compose import composed

PACKAGE = Path(grpo_verl_ext.__file__).parent
GSPO, VESPO = (catalogue.ALGORITHMS[name] for name in ("gspo", "vespo"))
PRESETS = {file.stem for file in (PACKAGE / "config" / "algo").glob("*.yaml")}


def test_every_preset_has_a_record_and_every_record_a_preset() -> None:
    assert {name for name, each in catalogue.ALGORITHMS.items() if each.has_preset} == PRESETS
    assert set(catalogue.PRESETS) == PRESETS


NEW, NEW_VESPO = (replace(each, name="new", has_preset=False) for each in (GRPO, VESPO))
OPTION = next(iter(VESPO.loss.options.model_fields))
OtherOptions = create_model("OtherOptions", __base__=VESPO.loss.options, **{OPTION: (float, 9.5)})


UNGUARDED = replace(GRPO.estimator, name="new", baseline=lambda r, *_: (r - r.mean()) / r.std())
WRONG = {
    "an advantage that is not a number where all rewards of a prompt are the same": (
        lambda: catalogue.enter(replace(NEW, estimator=UNGUARDED)),
        "its advantage is [nan, nan], but it must be finite where rewards are equal",
    ),
    "an average that the loss does not have": (
        lambda: Algorithm("new", "", GRPO.estimator, GRPO.loss, "token-mean"),
        "its average is 'token-mean', but the loss grpo averages by seq-mean-token-mean",
    ),
    "a loss that needs an average": (
        lambda: replace(GSPO, average=""),
        "its average is '', but the loss gspo needs one of token-mean",
    ),
    "a name that is there": (
        lambda: catalogue.enter(replace(GRPO)),
        "its name is 'grpo', but an algorithm of this name is there already",
    ),
    "an estimator's name that another has": (
        lambda: catalogue.enter(replace(NEW, estimator=replace(GRPO.estimator, doc=""))),
        "its estimator is 'grpo_outcome', but another record has one of this name",
    ),
    "a loss's name that another has": (
        lambda: catalogue.enter(replace(NEW, loss=replace(catalogue.LOSSES["dapo"], name="gspo"))),
        "its loss is 'gspo', but another record has one of this name",
    ),
    "an option with another default than another loss's": (
        lambda: catalogue.enter(
            replace(NEW_VESPO, loss=replace(VESPO.loss, name="new", options=OtherOptions))
        ),
        f"its options is '{OPTION}', but its default differs from that in the loss vespo",
    ),
    "a statistic that nothing computes": (
        lambda: TokenLoss("new", lambda a, b, c, d, config, statistic: a),
        "its argument is 'statistic', but it gets by name: rollout_log_prob, ref_log_prob, entropy",
    ),
    "no preset": (
        lambda: catalogue.enter(replace(GRPO, name="new")),
        "config/algo/new.yaml', but it cannot be read",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_record_that_contradicts_is_refused_with_the_field(what: str) -> None:
    enter, message = WRONG[what]
    before = dict(catalogue.ALGORITHMS)
    with pytest.raises(RecordError) as refused:
        enter()
    assert message in str(refused.value)
    assert before == catalogue.ALGORITHMS


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("loss_mode: gspo", "its preset's actor_rollout_ref.actor.policy_loss.loss_mode is 'gspo', but"),
        ("loss_mode: grpo", "its preset's algorithm.grpo_ext.preset is None, but the record has new"),
    ],
)
def test_a_preset_that_says_something_else_is_refused_with_the_key(
    line: str, message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "new_presets" / "algo"
    folder.mkdir(parents=True)
    actor = f"{{policy_loss: {{{line}}}, loss_agg_mode: seq-mean-token-mean}}"
    (folder / "new.yaml").write_text(
        f"algorithm: {{adv_estimator: grpo_outcome}}\nactor_rollout_ref: {{actor: {actor}}}\n"
    )
    with pytest.raises(RecordError) as refused:
        catalogue.enter(replace(GRPO, name="new"), presets=tmp_path / "new_presets")
    assert message in str(refused.value)


def test_losses_may_share_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(VESPO.loss, name="vespo_of_others")
    monkeypatch.setitem(catalogue.LOSSES, other.name, other)
    assert loss_config.option_models().count(other.options) == 1


def test_a_name_that_another_package_claims_in_vain_stays_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalogue.FAILED, "dapo", "theirs:DAPO (RecordError: …)")
    CHECKS["preset-name"](composed(["+algo=dapo", "actor_rollout_ref.rollout.name=vllm"]))

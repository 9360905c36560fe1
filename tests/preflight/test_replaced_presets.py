"""Test that a preset whose values the command replaces is named once, first, with all that replaces them."""

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from grpo_verl_ext import catalogue, driver, preflight
from grpo_verl_ext.preflight.algorithm import check_verls_aggregation
from grpo_verl_ext.preflight.names import advise_preset, check_preset
from grpo_verl_ext.utils.errors import Problem, SettingError
from grpo_verl_ext.verl_plugin.compose import composed

ACTOR = "actor_rollout_ref.actor"
LOSS = f"{ACTOR}.policy_loss.loss_mode"
ENGINE = "actor_rollout_ref.rollout.name=vllm"
SCRIPT = (
    *("algorithm.adv_estimator=grpo", f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.001"),
    *(f"{ACTOR}.kl_loss_type=low_var_kl", f"{ACTOR}.entropy_coeff=0", "algorithm.use_kl_in_reward=False"),
    *("data.max_response_length=2048", "actor_rollout_ref.rollout.n=5"),
)
"""What verl's own scripts for GRPO set."""


def warned(*overrides: str) -> list[Problem]:
    return list(advise_preset(composed([*overrides, ENGINE])))


def test_estimator_and_loss_of_another_algorithm() -> None:
    (problem,) = warned("+algo=grpo", "algorithm.adv_estimator=gpg", f"{LOSS}=gpg")
    assert str(problem) == (
        "+algo=grpo does not name what will be trained, the estimator gpg with the loss gpg, since the "
        "command or its configuration replaces values of the preset: algorithm.adv_estimator is gpg, in the "
        "preset grpo_outcome; actor_rollout_ref.actor.policy_loss.loss_mode is gpg, in the preset grpo. "
        "Type: the same command without algorithm.adv_estimator=gpg "
        "actor_rollout_ref.actor.policy_loss.loss_mode=gpg"
    )


@pytest.mark.parametrize("algo", ["grpo", "dapo", "gspo", "grpo_process"])
@pytest.mark.parametrize("scale", ["none", "batch", "group", "null"])
def test_the_scale_of_a_preset_that_does_not_set_it(algo: str, scale: str) -> None:
    key = "algorithm.grpo_ext.scale_rewards"
    problems = warned(f"+algo={algo}", f"+{key}={scale}")
    assert ["in the preset group" in problem.seen for problem in problems] == [True] * (
        scale in ("none", "batch")
    )


def test_nothing_else_is_advised_of_what_the_preset_set() -> None:
    """The advice was to delete the preset's own option and to train GRPO."""
    lines = ["+algo=gvpo", "algorithm.adv_estimator=grpo", f"{LOSS}=vanilla", ENGINE]
    found = list(preflight.findings(composed([*lines, "actor_rollout_ref.rollout.n=4"])))
    ours = [each.check for each in found if each.check not in ("files", "missing", "packages")]
    assert ours == ["preset"]


@pytest.mark.parametrize(
    ("algo", "replaced"),
    [
        ("grpo", ["algorithm.adv_estimator=grpo", f"{ACTOR}.kl_loss_coef=0.001"]),
        ("grpo_process", ["algorithm.adv_estimator=grpo", f"{ACTOR}.kl_loss_coef=0.001"]),
        (
            "dr_grpo",
            ["algorithm.adv_estimator=grpo", f"{ACTOR}.use_kl_loss=true"],
        ),
    ],
)
def test_in_front_of_a_script_of_verls(algo: str, replaced: list[str]) -> None:
    (problem,) = warned(f"+algo={algo}", *SCRIPT)
    assert problem.fix.removeprefix("the same command without ").split() == replaced


@pytest.mark.parametrize(
    "overrides",
    [
        ("+algo=dr_grpo", "data.max_response_length=333"),
        ("+algo=gvpo", "algorithm.grpo_ext.gvpo_anchor=ref", f"{ACTOR}.policy_loss.gvpo_beta=0.5"),
        ("+algo=dapo", "+task=chain_sum", "reward.reward_kwargs.overlong_buffer_cfg.len=5"),
        ("+algo=dapo", "algorithm.filter_groups.metric=seq_reward", f"{ACTOR}.optim.lr=1e-5"),
        ("+algo=grpo", "trainer.v1.trainer_mode=separate_async", f"{ACTOR}.kl_loss_coef=0.040"),
        ("algorithm.adv_estimator=gae",),
    ],
)
def test_what_a_preset_leaves_to_the_user_replaces_nothing(overrides: tuple[str, ...]) -> None:
    assert warned(*overrides) == []


def test_it_is_said_before_the_refusal_that_it_causes(capsys: pytest.CaptureFixture[str]) -> None:
    config = composed(["+algo=gvpo", "algorithm.adv_estimator=grpo_outcome", ENGINE])
    with pytest.raises(SystemExit, match=r"grpo_verl_ext: algorithm\.adv_estimator is grpo_outcome, but"):
        driver.refuse_or_warn(config)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("grpo_verl_ext: warning: +algo=gvpo does not name what will be trained")
    assert line.endswith("(silent with '++algorithm.grpo_ext.silence=[preset]')")


def test_looking_changes_nothing() -> None:
    config = composed(["+algo=grpo", *SCRIPT, ENGINE])
    before = OmegaConf.to_yaml(config)
    assert len(list(advise_preset(config))) == 1
    assert OmegaConf.to_yaml(config) == before
    assert OmegaConf.is_struct(config)


def test_every_preset_says_its_own_name() -> None:
    for name, preset in catalogue.PRESETS.items():
        assert preset.values.algorithm.grpo_ext.preset == name


def test_a_preset_that_is_not_there() -> None:
    config = composed(["+algo=grpo", "algorithm.grpo_ext.preset=grop", ENGINE])
    assert list(advise_preset(config)) == []
    with pytest.raises(SettingError, match=r"preset is grop; valid are bnpo, .*\. Type: \+algo=grpo$"):
        check_preset(config)


def test_two_presets_of_a_trainings_own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's driver composes it; another program's group ``algo`` may have several values of its own."""
    config, hydra = composed(["+algo=gmpo", ENGINE]), HydraConfig.instance()
    for words in (["+algo=[gmpo]"], ["+algo=[gmpo,their_own]"], ["theirs=[dapo,gmpo]"]):
        monkeypatch.setattr(hydra, "cfg", OmegaConf.create({"hydra": {"overrides": {"task": words}}}))
        check_preset(config)
    words = ["+algo=[dapo,gmpo]"]
    monkeypatch.setattr(hydra, "cfg", OmegaConf.create({"hydra": {"overrides": {"task": words}}}))
    with pytest.raises(
        SettingError, match=r"\+algo is \[dapo,gmpo\], but .* Type: \+algo=gmpo, or \+algo=dapo$"
    ):
        check_preset(config)


class TestTwoPresetsOfOneEstimatorAndLoss:
    """GSPO, and LUSPO as its loss summed over the tokens of a response."""

    BY_KEYS = ("algorithm.adv_estimator=grpo_outcome", f"{LOSS}=gspo", ENGINE)

    @pytest.mark.parametrize(
        ("preset", "mode", "own"),
        [
            ("gspo", "seq-mean-token-sum", "seq-mean-token-mean"),
            ("luspo", "seq-mean-token-mean", "seq-mean-token-sum"),
            ("gspo", "token-mean", "seq-mean-token-mean"),
        ],
    )
    def test_a_preset_has_its_own_average_alone(self, preset: str, mode: str, own: str) -> None:
        check_verls_aggregation(composed([f"+algo={preset}", ENGINE]))
        with pytest.raises(
            SettingError,
            match=rf"are \+algo={preset}, whose paper averages otherwise; valid is {own}\. Type: .*={own}$",
        ):
            check_verls_aggregation(composed([f"+algo={preset}", f"{ACTOR}.loss_agg_mode={mode}", ENGINE]))

    @pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum"])
    def test_keys_without_a_preset_have_either(self, mode: str) -> None:
        check_verls_aggregation(composed([*self.BY_KEYS, f"{ACTOR}.loss_agg_mode={mode}"]))

    def test_a_third_average_is_refused_with_both(self) -> None:
        with pytest.raises(
            SettingError,
            match=r"are \+algo=gspo or \+algo=luspo, whose paper averages otherwise; valid are "
            r"seq-mean-token-mean, seq-mean-token-sum\. Type: .*=seq-mean-token-mean$",
        ):
            check_verls_aggregation(composed([*self.BY_KEYS, f"{ACTOR}.loss_agg_mode=token-mean"]))

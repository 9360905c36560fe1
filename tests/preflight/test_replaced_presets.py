"""Test that a preset whose values the command replaces is named once, first, with all that replaces them."""

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from grpo_verl_ext import catalogue, driver, preflight
from grpo_verl_ext.preflight import algorithm
from grpo_verl_ext.preflight.algorithm import (
    advise_verls_losses,
    check_context_parallel,
    check_verls_aggregation,
)
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


def test_gspo_of_verl_0_9_0_averages_over_responses_whatever_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    config = composed(["+algo=gspo", f"{ACTOR}.loss_agg_mode=token-mean", ENGINE])
    verls = composed(
        ["algorithm.adv_estimator=grpo", f"{LOSS}=gspo", f"{ACTOR}.loss_agg_mode=token-mean", ENGINE]
    )
    keys = [problem.key for problem in advise_verls_losses(verls)]
    assert f"{ACTOR}.loss_agg_mode" in keys
    monkeypatch.setattr(algorithm, "version", {"verl": "0.9.0"}.__getitem__)
    check_verls_aggregation(config)
    assert [problem.key for problem in advise_verls_losses(verls)] == keys[1:]


def test_luspo_is_refused_with_verl_0_9_0_whose_gspo_would_be_gspo(monkeypatch: pytest.MonkeyPatch) -> None:
    config, gspo = composed(["+algo=luspo", ENGINE]), composed(["+algo=gspo", ENGINE])
    check_verls_aggregation(config)
    monkeypatch.setattr(algorithm, "version", {"verl": "0.9.0"}.__getitem__)
    check_verls_aggregation(gspo)
    with pytest.raises(
        SettingError,
        match=r"\+algo=luspo averages by seq-mean-token-sum, and the gspo of verl 0\.9\.0 averages by "
        r"seq-mean-token-mean .*valid is verl 0\.9\.1 or newer\. Type: pip install 'verl>=0\.9\.1'",
    ):
        check_verls_aggregation(config)


class TestResponsesCutByContextParallelism:
    """verl 0.9.0's Megatron engine raises for their mean at the first update (verl #7914)."""

    SIZE = f"{ACTOR}.megatron.context_parallel_size"
    MEGATRON = ("+algo=grpo", f"{SIZE}=2", ENGINE)

    @staticmethod
    def check(*overrides: str) -> None:
        check_context_parallel(composed(overrides, config_name="ppo_megatron_trainer"))

    @pytest.fixture(autouse=True)
    def _verl(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(algorithm, "version", {"verl": getattr(request, "param", "0.9.0")}.__getitem__)

    def test_it_is_refused_with_verl_0_9_0(self) -> None:
        with pytest.raises(SettingError) as refused:
            self.check(*self.MEGATRON)
        assert str(refused.value) == (
            f"{self.SIZE} is 2, but the Megatron engine of verl 0.9.0 then refuses "
            f"{ACTOR}.loss_agg_mode=seq-mean-token-mean; valid is 1, or verl 0.9.1 or newer. "
            f"Type: pip install 'verl>=0.9.1'"
        )

    @pytest.mark.parametrize("_verl", ["0.9.1", "0.10.0.dev0"], indirect=True)
    def test_a_newer_verl_averages(self) -> None:
        self.check(*self.MEGATRON)

    @pytest.mark.parametrize(
        "override",
        [
            f"{SIZE}=1",
            f"{ACTOR}.megatron.dynamic_context_parallel=true",
            f"{ACTOR}.loss_agg_mode=token-mean",
        ],
    )
    def test_without_a_cut_or_the_mean_nothing_is_refused(self, override: str) -> None:
        self.check(*self.MEGATRON, override)

    def test_another_engine_has_no_such_key(self) -> None:
        check_context_parallel(composed(["+algo=grpo", ENGINE]))

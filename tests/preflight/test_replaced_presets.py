"""Test what is said of a preset under which something else would be trained: by words, files or names."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

import grpo_verl_ext.config
from grpo_verl_ext import preflight
from grpo_verl_ext.utils.errors import Problem, SettingError
from grpo_verl_ext.verl_plugin.compose import composed, folder_of

ACTOR, BUFFER = "actor_rollout_ref.actor", "reward.reward_kwargs.overlong_buffer_cfg"
WHOLE = (
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.n=4",
    f"{ACTOR}.use_dynamic_bsz=true",
)


def warned(*overrides: str) -> list[Problem]:
    return list(preflight.ADVICE["preset"](composed([*overrides, *WHOLE])))


def found(*words: str) -> dict[str, str]:
    findings = preflight.findings(composed([*words, *WHOLE]), words)
    return {each.check: str(each.problem) for each in findings if each.check not in ("files", "packages")}


def test_the_scale_of_a_preset_that_does_not_set_it() -> None:
    key = "algorithm.grpo_ext.scale_rewards"
    assert found("+algo=grpo", f"+{key}=group") == {}
    assert "in the preset group" in found("+algo=grpo", f"+{key}=batch")["gradient"]


@pytest.mark.parametrize(
    "words",
    [
        ("+algo=dr_grpo", "data.max_response_length=333"),
        ("+algo=dapo", f"{BUFFER}.len=5", "algorithm.filter_groups.metric=score"),
        ("+algo=grpo", f"{ACTOR}.kl_loss_coef=0.001", f"{ACTOR}.clip_ratio_high=0.28"),
        ("algorithm.adv_estimator=gae",),
    ],
)
def test_what_a_preset_leaves_to_the_user_replaces_nothing(words: tuple[str, ...]) -> None:
    assert warned(*words) == []
    assert not {"gradient", "preset"} & found(*words).keys()


@pytest.mark.parametrize("word", ["algorithm.filter_groups.enable=false", "reward.reward_manager.name=naive"])
def test_what_no_gradient_shows_is_said_by_key(word: str) -> None:
    (problem,) = warned("+algo=dapo", word)
    assert str(problem).startswith("preset dapo selects and rewards responses differently from its paper: ")
    assert problem.fix == f"the same command without {word}"


def test_looking_changes_nothing() -> None:
    config = composed(["+algo=grpo", f"{ACTOR}.loss_agg_mode=token-mean", *WHOLE])
    before = OmegaConf.to_yaml(config)
    assert "gradient" in {each.check for each in preflight.findings(config)}
    assert OmegaConf.to_yaml(config) == before
    assert OmegaConf.is_struct(config)


def test_a_preset_that_is_not_there() -> None:
    config = composed(["+algo=grpo", "algorithm.grpo_ext.preset=grop", *WHOLE])
    assert list(preflight.ADVICE["preset"](config)) == []
    with pytest.raises(SettingError, match=r"preset is grop; valid are bnpo, .*\. Type: \+algo.*=grpo$"):
        preflight.CHECKS["preset-name"](config)


@pytest.mark.parametrize("words", [["+algo=[dapo,gmpo]"], ["+algo@_global_=gmpo", "+algo=dapo"]])
def test_two_presets_of_a_trainings_own_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's driver composes it."""
    with initialize_config_dir(folder_of("config"), version_base=None):
        config = compose("ppo_trainer", overrides=[*words, *WHOLE], return_hydra_config=True)
        monkeypatch.setattr(HydraConfig.instance(), "cfg", config)
        with pytest.raises(SettingError, match="a training has one algorithm"):
            preflight.CHECKS["preset-name"](config)


class TestFiles:
    """A configuration of a user's, on verl's, with presets in its folder or its defaults list."""

    def configuration(self, folder: Path, *defaults: str) -> dict[str, str]:
        """Write it, and return where it is."""
        search = f"hydra:\n  searchpath: [pkg://verl.trainer.config, file://{folder}]\n"
        listed = "".join(f"  - {each}\n" for each in ("ppo_trainer", *defaults, "_self_"))
        (folder / "mine.yaml").write_text(f"{search}defaults:\n{listed}")
        return {"config_path": str(folder), "config_name": "mine"}

    def shadow(self, folder: Path, change: str, by: str) -> None:
        own = (Path(grpo_verl_ext.config.__path__[0]) / "algo" / "gvpo.yaml").read_text()
        assert change in own
        (folder / "algo").mkdir()
        (folder / "algo" / "gvpo.yaml").write_text(own.replace(change, by))

    def said(self, folder: Path) -> dict[str, str]:
        words = ["+algo@_global_=gvpo", *WHOLE]
        config = composed(words, **self.configuration(folder))
        return {each.check: str(each.problem) for each in preflight.findings(config, words)}

    def test_one_in_the_file_is_a_training_as_any_other(self, tmp_path: Path) -> None:
        (tmp_path / "gmpo.yaml").write_text("{}")  # a name of a preset's, and none
        where = self.configuration(tmp_path, "algo: dapo", "gmpo")
        assert composed(WHOLE, **where).algorithm.grpo_ext.preset == "dapo"

    @pytest.mark.parametrize(
        ("defaults", "words"),
        [
            (["algo: dapo"], ["+algo@_global_=grpo"]),
            (["algo: dapo", "algo@_global_: grpo"], []),
            (["algo@_global_: [dapo, grpo]"], []),
            (["algo/dapo.yaml", "/algo/grpo@_global_"], []),
        ],
    )
    def test_two_are_refused(self, tmp_path: Path, defaults: list[str], words: list[str]) -> None:
        where = self.configuration(tmp_path, *defaults)
        with pytest.raises(SettingError, match=r"without algo/dapo .*in a configuration file$"):
            composed([*WHOLE, *words], **where)

    def test_one_that_shadows_ours_is_compared_with_ours(self, tmp_path: Path) -> None:
        self.shadow(tmp_path, "entropy_coeff: 0", "entropy_coeff: 0.01")
        said = self.said(tmp_path)["gradient"]
        assert f"{ACTOR}.entropy_coeff is 0.01 (by a file), in the preset 0. Type: " in said

    def test_one_that_shadows_ours_with_the_users_own_values_is_his(self, tmp_path: Path) -> None:
        self.shadow(tmp_path, "${oc.select:task.gvpo_beta,0.1}", "0.5")
        assert "gradient" not in self.said(tmp_path)

    def test_one_that_does_not_say_its_name_is_refused(self, tmp_path: Path) -> None:
        self.shadow(tmp_path, "    preset: gvpo\n", "")
        with pytest.raises(SettingError, match=r"another file algo/gvpo\.yaml stands before"):
            self.said(tmp_path)

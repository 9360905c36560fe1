"""The record of the feature ``gvpo_anchor=teacher``, and the checks of its settings before any rollout."""

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext import catalogue
from grpo_verl_ext.utils.errors import Line, Problem, SettingError
from grpo_verl_ext.utils.keys import CORRECTION, DISTILLATION, ROLLOUT, SECTION, setting
from grpo_verl_ext.verl_plugin.config import Options, TeacherOptions, written
from grpo_verl_ext.verl_plugin.features import Feature
from grpo_verl_ext.verl_plugin.rollout.single_turn import check_loop, check_manager

_KEY = f"{SECTION}.teacher"
_ENABLED = "distillation.enabled"
_MODELS = "distillation.teacher_models"
READS_TEXT = f"++{_KEY}.reads=text"
"""What lets a teacher have a tokenizer of its own."""


def has_teacher(config: DictConfig) -> bool:
    """Whether a training has GVPO's loss around a teacher."""
    return catalogue.has_groups(config) and written(config.algorithm).get("gvpo_anchor") == "teacher"


def teachers(config: DictConfig) -> list[str]:
    """Return the folders of verl's teachers; its default entry counts only where it is alone."""
    if not setting(config, _ENABLED, False):
        return []
    models: dict[str, Any] = dict(setting(config, _MODELS, {}))
    if len(models) > 1:
        models.pop("teacher_model", None)
    return [model.model_path for model in models.values() if model.model_path is not None]


def _check_teacher(config: DictConfig) -> None:
    """Refuse GVPO around a teacher that is not there, or could not read the responses."""
    options = Options.from_config(config.algorithm)
    if not has_teacher(config):
        if options.teacher is not None:
            raise SettingError(
                _KEY,
                dict(written(config.algorithm)["teacher"]),
                why=f"{SECTION}.gvpo_anchor is {options.gvpo_anchor}, and nothing reads it",
                valid="null",
                fix=Line(f"~{_KEY}", more=f", or {SECTION}.gvpo_anchor=teacher"),
            )
        return
    teacher = options.of_teacher
    if teacher.source == "recorded":
        _check_recorded(config, options)
    else:
        _check_server(config)
        _check_watched(options)
        _check_reader(config, teacher)


def _check_recorded(config: DictConfig, options: Options) -> None:
    stored = options.stored_responses
    if stored is None or stored.source != "data" or stored.share != 1:
        raise SettingError(
            f"{_KEY}.source",
            "recorded",
            why="responses that the policy samples have no recorded log-probs of the teacher",
            valid="server, or a training on responses of the data alone",
            fix=f"{_KEY}.source=server, or '++{SECTION}.stored_responses={{source: data, share: 1}}'",
        )
    if setting(config, _ENABLED, False):
        raise SettingError(
            _ENABLED,
            True,
            why=f"{_KEY}.source is recorded, and nothing asks the servers",
            valid="false",
            fix=Line(f"{_ENABLED}=false"),
        )
    for name in TeacherOptions.model_fields.keys() & written(config.algorithm)["teacher"].keys() - {"source"}:
        raise SettingError(
            f"{_KEY}.{name}",
            getattr(options.of_teacher, name),
            why=f"{_KEY}.source is recorded, and nothing asks a server",
            valid="not set",
            fix=Line(f"~{_KEY}.{name}"),
        )
    rejection = f"{CORRECTION}.rollout_rs"
    if setting(config, rejection) is not None:
        raise SettingError(
            rejection,
            setting(config, rejection),
            why=f"{_KEY}.source is recorded, and verl would take the teacher's log-probs for those of the "
            "rollout: it would reject the responses that are far from the teacher",
            valid="null",
            fix=Line(f"{rejection}=null"),
        )


def _check_watched(options: Options) -> None:
    if not options.watch:
        raise SettingError(
            f"{SECTION}.watch",
            False,
            why="a teacher that fails would then end no training: verl goes on with what is left",
            valid="true",
            fix=Line(f"{SECTION}.watch=true"),
        )


def _check_server(config: DictConfig) -> None:
    if not setting(config, _ENABLED, False):
        raise SettingError(
            _ENABLED,
            False,
            why=f"{SECTION}.gvpo_anchor is teacher, and verl then starts no teacher",
            valid="true",
            fix=f"{_ENABLED}=true {_MODELS}.teacher_model.model_path=<folder> distillation.nnodes=1",
        )
    if not teachers(config):
        key = f"{_MODELS}.teacher_model.model_path"
        raise SettingError(key, None, valid="a folder, or a name on a hub", fix=f"{key}=<folder>")
    if not setting(config, "distillation.nnodes", 0):
        raise SettingError(
            "distillation.nnodes",
            0,
            why="teachers have accelerators of their own, nnodes × n_gpus_per_node of them",
            valid="an integer ≥ 1",
            fix="distillation.nnodes=1 distillation.n_gpus_per_node=<number>",
        )


def _check_reader(config: DictConfig, teacher: TeacherOptions) -> None:
    check_manager(config, f"{SECTION}.gvpo_anchor is teacher, which needs the manager that asks the teacher")
    if teacher.reads == "text":
        check_loop(config, f"{_KEY}.reads is text, which is read of one turn")


def _advise_temperature(config: DictConfig) -> Iterator[Problem]:
    """Warn of a temperature: verl's log-probs of the policy have it, and the teacher's do not."""
    temperature = setting(config, f"{ROLLOUT}.temperature", 1.0)
    if has_teacher(config) and temperature != 1:
        yield Problem(
            f"{ROLLOUT}.temperature",
            temperature,
            why="the policy at this temperature is then drawn to the teacher at temperature 1",
            fix=Line(f"{ROLLOUT}.temperature=1"),
        )


_REFUSED = ("loss_mode", "forward_kl_topk")
"""The setting of verl's distillation loss that `preflight.support` refuses."""


def _advise_distillation_loss(config: DictConfig) -> Iterator[Problem]:
    """Warn of settings of verl's own distillation loss, which is not added to GVPO's."""
    if not has_teacher(config):
        return
    section = "distillation"
    file = files("verl") / "trainer" / "config" / section / f"{section}.yaml"
    defaults = OmegaConf.create(file.read_text())
    for name, value in defaults.distillation_loss.items():
        key = f"{DISTILLATION}.{name}"
        found = setting(config, key, value)
        if found != value and (name, found) != _REFUSED:
            yield Problem(
                key,
                found,
                why=f"with {SECTION}.gvpo_anchor=teacher verl's own distillation loss is not added, and "
                "nothing reads it",
                valid=f"verl's default, {value}",
                fix=Line(f"{key}={'null' if value is None else value}"),
            )


TEACHER = Feature(
    uses={"anchor_teacher": has_teacher},
    without_our_mode="algorithm.grpo_ext.gvpo_anchor=teacher needs the teacher's log-probs in the targets, "
    "where only a trainer mode of this package puts them",
    checks={"teacher": _check_teacher},
    advice={
        "teacher-temperature": _advise_temperature,
        "distillation-loss": _advise_distillation_loss,
    },
    trainer="teacher.trainer:TeacherMixin",
)

"""The record of the feature ``gvpo_anchor=teacher``, and the checks of its settings before any rollout."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.requires import OUR_MODES, AtLeast, If, In, Null, Off, Trainer, refused
from grpo_verl_ext.utils.errors import Line, Problem, SettingError
from grpo_verl_ext.utils.keys import CORRECTION, DISTILLATION, ROLLOUT, SECTION, setting, written
from grpo_verl_ext.verl_plugin.agent_loops import SINGLE_TURN, VERLS_MANAGER
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.features import Feature
from gvpo_teacher.options import LOG_PROB, TeacherOptions

_KEY = f"{SECTION}.teacher"
_ENABLED = "distillation.enabled"
_MODELS = "distillation.teacher_models"
_STORED = f"{SECTION}.stored_responses"
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


_READS_RECORDED, _ASKS_SERVER = If(f"{_KEY}.source", ("recorded",)), If(f"{_KEY}.source", ("server", None))


def _reads_text(config: DictConfig) -> bool:
    """Whether a server is given the text of a response."""
    return _ASKS_SERVER(config) and bool(setting(config, f"{_KEY}.reads") == "text")


def _check_teacher(config: DictConfig) -> None:
    """Refuse a teacher that nothing reads, and servers without a model."""
    options = Options.from_config(config.algorithm)
    if not has_teacher(config):
        if getattr(options, "teacher", None) is not None:
            raise SettingError(
                _KEY,
                dict(written(config.algorithm)["teacher"]),
                why=f"{SECTION}.gvpo_anchor is {options.gvpo_anchor}, and nothing reads it",
                valid="null",
                fix=Line(f"~{_KEY}", more=f", or {SECTION}.gvpo_anchor=teacher"),
            )
    elif _ASKS_SERVER(config) and setting(config, _ENABLED) and not teachers(config):
        key = f"{_MODELS}.teacher_model.model_path"
        raise SettingError(key, None, valid="a folder, or a name on a hub", fix=f"{key}=<folder>")


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
        if found not in (value, "forward_kl_topk"):  # which is refused
            yield Problem(
                key,
                found,
                why=f"with {SECTION}.gvpo_anchor=teacher verl's own distillation loss is not added, and "
                "nothing reads it",
                valid=f"verl's default, {value}",
                fix=Line(f"{key}={'null' if value is None else value}"),
            )


_ON_DATA = f"{_KEY}.source=server, or '++{_STORED}={{source: data, share: 1}}'"
_SAMPLED = "has responses that the policy samples, of which no log-probs of the teacher are recorded"

TEACHER = Feature(
    name="teacher",
    used=has_teacher,
    requires=(
        *refused(
            Trainer(OUR_MODES, "does not put the teacher's log-probs into the targets"),
            In(f"{_STORED}.source", ("data", None), _SAMPLED, when=_READS_RECORDED, line=_ON_DATA),
            In(f"{_STORED}.share", (1,), _SAMPLED, when=_READS_RECORDED, line=_ON_DATA),
            Off(_ENABLED, "starts servers that nothing asks", when=_READS_RECORDED),
            *(
                Null(
                    f"{_KEY}.{name}",
                    "is about a server, and nothing asks one",
                    when=_READS_RECORDED,
                    line=Line(f"~{_KEY}.{name}"),
                )
                for name in ("reads", "timeout", "retries")
            ),
            Null(
                f"{CORRECTION}.rollout_rs",
                "takes the teacher's log-probs for those of the rollout, and rejects what is far from it",
                when=_READS_RECORDED,
            ),
            In(
                _ENABLED,
                (True,),
                "starts no teacher",
                when=_ASKS_SERVER,
                line=f"{_ENABLED}=true {_MODELS}.teacher_model.model_path=<folder> distillation.nnodes=1",
            ),
            AtLeast(
                "distillation.nnodes",
                1,
                "leaves the teacher without accelerators of its own",
                when=_ASKS_SERVER,
            ),
            In(
                f"{SECTION}.watch",
                (True, None),
                "lets verl go on with what is left when a teacher fails",
                when=_ASKS_SERVER,
            ),
        ),
        replace(VERLS_MANAGER, why="need not ask a teacher", when=_ASKS_SERVER),
        replace(SINGLE_TURN, when=_reads_text),
        In(f"{ROLLOUT}.temperature", (1.0,), "draws the policy at it to the teacher at temperature 1"),
    ),
    checks={"teacher": _check_teacher},
    advice={"distillation-loss": _advise_distillation_loss},
    trainer="gvpo_teacher.trainer:TeacherMixin",
    worker="gvpo_teacher.worker:WithoutVerlsLoss",
    options=TeacherOptions,
    anchors={"teacher": LOG_PROB},
)

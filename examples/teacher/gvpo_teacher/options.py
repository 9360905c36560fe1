"""The section ``algorithm.grpo_ext.teacher``, and what the parts of the feature pass to each other."""

from typing import Annotated, Any, Literal

from pydantic import Field

from grpo_verl_ext.utils.options import Number, Section, option
from grpo_verl_ext.verl_plugin.config import Options

SCORE = "teacher_score"
"""Agent loop → trainer, in ``extra_fields``: log π_T of a response; None where it has none."""
LOG_PROB = "teacher_log_prob"
"""Trainer → worker, field of the batch, a number per response: the same; 0 where it has none."""


class TeacherError(RuntimeError):
    """A teacher gave no log-prob of a response; the same command resumes the training."""


class TeacherOptions(Section):
    """where the log-probs of `gvpo_anchor=teacher` come from"""

    source: Literal["server", "recorded"] = option(
        "server", "verl's servers of `distillation.teacher_models`, or log-probs of stored responses"
    )
    reads: Literal["tokens", "text"] = option(
        "tokens", "what a server is given: the policy's tokens, or their text in the teacher's own tokens"
    )
    timeout: Annotated[Number, Field(gt=0)] = option(
        300.0, "seconds for which a server may answer nothing", "a finite number > 0", "300"
    )
    retries: Annotated[int, Field(ge=0, le=100)] = option(
        2, "attempts after the first", "an integer from 0 to 100", "2"
    )


def options_of(algorithm: Any) -> TeacherOptions:
    """Return the section of verl's ``algorithm``, with its defaults where there is none."""
    return getattr(Options.from_config(algorithm), "teacher", None) or TeacherOptions()

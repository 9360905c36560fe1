"""Read the presets ``config/algo/NAME.yaml``, and refuse one that is not what its record says.

Those of other packages are found by entry points, without importing the packages.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.catalogue.record import CLIPS, Algorithm, RecordError
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.utils.keys import AGGREGATION, ESTIMATOR, LOSS, POLICY_LOSS, SECTION

_NUMBERS = (*CLIPS, "tau_pos", "tau_neg")
"""Keys of verl's section ``actor`` that a loss reads, besides ``loss_agg_mode`` and ``loss_scale_factor``."""
OURS = "ours"
"""Begins the comment of a value that is not the paper's."""
WIRING = (f"{SECTION}.preset", f"{POLICY_LOSS}._target_", f"{POLICY_LOSS}.max_response_length")
"""Keys of presets that say nothing of the algorithm."""


@dataclass(frozen=True)
class Preset:
    """What a preset sets.

    Attributes:
        scale_rewards: ``algorithm.grpo_ext.scale_rewards``, None for the estimator's own.
        numbers: those of `_NUMBERS` that are set.
        options: the loss's own options that are set and do not depend on the training.
        leaves: all that the preset sets: dotted key → value as written, interpolations included.
        text: of the file.
    """

    scale_rewards: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    leaves: dict[str, Any] = field(default_factory=dict, compare=False)
    text: str = field(default="", compare=False)

    @classmethod
    def read(cls, algorithm: Algorithm, folder: Path) -> "Preset":
        """Return the preset ``algo/NAME.yaml`` of a folder."""
        name, file = algorithm.name, folder / "algo" / f"{algorithm.name}.yaml"
        try:
            text = file.read_text("utf-8")
            values = cast(DictConfig, OmegaConf.create(text))
            actor = values.actor_rollout_ref.actor
        except Exception as error:
            raise RecordError(name, "preset", str(file), f"it cannot be read: {error}") from error
        for key, expected in (
            (ESTIMATOR, algorithm.estimator.name),
            (LOSS, algorithm.loss.name),
            (AGGREGATION, algorithm.loss_agg_mode),
            (f"{SECTION}.preset", name),
        ):
            found = OmegaConf.select(values, key)
            if found != expected:
                raise RecordError(name, f"preset's {key}", found, f"the record has {expected}")
        options = {
            key: OmegaConf.select(actor.policy_loss, key, throw_on_resolution_failure=False)
            for key in (algorithm.loss.options.model_fields if algorithm.loss.options else ())
        }
        everything: Any = OmegaConf.to_container(values, resolve=False)
        return cls(
            (values.algorithm.get("grpo_ext") or {}).get("scale_rewards"),
            {key: actor[key] for key in _NUMBERS if key in actor},
            {key: value for key, value in options.items() if value is not None},
            dict(leaves(everything)),
            text,
        )

    @cached_property
    def comments(self) -> dict[str, str]:
        """Dotted key → the comment of the file that gives the value's source.

        That is the comment above it; without one, that of the key before it in the same section, or of the
        section. A comment of ours says nothing of the keys that follow it.
        """
        root = yaml.compose(self.text)
        assert isinstance(root, yaml.MappingNode)
        found = _commented(root, "", "", self.text.splitlines())
        return {key: OURS if key in WIRING else comment for key, comment in found if comment}


def _commented(
    section: yaml.MappingNode, name: str, above: str, lines: Sequence[str]
) -> Iterator[tuple[str, str]]:
    for key, value in section.value:
        first = line = key.start_mark.line
        while first > 0 and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        comment = " ".join(each.strip().lstrip("# ") for each in lines[first:line])
        if comment or above.startswith(OURS):
            above = comment
        if isinstance(value, yaml.MappingNode):
            yield from _commented(value, f"{name}{key.value}.", above, lines)
        else:
            yield f"{name}{key.value}", above

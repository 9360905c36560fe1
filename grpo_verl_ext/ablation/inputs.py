"""The files that a training is made from, for its record, and the runs that they make comparable."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import combinations, product
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.ablation.grid import GridSettings, runs_of
from grpo_verl_ext.ablation.state import Record
from grpo_verl_ext.rewards.functions import file_of, is_function
from grpo_verl_ext.runs.provenance import CHANGED
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.utils.files import module_file, sha256_of_all
from grpo_verl_ext.utils.keys import RUNTIME_ENVIRONMENT, SECTION, key_of, setting

_STARTS = (
    *("actor_rollout_ref.model.path", "data.train_files", "data.val_files"),
    *("reward.custom_reward_function.path", "reward.reward_model.model_path"),
)
"""Keys of the files that every record has; those of the others are compared where both records have them."""
_KEYS = (*(*_STARTS, f"{SECTION}.gold_responses.files", f"{SECTION}.reward_model.path", "critic.model.path"),)
_WEIGHTS = "reward.custom_reward_function.reward_kwargs.weights"
_MODULES = "VERL_USE_EXTERNAL_MODULES"
_Run = tuple[str, int]
"""(variant, seed)"""


def inputs_of(config: DictConfig) -> dict[str, str]:
    """Return the SHA-256 of the files that are on this machine, by key.

    A list's second file has the key ``data.train_files[1]``.
    """
    return {key: sha256_of_all(path) for key, path in _files(config) if path.exists()}


def _files(config: DictConfig) -> Iterator[tuple[str, Path]]:
    for key in _KEYS:
        yield from _places(key, setting(config, key))
    models: Any = setting(config, "distillation")
    models = OmegaConf.to_container(models) if OmegaConf.is_dict(models) else {}
    for name, _ in leaves(models):
        if name.endswith(".model_path"):
            yield from _places(f"distillation.{name}", setting(config, f"distillation.{name}"))
    weights = setting(config, _WEIGHTS)
    for name in weights if isinstance(weights, Mapping) else ():
        if is_function(name) and (file := file_of(name)):
            yield f"{_WEIGHTS}.{name}", file
    modules = setting(config, f"{RUNTIME_ENVIRONMENT}.{_MODULES}") or os.environ.get(_MODULES, "")
    files = [module_file(name.strip()) for name in modules.split(",") if name.strip()]
    yield from _places(_MODULES, [str(file) for file in files if file])


def _places(key: str, named: Any) -> Iterator[tuple[str, Path]]:
    paths = [named] if isinstance(named, str) else named or []
    for place, path in enumerate(paths):
        yield key if place == 0 else f"{key}[{place}]", Path(path).expanduser()


def unlike_the_others(records: Mapping[_Run, Record | None], settings: GridSettings) -> dict[_Run, str]:
    """Return why a finished run is left out: another training than the grid's, or than it is compared with.

    A run is compared with the baseline's of the same seed, and those that remain within each declared
    comparison: versions, in a declared comparison commits, and model and data, unless the two variants choose
    them differently. A record of an earlier version, without any of them, is judged by its overrides alone.

    Args:
        records: of each finished run; None where there is none.

    Returns:
        (variant, seed) → the reason; runs that can be compared have none.
    """
    known = {run: each for run, each in records.items() if each is not None and (each.inputs or each.began)}
    trainings = {(run.variant, run.seed): run.training for run in runs_of(settings)}
    found = {}
    for run, record in records.items():
        reasons = []
        if record is None:
            reasons += ["it has no record, as other runs have"] if settings.is_declared and known else []
        elif {*record.overrides} != {*trainings[run].overrides} or record.steps != settings.steps:
            reasons.append("its overrides or steps are not those of the grid")
        if run in known and settings.is_declared and str(known[run].git_revision).endswith(CHANGED):
            reasons.append(f"its sources differed from their commit ({known[run].git_revision})")
        found[run] = "; ".join([*reasons, *_unlike(run, settings.base_variant, known, settings)])
    compared = [each.variants for each in (*settings.comparisons, settings.own_control) if each]
    pairs = [pair for variants in compared for pair in combinations(variants, 2)]
    for (one, other), seed in product(pairs, settings.seeds):
        if found.get((one, seed)) == found.get((other, seed)) == "":
            found[one, seed] = "; ".join(_unlike((one, seed), other, known, settings))
    return {run: why for run, why in found.items() if why}


def _unlike(run: _Run, variant: str, known: Mapping[_Run, Record], settings: GridSettings) -> Iterator[str]:
    """Say in what a run differs from that of the variant with the same seed."""
    record, other, of_other = known.get(run), known.get((variant, run[1])), f"{variant}/seed-{run[1]}"
    if record is None or other is None:
        return
    for name in sorted(record.versions.keys() | other.versions.keys()):
        one, another = (each.versions.get(name, "none") for each in (record, other))
        if one != another:
            yield f"it was made with {name} {one}, and {of_other} with {another}"
    commit, another = (str(each.git_revision).removesuffix(CHANGED) for each in (record, other))
    if settings.is_declared and commit != another:
        yield f"its commit is {commit}, and that of {of_other} {another}"
    both = record.inputs.keys() & other.inputs.keys()
    for key in sorted(record.inputs.keys() | other.inputs.keys()):
        chosen = [
            {
                word
                for word in settings.overrides[name]
                if f"{key_of(word)}.".startswith("task.")  # chooses model and data together
                or any(each.startswith(key_of(word)) for each in (*_STARTS, key))
            }
            for name in (run[0], variant)
        ]
        judged = chosen[0] == chosen[1] and (key in both or key.partition("[")[0] in _STARTS)
        if judged and record.inputs.get(key) != other.inputs.get(key):
            yield f"its {key} is another than that of {of_other}"

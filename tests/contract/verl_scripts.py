"""Report what our checks do to verl's own example scripts, as they are and with a preset of ours.

    python tests/contract/verl_scripts.py CHECKOUT [--json FILE] [--algo NAME …] [--instead]

CHECKOUT is a clone of verl. The scripts run with stand-ins (`shell_scripts`); each list of arguments for one
of verl's trainers is composed with Hydra, as in that trainer, by the checkout's verl (the installed one where
it has none). Lists that verl's own validation accepts go through ``validate_config`` with our hook in front,
as on a node with NVIDIA GPUs, vLLM and the models downloaded. The report lists all that the hook prints,
raises, starts or changes beyond verl's own. The exit status is 1 if it does any of that to an unchanged list.
``--instead`` removes from a list what the preset sets, as if the user replaced those settings by it; without
it the list's settings win.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from shell_scripts import Folder, Invocation, Outcome

os.environ.update(VERL_PLATFORM="nvidia", HF_HUB_OFFLINE="1")

MAINS = {
    "verl.trainer.main_ppo": "ppo_trainer",
    "verl.experimental.one_step_off_policy.main_ppo": "one_step_off_ppo_trainer",
    "verl.experimental.fully_async_policy.fully_async_main": "fully_async_ppo_trainer",
}
"""verl's trainers that take a command line of Hydra's, and the configuration that each has by default."""
UNVALIDATED = ("verl.experimental.fully_async_policy.fully_async_main",)
"""Those that never call ``validate_config``."""
PRESETS = ("grpo", "dapo", "gvpo")


@dataclass(frozen=True)
class Composed:
    """A configuration, or why there is none."""

    config: Any = None
    refusal: str | None = None


@dataclass(frozen=True)
class Called:
    """What one call of a ``validate_config`` did."""

    error: str | None
    said: list[str]
    threads: list[str]
    environment: dict[str, str | None]
    config: Any


@dataclass
class Verdict:
    """What became of one list of arguments."""

    script: str
    main: str
    algo: str | None
    overrides: list[str]
    verl: str | None = None
    """Why Hydra or verl's own validation refuses it."""
    error: str | None = None
    """What our hook raised."""
    said: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    environment: dict[str, str | None] = field(default_factory=dict)
    changed: bool = False
    """Is the configuration another one than after verl's own validation?"""

    @property
    def accepted(self) -> bool:
        """By verl."""
        return self.verl is None

    @property
    def reaches_hook(self) -> bool:
        """Is it accepted by verl, and by a trainer that calls ``validate_config``?"""
        return self.accepted and self.main not in UNVALIDATED

    @property
    def silent(self) -> bool:
        """Did our hook leave no trace?"""
        return not (self.error or self.said or self.threads or self.environment or self.changed)


class Judge:
    """Composes and validates; imports verl once, that of the checkout."""

    def __init__(self, checkout: Path, instead: bool = False) -> None:
        if (checkout / "verl" / "__init__.py").is_file():
            _write_metadata(checkout)
            sys.path.insert(0, str(checkout))
        from verl.utils import config

        from grpo_verl_ext.verl_plugin.cpu import patches

        patches.install_vllm_alias()

        self.checkout, self.instead = checkout, instead
        self.hooked = config.validate_config
        self.own = getattr(config.validate_config, "__wrapped__", config.validate_config)

    def verdict(self, invocation: Invocation, algo: str | None) -> Verdict:
        """Of one list of arguments, with ``+algo=`` in front if there is one."""
        verdict = Verdict(invocation.script, str(invocation.module), algo, list(invocation.overrides))
        composed = self.composed(invocation, algo)
        if composed.refusal is not None:
            verdict.verl = composed.refusal
            return verdict
        own = _called(self.own, composed.config)
        if own.error is not None:
            verdict.verl = own.error
            return verdict
        if verdict.main not in UNVALIDATED:
            _compare(verdict, own, _called(self.hooked, composed.config))
        return verdict

    def composed(self, invocation: Invocation, algo: str | None) -> Composed:
        """Compose one list of arguments, with ``+algo=`` in front if there is one."""
        from hydra import compose, initialize_config_dir
        from hydra._internal.utils import get_args_parser

        said = io.StringIO()
        folder = self.checkout / invocation.folder
        try:
            # verl's configurations name folders relative to where the command is typed.
            with contextlib.chdir(folder), contextlib.redirect_stderr(said):
                given = get_args_parser().parse_args(list(invocation.overrides))
                place = _configurations(str(invocation.module), given.config_path)
                with initialize_config_dir(str(place), version_base=None):
                    name = given.config_name or MAINS[str(invocation.module)]
                    config = compose(name, self._with_preset(given.overrides, algo))
                    return Composed(_as_the_main_has_it(config, str(invocation.module)))
        except SystemExit:
            return Composed(refusal=said.getvalue().strip().splitlines()[-1])
        except Exception as error:  # noqa: BLE001  # whatever Hydra or verl raises is its refusal
            return Composed(refusal=_in_words(error))

    def _with_preset(self, overrides: Sequence[str], algo: str | None) -> list[str]:
        if algo is None:
            return list(overrides)
        taken = _keys_of(algo) if self.instead else set()
        return [
            f"+algo={algo}",
            *(one for one in overrides if one.lstrip("+~").partition("=")[0] not in taken),
        ]


def _write_metadata(checkout: Path) -> None:
    """Give a copy of verl's sources the metadata that its installation would have, with which it loads us."""
    version = (checkout / "verl" / "version" / "version").read_text().strip()
    metadata = checkout / f"verl-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: verl\nVersion: {version}\n")


def judged(
    checkout: Path, algos: Sequence[str], *, instead: bool = False
) -> tuple[list[Outcome], list[Verdict]]:
    """Run all scripts of the checkout and judge all their lists; with presets those that reach the hook."""
    with tempfile.TemporaryDirectory() as made:
        folder = Folder(checkout, Path(made) / "scripts")
        outcomes = [folder.run(script) for script in folder.scripts()]
        judge = Judge(folder.checkout, instead)
        with mock.patch.dict(os.environ, {"HOME": str(folder.home)}), _read_once():
            lists = [one for outcome in outcomes for one in outcome.invocations if one.module in MAINS]
            plain = [judge.verdict(one, None) for one in lists]
            asked = [one for one, verdict in zip(lists, plain, strict=True) if verdict.reaches_hook]
            return outcomes, plain + [judge.verdict(one, algo) for algo in algos for one in asked]


def _read_once() -> contextlib.AbstractContextManager[Any]:
    """Let Hydra read each file once, not for each list; most of composing is parsing YAML."""
    from hydra._internal.config_repository import ConfigRepository

    load, read = ConfigRepository.load_config, dict[tuple[str, ...], Any]()

    def load_config(repository: ConfigRepository, config_path: str) -> Any:
        key = (config_path, *(source.path for source in repository.sources))
        if key not in read:
            read[key] = load(repository, config_path)
        return copy.deepcopy(read[key])

    return mock.patch.object(ConfigRepository, "load_config", load_config)


def _configurations(main: str, config_path: str | None) -> Path:
    """The folder that ``--config-path`` means: Hydra takes it relative to the file of the main function."""
    found = importlib.util.find_spec(main)
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / (config_path or "config")).resolve()


def _keys_of(algo: str) -> set[str]:
    """What a preset sets."""
    from omegaconf import OmegaConf

    from grpo_verl_ext import config

    def keys(section: Any, name: str) -> Iterator[str]:
        if not isinstance(section, dict):
            yield name.lstrip(".")
            return
        for key, value in section.items():
            yield from keys(value, f"{name}.{key}")

    return set(
        keys(OmegaConf.to_container(OmegaConf.load(Path(config.__path__[0]) / f"algo/{algo}.yaml")), "")
    )


def _as_the_main_has_it(config: Any, main: str) -> Any:
    """With what the main function itself does to the configuration before it is validated."""
    from verl.experimental.reward_loop import migrate_legacy_reward_impl
    from verl.utils.device import auto_set_device

    auto_set_device(config)
    if main != "verl.trainer.main_ppo":
        config.actor_rollout_ref.rollout.nnodes = config.rollout.nnodes
        config.actor_rollout_ref.rollout.n_gpus_per_node = config.rollout.n_gpus_per_node
    return migrate_legacy_reward_impl(config) if main in UNVALIDATED else config


def _called(validate_config: Any, composed: Any) -> Called:
    """Call it as verl's main functions do, on a copy; threads of ours are not started."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.workers.config import HFModelConfig

    config, said, threads, before = copy.deepcopy(composed), io.StringIO(), [], dict(os.environ)

    def started(thread: threading.Thread) -> None:
        threads.append(thread.name)
        if not str(getattr(getattr(thread, "_target", None), "__module__", "")).startswith("grpo_verl_ext"):
            start(thread)

    start = threading.Thread.start
    error = None
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        warnings.catch_warnings(),
        mock.patch.object(threading.Thread, "start", started),
        mock.patch.object(HFModelConfig, "__post_init__", return_value=None),  # reads the model's files
    ):
        warnings.simplefilter(
            "always"
        )  # Python says a warning once for each place, so not to both of two calls
        try:
            validate_config(
                config=config,
                use_reference_policy=need_reference_policy(config),
                use_critic=need_critic(config),
            )
        except (Exception, SystemExit) as raised:  # noqa: BLE001  # a refusal, ours or verl's
            error = _in_words(raised)
    after = OmegaConf.to_container(config)
    changes = {
        name: os.environ.get(name)
        for name in {*before, *os.environ}
        if before.get(name) != os.environ.get(name)
    }
    return Called(error, said.getvalue().splitlines(), threads, changes, after)


def _compare(verdict: Verdict, own: Called, hooked: Called) -> None:
    """Write down what the hook did beyond verl's own validation."""
    verdict.error = hooked.error
    verdict.said = list((Counter(hooked.said) - Counter(own.said)).elements())
    verdict.threads = list((Counter(hooked.threads) - Counter(own.threads)).elements())
    verdict.environment = {
        name: value for name, value in hooked.environment.items() if name not in own.environment
    }
    verdict.changed = hooked.config != own.config


def _in_words(error: BaseException) -> str:
    causes, seen = [], error
    while seen is not None and len(causes) < 3:
        words = str(seen).strip()
        causes.append(words if isinstance(seen, SystemExit) else f"{type(seen).__name__}: {words}")
        seen = seen.__cause__
    return " ← ".join(causes)


def table(outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Counts, then every word of ours, grouped."""
    started = [invocation for outcome in outcomes for invocation in outcome.invocations]
    yield f"{len(outcomes)} scripts, {len(started)} commands recorded"
    for module, count in Counter(
        invocation.module for invocation in started if invocation.module
    ).most_common():
        yield f"  {count:4} {module}"
    yield from (f"  {outcome.script}: {outcome.failure}" for outcome in outcomes if outcome.failure)
    for algo in dict.fromkeys(verdict.algo for verdict in verdicts):
        yield ""
        yield from _of_one_algo(algo, [verdict for verdict in verdicts if verdict.algo == algo])


def _of_one_algo(algo: str | None, verdicts: Sequence[Verdict]) -> Iterator[str]:
    accepted = [verdict for verdict in verdicts if verdict.reaches_hook]
    refused = [verdict for verdict in verdicts if not verdict.accepted]
    yield (
        f"{'as they are' if algo is None else f'+algo={algo}'}: {len(verdicts)} lists; verl refuses "
        f"{len(refused)}, never validates {len(verdicts) - len(accepted) - len(refused)}, accepts "
        f"{len(accepted)}. Of these we refuse {sum(bool(verdict.error) for verdict in accepted)}; "
        f"{sum(verdict.silent for verdict in accepted)} pass without a word"
    )
    found = {
        "verl": [(str(verdict.verl), verdict.script) for verdict in refused],
        "refused": [(verdict.error, verdict.script) for verdict in accepted if verdict.error],
        "said": [(line, verdict.script) for verdict in accepted for line in verdict.said],
        "thread": [(name, verdict.script) for verdict in accepted for name in verdict.threads],
        "environment": [(name, verdict.script) for verdict in accepted for name in verdict.environment],
        "configuration": [("changed", verdict.script) for verdict in accepted if verdict.changed],
    }
    for kind, messages in found.items():
        yield from _grouped(kind, messages)


def _grouped(kind: str, found: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Messages that differ in numbers and paths only stand together, with the first one as it is."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for message, script in found:
        groups.setdefault(re.sub(r"\S*/\S*|\d+", "·", message), []).append((message, script))
    for group in sorted(groups.values(), key=len, reverse=True):
        yield f"  {kind}, {len(group)} times: {group[0][0]}"
        yield from (f"        {script}" for script in dict.fromkeys(script for _, script in group))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and write the JSON if asked."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--algo", nargs="*", default=list(PRESETS))
    parser.add_argument("--instead", action="store_true")
    given = parser.parse_args(arguments)
    outcomes, verdicts = judged(given.checkout, given.algo, instead=given.instead)
    if given.json:
        content = {
            "scripts": [asdict(outcome) for outcome in outcomes],
            "lists": [asdict(verdict) for verdict in verdicts],
        }
        given.json.write_text(json.dumps(content, indent=1), encoding="utf-8")
    print("\n".join(table(outcomes, verdicts)))
    return int(any(verdict.accepted and not verdict.silent for verdict in verdicts if verdict.algo is None))


if __name__ == "__main__":
    sys.exit(main())

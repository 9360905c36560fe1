"""Test the contract, derived and by hand, line by line against verl's sources."""

import ast
import copy
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_verl_ext.contract.derived import (
    CONFIGURATION,
    Places,
    classes_on_verl,
    derived,
    our_modules,
    overrides,
)
from grpo_verl_ext.contract.our_sources import calls_super, short
from grpo_verl_ext.contract.reliances import (
    Called,
    Hook,
    Interface,
    Keys,
    Members,
    Name,
    Overridden,
    Reliance,
    Seam,
    full_name,
    parameters,
)
from grpo_verl_ext.contract.seams import CORE, PLACES, ROWS, SEAMS, TRAINER, contract
from grpo_verl_ext.contract.tier import seams_of_lower_tier
from grpo_verl_ext.contract.verl_sources import OURS, Found, GoneError, Sources

SOURCES = Sources()
CONTRACT = contract(SOURCES)
DERIVED = derived(SOURCES, PLACES)
ROOT = Path(__file__).parents[2]
BASE = "verl.trainer.ppo.v1.trainer_base"


def edited(module: str, old: str, new: str) -> Sources:
    """All sources, with one piece of one module that reads otherwise."""
    copy = Sources()
    text = copy._text(module)
    assert old in text, f"{module} has no {old!r}"
    copy._trees = {**SOURCES._trees, module: ast.parse(text.replace(old, new))}
    return copy


def unjudged(sources: Sources, seams: Collection[Seam], places: Places) -> Iterator[str]:
    """A sentence for each use that our sources do not show whole and no line judges."""
    ours = our_modules(sources)
    classes = classes_on_verl(sources, ours)
    of_modules = [(*each, module.short) for module in ours.values() for each in module.calls()]
    of_classes = [
        (*each, short(one.lineage[0].module)) for one in classes for each in one.calls_of_self(sources)
    ]
    for name, call, by in (*of_modules, *of_classes):
        if len(call.args) > len(places.get(name, ())):
            yield f"{by} calls {name} by place, and PLACES has no such parameter"
    listed = {seam.where for seam in seams if isinstance(seam.relies, Overridden)}
    implemented = [method.node for one in classes for method in one.implemented(sources)]
    for where, our in overrides(sources, classes):
        if not calls_super(our) and where not in listed and our.node not in implemented:
            yield f"{short(our.module)} overrides {where} without calling it, and SEAMS has no line for it"


def name_of(seam: Seam) -> str:
    return f"{seam.where}-{type(seam.relies).__name__}"


@pytest.mark.parametrize("seam", CONTRACT, ids=name_of)
def test_verl_is_as_we_rely_on_it(seam: Seam) -> None:
    moved = list(seam.moved(SOURCES))
    if moved:
        pytest.fail("\n".join(moved), pytrace=False)


def test_what_has_to_be_judged_is() -> None:
    assert list(unjudged(SOURCES, SEAMS, PLACES)) == []


def test_a_line_stands_once() -> None:
    lines = [(seam.where, repr(seam.relies), seam.by) for seam in SEAMS]
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("name", sorted({name for seam in CONTRACT for name in seam.by}))
def test_those_who_rely_are_there(name: str) -> None:
    file = ROOT / full_name(name) if name.endswith(".yaml") else SOURCES.file(full_name(name))
    assert file is not None, f"{full_name(name)} is not there"
    assert file.is_file(), f"{file} is not there"


def taken() -> Iterator[tuple[str, list[str], Found]]:
    """(method of verl's, its parameters, our method in its place)."""
    for where, ours in overrides(SOURCES, classes_on_verl(SOURCES, our_modules(SOURCES))):
        yield where, parameters(SOURCES.find(where)), ours


@pytest.mark.parametrize(
    ("where", "names", "ours"), list(taken()), ids=lambda value: getattr(value, "module", None)
)
def test_our_override_takes_what_verl_hands_it(where: str, names: list[str], ours: Found) -> None:
    there = parameters(ours)
    any_more = any(name.startswith("**") for name in there)
    missing = [name for name in names if name not in there and not any_more]
    assert not missing, f"{ours.module} overrides {where}, and takes no {', '.join(missing)}"


BROKEN = {
    "an override's parameter is gone": (
        BASE,
        "def _compute_advantage(self, batch: KVBatchMeta, metrics: dict)",
        "def _compute_advantage(self, batch: KVBatchMeta)",
        f"{TRAINER}._compute_advantage has lost its parameter metrics; "
        f"grpo_verl_ext.verl_plugin.gvpo.trainer overrides it, "
        f"grpo_verl_ext.verl_plugin.mini_batch.trainer overrides it, "
        f"grpo_verl_ext.verl_plugin.several_rewards.trainer overrides it, "
        f"grpo_verl_ext.verl_plugin.steps.trainer overrides it, "
        f"grpo_verl_ext.verl_plugin.stored.trainer overrides it, "
        f"grpo_verl_ext.verl_plugin.teacher.trainer overrides it, "
        f"grpo_verl_ext.verl_plugin.trainer_modes overrides it",
    ),
    "an override's parameter is new": (
        BASE,
        "def _update_actor(self, batch: KVBatchMeta, metrics: dict)",
        "def _update_actor(self, batch: KVBatchMeta, metrics: dict, timing: dict)",
        f"{TRAINER}._update_actor has a new parameter timing; "
        f"grpo_verl_ext.verl_plugin.gvpo.trainer overrides it, "
        f"grpo_verl_ext.verl_plugin.mini_batch.trainer overrides it",
    ),
    "an override's parameters changed places": (
        BASE,
        "def step(self, metrics: dict, timing_raw: dict)",
        "def step(self, timing_raw: dict, metrics: dict)",
        f"{TRAINER}.step has its parameters in another order, timing_raw, metrics; "
        f"grpo_verl_ext.verl_plugin.measure.gold_responses overrides it, "
        f"grpo_verl_ext.verl_plugin.measure.rewarded_responses overrides it, "
        f"grpo_verl_ext.verl_plugin.measure.training_rewards overrides it, "
        f"grpo_verl_ext.verl_plugin.reference.trainer overrides it",
    ),
    "a patched function's first parameter is gone": (
        "verl.utils.config",
        "def validate_config(\n    config: DictConfig,",
        "def validate_config(\n    cfg: DictConfig,",
        "verl.utils.config.validate_config has lost its parameter config; grpo_verl_ext.driver patches it",
    ),
    "a registry is gone": (
        CORE,
        "POLICY_LOSS_REGISTRY",
        "POLICY_LOSSES",
        f"{CORE}.POLICY_LOSS_REGISTRY is gone; grpo_verl_ext.verl_plugin.registration imports it, "
        "grpo_verl_ext.anatomy.weights imports it, "
        "grpo_verl_ext.doctor.environment imports it, "
        "grpo_verl_ext.verl_plugin.algorithms imports it, "
        "grpo_verl_ext.proof.invariance imports it, "
        "grpo_verl_ext.verl_plugin.losses.custom imports it, "
        "grpo_verl_ext.preflight.names imports it, "
        "grpo_verl_ext.verl_plugin.usage imports it",
    ),
    "a class is gone, and its methods with it": (
        "verl.workers.engine.base",
        "class BaseEngine:",
        "class Engine:",
        "verl.workers.engine.base.BaseEngine.infer_batch is gone; "
        "grpo_verl_ext.verl_plugin.mini_batch.worker calls it",
    ),
    "a called function's parameter has another name": (
        "verl.utils.seqlen_balancing",
        "def get_seqlen_balanced_partitions(seqlen_list: list[int], k_partitions: int,",
        "def get_seqlen_balanced_partitions(seqlen_list: list[int], parts: int,",
        "verl.utils.seqlen_balancing.get_seqlen_balanced_partitions has lost its parameter k_partitions; "
        "grpo_verl_ext.verl_plugin.mini_batch.packing calls it",
    ),
    "a called function asks for more": (
        "verl.workers.utils.padding",
        "def response_from_nested(tensor: torch.Tensor, response_mask: torch.Tensor)",
        "def response_from_nested(tensor: torch.Tensor, response_mask: torch.Tensor, width: int)",
        "verl.workers.utils.padding.response_from_nested now asks for width; "
        "grpo_verl_ext.verl_plugin.measure.fixed_responses calls it, "
        "grpo_verl_ext.verl_plugin.mini_batch.worker calls it",
    ),
    "a called function takes its arguments in another order": (
        "verl.workers.utils.padding",
        "def response_from_nested(tensor: torch.Tensor, response_mask: torch.Tensor)",
        "def response_from_nested(response_mask: torch.Tensor, tensor: torch.Tensor)",
        "verl.workers.utils.padding.response_from_nested takes response_mask where it took tensor; "
        "grpo_verl_ext.verl_plugin.measure.fixed_responses calls it, "
        "grpo_verl_ext.verl_plugin.mini_batch.worker calls it",
    ),
    "a call hands less": (
        "verl.workers.utils.losses",
        "        rollout_is_weights=rollout_is_weights,\n",
        "",
        "verl.workers.utils.losses.ppo_loss does not hand policy_loss_fn its argument rollout_is_weights; "
        "grpo_verl_ext.verl_plugin.losses.custom answers that call, "
        "grpo_verl_ext.verl_plugin.gvpo.loss answers that call",
    ),
    "a call hands by place what it named": (
        BASE,
        "self._dump_generations(\n                inputs=inputs,",
        "self._dump_generations(\n                inputs,",
        f"{TRAINER}._log_rollout_data hands self._dump_generations 1 arguments by place, where it handed 0; "
        f"grpo_verl_ext.verl_plugin.steps.trainer answers that call",
    ),
    "a call is not made": (
        "verl.workers.engine_workers",
        "actor_output = self.train_batch(mini_batch_td)",
        "actor_output = self.engine.train(mini_batch_td)",
        "verl.workers.engine_workers.TrainingWorker.train_mini_batch does not call self.train_batch; "
        "grpo_verl_ext.verl_plugin.mini_batch.worker answers that call",
    ),
    "calls changed places": (
        "verl.trainer.main_ppo",
        "    # validate config\n",
        "    run_ppo(config, task_runner_class=TaskRunnerV1)\n",
        "verl.trainer.main_ppo.main calls run_ppo before validate_config; "
        "grpo_verl_ext.driver relies on the order",
    ),
    "an attribute is gone": (
        BASE,
        "self.local_trigger_step",
        "self.local_step",
        f"{TRAINER} has lost its local_trigger_step; grpo_verl_ext.verl_plugin.mini_batch.trainer uses it",
    ),
    "a dataclass's field is gone": (
        "verl.workers.config.actor",
        "    loss_scale_factor: Optional[int] = None",
        "    loss_scale: Optional[int] = None",
        "verl.workers.config.ActorConfig has lost its loss_scale_factor; "
        "grpo_verl_ext.catalogue.averages uses it",
    ),
    "an interface asks for another method": (
        "verl.plugin.platform.platform_base",
        "    def rollout_env_vars(self)",
        "    @abc.abstractmethod\n    def memory(self) -> int: ...\n\n    def rollout_env_vars(self)",
        "verl.plugin.platform.PlatformBase has a new abstract method memory; "
        "grpo_verl_ext.verl_plugin.cpu.platform implements it",
    ),
    "an interface's method takes less": (
        "verl.plugin.platform.platform_base",
        "def nvtx_range(self, msg: str)",
        "def nvtx_range(self)",
        "verl.plugin.platform.PlatformBase has a nvtx_range that has lost its parameter msg; "
        "grpo_verl_ext.verl_plugin.cpu.platform implements it",
    ),
    "a class has another base": (
        "verl.trainer.ppo.v1.trainer_sync",
        "class PPOTrainerSync(PPOTrainer):",
        "class PPOTrainerSync:",
        "verl.trainer.ppo.v1.trainer_sync.PPOTrainerSync is no PPOTrainer any more; "
        "grpo_verl_ext.verl_plugin.trainer_modes derives from it",
    ),
    "a file has another format": (
        "verl.utils.tracking",
        'self.fp.write(orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY) + b"\\n")',
        'self.fp.write(b"\\n" + orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY))',
        "verl.utils.tracking.FileLogger.log has no + b'\\n'; grpo_verl_ext.runs.metrics relies on it",
    ),
}
"""Module of verl's, a piece of it, what stands there in the broken copy, and the sentence that says so."""


@pytest.mark.parametrize(("module", "old", "new", "sentence"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_copy_is_told_by_its_sentence(module: str, old: str, new: str, sentence: str) -> None:
    broken = edited(module, old, new)
    assert sentence in [moved for seam in CONTRACT for moved in seam.moved(broken)]


def without_key(config: dict[str, Any]) -> None:
    del config["actor_rollout_ref"]["rollout"]["top_k"]


def with_another_default(config: dict[str, Any]) -> None:
    config["actor_rollout_ref"]["actor"]["shuffle"] = True


@pytest.mark.parametrize(
    ("edit", "phrase", "readers"),
    [
        (
            without_key,
            "has lost its key actor_rollout_ref.rollout.top_k",
            ["catalogue.gvpo", "verl_plugin.preflight.algorithm"],
        ),
        (
            with_another_default,
            "has True as actor_rollout_ref.actor.shuffle, where it had False",
            ["verl_plugin.preflight.algorithm", "verl_plugin.mini_batch.trainer"],
        ),
    ],
)
def test_a_moved_key_is_told(
    edit: Callable[[dict[str, Any]], None], phrase: str, readers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = copy.deepcopy(SOURCES.configuration())
    edit(config)
    broken = Sources()
    monkeypatch.setattr(broken, "configuration", lambda: config)
    moved = [sentence for seam in CONTRACT for sentence in seam.moved(broken)]
    told = ", ".join(f"grpo_verl_ext.{reader} reads it" for reader in readers)
    assert moved == [f"verl.trainer.config.ppo_trainer {phrase}; {told}"]


@pytest.mark.parametrize(
    ("where", "by", "relies"),
    [
        ("verl.utils.device.get_device_id", "mini_batch.worker", Name()),
        ("verl.utils.device.get_device_id", "mini_batch.worker", Called()),
        ("verl.utils.model", "cpu", Hook()),
        (
            "transfer_queue.kv_batch_put",
            "batch.fields",
            Called(by_name=("keys", "partition_id", "fields", "tags")),
        ),
        (f"{TRAINER}._get_required_batch_multiple", "mini_batch.trainer", Called(("dp_size",))),
        ("verl.workers.engine_workers.TrainingWorker", "mini_batch.worker", Members("engine_config")),
        (f"{TRAINER}._save_checkpoint", "reference.trainer", Overridden()),
        (CONFIGURATION, "preflight.environment", Keys("trainer.use_v1")),
        (CONFIGURATION, "preflight.training", Keys("algorithm.rollout_correction.bypass_mode")),
        (CONFIGURATION, "runs.verl_run", Keys("trainer.total_training_steps")),
    ],
)
def test_what_our_sources_show_is_derived(where: str, by: str, relies: Reliance) -> None:
    """Names, calls, hooks, attributes, overrides, and keys: read, made of constants, before a ``=``."""
    name = by if by == "runs.verl_run" else f"verl_plugin.{by}"
    found = [seam for seam in DERIVED if name in seam.by and seam.where == where]
    assert repr(relies) in [repr(seam.relies) for seam in found]


def test_an_interface_is_derived() -> None:
    (seam,) = [seam for seam in CONTRACT if isinstance(seam.relies, Interface)]
    assert (seam.where, seam.by) == ("verl.plugin.platform.PlatformBase", ("verl_plugin.cpu.platform",))
    assert "ray_resource_name" in seam.relies.methods


@pytest.mark.parametrize(
    ("module", "old", "new", "sentence"),
    [
        (
            "mini_batch.worker",
            "get_device_id()",
            "tu.device_of(data)",
            f"{ROWS}.device_of is gone; {{}} imports it",
        ),
        (
            "reference.trainer",
            "def _save_checkpoint(self)",
            "def _save_checkpoint(self, folder: str)",
            f"{TRAINER}._save_checkpoint has lost its parameter folder; {{}} overrides it",
        ),
        (
            "preflight.training",
            '"trainer.use_v1"',
            '"trainer.use_v9"',
            f"{CONFIGURATION} has lost its key trainer.use_v9; {{}} reads it",
        ),
    ],
)
def test_our_own_mistake_is_told(module: str, old: str, new: str, sentence: str) -> None:
    changed = edited(f"{OURS}.verl_plugin.{module}", old, new)
    told = [moved for seam in contract(changed) for moved in seam.moved(changed)]
    assert sentence.format(f"{OURS}.verl_plugin.{module}") in told


def test_an_override_of_what_is_gone_is_told() -> None:
    """Also where nothing but the call of ``super()`` shows that verl had the method."""
    broken = edited(BASE, "def _next_train_batch(", "def _next_batch(")
    told = [moved for seam in derived(broken, PLACES) for moved in seam.moved(broken)]
    assert told == [f"{TRAINER}._next_train_batch is gone; {OURS}.verl_plugin.stored.trainer overrides it"]


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        (
            f"{TRAINER}._balance_batch",
            f"verl_plugin.mini_batch.trainer overrides {TRAINER}._balance_batch without calling it, and",
        ),
        (
            f"{ROWS}.assign_non_tensor",
            f"verl_plugin.mini_batch.worker calls {ROWS}.assign_non_tensor by place, and",
        ),
        (
            f"{TRAINER}._get_required_batch_multiple",
            f"verl_plugin.mini_batch.trainer calls {TRAINER}._get_required_batch_multiple by place, and",
        ),
    ],
)
def test_what_nobody_judged_is_told(where: str, sentence: str) -> None:
    shorter = [seam for seam in SEAMS if seam.where != where]
    places = {name: taken for name, taken in PLACES.items() if name != where}
    assert any(told.startswith(sentence) for told in unjudged(SOURCES, shorter, places))


def test_a_name_that_never_was_is_gone() -> None:
    for name in ("verl.nowhere", "verl.utils.config.nothing", f"{TRAINER}.nothing", "elsewhere.name"):
        with pytest.raises(GoneError):
            SOURCES.find(name)


class TestLowerTier:
    """The part of the contract that counts with a verl which has estimators and losses only."""

    def test_it_asks_for_nothing_of_newer_trainers(self) -> None:
        asked = {seam.where for seam in seams_of_lower_tier(contract(Sources()))}
        assert not [where for where in asked if where.startswith(("verl.trainer.ppo.v1", "verl.plugin"))]
        assert "verl.workers.utils.losses.ppo_loss" in asked

    def test_losses_estimators_and_loading_are_in_it(self) -> None:
        names = {name for seam in seams_of_lower_tier(contract(Sources())) for name in seam.by}
        for name in ("estimators", "losses.custom", "invariance.report", "patches.driver", "tier"):
            assert f"verl_plugin.{name}" in names

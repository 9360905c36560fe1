"""Test the table of `seams` line by line against verl's sources."""

from collections.abc import Callable, Iterator
from pathlib import Path

import contract_page
import pytest
from omegaconf import DictConfig, OmegaConf, open_dict
from our_side import overrides
from reliances import Interface, Overridden, parameters
from seams import CORE, TRAINER, Seam, all_seams, full_name
from unlisted import unlisted
from verl_sources import Found, GoneError, Sources

SOURCES = Sources()
ROOT = Path(__file__).parents[2]
BASE = "verl.trainer.ppo.v1.trainer_base"


def name_of(seam: Seam) -> str:
    return f"{seam.where}-{type(seam.relies).__name__}"


@pytest.mark.parametrize("seam", all_seams(), ids=name_of)
def test_verl_is_as_we_rely_on_it(seam: Seam) -> None:
    moved = list(seam.moved(SOURCES))
    if moved:
        pytest.fail("\n".join(moved), pytrace=False)


def test_the_table_leaves_nothing_out() -> None:
    assert list(unlisted(SOURCES, all_seams())) == []


def test_the_page_is_the_table() -> None:
    assert contract_page.PAGE.read_text(encoding="utf-8") == contract_page.page(), (
        "Type: python tests/contract/contract_page.py"
    )


def test_a_line_stands_once() -> None:
    lines = [(seam.where, str(seam.relies), seam.by) for seam in all_seams()]
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("name", sorted({name for seam in all_seams() for name in seam.by}))
def test_those_who_rely_are_there(name: str) -> None:
    file = ROOT / full_name(name) if name.endswith(".yaml") else SOURCES.file(full_name(name))
    assert file is not None, f"{full_name(name)} is not there"
    assert file.is_file(), f"{file} is not there"


def taken() -> list[tuple[str, tuple[str, ...], Found]]:
    """(method of verl's, its parameters by the table, our method in its place)."""
    listed = {id(SOURCES.find(where).node): (where, names) for where, names in listed_methods()}
    return [(*listed[id(their.node)], ours) for their, ours in overrides(SOURCES)]


def listed_methods() -> Iterator[tuple[str, tuple[str, ...]]]:
    for seam in all_seams():
        if isinstance(seam.relies, Overridden):
            yield seam.where, seam.relies.parameters
        if isinstance(seam.relies, Interface):
            yield from ((f"{seam.where}.{name}", names) for name, names in seam.relies.methods.items())


@pytest.mark.parametrize(
    ("where", "names", "ours"), taken(), ids=lambda value: getattr(value, "module", None)
)
def test_our_override_takes_what_verl_hands_it(where: str, names: tuple[str, ...], ours: Found) -> None:
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
        f"grpo_verl_ext.verl_plugin.steps.trainer overrides it, "
        f"grpo_verl_ext.verl_plugin.stored.trainer overrides it, "
        f"grpo_verl_ext.verl_plugin.trainer_modes overrides it",
    ),
    "an override's parameter is new": (
        BASE,
        "def _update_actor(self, batch: KVBatchMeta, metrics: dict)",
        "def _update_actor(self, batch: KVBatchMeta, metrics: dict, timing: dict)",
        f"{TRAINER}._update_actor has a new parameter timing; "
        f"grpo_verl_ext.verl_plugin.gvpo.trainer overrides it",
    ),
    "an override's parameters changed places": (
        BASE,
        "def step(self, metrics: dict, timing_raw: dict)",
        "def step(self, timing_raw: dict, metrics: dict)",
        f"{TRAINER}.step has its parameters in another order, timing_raw, metrics; "
        f"grpo_verl_ext.verl_plugin.reference.trainer overrides it, "
        f"grpo_verl_ext.verl_plugin.measure.gold_responses overrides it, "
        f"grpo_verl_ext.verl_plugin.measure.training_rewards overrides it",
    ),
    "a patched function's first parameter is gone": (
        "verl.utils.config",
        "def validate_config(\n    config: DictConfig,",
        "def validate_config(\n    cfg: DictConfig,",
        "verl.utils.config.validate_config has lost its parameter config; "
        "grpo_verl_ext.verl_plugin.patches.driver patches it",
    ),
    "a registry is gone": (
        CORE,
        "POLICY_LOSS_REGISTRY",
        "POLICY_LOSSES",
        f"{CORE}.POLICY_LOSS_REGISTRY is gone; grpo_verl_ext.verl_plugin.registration imports it, "
        "grpo_verl_ext.verl_plugin.invariance.report imports it, "
        "grpo_verl_ext.verl_plugin.losses.custom imports it, "
        "grpo_verl_ext.anatomy.weights imports it, "
        "grpo_verl_ext.doctor.environment imports it",
    ),
    "a class is gone, and its methods with it": (
        "verl.workers.engine.base",
        "class BaseEngine:",
        "class Engine:",
        "verl.workers.engine.base.BaseEngine.infer_batch is gone; "
        "grpo_verl_ext.verl_plugin.gvpo.drift calls it",
    ),
    "a called function's parameter has another name": (
        "verl.utils.seqlen_balancing",
        "def get_seqlen_balanced_partitions(seqlen_list: list[int], k_partitions: int,",
        "def get_seqlen_balanced_partitions(seqlen_list: list[int], parts: int,",
        "verl.utils.seqlen_balancing.get_seqlen_balanced_partitions has lost its parameter k_partitions; "
        "grpo_verl_ext.verl_plugin.gvpo.packing calls it",
    ),
    "a called function asks for more": (
        "verl.workers.utils.padding",
        "def response_from_nested(tensor: torch.Tensor, response_mask: torch.Tensor)",
        "def response_from_nested(tensor: torch.Tensor, response_mask: torch.Tensor, width: int)",
        "verl.workers.utils.padding.response_from_nested now asks for width; "
        "grpo_verl_ext.verl_plugin.gvpo.drift calls it",
    ),
    "a called function takes its arguments in another order": (
        "verl.workers.utils.padding",
        "def response_from_nested(tensor: torch.Tensor, response_mask: torch.Tensor)",
        "def response_from_nested(response_mask: torch.Tensor, tensor: torch.Tensor)",
        "verl.workers.utils.padding.response_from_nested takes response_mask where it took tensor; "
        "grpo_verl_ext.verl_plugin.gvpo.drift calls it",
    ),
    "a call hands less": (
        "verl.workers.utils.losses",
        "        rollout_is_weights=rollout_is_weights,\n",
        "",
        "verl.workers.utils.losses.ppo_loss does not hand policy_loss_fn its argument rollout_is_weights; "
        "grpo_verl_ext.verl_plugin.losses.clipped answers that call, "
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
        "grpo_verl_ext.verl_plugin.gvpo.drift answers that call",
    ),
    "calls changed places": (
        "verl.trainer.main_ppo",
        "    # validate config\n",
        "    run_ppo(config, task_runner_class=TaskRunnerV1)\n",
        "verl.trainer.main_ppo.main calls run_ppo before validate_config; "
        "grpo_verl_ext.verl_plugin.patches.driver relies on the order",
    ),
    "an attribute is gone": (
        BASE,
        "self.local_trigger_step",
        "self.local_step",
        f"{TRAINER} has lost its local_trigger_step; grpo_verl_ext.verl_plugin.gvpo.trainer uses it",
    ),
    "a dataclass's field is gone": (
        "verl.workers.config.actor",
        "    loss_scale_factor: Optional[int] = None",
        "    loss_scale: Optional[int] = None",
        "verl.workers.config.ActorConfig has lost its loss_scale_factor; "
        "grpo_verl_ext.verl_plugin.losses.metrics uses it, "
        "grpo_verl_ext.verl_plugin.losses.clipped uses it, "
        "grpo_verl_ext.verl_plugin.gvpo.loss uses it, grpo_verl_ext.verl_plugin.invariance.report uses it, "
        "grpo_verl_ext.verl_plugin.losses.custom uses it, grpo_verl_ext.anatomy.weights uses it",
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
    broken = SOURCES.edited(module, old, new)
    assert sentence in [moved for seam in all_seams() for moved in seam.moved(broken)]


def without_key(config: DictConfig) -> None:
    del config.actor_rollout_ref.rollout.top_k


def with_another_default(config: DictConfig) -> None:
    config.actor_rollout_ref.actor.shuffle = True


@pytest.mark.parametrize(
    ("edit", "phrase"),
    [
        (without_key, "has lost its key actor_rollout_ref.rollout.top_k"),
        (with_another_default, "has True as actor_rollout_ref.actor.shuffle, where it had False"),
    ],
)
def test_a_moved_key_is_told(
    edit: Callable[[DictConfig], None], phrase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = OmegaConf.create(OmegaConf.to_container(SOURCES.configuration(), resolve=False))
    with open_dict(config):
        edit(config)
    broken = Sources()
    monkeypatch.setattr(broken, "configuration", lambda: config)
    moved = [sentence for seam in all_seams() for sentence in seam.moved(broken)]
    assert moved == [
        f"verl.trainer.config.ppo_trainer {phrase}; grpo_verl_ext.verl_plugin.preflight.groups reads it, "
        f"grpo_verl_ext.verl_plugin.gvpo.trainer reads it"
    ]


@pytest.mark.parametrize(
    ("where", "by", "sentence"),
    [
        (
            "verl.utils.device.get_device_id",
            "verl_plugin.gvpo.drift",
            "names verl.utils.device.get_device_id, which",
        ),
        ("verl.utils.model", "verl_plugin.cpu", "verl_plugin.cpu names verl.utils.model, which"),
        (
            "transfer_queue.kv_batch_put",
            "verl_plugin.batch.fields",
            "names transfer_queue.kv_batch_put, which",
        ),
        (
            f"{TRAINER}._get_required_batch_multiple",
            "verl_plugin.gvpo.trainer",
            "uses _get_required_batch_mu",
        ),
        (
            "verl.workers.engine_workers.TrainingWorker",
            "verl_plugin.gvpo.drift",
            "uses engine_config of",
        ),
        (
            f"{TRAINER}._save_checkpoint",
            "verl_plugin.reference.trainer",
            "overrides _save_checkpoint of",
        ),
        ("verl.plugin.platform.PlatformBase", "verl_plugin.cpu.platform", "overrides ray_resource_name of"),
        (
            "verl.trainer.config.ppo_trainer",
            "verl_plugin.preflight.environment",
            "reads the key trainer.use_v1, which",
        ),
    ],
)
def test_a_table_without_the_line_is_told(where: str, by: str, sentence: str) -> None:
    shorter = [seam for seam in all_seams() if seam.where != where or by not in seam.by]
    assert any(sentence in told for told in unlisted(SOURCES, shorter))


def test_a_name_that_never_was_is_gone() -> None:
    for name in ("verl.nowhere", "verl.utils.config.nothing", f"{TRAINER}.nothing", "elsewhere.name"):
        with pytest.raises(GoneError):
            SOURCES.find(name)

"""Test the table of support: every cell names an existing test or a refusal with a line that helps."""

import ast
import functools
import pickle
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import oracles
import pytest
import torch
import verl
import write_support_page
import yaml
from group_rows import at_first_update
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from queue_store import Store
from support_table import (
    CHANGES,
    CONTEXT_TITLES,
    EVERYWHERE,
    FEATURE_TITLES,
    PAIRS,
    TABLE,
    TRAINERS,
    Exact,
    Row,
)
from support_table import (
    ENGINES as ENGINE_KIND,
)
from transfer_queue import KVBatchMeta
from verl.trainer.distillation.losses import distillation_loss, distillation_ppo_loss
from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base
from verl.workers.config import DistillationConfig, DistillationLossConfig
from verl.workers.utils.losses import ppo_loss

from grpo_verl_ext import driver
from grpo_verl_ext.catalogue import STATISTIC_ENGINES
from grpo_verl_ext.preflight.support import REFUSALS, check_engine, check_support
from grpo_verl_ext.preflight.training import (
    CONTEXTS,
    FEATURES,
    KNOWN_TRAINER_MODES,
    contexts,
    features,
)
from grpo_verl_ext.proof.batch import micro_batch, ragged_batch
from grpo_verl_ext.proof.invariance import OUR_CASES, Case, actor_config
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin import trainer_modes, wire
from grpo_verl_ext.verl_plugin.algorithms import ESTIMATOR_FUNCTIONS
from grpo_verl_ext.verl_plugin.batch import fields as rollout_batch
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.config import REFRESH_ENGINES, TRAINER_MODES
from grpo_verl_ext.verl_plugin.features import Refusal
from grpo_verl_ext.verl_plugin.gvpo import worker
from grpo_verl_ext.verl_plugin.mini_batch.worker import check_statistic_engine
from grpo_verl_ext.verl_plugin.wire import GROUPS, STEPS, BatchSteps

ROOT = Path(__file__).parents[2]
ACTOR = "actor_rollout_ref.actor"
CORRECTION = "algorithm.rollout_correction"
LOSS = "distillation.distillation_loss"
GVPO = {"algorithm.adv_estimator": "gvpo", f"{ACTOR}.policy_loss.loss_mode": "gvpo"}
KL_COV = {
    "algorithm.adv_estimator": "grpo_outcome",
    f"{ACTOR}.policy_loss.loss_mode": "kl_cov_mini_batch",
}
GRPO = {"algorithm.adv_estimator": "grpo_outcome", f"{ACTOR}.policy_loss.loss_mode": "grpo"}

SETTINGS: dict[str, dict[str, Any]] = {
    "token_loss": GRPO,
    "statistic_one": KL_COV,
    "statistic_several": KL_COV | {f"{ACTOR}.ppo_epochs": 2},
    "gvpo_one": GVPO,
    "gvpo_several": GVPO | {f"{ACTOR}.ppo_epochs": 2},
    "anchor_old": GVPO | {"algorithm.grpo_ext.gvpo_anchor": "old"},
    "anchor_ref": GVPO | {"algorithm.grpo_ext.gvpo_anchor": "ref"},
    "anchor_teacher": GVPO | {"algorithm.grpo_ext.gvpo_anchor": "teacher"},
    "process": GRPO | {"algorithm.adv_estimator": "grpo_process"},
    "several_rewards": GRPO | {"algorithm.adv_estimator": "gdpo_outcome"},
    "refresh": GRPO | {"algorithm.grpo_ext.ref_model_sync_steps": 5},
    "stored_responses": GRPO | {"algorithm.grpo_ext.stored_responses": {"share": 0.5}},
    "recorded": GRPO | {"algorithm.grpo_ext.stored_responses": {"share": 0.5, "old_log_probs": "recorded"}},
    "history": GRPO | {"algorithm.grpo_ext.stored_responses": {"share": 0.5, "source": "history"}},
    "dynamic_sampling": GRPO | {"algorithm.filter_groups": {"enable": True, "metric": "acc"}},
    "mask_truncated_completions": GRPO | {"algorithm.grpo_ext.mask_truncated_completions": True},
    "gold_responses": GRPO | {"algorithm.grpo_ext.gold_responses": {"files": "test.parquet"}},
    "rewarded_responses": GRPO | {"algorithm.grpo_ext.rewarded_responses": {"files": "rewarded.parquet"}},
    "seed_requests": GRPO | {"algorithm.grpo_ext.seed_requests": 1},
}
"""Keys that make a training use each feature."""

UNDER: dict[str, dict[str, Any]] = {
    "fsdp": {f"{ACTOR}.strategy": "fsdp"},
    "other_engine": {f"{ACTOR}.strategy": "mine"},
    "v0": {"trainer.use_v1": False},
    "megatron_stages": {f"{ACTOR}.megatron.pipeline_model_parallel_size": 2},
    "weights": {f"{CORRECTION}.rollout_is": "token"},
    "token_rejection": {f"{CORRECTION}.rollout_rs": "seq_mean_k1, token_k1"},
    "sequence_rejection": {f"{CORRECTION}.rollout_rs": "seq_mean_k1"},
    "bypass": {f"{CORRECTION}.bypass_mode": True},
    "bypassed_weights": {f"{CORRECTION}.bypass_mode": True, f"{CORRECTION}.rollout_is": "token"},
    "bypassed_rejection": {f"{CORRECTION}.bypass_mode": True, f"{CORRECTION}.rollout_rs": "seq_mean_k1"},
    "distillation": {"distillation.enabled": True},
    "distillation_top_k": {"distillation.enabled": True, f"{LOSS}.loss_mode": "forward_kl_topk"},
    "distillation_only": {"distillation.enabled": True, f"{LOSS}.use_task_rewards": False},
    "kl_in_reward": {"algorithm.use_kl_in_reward": True},
    "overlong": {
        "reward.reward_manager.name": "dapo",
        "reward.reward_kwargs": {"overlong_buffer_cfg": {"enable": True}},
    },
    "response_models": {
        "reward.reward_manager.name": "rule_and_model",
        "reward.reward_model.enable": True,
    },
}
"""Keys that put it under each context; a trainer mode, or nothing, where there are none."""

ENGINES = {
    "megatron": "megatron",
    "megatron_stages": "megatron",
    "veomni": "veomni",
    "torchtitan": "torchtitan",
}
DRIVERS = {
    "one_step_off": ("one_step_off_policy", "one_step_off_ppo_trainer"),
    "fully_async": ("fully_async_policy", "fully_async_ppo_trainer"),
}
"""Folders of ``verl/experimental``, and the configuration that their programs compose."""

READ = [
    *("algorithm", "actor_rollout_ref", "data", "trainer", "reward"),
    *("distillation", "rollout", "async_training"),
]
"""Sections that are kept of a configuration, so that copies of it take less time."""


@functools.cache
def base(engine: str, driver: str) -> bytes:
    """What verl composes, pickled: a copy by pickle takes a quarter of the time of a deep one."""
    if driver in DRIVERS:
        folder, name = DRIVERS[driver]
        verls = Path(verl.__file__).parent / "experimental" / folder / "config"
        with initialize_config_dir(str(verls), version_base=None):
            config = compose(name, overrides=["hydra.searchpath=[pkg://verl.trainer.config]"])
    else:
        config = composed([f"model_engine={engine}", "actor_rollout_ref.rollout.name=vllm"])
    OmegaConf.set_struct(config, False)
    whole = OmegaConf.masked_copy(config, [key for key in READ if key in config])
    whole.actor_rollout_ref = OmegaConf.masked_copy(config.actor_rollout_ref, ["actor"])
    return pickle.dumps(whole)


def training(feature: str, *under: str) -> DictConfig:
    """A training that uses the feature under the contexts, and nothing else that is refused."""
    engine = next((ENGINES[context] for context in under if context in ENGINES), "dp")
    config = pickle.loads(base(engine, next((context for context in under if context in DRIVERS), "")))
    modes = [context for context in under if context in KNOWN_TRAINER_MODES]
    mode = modes[0] if modes else "grpo_ext_sync"
    defaults = {
        "trainer.v1.trainer_mode": mode,
        "trainer.v1.separate_async.parameter_sync_step": 1,
        "data.train_batch_size": 64,
        f"{ACTOR}.ppo_mini_batch_size": 64,
        f"{CORRECTION}.bypass_mode": False,
        **({f"{ACTOR}.strategy": "fsdp2"} if engine == "dp" else {}),
    }
    settings = defaults | SETTINGS[feature]
    for name in under:
        settings |= UNDER.get(name, {})
    for key, value in settings.items():
        OmegaConf.update(config, key, value)
    return config


CELLS = [(context, feature) for context in CONTEXTS for feature in FEATURES]
NEVER = ("distillation_only", "anchor_teacher")
"""verl's own distillation is not added to GVPO around a teacher, whatever its settings say."""


@pytest.mark.parametrize(("context", "feature"), CELLS)
def test_every_cell(context: str, feature: str) -> None:
    config, cell = training(feature, context), TABLE[context][feature]
    assert (context in contexts(config)) is ((context, feature) != NEVER)
    if not (feature in ("gvpo_one", "statistic_one") and context.startswith("bypass")):  # it then measures
        assert feature in features(config)
    told = messages(config)
    if told:
        with pytest.raises(SettingError) as refused:
            check_support(config)
        assert str(refused.value) in told
    else:
        check_support(config)
    if isinstance(cell, Refusal):
        own = str(cell.error(OmegaConf.select(config, cell.key)))
        assert own in told, "said of this very training"
        value = OmegaConf.select(config, cell.key)
        typed = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
        seen = cell.seen or f"{cell.key} is {typed}"
        assert own.startswith(f"{seen}, but ")
        assert own.endswith(f". Type: {cell.fix}")


def rows_of(met: list[str]) -> list[Row]:
    """The rows of these contexts, then of their pairs."""
    pairs = [PAIRS[pair] for pair in combinations(met, 2) if pair in PAIRS]
    return [*(TABLE[context] for context in met), *pairs]


def messages(config: DictConfig) -> set[str]:
    """Everything that is refused of a training; a feature may need another, as an anchor needs its loss."""
    used = features(config)
    cells = [row.get(name) for row in rows_of(contexts(config)) for name in used]
    return {
        str(cell.error(OmegaConf.select(config, cell.key))) for cell in cells if isinstance(cell, Refusal)
    }


def possible_pairs() -> list[tuple[str, str]]:
    """Pairs of contexts that one training can have; the others exclude each other, as two engines do."""
    found = []
    for pair in combinations(CONTEXTS, 2):
        drivers = [context for context in pair if context in CONTEXT_TITLES[TRAINERS]]
        engines = [context for context in pair if context in CONTEXT_TITLES[ENGINE_KIND]]
        if len(drivers) < 2 and len(engines) < 2 and {*pair} <= {*contexts(training("token_loss", *pair))}:
            found.append(pair)
    return found


BETWEEN_MODES_AND_BYPASS = {
    ("grpo_ext_colocate_async", "bypass"): {"gvpo_one", "gvpo_several", "anchor_old"},
    ("grpo_ext_separate_async", "bypass"): {"gvpo_one", "gvpo_several", "anchor_old"},
}
"""Pairs → features that neither context refuses alone and both together do: GVPO with the anchor `old`."""


@pytest.mark.long
def test_every_pair_of_contexts() -> None:
    """A feature is refused under two contexts where one of them refuses it, or the pair is listed above."""
    pairs, cells = possible_pairs(), 0
    for pair in pairs:
        for feature in FEATURES:
            config = training(feature, *pair)
            met, used = contexts(config), features(config)
            alone = any(isinstance(TABLE[each][name], Refusal) for each in met for name in used)
            refused = any(isinstance(row.get(name), Refusal) for row in rows_of(met) for name in used)
            together = feature in BETWEEN_MODES_AND_BYPASS.get(pair, ())
            assert refused == (alone or together), (pair, feature)
            cells += 1
    assert BETWEEN_MODES_AND_BYPASS.keys() <= {*pairs}
    assert cells == len(pairs) * len(FEATURES) > 3000
    assert PAIRS.keys() == BETWEEN_MODES_AND_BYPASS.keys()


@pytest.mark.parametrize("pair", BETWEEN_MODES_AND_BYPASS)
def test_an_anchor_of_several_policies_is_refused(pair: tuple[str, str]) -> None:
    """Responses of one prompt whose recorded log-probs are those of different policies have no anchor."""
    config = training("gvpo_several", *pair)
    with pytest.raises(
        SettingError, match=r"bypass_mode is true, but .*no common anchor; valid is false"
    ) as told:
        check_support(config)
    obeyed(config, str(told.value))
    check_support(config)
    check_support(training("gvpo_several", "grpo_ext_sync", "bypass"))
    # log π_old cancels in the targets for the reference: β Δ_i − Ã_i has only π_θ and π_ref.
    check_support(training("anchor_ref", *pair))


VERLS_LOSSES = ("gspo", "luspo", "cispo", "rloo", "sapo", "dppo", "dppo_kl", "ppo")


@pytest.mark.parametrize("algo", VERLS_LOSSES)
@pytest.mark.parametrize("context", ["distillation_only", "bypassed_weights", "bypassed_rejection"])
def test_presets_on_verls_losses_are_refused_where_ours_are(algo: str, context: str) -> None:
    engine = "actor_rollout_ref.rollout.name=vllm"
    config = composed([f"+algo={algo}", engine])
    check_support(config)
    ours, theirs = training("token_loss", context), config
    for key, value in UNDER[context].items():
        OmegaConf.update(theirs, key, value, force_add=True)
    with pytest.raises(SettingError) as of_ours:
        check_support(ours)
    with pytest.raises(SettingError) as of_theirs:
        check_support(theirs)
    assert str(of_theirs.value) == str(of_ours.value)


@pytest.mark.parametrize("name", ["rollout_is", "rollout_rs"])
def test_verls_loss_for_bypass_mode_applies_what_its_own_section_says(name: str) -> None:
    lines = ["actor_rollout_ref.rollout.name=vllm", "algorithm.adv_estimator=dr_grpo"]
    lines += [f"{ACTOR}.policy_loss.loss_mode=bypass_mode", f"{CORRECTION}.bypass_mode=true"]
    lines += [f"{CORRECTION}.{name}={'token' if name == 'rollout_is' else 'seq_mean_k1'}"]
    with pytest.raises(SettingError, match=r"as its .*policy_loss\.rollout_correction says"):
        check_support(composed(lines))
    section = f"+{ACTOR}.policy_loss.rollout_correction"
    check_support(composed([*lines, f"{section}=${{{CORRECTION}}}"]))
    with pytest.raises(SettingError, match=r"as its .*policy_loss\.rollout_correction says"):
        check_support(composed([*lines, f"{section}={{{name}: null}}"]))


TO_MAIN_PPO = [*DRIVERS]
REFUSED = [
    (context, feature)
    for context, feature in CELLS
    if isinstance(TABLE[context][feature], Refusal) and context not in TO_MAIN_PPO
]


@pytest.mark.parametrize(("context", "feature"), REFUSED)
def test_what_is_to_type_is_enough(context: str, feature: str) -> None:
    """Whatever is typed first is told; a training has one thing wrong for each feature that it uses."""
    config = training(feature, context)
    for _ in features(config):
        try:
            check_support(config)
        except SettingError as error:
            obeyed(config, str(error))
    check_support(config)


def obeyed(config: DictConfig, message: str) -> None:
    first = message.rpartition(" Type: ")[2].partition(", or ")[0]
    for line in first.split():
        key, value = line.split("=", maxsplit=1)
        OmegaConf.update(config, key, yaml.safe_load(value))


@pytest.mark.parametrize("context", TO_MAIN_PPO)
def test_what_other_drivers_cannot_do_main_ppo_can(context: str) -> None:
    with pytest.raises(SettingError, match=r"Type: python3 -m verl\.trainer\.main_ppo …") as refused:
        check_support(training("gvpo_several", context))
    told = str(refused.value).rpartition(" … ")[2]
    config = training("gvpo_several", "sync")
    obeyed(config, f" Type: {told}")
    check_support(config)


def test_the_page_is_the_table() -> None:
    written = write_support_page.PAGE.read_text(encoding="utf-8")
    assert written == write_support_page.page(), "Type: python tests/helpers/write_support_page.py"


def test_the_table_is_whole() -> None:
    assert TABLE.keys() == CONTEXTS.keys()
    assert all(row.keys() == FEATURES.keys() for row in TABLE.values())
    assert [name for titles in CONTEXT_TITLES.values() for name in titles] == [*CONTEXTS]
    assert [*FEATURE_TITLES] == [*EVERYWHERE] == [*FEATURES]
    assert CHANGES.keys() <= CONTEXTS.keys()
    for context, tests in CHANGES.items():
        assert tests.keys() <= EVERYWHERE.keys()
        assert not any(isinstance(TABLE[context][feature], Refusal) for feature in tests)


def test_a_refusal_is_of_what_is_there_and_stands_once() -> None:
    places = [(feature, place) for one in REFUSALS for feature in one.features for place in one.places]
    assert len(places) == len(set(places))
    assert {feature for feature, _ in places} <= FEATURES.keys()
    named = {name for _, place in places for name in ([place] if isinstance(place, str) else place)}
    assert named <= CONTEXTS.keys()
    order = [*CONTEXTS]
    assert all(order.index(a) < order.index(b) for a, b in PAIRS), "in the order in which pairs are asked"


def test_engines_that_were_not_tried_are_those_that_are_not_listed() -> None:
    strategies = {"megatron_stages": "megatron"}
    for context in CONTEXT_TITLES[ENGINE_KIND]:
        strategy = strategies.get(context, context)
        assert isinstance(TABLE[context]["gvpo_several"], Exact) == (strategy in STATISTIC_ENGINES)
        assert isinstance(TABLE[context]["refresh"], Exact) == (strategy in REFRESH_ENGINES)


@pytest.mark.parametrize(
    "test", sorted({cell.test for row in TABLE.values() for cell in row.values() if isinstance(cell, Exact)})
)
def test_the_test_behind_a_cell_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_package_has_no_names_of_tests() -> None:
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "grpo_verl_ext").rglob("*.py")]
    assert not [text for text in sources if "::test_" in text]


def test_a_training_that_uses_nothing_of_ours_is_asked_nothing() -> None:
    config = composed(
        ["actor_rollout_ref.rollout.name=vllm", "trainer.use_v1=false", "distillation.enabled=true"]
    )
    assert features(config) == []
    check_support(config)
    check_support(OmegaConf.create({"algorithm": {}}))


def test_the_modes_are_ours() -> None:
    assert {name for name in CONTEXTS if name.startswith("grpo_ext_")} == set(TRAINER_MODES)


@pytest.mark.parametrize("engine", ["megatron", "veomni", "torchtitan"])
def test_a_strategy_that_is_not_the_engine_is_refused(engine: str) -> None:
    """verl makes the engine by the class of the actor's section; all other checks read ``strategy``."""
    typed = [f"model_engine={engine}", f"{ACTOR}.strategy=fsdp2"]
    with pytest.raises(
        SettingError, match=rf"strategy is fsdp2, .* valid is {engine}\. Type: .*={engine}, or"
    ):
        check_engine(composed(["+algo=kl_cov", *typed]))
    check_engine(composed(["+algo=kl_cov", typed[0]]))
    check_engine(composed(typed))  # nothing of this package


class TestTheFirstCallRefuses:
    """Where verl's driver never asked: fully async training, or a driver of somebody's own."""

    MASK = torch.tensor([[1, 1], [1, 0]])

    def estimate(self, name: str, **options: object) -> torch.Tensor:
        algorithm = OmegaConf.create({"adv_estimator": name, "grpo_ext": options})
        rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
        return ESTIMATOR_FUNCTIONS[name](rewards, self.MASK, ["x", "x"], algorithm)[0]

    def test_the_reference_as_anchor(self) -> None:
        with pytest.raises(
            SettingError, match=r"gvpo_anchor is ref, but .* Type: .*=grpo_ext_sync"
        ) as refused:
            self.estimate("gvpo", gvpo_anchor="ref")
        assert refused.value.problem.key == "algorithm.grpo_ext.gvpo_anchor"

    @pytest.mark.parametrize("name", [name for name in ESTIMATOR_FUNCTIONS if name != "grpo_process"])
    def test_a_reference_that_nobody_refreshes(self, name: str) -> None:
        with pytest.raises(SettingError, match=r"ref_model_sync_steps is 5, but .* Type: .*=grpo_ext_sync"):
            self.estimate(name, ref_model_sync_steps=5)

    @pytest.mark.parametrize("name", [name for name in ESTIMATOR_FUNCTIONS if name != "grpo_process"])
    def test_responses_that_are_not_measured(self, name: str) -> None:
        with pytest.raises(
            SettingError, match=r"gold_responses\.files is a\.parquet, but .* Type: .*=grpo_ext_sync"
        ):
            self.estimate(name, gold_responses={"files": "a.parquet"})

    def test_under_our_trainer_neither(self) -> None:
        with wire.OUR_TRAINER.set(True):
            self.estimate("gvpo", gvpo_anchor="ref")
            self.estimate("dapo", ref_model_sync_steps=5)
            self.estimate("dr_grpo", gold_responses={"files": "a.parquet"})

    @pytest.mark.parametrize("strategy", ["megatron", "veomni", "torchtitan", "mine"])
    def test_a_drift_on_an_engine_where_nobody_measured_it(self, strategy: str) -> None:
        with pytest.raises(
            SettingError, match=rf"strategy is {strategy}, .* Type: model_engine=dp {ACTOR}\.strategy=fsdp2"
        ):
            check_statistic_engine(strategy)
        for known in STATISTIC_ENGINES:
            check_statistic_engine(known)

    @pytest.mark.parametrize("context", TO_MAIN_PPO)
    def test_verls_other_drivers_are_asked_before_they_start_ray(
        self, context: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        started: list[DictConfig] = []
        module = SimpleNamespace(run_ppo=lambda config, task_runner_class: started.append(config))
        driver.patch_start(module)
        with pytest.raises(SystemExit, match=r"grpo_verl_ext: the driver is verl\.experimental\."):
            module.run_ppo(training("gvpo_several", context), task_runner_class=None)
        assert not started
        grpo = training("token_loss", context)
        grpo.actor_rollout_ref.actor.loss_agg_mode = "seq-mean-token-mean"
        module.run_ppo(grpo, task_runner_class=None)
        assert len(started) == 1
        assert "failed itself" not in capsys.readouterr().err


def test_our_modes_share_what_makes_them_exact() -> None:
    """What the tests of ``grpo_ext_sync`` show of trainer and workers holds for the other trainer_modes."""
    classes = [get_trainer_cls(mode) for mode in TRAINER_MODES]
    names = ("_balance_batch", "_compute_advantage", "_update_actor", "_compute_ref_log_prob", "step")
    of_data = ("_init_dataloader", "_next_train_batch", "_compute_old_log_prob")
    for name in (*names, *of_data, "_save_checkpoint", "_load_checkpoint", "_init_resource_pool_mgr"):
        methods = [getattr(each, name) for each in classes]
        assert methods == [getattr(trainer_modes.GroupTrainerSync, name)] * len(methods)
        assert methods[0].__module__.startswith("grpo_verl_ext."), f"ours comes first for {name}"
    for each in classes:
        assert each.worker_cls.actor_worker_cls is worker.GroupTrainingWorker
        assert each.worker_cls.refresh_reference is worker.ReferenceSyncWorkerMixin.refresh_reference


RESPONSES = {"x": [(1.0, 2), (0.0, 3), (0.5, 1)], "y": [(0.0, 2), (1.0, 2), (0.25, 4)]}
"""Rewards and lengths of the responses to two prompts."""
BETA = 0.3


def targets(monkeypatch: pytest.MonkeyPatch, rejected: str = "", **changes: Any) -> dict[str, dict[str, Any]]:
    """Rows of the responses after the trainer's own calculation of their targets."""
    store = Store()
    for module in (trainer_base, rollout_batch):
        monkeypatch.setattr(module, "tq", store)
    generator = torch.Generator().manual_seed(0)
    for prompt, responses in RESPONSES.items():
        for i, (reward, length) in enumerate(responses):
            scores = torch.zeros(length)
            scores[-1] = reward
            old = -torch.rand(length, generator=generator)
            key = f"{prompt}_{i}_0"
            store.rows[key] = {
                "uid": prompt,
                "response_mask": torch.ones(length, dtype=torch.int64),
                "rm_scores": scores,
                "old_log_probs": old,
                "ref_log_prob": -torch.rand(length, generator=generator),
                "rollout_log_probs": old + 3 * (key == rejected),
            }
    trainer = object.__new__(trainer_modes.GroupTrainerSync)
    trainer.config = composed(["+algo=gvpo", f"actor_rollout_ref.actor.policy_loss.gvpo_beta={BETA}"])
    for key, value in changes.items():
        OmegaConf.update(trainer.config, key.replace("__", "."), value)
    tags = [{} for _ in store.rows]
    trainer._compute_advantage(KVBatchMeta(partition_id="train", keys=list(store.rows), tags=tags), {})
    return store.rows


def test_the_reference_is_brought_to_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = targets(monkeypatch, algorithm__grpo_ext__gvpo_anchor="ref")
    for prompt, responses in RESPONSES.items():
        own = [rows[f"{prompt}_{i}_0"] for i in range(len(responses))]
        ratios = [float((row["old_log_probs"] - row["ref_log_prob"]).double().sum()) for row in own]
        for row, (reward, _), ratio in zip(own, responses, ratios, strict=True):
            centred = reward - oracles.mean([r for r, _ in responses])
            wanted = centred - BETA * (ratio - oracles.mean(ratios))
            assert row["advantages"].tolist() == pytest.approx([wanted] * len(row["advantages"]), abs=1e-6)


def test_gvpo_leaves_rejected_responses_out_of_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl rejects a response whose probabilities under rollout and actor differ by a factor e³ a token."""
    rejection = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.5_2.0"}
    rows = targets(monkeypatch, rejected="x_1_0", algorithm__rollout_correction=rejection)
    assert rows["x_1_0"]["response_mask"].tolist() == [0, 0, 0]
    assert [int(rows[f"x_{i}_0"]["group_size"]) for i in (0, 2)] == [2, 2]
    assert [int(rows[f"y_{i}_0"]["group_size"]) for i in range(3)] == [3, 3, 3]
    # What is left of the prompt are the rewards 1 and 0.5.
    assert rows["x_0_0"]["advantages"].tolist() == pytest.approx([0.25, 0.25])
    assert rows["x_2_0"]["advantages"].tolist() == pytest.approx([-0.25])
    assert rows["x_1_0"]["advantages"].tolist() == [0, 0, 0]


def test_steps_count_for_the_tokens_that_are_left() -> None:
    """A step whose last token is rejected still rewards the tokens before it."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    steps = BatchSteps(torch.tensor([1.0, 0.25, 0.5]), torch.tensor([0, 0, 1]), torch.tensor([1, 3, 2]))
    algorithm = OmegaConf.create({"adv_estimator": "grpo_process"})

    def advantages(response_mask: torch.Tensor) -> torch.Tensor:
        with STEPS.set(steps):
            return ESTIMATOR_FUNCTIONS["grpo_process"](
                torch.zeros(2, 4), response_mask, ["x", "x"], algorithm
            )[0]

    left = mask.clone()
    left[0, 1] = left[1, 2] = 0
    assert advantages(mask)[0, 1] != 0
    assert torch.equal(advantages(left), advantages(mask) * left)


F64 = torch.float64
OURS = {case.name: case for case in OUR_CASES}


def test_gvpo_is_the_same_with_importance_weights() -> None:
    batch = ragged_batch(F64)
    rows = list(range(len(batch)))
    model_output, data = micro_batch(batch, rows, dp_size=1)
    config = actor_config(OURS["gvpo"], use_kl_loss=False)
    weights = data["old_log_probs"].exp()
    with GROUPS.set(at_first_update(len(rows), config.rollout_n)):
        plain, _ = ppo_loss(config, model_output, data)
        data["rollout_is_weights"] = weights
        weighted, _ = ppo_loss(config, model_output, data)
    assert weighted.item() == plain.item()


@pytest.mark.parametrize("case", OUR_CASES, ids=lambda case: case.name)
def test_distillation_is_added_to_the_loss(case: Case) -> None:
    """verl's loss of a training that distils is ours, and its own times a coefficient."""
    batch = ragged_batch(F64)
    rows = list(range(len(batch)))
    model_output, data = micro_batch(batch, rows, dp_size=1)
    data["teacher_logprobs"] = torch.nested.as_nested_tensor(
        [(row + 0.5).unsqueeze(-1) for row in batch.log_prob], layout=torch.jagged
    )
    config = actor_config(case, use_kl_loss=False)
    distillation = DistillationConfig(
        distillation_loss=DistillationLossConfig(
            loss_mode="k3", use_policy_gradient=False, distillation_loss_coef=0.25
        )
    )
    with GROUPS.set(at_first_update(len(rows), config.rollout_n)):
        ours, _ = ppo_loss(config, model_output, data)
        ours = ours.item()  # verl adds to it in place
        whole, _ = distillation_ppo_loss(config, distillation, model_output=model_output, data=data)
    added, _ = distillation_loss(config, distillation, model_output, data)
    assert added.item() > 0
    assert whole.item() == pytest.approx(ours + 0.25 * added.item(), rel=1e-12)


def test_verls_loss_of_a_teachers_top_tokens_reaches_the_logits() -> None:
    """verl's engines first call the loss with the student's logits alone, for what is kept of them."""
    kept = {"topk_log_probs": torch.ones(1)}

    def loss(config: object, *, student_logits: str, data: str) -> dict[str, torch.Tensor]:
        assert (student_logits, data) == ("logits", "rows")
        return kept

    actor = worker.GroupTrainingWorker.__new__(worker.GroupTrainingWorker)
    actor.set_loss_fn(functools.partial(loss, config=actor_config(OUR_CASES[0], use_kl_loss=False)))
    assert actor.loss_fn(student_logits="logits", data="rows") is kept

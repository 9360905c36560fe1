"""Check that the configured reward reaches the algorithm in the form that it needs."""

from collections.abc import Iterator, Sequence

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import verls
from grpo_verl_ext.catalogue.requires import OUR_MODES, If, In, NoneWith, Off, Trainer, refused, runs_v1
from grpo_verl_ext.rewards import functions, weighted_sum
from grpo_verl_ext.utils import keys
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.utils.errors import Line, Problem, SettingError
from grpo_verl_ext.utils.keys import ACTOR, AGENT_LOOP, MODEL, REWARD_MANAGER, ROLLOUT, SECTION, setting
from grpo_verl_ext.verl_plugin.agent_loops import check_loops_of_data
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS, Options
from grpo_verl_ext.verl_plugin.features import Feature
from grpo_verl_ext.verl_plugin.model_files import local_folder, model_shape, read_config

_MANAGER, _SERVED = "reward.reward_manager.name", "reward.reward_model.enable"
_FUNCTION = "reward.custom_reward_function"
_FILTER, _METRIC = "algorithm.filter_groups.enable", "algorithm.filter_groups.metric"
_KEYS = "algorithm.gdpo_reward_keys"
_REPORTED_BY_VERLS = ("score", "acc")
"""Numbers that a reward function of verl 0.9's reports, for one data source or another."""
_SHAPED = ("reward", "score", "seq_reward", "seq_final_reward")
"""Metrics of dynamic sampling that are the shaped reward, not the correctness of the answer."""


def _check_rewards(config: DictConfig) -> None:
    """Refuse weights that name no part of our reward, and functions that fail to load.

    In a rollout verl only logs the error. A function whose file, package or imports are missing here is not
    checked: on a cluster perhaps only the workers have them.
    """
    reward = config.reward.custom_reward_function
    weights = (reward.get("reward_kwargs") or {}).get("weights")
    if reward.path == f"pkg://{weighted_sum.__name__}" and weights is not None:
        try:
            weighted_sum.check_weights(weights)
            for name in weights:
                if name not in weighted_sum.REWARDS:
                    functions.load_function(name)
        except ValueError as error:
            if not isinstance(error.__cause__, ImportError):
                raise SettingError(f"{_FUNCTION}.reward_kwargs.weights", weights, seen=str(error)) from error


def _check_reward_model(config: DictConfig) -> None:
    """Refuse ``rule_and_model`` without a usable classifier, and a classifier that nobody asks."""
    options, key = Options.from_config(config.algorithm).reward_model, f"{SECTION}.reward_model"
    manager = config.reward.reward_manager.name
    if manager != REWARD_MANAGER:
        if options is not None:
            why = f"{key} is set, and this manager calls no reward model"
            fix = Line(f"{_MANAGER}={REWARD_MANAGER}", more=f", or ~{key}")
            raise SettingError(_MANAGER, manager, why=why, valid=REWARD_MANAGER, fix=fix)
        return
    if options is None or options.path is None:
        typed = f"+{key}.path=<folder of a reward model>"
        raise SettingError(_MANAGER, manager, why=f"{key}.path is null", fix=typed)
    if verls.asks_model_alone(config):
        why = "without reward.custom_reward_function.path verl then asks its own reward model and never "
        why += f"calls {_MANAGER}={manager}"
        raise SettingError(_SERVED, True, why=why, valid="false", fix=Line(f"{_SERVED}=false"))
    if (folder := local_folder(options.path)) is None:
        return
    of_steps, template = catalogue.learns_from_steps(config), f"{key}.chat_template"
    head = "ForTokenClassification" if of_steps else "ForSequenceClassification"
    key, typed = f"{key}.path", f"{key}.path=<folder of a model …{head}>"
    architectures = read_config(folder, key=key, fix=typed).get("architectures")
    first = str(architectures[0]) if isinstance(architectures, list) and architectures else "none"
    if not first.endswith(head):
        why, valid = f"its architecture is {first}, not a classifier", f"an architecture …{head}"
        raise SettingError(key, options.path, why=why, valid=valid, fix=typed)
    file = folder / "tokenizer_config.json"
    has_template = file.is_file() and b'"chat_template"' in file.read_bytes()
    if options.chat_template and not (has_template or (folder / "chat_template.jinja").is_file()):
        why = f"{template} is true, and its tokenizer has no chat template"
        raise SettingError(key, options.path, why=why, fix=Line(f"{template}=false"))


def _advise_legacy_sections(config: DictConfig) -> Iterator[Problem]:
    """Warn of keys of older verl, which verl ignores: it would train with another reward."""
    why = "verl 0.9's main_ppo accepts this key and never reads it"
    for section in ("custom_reward_function", "reward_model", "sandbox_fusion"):
        there = config.get(section)
        content = OmegaConf.to_container(there, resolve=True) if OmegaConf.is_dict(there) else there
        for key, value in leaves({section: content}):
            if value not in (None, {}):
                home = keys.moved_key(key)
                yield Problem(key, value, Line(f"{home}={value}"), why, home)


def _check_dynamic_sampling(config: DictConfig) -> None:
    """Refuse dynamic sampling by a number that our reward function does not report; verl would end later."""
    if not setting(config, _FILTER):
        return
    metric = setting(config, _METRIC)
    if runs_v1(config) and str(metric).startswith("seq_"):
        why = "verl's v1 trainers look for it among the numbers of the reward function"
        raise SettingError(_METRIC, metric, why=why, valid=_SHAPED[:2], fix=Line(f"{_METRIC}={_SHAPED[0]}"))
    of_manager = ("overlong", "overlong_reward") if verls.overlong_punishment(config) else ()
    names = weighted_sum.reported_names(config.reward.custom_reward_function)
    calls_it = setting(config, _MANAGER) in ("naive", verls.OVERLONG_MANAGER)
    if calls_it and names is not None and metric not in (_SHAPED[0], *of_manager, *names):
        why = f"the reward function {weighted_sum.__name__} reports no {metric} with these reward_kwargs"
        valid = (_SHAPED[0], *names)
        raise SettingError(_METRIC, metric, why=why, valid=valid, fix=Line(f"{_METRIC}=acc"))


def _advise_budgets(config: DictConfig) -> Iterator[Problem]:
    """Warn where rollout, punishment or masking of truncated responses have another budget than the data."""
    key, data = "data.max_response_length", config.data
    prompt, budget = data.max_prompt_length, data.max_response_length
    why = f"{key} is {budget}: truncated responses would be missed, or whole ones taken for truncated"
    for other, is_read in (
        (f"{ROLLOUT}.response_length", True),
        (f"{SECTION}.max_response_length", setting(config, f"{SECTION}.mask_truncated_completions")),
        ("reward.reward_kwargs.max_resp_len", verls.overlong_punishment(config)),
    ):
        if is_read and setting(config, other, budget) != budget:
            yield Problem(other, setting(config, other), Line(f"{other}=${{{key}}}"), why)
    # a response that the context cuts off before its budget is not known to be truncated
    given = setting(config, f"{ROLLOUT}.max_model_len")
    shape = model_shape(setting(config, MODEL)) if given is None else None
    context = given if shape is None else shape.positions
    if context is not None and context < prompt + budget:
        why = f"the context has {context} tokens (max_model_len, else the model's): a response to a long "
        why += "prompt is cut off before its budget, and only one that reaches it is counted as truncated"
        valid = f"at most {context} with data.max_prompt_length, which is {prompt}"
        longer = f", or {ROLLOUT}.max_model_len={prompt + budget}" if given else ""
        fix = Line(f"{key}={context - prompt}", more=longer) if context > prompt else f"{MODEL}=<another>"
        yield Problem(key, budget, fix, why, valid)


def _check_steps(config: DictConfig) -> None:
    """Refuse ``grpo_process`` with data that ask for a loop without steps, or a function without any."""
    if not catalogue.learns_from_steps(config):
        return
    needs = "algorithm.adv_estimator=grpo_process needs"
    check_loops_of_data(config, AGENT_LOOPS, f"{needs} one that keeps step rewards", "+algo@_global_=grpo")
    key, given = f"{_FUNCTION}.path", f"{_FUNCTION}.reward_kwargs.step_rewards"
    path, has_steps = setting(config, key), setting(config, given)
    is_kept = setting(config, _MANAGER) in ("naive", REWARD_MANAGER)
    if not is_kept or setting(config, AGENT_LOOP) not in AGENT_LOOPS.values():
        return
    why = f"{needs} the step_rewards of a reward function"
    if path is None:
        raise SettingError(key, None, why=why, valid="a file or module with yours", fix=f"{key}=<file>")
    if path == f"pkg://{weighted_sum.__name__}" and not has_steps:
        raise SettingError(given, has_steps, why=why, valid="true", fix=Line(f"++{given}=true"))


def _check_several(config: DictConfig) -> None:
    """Refuse GDPO with fewer than two rewards, or with one that verl's or our function does not report."""
    if not catalogue.learns_from_several_rewards(config):
        return
    given, function = setting(config, _KEYS, []), config.reward.custom_reward_function
    names = [given] if isinstance(given, str) else list(given)
    if len(set(names)) < max(2, len(names)):
        why = "GDPO normalises each of several rewards on its own (arXiv 2601.05242)"
        valid = "two or more different names that the reward function returns beside its score"
        fix = Line(f"{_KEYS}=[correctness,format]", more=", or for one reward: +algo@_global_=grpo")
        raise SettingError(_KEYS, names, why=why, valid=valid, fix=fix)
    reported: Sequence[str] | None = () if verls.asks_model_alone(config) else None
    if reported is None and setting(config, _MANAGER) == "naive":
        of_ours = weighted_sum.reported_names(function)
        reported = _REPORTED_BY_VERLS if function.path is None else of_ours
    if reported is not None and (missing := [name for name in names if name not in reported]):
        why = f"with these keys of {_FUNCTION} nothing reports {' or '.join(missing)}"
        kept = [name for name in names if name in reported]
        typed = [*kept, *(name for name in reported if name not in kept)][: len(names)]
        line = f"{_FUNCTION}.path=<file>" if function.path is None else f"{_KEYS}=[{','.join(typed)}]"
        of_yours = "names that a reward function of yours returns"
        raise SettingError(_KEYS, names, why=why, valid=reported or of_yours, fix=Line(line))


_UNREAD = "the reward of whole responses, which the estimator does not read"

_OTHER_REWARDS = (
    *refused(
        Off(
            verls.KL_IN_REWARD,
            f"is subtracted from {_UNREAD}",
            when=If("algorithm.kl_ctrl.kl_coef"),
            line=Line(f"{verls.KL_IN_REWARD}=false", f"{ACTOR}.use_kl_loss=true"),
        ),
        Off(verls.PUNISHES, f"is added to {_UNREAD}", when=verls.overlong_punishment),
    ),
    Off(_FILTER, "drops prompts by one number, and the estimator learns from others"),
)
"""For an estimator that learns from the rewards of steps, or from several rewards."""

_STEP_REWARDS = Feature(
    name="steps",
    used=catalogue.learns_from_steps,
    requires=(
        *refused(
            Trainer(OUR_MODES, "does not pass the steps to the estimator"),
            *(
                NoneWith(AGENT_LOOP, loop, "drops step rewards", line=Line(f"{AGENT_LOOP}={ours}"))
                for loop, ours in AGENT_LOOPS.items()
            ),
        ),
        *_OTHER_REWARDS,
    ),
    checks={"reported-steps": _check_steps},
    trainer=f"{__package__}.trainer:OtherRewardsMixin",
    agent_loops=dict.fromkeys(AGENT_LOOPS.values(), "grpo_verl_ext.verl_plugin.agent_loops.loops"),
)
_SEVERAL_REWARDS = Feature(
    name="several-rewards",
    used=catalogue.learns_from_several_rewards,
    requires=(
        *refused(
            Trainer(OUR_MODES, "passes only the sum of the rewards to the estimator"),
            In(
                f"{SECTION}.scale_rewards",
                ("group", None),
                "is not a reward's standard deviation in the group, by which GDPO divides (arXiv 2601.05242)",
            ),
            In(
                _MANAGER,
                ("naive",),
                f"adds the model's score to {_UNREAD}",
                when=If(_MANAGER, (REWARD_MANAGER,)),
                line=Line(f"{_MANAGER}=naive", without=(f"{SECTION}.reward_model",)),
            ),
        ),
        *_OTHER_REWARDS,
    ),
    checks={"reported-rewards": _check_several},
)
_SHAPED_REWARD = Feature(
    name="dynamic-sampling",
    used=If(_FILTER),
    requires=(
        In(
            _METRIC,
            ("acc",),
            "the overlong punishment changes: a prompt whose answers are all right, but differ in length, "
            "would be kept; DAPO's condition is 0 < #correct < G (arXiv 2503.14476, eq. 11)",
            when=verls.overlong_punishment,
            test=lambda metric, _: metric not in _SHAPED,
            words="that is not the shaped reward, such as acc",
        ),
    ),
    checks={"dynamic-sampling": _check_dynamic_sampling},
)
_REWARD_MODELS = Feature(
    checks={"reward-weights": _check_rewards, "reward-model": _check_reward_model},
    advice={
        "budgets": _advise_budgets,
        "legacy-reward": _advise_legacy_sections,
    },
)

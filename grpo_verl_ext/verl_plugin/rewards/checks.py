"""Check that the configured reward reaches the algorithm in the form that it needs."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.verls import (
    OVERLONG_MANAGER,
    advise_punishment,
    asks_model_alone,
    overlong_punishment,
)
from grpo_verl_ext.rewards import functions, weighted_sum
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.utils.errors import Line, Problem, SettingError
from grpo_verl_ext.utils.keys import MODEL, REWARD_MANAGER, ROLLOUT, SECTION, moved_key, setting, written
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.features import Feature
from grpo_verl_ext.verl_plugin.model_files import check_head, has_chat_template, model_shape

_MANAGER, _SERVED = "reward.reward_manager.name", "reward.reward_model.enable"
_ARGUMENTS = "reward.custom_reward_function.reward_kwargs"
_FILTER, _METRIC = "algorithm.filter_groups.enable", "algorithm.filter_groups.metric"
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
            for name in filter(functions.is_here, weighted_sum.functions_in(weights)):
                functions.load_function(name)
        except ValueError as error:
            if not isinstance(error.__cause__, ImportError):
                raise SettingError(f"{_ARGUMENTS}.weights", weights, seen=str(error)) from error


def _check_reward_arguments(config: DictConfig) -> None:
    """Refuse a function that cannot take what ``reward_kwargs``, perhaps a task's, or verl's server gives it.

    verl would call it, and fail, when the first responses are there. The file is read and not run, and
    nothing is said of a function whose name the file mentions again, or may import.
    """
    reward = config.reward.custom_reward_function
    file, name = Path(str(reward.path or "").removeprefix("file://")).expanduser(), str(reward.name)
    try:
        read = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    said = [getattr(node, each, None) for node in ast.walk(read) for each in ("name", "asname", "id")]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [each for each in read.body if isinstance(each, kinds) and each.name == name]
    is_sure = len(found) == 1 and said.count(name) == 1 and "*" not in said
    if not is_sure or found[0].args.kwarg is not None or found[0].decorator_list:
        return
    taken = {each.arg for each in (*found[0].args.args, *found[0].args.kwonlyargs)}
    given = list(setting(config, _ARGUMENTS, {}))
    if unknown := [each for each in given if each not in taken]:
        why = f"{name} in {file} has no parameter {unknown[0]}"
        fix = Line(f"~{_ARGUMENTS}", more=f", or let the parameters of {name} end with **_")
        raise SettingError(_ARGUMENTS, given, why=why, fix=fix)
    is_called = setting(config, _MANAGER) in ("naive", OVERLONG_MANAGER, REWARD_MANAGER)
    by_verl = weighted_sum.PASSED_BY_VERL if is_called and config.reward.reward_model.enable else ()
    if unknown := [each for each in by_verl if each not in taken]:
        key, valid = "reward.custom_reward_function.path", "a function that takes it"
        why = f"its {name} has no parameter {unknown[0]}, which verl gives it with {_SERVED}=true"
        other = f"**_ as the last of the parameters of {name}"
        raise SettingError(key, str(file), why=why, valid=valid, fix=other)


def _check_reward_model(config: DictConfig) -> None:
    """Refuse ``rule_and_model`` without a usable classifier, and a classifier that nobody asks."""
    options, path = Options.from_config(config.algorithm).reward_model, f"{SECTION}.reward_model.path"
    manager = config.reward.reward_manager.name
    if manager != REWARD_MANAGER:
        if options is not None:
            why = f"{SECTION}.reward_model is set, and this manager asks no reward model"
            fix = Line(f"{_MANAGER}={REWARD_MANAGER}", more=f", or ~{SECTION}.reward_model")
            raise SettingError(_MANAGER, manager, why=why, valid=REWARD_MANAGER, fix=fix)
        return
    if options is None or options.path is None:
        typed = f"+{path}=<folder of a reward model>"
        raise SettingError(_MANAGER, manager, why=f"{path} is null", fix=typed)
    if asks_model_alone(config):
        why = "without reward.custom_reward_function.path verl then asks its own reward model and never "
        why += f"calls {_MANAGER}={manager}"
        raise SettingError(_SERVED, True, why=why, valid="false", fix=Line(f"{_SERVED}=false"))
    of_steps = catalogue.learns_from_steps(config)
    folder = check_head(
        options.path,
        key=path,
        head="ForTokenClassification" if of_steps else "ForSequenceClassification",
        outputs=2 if of_steps else 1,
        what="token classifier with two outputs" if of_steps else "sequence classifier with one output",
    )
    if folder is not None and options.chat_template and not has_chat_template(folder):
        off = f"{SECTION}.reward_model.chat_template"
        why = f"{off} is true, and its tokenizer has no chat template"
        raise SettingError(path, options.path, why=why, fix=Line(f"{off}=false"))


def _advise_legacy_sections(config: DictConfig) -> Iterator[Problem]:
    """Warn of keys of older verl, which verl ignores: it would train with another reward."""
    why = "verl 0.9's main_ppo accepts this key and never reads it"
    for section in ("custom_reward_function", "reward_model", "sandbox_fusion"):
        there = config.get(section)
        content = OmegaConf.to_container(there, resolve=True) if OmegaConf.is_dict(there) else there
        for key, value in leaves({section: content}):
            if value not in (None, {}):
                home = moved_key(key)
                yield Problem(key, value, Line(f"{home}={value}"), why, home)


def _check_dynamic_sampling(config: DictConfig) -> None:
    """Refuse dynamic sampling by a number that this package's reward function does not report.

    verl would end the training after the first rollout.
    """
    metric, names = setting(config, _METRIC), None
    if setting(config, _FILTER) and setting(config, _MANAGER) in ("naive", OVERLONG_MANAGER):
        names = weighted_sum.reported_names(config.reward.custom_reward_function)
    of_manager = (_SHAPED[0], *(("overlong", "overlong_reward") if overlong_punishment(config) else ()))
    if names is not None and metric not in (*of_manager, *names):
        why = f"the reward function {weighted_sum.__name__} reports no {metric} with these reward_kwargs"
        fix = Line(f"{_METRIC}=acc")
        raise SettingError(_METRIC, metric, why=why, valid=(_SHAPED[0], *names), fix=fix)


def _advise_dynamic_sampling(config: DictConfig) -> Iterator[Problem]:
    """Warn of dynamic sampling by a shaped reward; DAPO's is by correctness, arXiv 2503.14476, eq. 11."""
    metric = setting(config, _METRIC)
    if setting(config, _FILTER) and metric in _SHAPED and overlong_punishment(config):
        why = (
            "the overlong punishment changes it: a prompt whose answers are all right, but differ in "
            "length, would be kept; DAPO's condition is 0 < #correct < G (arXiv 2503.14476, eq. 11)"
        )
        yield Problem(_METRIC, metric, Line(f"{_METRIC}=acc"), why)


def _advise_budgets(config: DictConfig) -> Iterator[Problem]:
    """Warn where rollout, punishment or masking of truncated responses have another budget than the data."""
    budget, options = config.data.max_response_length, written(config.algorithm)
    told: dict[str, Any] = {f"{ROLLOUT}.response_length": config.actor_rollout_ref.rollout.response_length}
    if options.get("mask_truncated_completions"):
        told[f"{SECTION}.max_response_length"] = options.get("max_response_length")
    if overlong_punishment(config):
        told["reward.reward_kwargs.max_resp_len"] = config.reward.reward_kwargs.get("max_resp_len")
    why = f"data.max_response_length is {budget}: truncated responses would be missed, or whole ones taken "
    for key, value in told.items():
        if value is not None and value != budget:
            yield Problem(key, value, Line(f"{key}=${{data.max_response_length}}"), f"{why}for truncated")
    if len(told) > 1:
        yield from _advise_context(config)


def _advise_context(config: DictConfig) -> Iterator[Problem]:
    """Warn of a context in which a response is cut before its budget, by which a truncated one is known."""
    key, data = f"{ROLLOUT}.max_model_len", config.data
    given, longest = setting(config, key), data.max_prompt_length + data.max_response_length
    shape = model_shape(setting(config, MODEL)) if given is None else None
    context = given if shape is None else shape.positions
    if context is None or context >= longest:
        return
    why = (
        "a response to a long prompt is cut off before it has data.max_response_length tokens, by which "
        "punishment and masking know a truncated one"
    )
    if given is not None:
        at_least = f"at least {longest}, the longest prompt and response"
        yield Problem(key, given, Line(f"{key}={longest}"), why, at_least)
        return
    key, room = "data.max_response_length", context - data.max_prompt_length
    valid = f"at most {context} with data.max_prompt_length, which is {data.max_prompt_length}"
    fix = Line(f"{key}={room}" if room > 0 else f"{MODEL}=<another>")
    why = f"the model has a context of {context} tokens: {why}"
    yield Problem(key, data.max_response_length, fix, why, valid)


_REWARD_MODELS = Feature(
    checks={
        "reward-weights": _check_rewards,
        "reward-arguments": _check_reward_arguments,
        "reward-model": _check_reward_model,
        "dynamic-sampling": _check_dynamic_sampling,
    },
    advice={
        "dynamic-sampling": _advise_dynamic_sampling,
        "budgets": _advise_budgets,
        "punishment": advise_punishment,
        "legacy-reward": _advise_legacy_sections,
    },
)

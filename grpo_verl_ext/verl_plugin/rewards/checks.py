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
from grpo_verl_ext.utils.errors import Line, Problem, SettingError
from grpo_verl_ext.utils.keys import MODEL, REWARD_MANAGER, ROLLOUT, SECTION, moved_key, setting, written
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.features import Feature
from grpo_verl_ext.verl_plugin.model_files import check_head, has_chat_template, model_shape

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
                key = "reward.custom_reward_function.reward_kwargs.weights"
                raise SettingError(key, weights, seen=str(error)) from error


def _check_reward_arguments(config: DictConfig) -> None:
    """Refuse a function that cannot take what ``reward_kwargs``, perhaps a task's, or verl's server gives it.

    verl would call it, and fail, when the first responses are there. The file is read and not run.
    """
    reward, key = config.reward.custom_reward_function, "reward.custom_reward_function.reward_kwargs"
    file = Path(str(reward.path or "").removeprefix("file://")).expanduser()
    function = _function_in(file, str(reward.name))
    if function is None or function.args.kwarg is not None or function.decorator_list:
        return
    taken = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
    given = list(setting(config, key, {}))
    if unknown := [each for each in given if each not in taken]:
        raise SettingError(
            key,
            given,
            why=f"{reward.name} in {file} has no parameter {unknown[0]}",
            fix=Line(f"~{key}", more=f", or let the parameters of {reward.name} end with **_"),
        )
    is_called = setting(config, "reward.reward_manager.name") in ("naive", OVERLONG_MANAGER, REWARD_MANAGER)
    by_verl = weighted_sum.PASSED_BY_VERL if is_called and config.reward.reward_model.enable else ()
    if unknown := [each for each in by_verl if each not in taken]:
        raise SettingError(
            "reward.custom_reward_function.path",
            str(file),
            why=f"its {reward.name} has no parameter {unknown[0]}, which verl gives it with "
            "reward.reward_model.enable=true",
            valid="a function that takes it",
            fix=f"**_ as the last of the parameters of {reward.name}",
        )


def _function_in(file: Path, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the function of a file of Python; None where anything else may bind its name."""
    try:
        read = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    bound = [
        node
        for node in ast.walk(read)
        if {name, "*"} & {getattr(node, "name", None), getattr(node, "asname", None)}
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name)
    ]
    is_only = len(bound) == 1 and bound[0] in read.body
    return bound[0] if is_only and isinstance(bound[0], ast.FunctionDef | ast.AsyncFunctionDef) else None


def _check_reward_model(config: DictConfig) -> None:
    """Refuse ``rule_and_model`` without a usable classifier, and a classifier that nobody asks."""
    options, path = Options.from_config(config.algorithm).reward_model, f"{SECTION}.reward_model.path"
    manager, key = config.reward.reward_manager.name, "reward.reward_manager.name"
    if manager != REWARD_MANAGER:
        if options is not None:
            why = f"{SECTION}.reward_model is set, and this manager asks no reward model"
            fix = Line(f"{key}={REWARD_MANAGER}", more=f", or ~{SECTION}.reward_model")
            raise SettingError(key, manager, why=why, valid=REWARD_MANAGER, fix=fix)
        return
    if options is None or options.path is None:
        raise SettingError(key, manager, why=f"{path} is null", fix=f"+{path}=<folder of a reward model>")
    if asks_model_alone(config):
        raise SettingError(
            "reward.reward_model.enable",
            True,
            why="without reward.custom_reward_function.path verl then asks its own reward model and never "
            f"calls {key}={manager}",
            valid="false",
            fix=Line("reward.reward_model.enable=false"),
        )
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
    for section in ("custom_reward_function", "reward_model", "sandbox_fusion"):
        for key, value in _leaves(config.get(section), section):
            if value is not None:
                home = moved_key(key)
                yield Problem(
                    key,
                    value,
                    why="verl 0.9's main_ppo accepts this key and never reads it",
                    valid=home,
                    fix=Line(f"{home}={value}"),
                )


def _check_dynamic_sampling(config: DictConfig) -> None:
    """Refuse dynamic sampling by a number that this package's reward function does not report.

    verl would end the training after the first rollout.
    """
    key, manager = "algorithm.filter_groups", setting(config, "reward.reward_manager.name")
    metric, names = setting(config, f"{key}.metric"), None
    if setting(config, f"{key}.enable") and manager in ("naive", OVERLONG_MANAGER):
        names = weighted_sum.reported_names(config.reward.custom_reward_function)
    of_manager = (_SHAPED[0], *(("overlong", "overlong_reward") if overlong_punishment(config) else ()))
    if names is not None and metric not in (*of_manager, *names):
        raise SettingError(
            f"{key}.metric",
            metric,
            why=f"the reward function {weighted_sum.__name__} reports no {metric} with these reward_kwargs",
            valid=(_SHAPED[0], *names),
            fix=Line(f"{key}.metric=acc"),
        )


def _advise_dynamic_sampling(config: DictConfig) -> Iterator[Problem]:
    """Warn of dynamic sampling by a shaped reward.

    DAPO samples by correctness, arXiv 2503.14476, eq. 11.
    """
    groups, shaping = config.algorithm.get("filter_groups"), overlong_punishment(config)
    if not groups or not groups.enable:
        return
    if groups.metric in _SHAPED and shaping:
        key = "algorithm.filter_groups.metric"
        yield Problem(
            key,
            groups.metric,
            why="the overlong punishment changes it: a prompt whose answers are all right, but differ in "
            "length, would be kept; DAPO's condition is 0 < #correct < G (arXiv 2503.14476, eq. 11)",
            fix=Line(f"{key}=acc"),
        )


def _advise_budgets(config: DictConfig) -> Iterator[Problem]:
    """Warn where rollout, punishment or masking of truncated responses have another budget than the data."""
    budget = config.data.max_response_length
    options = written(config.algorithm)
    told: dict[str, Any] = {f"{ROLLOUT}.response_length": config.actor_rollout_ref.rollout.response_length}
    if options.get("mask_truncated_completions"):
        told["algorithm.grpo_ext.max_response_length"] = options.get("max_response_length")
    if overlong_punishment(config):
        told["reward.reward_kwargs.max_resp_len"] = config.reward.reward_kwargs.get("max_resp_len")
    for key, value in told.items():
        if value is not None and value != budget:
            yield Problem(
                key,
                value,
                why=f"data.max_response_length is {budget}: truncated responses would be missed, or whole "
                "ones taken for truncated",
                fix=Line(f"{key}=${{data.max_response_length}}"),
            )
    yield from _advise_context(config, looks_at_length=len(told) > 1)


def _advise_context(config: DictConfig, *, looks_at_length: bool) -> Iterator[Problem]:
    """Warn of a context in which a response is cut before its budget, by which a truncated one is known."""
    key, data = f"{ROLLOUT}.max_model_len", config.data
    given, longest = setting(config, key), data.max_prompt_length + data.max_response_length
    shape = model_shape(setting(config, MODEL)) if looks_at_length and given is None else None
    context = given if shape is None else shape.positions
    if not looks_at_length or context is None or context >= longest:
        return
    why = (
        "a response to a long prompt is cut off before it has data.max_response_length tokens, by which "
        "punishment and masking know a truncated one"
    )
    if given is not None:
        at_least = f"at least {longest}, the longest prompt and response"
        yield Problem(key, given, why=why, valid=at_least, fix=Line(f"{key}={longest}"))
        return
    room = context - data.max_prompt_length
    yield Problem(
        "data.max_response_length",
        data.max_response_length,
        why=f"the model has a context of {context} tokens: {why}",
        valid=f"at most {context} with data.max_prompt_length, which is {data.max_prompt_length}",
        fix=Line(f"data.max_response_length={room}") if room > 0 else Line(f"{MODEL}=<another>"),
    )


def _leaves(section: Any, name: str) -> Iterator[tuple[str, Any]]:
    if OmegaConf.is_dict(section):
        for key in section:
            yield from _leaves(section[key], f"{name}.{key}")
    else:
        yield name, section


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

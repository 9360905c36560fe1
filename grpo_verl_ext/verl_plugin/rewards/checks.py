"""Check that the configured reward reaches the algorithm in the form that it needs."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.catalogue.verls import (
    OVERLONG_MANAGER,
    advise_punishment,
    asks_model_alone,
    overlong_punishment,
)
from grpo_verl_ext.rewards import functions, weighted_sum
from grpo_verl_ext.utils.errors import Line, Problem, SettingError
from grpo_verl_ext.utils.keys import MODEL, ROLLOUT, SECTION, moved_key, setting
from grpo_verl_ext.verl_plugin.config import (
    REWARD_MANAGER,
    ClassifierOptions,
    Options,
    RewardModelOptions,
    asks_reward_model,
    written,
)
from grpo_verl_ext.verl_plugin.features import Feature, all_features
from grpo_verl_ext.verl_plugin.model_files import check_head, has_chat_template, model_shape

_SHAPED = ("reward", "score", "seq_reward", "seq_final_reward")
"""Metrics of dynamic sampling that are the shaped reward, not the correctness of the answer."""


def check_rewards(config: DictConfig) -> None:
    """Refuse weights that name no part of our reward, functions that fail to load, and a missing package.

    In a rollout verl only logs the error. A function whose file, package or imports are missing here is not
    checked: on a cluster perhaps only the workers have them.
    """
    reward = config.reward.custom_reward_function
    weights = (reward.get("reward_kwargs") or {}).get("weights")
    if reward.path == f"pkg://{weighted_sum.__name__}" and weights is not None:
        try:
            weighted_sum.check_weights(weights)
            for name in filter(functions.is_here, weighted_sum.functions_in(weights)):
                _load_unless_imports_are_missing(name)
        except ValueError as error:
            key = "reward.custom_reward_function.reward_kwargs.weights"
            raise SettingError(key, weights, seen=str(error)) from error


def _load_unless_imports_are_missing(name: str) -> None:
    try:
        functions.load_function(name)
    except functions.RewardFunctionError as error:
        if not isinstance(error.__cause__, ImportError):
            raise


def _check_reward_arguments(config: DictConfig) -> None:
    """Refuse a function that cannot take what ``reward_kwargs``, perhaps a task's, gives it.

    verl would call it, and fail, when the first responses are there. The file is read and not run.
    """
    key = "reward.custom_reward_function.reward_kwargs"
    given, (file, name) = list(setting(config, key, {})), _place_of_function(config)
    function = _function_in(file, name)
    if function is None or function.args.kwarg is not None or function.decorator_list:
        return
    taken = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
    if unknown := [each for each in given if each not in taken]:
        raise SettingError(
            key,
            given,
            why=f"{name} in {file} has no parameter {unknown[0]}",
            fix=Line(f"~{key}", more=f", or let the parameters of {name} end with **_"),
        )
    if unknown := [each for each in _given_by_verl(config) if each not in taken]:
        raise SettingError(
            "reward.custom_reward_function.path",
            str(file),
            why=f"its {name} has no parameter {unknown[0]}, which verl gives it with "
            "reward.reward_model.enable=true",
            valid="a function that takes it",
            fix=f"**_ as the last of the parameters of {name}",
        )


def _given_by_verl(config: DictConfig) -> Sequence[str]:
    """Return what verl gives a function for its own reward server, by the managers that are known to."""
    manager = setting(config, "reward.reward_manager.name")
    is_called = manager in ("naive", OVERLONG_MANAGER) or (
        manager == REWARD_MANAGER and setting(config, f"{SECTION}.reward_model.rule_weight", 1)
    )
    is_there = setting(config, "reward.reward_model.enable")
    return weighted_sum.PASSED_BY_VERL if is_there and is_called else ()


def _place_of_function(config: DictConfig) -> tuple[Path, str]:
    reward = config.reward.custom_reward_function
    return Path(str(reward.path or "").removeprefix("file://")).expanduser(), str(reward.name)


def _function_in(file: Path, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the function of a file of Python, whose last definition counts.

    None without it, where another statement binds the name later, or where the file is not on this machine.
    """
    try:
        read = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    last = next((each for each in reversed(read.body) if {name, "*"} & _bound_in(each)), None)
    return last if isinstance(last, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _bound_in(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds, or may bind; ``*`` for those that it imports unnamed."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    names = set[str]()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names


def check_reward_model(config: DictConfig) -> None:
    """Refuse ``rule_and_model`` without a usable reward model, or a reward model without that manager."""
    manager = config.reward.reward_manager.name
    set_here = Options.from_config(config.algorithm)
    if manager != REWARD_MANAGER:
        for name in (name for feature in all_features() for name in feature.reward_models):
            if getattr(set_here, name) is not None:
                raise SettingError(
                    "reward.reward_manager.name",
                    manager,
                    why=f"{SECTION}.{name} is set, and this manager asks no reward model",
                    valid=REWARD_MANAGER,
                    fix=Line(f"reward.reward_manager.name={REWARD_MANAGER}", more=f", or ~{SECTION}.{name}"),
                )
        return
    server = config.reward.reward_model.enable
    if server:
        _check_server(config, rule_weight=(set_here.reward_model or RewardModelOptions()).rule_weight)
    for name, model in (set_here.reward_models or {}).items():
        _check_classifier(f"{SECTION}.reward_models.{name}", model)
    _check_first_model(set_here, server=server)


def _check_server(config: DictConfig, *, rule_weight: float) -> None:
    """Refuse verl's reward server where verl would not ask this manager, or not with what its rule needs."""
    if asks_model_alone(config):
        raise SettingError(
            "reward.custom_reward_function.path",
            None,
            why=f"with reward.reward_model.enable verl then asks the reward model itself and never calls "
            f"reward.reward_manager.name={REWARD_MANAGER}",
            valid="a file or module with your rules, or verl's own rules",
            fix=Line(
                "reward.custom_reward_function.path=pkg://verl.utils.reward_score",
                "reward.custom_reward_function.name=default_compute_score",
            ),
        )
    if rule_weight and not config.reward.reward_model.enable_resource_pool:
        key = "reward.reward_model.enable_resource_pool"
        raise SettingError(
            key,
            False,
            why="verl then asks for the reward after the rollout and does not say what the reward function "
            "needs, such as the ground truth",
            valid=f"true, or {SECTION}.reward_model.rule_weight=0",
            fix=Line(
                f"{key}=true",
                "reward.reward_model.nnodes=1",
                more=", with reward.reward_model.n_gpus_per_node accelerators beside the training's",
            ),
        )


def _check_first_model(set_here: Options, *, server: bool) -> None:
    section, options = f"{SECTION}.reward_model", set_here.reward_model or RewardModelOptions()
    fix = f"+{section}.path=<folder of a reward model>"
    if not asks_reward_model(set_here, server=server):
        why = f"{section}.path is null and reward.reward_model.enable is false, so no model has it"
        unread, valid = ("weight", "chat_template", "dtype", *_OF_SERVER), f"only {section}.rule_weight"
        _check_unread(section, options, unread, why=why, valid=f"{valid} without a path", fix=fix)
    elif options.path is not None:
        _check_classifier(section, options)
    elif server:
        why = f"{section}.path is null, so that verl's own server inside the cluster is asked"
        names = ("url", "token_env", "dtype")
        _check_unread(section, options, names, why=why, valid="only with a path", fix=fix)
    else:
        raise SettingError(
            "reward.reward_manager.name",
            REWARD_MANAGER,
            why=f"there is no reward model: {section}.path is null and reward.reward_model.enable is false",
            fix=fix,
        )


_OF_SERVER = ("url", "token_env", "timeout", "retries")
"""Options about a server."""


def _check_unread(
    section: str, options: ClassifierOptions, names: Sequence[str], *, why: str, valid: str, fix: str
) -> None:
    """Refuse settings of a model or server that is not there."""
    default = type(options)()
    for name in names:
        if (value := getattr(options, name)) != getattr(default, name):
            key = f"{section}.{name}"
            raise SettingError(key, value, why=why, valid=valid, fix=f"{fix}, or ~{key}")


def _check_classifier(section: str, model: ClassifierOptions) -> None:
    key, what = f"{section}.path", "sequence classifier with one output"
    assert model.path is not None
    if model.url is None:
        why = f"{section}.url is null, so that the model is loaded and no server is asked"
        fix = f"+{section}.url=https://HOST:8000"
        _check_unread(section, model, _OF_SERVER, why=why, valid="only with a url", fix=fix)
    else:
        why = "the server at url has the model, in its own precision"
        _check_unread(
            section, model, ("dtype",), why=why, valid="only without a url", fix=Line(f"~{section}.url")
        )
    folder = check_head(model.path, key=key, head="ForSequenceClassification", outputs=1, what=what)
    if folder is not None and model.chat_template and not has_chat_template(folder):
        off = f"{section}.chat_template"
        raise SettingError(
            key,
            model.path,
            why=f"{off} is true, and its tokenizer has no chat template",
            fix=Line(f"{off}=false"),
        )


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


REWARD_MODELS = Feature(
    reward_models=("reward_model", "reward_models"),
    checks={
        "reward-weights": check_rewards,
        "reward-arguments": _check_reward_arguments,
        "reward-model": check_reward_model,
        "dynamic-sampling": _check_dynamic_sampling,
    },
    advice={
        "dynamic-sampling": _advise_dynamic_sampling,
        "budgets": _advise_budgets,
        "punishment": advise_punishment,
        "legacy-reward": _advise_legacy_sections,
    },
)

"""Keys of verl's configuration that this package reads, names or sets."""

import ast
import re
from collections.abc import Iterator, Mapping

import yaml

from grpo_verl_ext.catalogue import LOSSES
from grpo_verl_ext.contract.our_sources import Module
from grpo_verl_ext.contract.reliances import ANY_MORE
from grpo_verl_ext.contract.verl_sources import OURS, Function, Sources, statements
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.utils.keys import POLICY_LOSS

_SECTIONS = (
    *("actor_rollout_ref", "algorithm", "critic", "custom_reward_function", "data", "distillation"),
    *("ray_kwargs", "reward", "sandbox_fusion", "trainer"),
)
"""Top-level sections of verl's configuration."""
OUR_KEYS = (
    *(
        f"{POLICY_LOSS}.{name}"
        for loss in LOSSES.values()
        if loss.options
        for name in loss.options.model_fields
    ),
    "actor_rollout_ref.actor.policy_loss.max_response_length",
    "actor_rollout_ref.actor.policy_loss.off_policy_mask_threshold",
    "algorithm.grpo_ext",
    "gvpo_needs_reference",
    "task",
)
"""Keys, or sections, that this package adds and verl does not know."""
OPEN_SECTIONS = (
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.actor.megatron",
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "actor_rollout_ref.rollout.engine_kwargs",
    "algorithm.gdpo_reward_keys",
    "algorithm.gdpo_reward_weights",
    "critic.model.override_config",
    "distillation.teacher_models.teacher_model.inference.enable_sleep_mode",
    "distillation.teacher_models.teacher_model.inference.engine_kwargs",
    "ray_kwargs.ray_init",
    "reward.custom_reward_function.reward_kwargs",
    "reward.reward_kwargs",
)
"""Keys that verl's configuration does not list and its code reads, or hands on to vLLM, Ray or a reward."""

KEY = re.compile(rf"(?<![\w.{ANY_MORE}])(?:{'|'.join(_SECTIONS)})(?:\.\w+)+(?==|\Z)")
"""A key, at the end of a text or before a ``=``."""


def keys_of(ours: Mapping[str, Module]) -> Iterator[tuple[str, str]]:
    """(key of verl's configuration, module of ours that reads it or has it in a text)."""
    constants = _Constants(ours)
    for module in ours.values():
        read = [key for node in module.nodes if isinstance(node, Function) for key in _chains(node)]
        named = [key for node in module.nodes for key in KEY.findall(constants.text(node, module) or "")]
        for key in dict.fromkeys([*read, *named]):
            if "." in key and key.split(".")[0] in _SECTIONS and not _is_open(key):
                yield key, module.short


class _Constants:
    """Texts that expressions of our modules stand for, through module-level names and f-strings."""

    def __init__(self, ours: Mapping[str, Module]) -> None:
        self._assigned = {
            f"{module.name}.{target.id}": (node.value, module)
            for module in ours.values()
            for node in statements(module.nodes[0])
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def text(self, node: ast.AST, module: Module) -> str | None:
        """The text, with `ANY_MORE` for parts of an f-string that only the running program knows."""
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr(values=values):
                return "".join(self.text(value, module) or ANY_MORE for value in values)
            case ast.FormattedValue(value=value):
                return self.text(value, module)
            case ast.Name(id=name) if f"{module.name}.{name}" in self._assigned:
                return self.text(*self._assigned[f"{module.name}.{name}"])
            case ast.Name() | ast.Attribute():
                dotted = module.dotted(node)
                return self.text(*self._assigned[dotted]) if dotted in self._assigned else None
        return None


def _chains(function: ast.AST) -> Iterator[str]:
    """Keys read attribute by attribute, through names given to sections."""
    sections: dict[str, str] = {}
    for node in ast.walk(function):
        for name, value in _assigned(node):
            key = _key(value, sections)
            if key:
                sections[name] = key
    for node in ast.walk(function):
        key = _key(node, sections)
        if key:
            yield key


def _assigned(node: ast.AST) -> list[tuple[str, ast.expr]]:
    if not isinstance(node, ast.Assign):
        return []
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=True)
        return [(name.id, part) for name, part in pairs if isinstance(name, ast.Name)]
    return []


def _key(node: ast.AST, sections: dict[str, str]) -> str | None:
    """The dotted key that an expression reads; "" is the whole configuration."""
    if isinstance(node, ast.BoolOp):
        node = node.values[0]
    if isinstance(node, ast.Name):
        return "" if node.id == "config" else sections.get(node.id)
    name, owner = _step(node)
    if name == "config":
        return ""
    above = None if owner is None else _key(owner, sections)
    return f"{above}.{name}" if above else name if above == "" else None


def _step(node: ast.AST) -> tuple[str | None, ast.expr | None]:
    """``a.name`` and ``a.get("name")`` come from ``a`` by ``name``."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[ast.Constant(value=str(key)), *_]):
            return key, owner
        case ast.Attribute(value=owner, attr=name) if name != "get":
            return name, owner
    return None, None


def _is_open(key: str) -> bool:
    """Need the key not stand in verl's configuration?"""
    return any(key == section or key.startswith(f"{section}.") for section in (*OUR_KEYS, *OPEN_SECTIONS))


def keys_of_presets(sources: Sources) -> Iterator[tuple[str, str]]:
    """(key of verl's configuration, file of ``grpo_verl_ext/config`` that sets it)."""
    package = sources.file(OURS)
    assert package is not None
    for file in sorted((package.parent / "config").rglob("*.yaml")):
        for key, _ in leaves(yaml.safe_load(file.read_text(encoding="utf-8"))):
            if key != "defaults" and not _is_open(key):
                yield key, str(file.relative_to(package.parent))

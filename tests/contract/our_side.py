"""Read from our own sources what they use of verl."""

import ast
from collections.abc import Iterator
from pathlib import Path

import yaml
from reliances import members
from verl_sources import OURS, THEIRS, Found, Function, Sources, statements

SECTIONS = ("actor_rollout_ref", "algorithm", "critic", "data", "ray_kwargs", "reward", "trainer")
"""Top-level sections of verl's configuration."""


def our_modules(sources: Sources) -> Iterator[str]:
    """Names of all modules of the package."""
    package = sources.file(OURS)
    assert package is not None
    for file in sorted(package.parent.rglob("*.py")):
        parts = file.relative_to(package.parent.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def short(module: str) -> str:
    """As the table has it: without the package's name."""
    return module.removeprefix(f"{OURS}.")


def names_used(sources: Sources) -> Iterator[tuple[str, str]]:
    """(name of verl's, module of ours that imports it, takes it from a module, or has it in a string)."""
    for module in our_modules(sources):
        nodes = list(ast.walk(sources.tree(module)))
        imported = {name: dotted for node in nodes for name, dotted in _imported(node)}
        modules = {name: dotted for name, dotted in imported.items() if sources.file(dotted)}
        used = [name for node in nodes for name in (*_taken(node, modules), *_in_string(node))]
        for name in (*imported.values(), *used):
            if name.split(".")[0] in THEIRS:
                yield name, short(module)


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _taken(node: ast.AST, modules: dict[str, str]) -> list[str]:
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in modules:
            return [f"{modules[name]}.{attribute}"]
    return []


def _in_string(node: ast.AST) -> list[str]:
    is_dotted = isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value
    if is_dotted and all(part.isidentifier() for part in node.value.split(".")):
        return [node.value]
    return []


def classes_on_verl(sources: Sources) -> Iterator[list[Found]]:
    """Each class of ours that derives from one of verl's, with all that it derives from."""
    for module in our_modules(sources):
        for node in statements(sources.tree(module)):
            if isinstance(node, ast.ClassDef):
                lineage = list(sources.lineage(Found(module, node)))
                if any(not owner.module.startswith(OURS) for owner in lineage):
                    yield lineage


def overrides(sources: Sources) -> Iterator[tuple[Found, Found]]:
    """(method of verl's, our method in its place); of methods that override each other, the last."""
    pairs = {}
    for lineage in classes_on_verl(sources):
        theirs = [owner for owner in lineage if not owner.module.startswith(OURS)]
        for owner in lineage:
            if owner.module.startswith(OURS):
                for method in _methods(owner):
                    for their in _nearest(sources, theirs, method.node.name):
                        pairs[their.node, method.node] = their, method
    yield from pairs.values()


def _nearest(sources: Sources, classes: list[Found], name: str) -> Iterator[Found]:
    having = [owner for owner in classes if any(m.node.name == name for m in _methods(owner))]
    for owner in having:
        derived = [other for other in having if other.node is not owner.node]
        if not any(owner.node is base.node for other in derived for base in sources.lineage(other)):
            yield from (method for method in _methods(owner) if method.node.name == name)


def _methods(found: Found) -> list[Found]:
    return [Found(found.module, node) for node in statements(found.node) if isinstance(node, Function)]


def attributes_used(sources: Sources) -> Iterator[tuple[str, str]]:
    """(attribute that a class of ours has from verl's, module of ours that uses it)."""
    for lineage in classes_on_verl(sources):
        ours = [owner for owner in lineage if owner.module.startswith(OURS)]
        own = {name for owner in ours for name in members(owner.node)}
        for owner in ours:
            for node in ast.walk(owner.node):
                if (
                    isinstance(node, ast.Attribute)
                    and ast.unparse(node.value) == "self"
                    and node.attr not in own
                ):
                    yield node.attr, short(owner.module)


def keys_read(sources: Sources) -> Iterator[tuple[str, str]]:
    """(key of verl's configuration, module of ours that reads it), through names given to sections."""
    for module in our_modules(sources):
        for function in ast.walk(sources.tree(module)):
            if isinstance(function, Function):
                for key in _chains(function):
                    if key.split(".")[0] in SECTIONS:
                        yield key, short(module)


def _chains(function: ast.AST) -> Iterator[str]:
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


OUR_KEYS = (
    "actor_rollout_ref.actor.policy_loss.gvpo_beta",
    "actor_rollout_ref.actor.policy_loss.gvpo_terms",
    "actor_rollout_ref.actor.policy_loss.max_response_length",
    "algorithm.grpo_ext",
    "gvpo_needs_reference",
    "task",
)
"""Keys, or sections, that this package adds and verl does not know."""

OPEN_SECTIONS = (
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "actor_rollout_ref.rollout.engine_kwargs",
    "critic.model.override_config",
    "ray_kwargs.ray_init",
    "reward.custom_reward_function.reward_kwargs",
    "reward.reward_kwargs",
)
"""Keys that verl's configuration does not list and its code reads, or hands on to vLLM, Ray or a reward."""


def presets() -> list[str]:
    """Files of ``grpo_verl_ext/config``, without their ending."""
    files = sorted(preset_folder().rglob("*.yaml"))
    return [str(file.relative_to(preset_folder()).with_suffix("")) for file in files]


def preset_keys(preset: str) -> tuple[str, ...]:
    """Keys of verl's configuration that a preset sets."""
    file = preset_folder() / f"{preset}.yaml"
    keys = _leaves(yaml.safe_load(file.read_text(encoding="utf-8")))
    return tuple(key for key in keys if key != "defaults" and not is_open(key))


def preset_folder() -> Path:
    """Of the presets of this checkout."""
    return Path(__file__).parents[2] / OURS / "config"


def is_open(key: str) -> bool:
    """Need the key not stand in verl's configuration?"""
    return any(key == section or key.startswith(f"{section}.") for section in (*OUR_KEYS, *OPEN_SECTIONS))


def _leaves(content: object, above: str = "") -> Iterator[str]:
    if isinstance(content, dict):
        for name, inner in content.items():
            yield from _leaves(inner, f"{above}.{name}" if above else str(name))
    else:
        yield above

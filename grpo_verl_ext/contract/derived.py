"""Derive from our own sources what they rely on in verl: names, calls, bases, overrides, attributes and keys.

What has to be judged is in `seams`: the meaning of arguments by place (`seams.PLACES`), and what verl does
with what is ours.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping

from grpo_verl_ext.contract.our_keys import keys_of, keys_of_presets
from grpo_verl_ext.contract.our_sources import (
    Module,
    OurClass,
    classes_on_verl,
    is_verls,
    our_modules,
    overrides,
    short,
)
from grpo_verl_ext.contract.reliances import (
    ANY_MORE,
    Called,
    Derived,
    Hook,
    Interface,
    Keys,
    Members,
    Name,
    Overridden,
    PresetKeys,
    Program,
    Reliance,
    Seam,
    parameters,
)
from grpo_verl_ext.contract.verl_sources import Function, Sources

CONFIGURATION = "verl.trainer.config.ppo_trainer"
_DOTTED = re.compile(r"\w+(\.\w+)+")
DYNAMIC = ("verl.single_controller.base.decorator.Dispatch",)
"""Classes whose attributes are made when verl runs."""
_PYDANTIC = ("model_fields_set",)
"""Attributes that classes of verl's have from a package that we do not look into."""

Use = tuple[str, Reliance, str]
"""A name of verl's, what we rely on, and the module or preset of ours that does."""
Places = Mapping[str, tuple[str, ...]]
"""Names of the parameters of functions that we call by place."""


def merged(seams: Collection[Seam]) -> list[Seam]:
    """One seam for each reliance, with all who rely on it."""
    kinds = {(one.where, repr(one.relies)): one.relies for one in seams}
    users: dict[tuple[str, str], dict[str, None]] = {key: {} for key in kinds}
    for one in seams:
        users[one.where, repr(one.relies)].update(dict.fromkeys(one.by))
    return [Seam(key[0], relies, tuple(users[key])) for key, relies in kinds.items()]


def derived(sources: Sources, places: Places) -> list[Seam]:
    """Everything that our sources and presets show of what they rely on."""
    uses = sorted(_uses(sources, places), key=lambda use: use[2])
    return merged([Seam(where, relies, (by,)) for where, relies, by in uses])


def _uses(sources: Sources, places: Places) -> Iterator[Use]:
    ours = our_modules(sources)
    for module in ours.values():
        found = (*_names(module), *_attributes(sources, module), *_of_annotated(module))
        yield from ((where, relies, module.short) for where, relies in found)
        yield from ((name, _called(call, places.get(name)), module.short) for name, call in module.calls())
    classes = classes_on_verl(sources, ours)
    for one in classes:
        by = short(one.lineage[0].module)
        yield from ((where, relies, by) for where, relies in _of_class(sources, one, places))
    implemented = [method.node for one in classes for method in one.implemented(sources)]
    for where, our in overrides(sources, classes):
        if our.node not in implemented:
            yield where, Overridden(*_with_any_more(parameters(our))), short(our.module)
    yield from ((CONFIGURATION, Keys(key), by) for key, by in keys_of(ours))
    yield from ((CONFIGURATION, PresetKeys(key), by) for key, by in keys_of_presets(sources))


def _names(module: Module) -> Iterator[tuple[str, Reliance]]:
    """What is imported, and modules of verl's whose names stand in strings."""
    yield from ((name, Name()) for name in module.imports.values() if is_verls(name))
    waits = "register_post_import_hook" in module.imports
    started = {id(text) for node in module.nodes for text in _after_dash_m(node)}
    for node in module.nodes:
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and _DOTTED.fullmatch(text) and is_verls(text):
            yield text, Program() if id(node) in started else Hook() if waits else Name()


def _after_dash_m(node: ast.AST) -> list[ast.expr]:
    elements = node.elts if isinstance(node, ast.List | ast.Tuple) else []
    dashes = [n for n, one in enumerate(elements[:-1]) if isinstance(one, ast.Constant) and one.value == "-m"]
    return [elements[n + 1] for n in dashes]


def _attributes(sources: Sources, module: Module) -> Iterator[tuple[str, Reliance]]:
    """Attributes of modules and classes of verl's that we take by name."""
    for node in module.nodes:
        owner = module.of_verl(node.value) if isinstance(node, ast.Attribute) else None
        if owner and isinstance(node, ast.Attribute) and owner not in DYNAMIC:
            found = sources.look_up(owner)
            if sources.file(owner):
                yield f"{owner}.{node.attr}", Name()
            elif found and isinstance(found.node, ast.ClassDef):
                yield owner, Members(node.attr)


def _of_annotated(module: Module) -> Iterator[tuple[str, Reliance]]:
    """Attributes of parameters and variables that are annotated with, or made by, a class of verl's."""
    for function in module.nodes:
        nodes = list(ast.walk(function)) if isinstance(function, Function) else []
        types = dict(pair for node in nodes for pair in _annotated(node, module))
        for node in nodes:
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in types:
                    if attribute not in _PYDANTIC:
                        yield types[name], Members(attribute)
                case ast.Subscript(value=ast.Name(id=name)) if name in types:
                    yield types[name], Members("__getitem__")


def _annotated(node: ast.AST, module: Module) -> Iterator[tuple[str, str]]:
    match node:
        case ast.arg(arg=name, annotation=ast.expr() as annotation):
            pass
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
            pass
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=annotation)):
            pass
        case _:
            return
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    verls = module.of_verl(annotation)
    if verls and verls.rpartition(".")[2][:1].isupper():
        yield name, verls


def _of_class(sources: Sources, one: OurClass, places: Places) -> Iterator[tuple[str, Reliance]]:
    for node in one.from_self():
        yield one.base, Members(node.attr)
    for where, call in one.calls_of_self(sources):
        yield where, _called(call, places.get(where))
    for base in one.bases[:-1]:
        yield one.base, Derived(base)
    if implemented := one.implemented(sources):
        yield one.base, Interface({method.name: tuple(parameters(method)) for method in implemented})


def _called(call: ast.Call, places: tuple[str, ...] | None) -> Called:
    by_place = [argument for argument in call.args if not isinstance(argument, ast.Starred)]
    any_more = [ANY_MORE] * (len(by_place) < len(call.args))
    by_name = [keyword.arg or ANY_MORE for keyword in call.keywords]
    return Called((places or ())[: len(by_place)], (*by_name, *any_more))


def _with_any_more(names: list[str]) -> list[str]:
    taken = [name for name in names if not name.startswith("*")]
    return taken + [ANY_MORE] * (len(taken) < len(names))

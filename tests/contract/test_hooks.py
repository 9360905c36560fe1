"""Test that verl is as our classes and patches count on, where no number would show that it is not."""

import ast
import functools
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest
import verl
from processes import Python

from grpo_verl_ext import verl_plugin

OURS, THEIRS = verl_plugin.__name__, ("verl.", "transfer_queue", "vllm.")


def moved() -> list[str]:
    """What of the running verl is not as our classes need it; imports all of our modules, for a CPU."""
    return sorted({sentence for cls in our_classes() for sentence in moved_in(cls)})


def our_classes() -> list[type]:
    """Classes on one of theirs that no other of ours extends: there mixins meet what they are mixed into."""
    importlib.import_module("verl.trainer.ppo.v1")  # where it is imported, our trainers join it
    names = (module.name for module in pkgutil.walk_packages(verl_plugin.__path__, f"{OURS}."))
    modules = [importlib.import_module(name) for name in names if not name.endswith(".__main__")]
    ours = {each for module in modules for each in vars(module).values() if is_of(each, OURS)}
    on_theirs = (cls for cls in ours if any(is_of(base, THEIRS) for base in cls.__mro__))
    return [cls for cls in on_theirs if not ours & {*cls.__subclasses__()}]


def is_of(found: object, packages: str | tuple[str, ...]) -> bool:
    return inspect.isclass(found) and found.__module__.startswith(packages)


def moved_in(cls: type) -> Iterator[str]:
    known = {name for base in cls.__mro__ for name in known_to(base)}
    for place, each in enumerate(cls.__mro__):
        if is_of(each, OURS):
            above = cls.__mro__[place + 1 :]
            for name, ours in vars(each).items():
                theirs = next((vars(c)[name] for c in above if name in vars(c) and is_of(c, THEIRS)), None)
                if isinstance(ours, FunctionType) and (how := differ(ours, theirs)):
                    yield f"{each.__name__}.{name} {how}"
            inherited = {name for base in above for name in vars(base)}
            yield from (f"{each.__name__}: no self.{name}" for name in taken(each, "self") - known)
            yield from (f"{each.__name__}: no super().{name}" for name in taken(each, "super()") - inherited)


def differ(ours: FunctionType, theirs: object) -> str:
    """How verl would call a method of ours wrongly; empty if it would not."""
    if not isinstance(theirs, FunctionType):
        return ""
    mine, verls = (inspect.signature(function).parameters for function in (ours, theirs))
    wanted = [name for name in verls if not name.startswith("_ray_")]  # Ray adds one of its own
    more = [parameter for name, parameter in mine.items() if name not in wanted]
    takes_all = any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in mine.values())
    fits = [*mine][: len(wanted)] == wanted and all(each.default is not each.empty for each in more)
    return "" if takes_all or fits else f"takes {', '.join(mine)}, and verl's {', '.join(wanted)}"


def known_to(cls: type) -> set[str]:
    """Attributes that a class has, annotates, or sets on ``self``."""
    annotated = {*vars(cls), *vars(cls).get("__annotations__", ())}
    return annotated | taken(cls, "self", ast.Store) if is_of(cls, (OURS, *THEIRS)) else annotated


@functools.cache
def taken(cls: type, owner: str, context: type[ast.expr_context] = ast.Load) -> set[str]:
    try:
        nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(cls))))
    except OSError:  # a call has made the class
        return set()
    found = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, context))
    return {node.attr for node in found if ast.unparse(node.value) == owner}


def test_our_classes_fit_verls_and_what_moves_is_named(python: Python) -> None:
    found = python(
        """
        from test_hooks import moved
        print("moved:", moved())
        from verl.trainer.ppo.v1.trainer_base import PPOTrainer
        PPOTrainer._update_actor = lambda self, rows: None
        del PPOTrainer._setup
        print("then:", moved())
        """,
        VERL_PLATFORM="cpu",
    )
    assert found.returncode == 0, found.stderr
    now, broken = found.stdout.partition("moved: ")[2].split("then: ")
    assert now.strip() == "[]"
    assert "MiniBatchMixin._update_actor takes self, batch, metrics, and verl's self, rows" in broken
    assert "MiniBatchMixin: no super()._setup" in broken


V1, V0 = "trainer.ppo.v1.trainer_base:PPOTrainer.", "trainer.ppo.ray_trainer:"
NAMES = "FSDP", "Megatron", "VeOmni", "TorchTitan"
FSDP, MEGATRON, VEOMNI, TITAN = (f"workers.engine.{n.lower()}.transformer_impl:{n}Engine" for n in NAMES)
COUNTS = "tu.assign_non_tensor(data, batch_num_tokens=", "tu.assign_non_tensor(data, dp_size="
LOSS = (
    "policy_loss_fn(old_log_prob=old_log_prob, log_prob=log_prob, advantages=advantages, "
    "response_mask=response_mask, loss_agg_mode=loss_agg_mode, config=config",
    "agg_loss(loss_mat=entropy, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global",
    "agg_loss(loss_mat=kld, loss_mask=response_mask, loss_agg_mode=config.loss_agg_mode, **config.global",
)
# (function, what would go wrong without a word, unless it has this in this order)
COUNTED_ON = [
    ("trainer.main_ppo:main", "a refused training runs", "auto_set_device(", "validate_config(", "run_ppo("),
    ("trainer.main_ppo:run_ppo", "workers lack our variables", "runtime_env, runtime_env_kw", "ray.init("),
    (f"{V1}_compute_advantage", "estimators take defaults for options", "config=self.config.algorithm"),
    (f"{V0}RayPPOTrainer.fit", "estimators take defaults for options", "config=self.config.algorithm"),
    (f"{V0}compute_advantage", "groups are torn", "adv_kwargs['index'] = data.non_tensor_batch['uid']"),
    ("workers.utils.losses:ppo_loss", "a loss, or entropy and KL, read or average something else", *LOSS),
    ("trainer.distillation.losses:distillation_ppo_loss", "our loss is left out", "ppo_loss(config, model_"),
    *(
        (f"{engine}.forward_backward_batch", "a micro-batch's counts divide a loss", *COUNTS)
        for engine in (FSDP, MEGATRON, VEOMNI, TITAN)
    ),
    (f"{MEGATRON}WithLMHead.postprocess_micro_batch_func", "gradients are scaled", "loss * data['num_mic"),
    (f"{TITAN}.__init__", "gradients are scaled", "enable_fsdp_gradient_division(model_part, dp_size)"),
    (f"{V1}step", "GVPO takes a drift for zero that is not", "self.local_trigger_step = trigger_idx"),
    (f"{V1}_step_once", "GVPO has no drift", "_old_log_prob(", "_compute_advantage(", "_update_actor("),
    (f"{V1}_build_replay_buffer", "no group is filtered out", "filter_groups_metric=filter_groups_metric"),
    (f"{V1}fit", "a checkpoint has an older reference", "self.step(", "self._save_checkpoint("),
    (f"{V1}_save_checkpoint", "a killed run resumes from half a checkpoint", "save_checkpoint(", "f.write("),
]


@pytest.mark.parametrize("counted_on", COUNTED_ON, ids=" ".join)
def test_verl_calls_what_we_count_on(counted_on: tuple[str, ...]) -> None:
    place, otherwise, *calls = counted_on
    rest = source(*place.split(":"))
    for call in calls:
        _, there, rest = rest.partition(call)
        assert there, f"verl.{place} has no {call}, or has it earlier, so that {otherwise}"


def source(module: str, name: str) -> str:
    """A function of verl, whose module may not be importable here, in the words of ``ast.unparse``."""
    file = Path(verl.__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    node: ast.AST = ast.parse(file.read_text(encoding="utf-8"))
    for part in name.split("."):
        node = next(each for each in ast.iter_child_nodes(node) if getattr(each, "name", "") == part)
    return ast.unparse(node)

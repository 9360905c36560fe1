"""The seams with a verl of the lower tier, which has what presets, estimators and losses of tokens need.

They are those of our modules that such a verl's processes, or commands that work with it, import; without
what these modules ask of newer versions alone, which `verl_plugin.preflight.tier` refuses there.
"""

from collections.abc import Collection, Iterator

from grpo_verl_ext.contract.reliances import Hands, Has, InOrder, Keys, Seam
from grpo_verl_ext.contract.seams import MAIN, seam

_MODULES = (
    *(
        "anatomy",
        "catalogue",
        "config/algo",
        "doctor",
        "verl_plugin.algorithms",
        "verl_plugin.batch.sessions",
    ),
    *("verl_plugin.compose", "verl_plugin.config", "verl_plugin.estimators", "verl_plugin.gvpo.loss"),
    *(
        "verl_plugin.invariance",
        "verl_plugin.loss_config",
        "verl_plugin.losses",
        "verl_plugin.patches.driver",
    ),
    *("verl_plugin.preflight", "verl_plugin.registration", "verl_plugin.usage"),
)
"""The beginnings of such modules' names, and the folder of the presets."""
_NEWER = ("verl.trainer.ppo.v1", "verl.plugin")
"""Modules of newer versions."""
_NEWER_KEYS = (
    *("trainer.use_v1", "trainer.v1", "algorithm.filter_groups"),
    *("actor_rollout_ref.rollout.seed", "actor_rollout_ref.rollout.full_determinism"),
)
_CUT_RESPONSES = "local_sum = loss * routed_num_tokens / dp_size"
"""Of Megatron's context parallelism, which `check_context_parallel` refuses with older versions."""

OF_LOWER_TIER: tuple[Seam, ...] = (
    # Else nothing would load the plugin.
    seam("verl", Has("os.getenv('VERL_USE_EXTERNAL_MODULES', '')", "import_external_libs(modules)"), ".tier"),
    # Else a refused training would already run.
    seam(
        f"{MAIN}.main", InOrder("auto_set_device", "migrate_legacy_reward_impl", "run_ppo"), ".patches.driver"
    ),
    seam(f"{MAIN}_sync.main", InOrder("auto_set_device", "validate_config", "run_ppo"), ".patches.driver"),
    seam(f"{MAIN}_sync.main", Hands("validate_config", by_name=("config",)), ".patches.driver"),
    # Else an estimator would take defaults for our options.
    seam(f"{MAIN}_sync.PPOTrainer._compute_advantage", Has("config=self.config.algorithm"), ".estimators"),
)
"""What only the lower tier relies on."""


def seams_of_lower_tier(seams: Collection[Seam]) -> Iterator[Seam]:
    """Yield those of all seams that count there, and `OF_LOWER_TIER`."""
    yield from (each for each in seams if _counts(each))
    yield from OF_LOWER_TIER


def _counts(each: Seam) -> bool:
    relies = each.relies
    if not any(name.startswith(_MODULES) for name in each.by) or each.where.startswith(_NEWER):
        return False
    if isinstance(relies, Keys):
        return not any(name.startswith(_NEWER_KEYS) for name in (*relies.names, *relies.values))
    if isinstance(relies, Has):
        return _CUT_RESPONSES not in relies.pieces
    return not (each.where == f"{MAIN}.main" and isinstance(relies, InOrder | Hands))

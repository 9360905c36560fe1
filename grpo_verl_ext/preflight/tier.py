"""Refuse, with a verl of the lower tier, what needs one of the upper: `tier` says which this process has.

Each is refused by the key that asks for it. Presets, estimators and losses of tokens are left as they are.
"""

from collections.abc import Iterator, Mapping

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.catalogue import LOSSES
from grpo_verl_ext.preflight.tested import needs
from grpo_verl_ext.utils.errors import Line
from grpo_verl_ext.utils.keys import AGENT_LOOP, ESTIMATOR, LOSS, ROLLOUT, SECTION, setting
from grpo_verl_ext.verl_plugin import tier, usage
from grpo_verl_ext.verl_plugin.config import GOLD_RESPONSES, REWARD_MANAGER, REWARDED_RESPONSES, SEED_REQUESTS

_FILTER = "algorithm.filter_groups.enable"
_STORED = f"{SECTION}.stored_responses"
_ANCHOR = f"{SECTION}.gvpo_anchor"

KEYS: Mapping[str, str] = {
    **{name: LOSS for name, loss in LOSSES.items() if loss.needs is not None},
    "steps": ESTIMATOR,
    "several-rewards": ESTIMATOR,
    "teacher": _ANCHOR,
    "reference": f"{SECTION}.ref_model_sync_steps",
    "stored-responses": _STORED,
    "gold-responses": GOLD_RESPONSES,
    "rewarded-responses": REWARDED_RESPONSES,
    "seeds": SEED_REQUESTS,
    "dynamic-sampling": _FILTER,
}
"""Name of a feature → the key that asks for it."""

_WITHOUT: Mapping[str, Line] = {
    _FILTER: Line(f"{_FILTER}=false"),
    f"{SECTION}.ref_model_sync_steps": Line(f"~{SECTION}.ref_model_sync_steps"),
    GOLD_RESPONSES: Line(f"~{GOLD_RESPONSES}"),
    REWARDED_RESPONSES: Line(f"~{REWARDED_RESPONSES}"),
    SEED_REQUESTS: Line(f"~{SEED_REQUESTS}"),
    f"{ROLLOUT}.seed": Line(f"~{ROLLOUT}.seed"),
}
"""Key → what to type where the algorithm stays what it is."""


def check_tier(config: DictConfig) -> None:
    """Refuse the first setting that needs a verl of the upper tier.

    Raises:
        SettingError: names the key, its value and the versions that have it.
    """
    if not tier.has_losses_only():
        return
    for key in _keys(config):
        value = setting(config, key, "cpu" if key == usage.PLATFORM_KEY else None)
        shown = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        raise tier.needs_newer(key, shown, _WITHOUT.get(key))


def _keys(config: DictConfig) -> Iterator[str]:
    """Yield the keys of such settings."""
    if usage.asks_for_cpu(config):
        yield usage.PLATFORM_KEY
    yield from (KEYS[name] for name, _ in needs(config) if name in KEYS)
    if str(setting(config, AGENT_LOOP)).startswith(usage.PREFIX):
        yield AGENT_LOOP
    if setting(config, "reward.reward_manager.name") == REWARD_MANAGER:
        yield "reward.reward_manager.name"
    if setting(config, f"{ROLLOUT}.seed") is not None:  # that verl's class refuses it in the workers
        yield f"{ROLLOUT}.seed"

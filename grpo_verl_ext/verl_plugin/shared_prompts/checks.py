"""The records of passes that compute only what the loss reads: what was tested, and refused models."""

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import ON_FSDP2, STATISTIC_ENGINES, GroupLoss
from grpo_verl_ext.catalogue.gvpo import ANCHOR
from grpo_verl_ext.catalogue.requires import OUR_MODES, If, In, NoneWith, Null, Off, Same, Trainer, refused
from grpo_verl_ext.utils import keys
from grpo_verl_ext.utils.errors import Line, Problem, SettingError
from grpo_verl_ext.utils.keys import ACTOR, BYPASS, CORRECTION, MODEL, ROLLOUT, SECTION, setting
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin.features import Feature
from grpo_verl_ext.verl_plugin.model_files import local_folder

_KEY = f"{SECTION}.shared_prompts"
_MODEL = MODEL.removesuffix(".path")
_N = f"{ROLLOUT}.n"
_LENGTHS = ("data.max_prompt_length", "data.max_response_length")
_OFF = Line(f"{_KEY}=false")
_OLD = f"{SECTION}.old_log_probs_from_update"
_EARLY = "reads old log-probs before the update has made them"
_PACKED = "lays out the tokens of a pass otherwise"
_MEASURED = {(100, 16, 8): 0.29, (24, 8, 4): 0.46, (150, 150, 8): 0.48, (6, 10, 4): 0.72}
"""Tokens of a prompt and of a response, responses → seconds of an actor's passes over those of verl's."""


def allows(config: DictConfig) -> bool:
    """Return whether a training may share prompts, and has several responses to one."""
    rows = _SHARED_PROMPTS.requires
    fits = setting(config, _N) not in (None, 1) and all(row.unmet("", config) is None for row in rows)
    return fits and not _unlike(config)


def _advise(config: DictConfig) -> Iterator[Problem]:
    """Yield what sharing would save at the longest lengths of a training that leaves it open."""

    def fed(prompt: int, response: int, n: int) -> float:
        return (prompt + n * (response - 1)) / (n * (prompt + response))  # of verl's tokens

    lengths = [setting(config, key) for key in (*_LENGTHS, _N)]
    if setting(config, _KEY) is None and all(map(is_count, lengths)) and allows(config):
        prompt, response, n = near = min(_MEASURED, key=lambda case: abs(fed(*case) - fed(*lengths)))
        seen = f"verl computes a prompt again for each of its {lengths[2]} responses; with {lengths[0]} and "
        seen += f"{lengths[1]} tokens {fed(*lengths):.0%} of the tokens are enough, and with {prompt} and "
        seen += f"{response} and n={n} the passes took {_MEASURED[near]:.0%} of verl's time on a CPU. Or "
        seen += f"{_MODEL}.use_fused_kernels=true with impl_backend=liger: less memory, and other rounding"
        yield Problem(_KEY, None, Line(f"+{_KEY}=true"), seen=seen)


def _check_model(config: DictConfig) -> None:
    """Refuse a model in a local folder with which other tokens would meet; `engine` compares any other."""
    if _USED(config) and (found := _unlike(config)):
        why = f"{_KEY} is not tested with a model that has {', '.join(found)}"
        raise SettingError(MODEL, setting(config, MODEL), why=why, fix=_OFF)


def _unlike(config: DictConfig) -> list[str]:
    """Return what a model in a local folder has beside plain attention."""
    path = setting(config, MODEL)
    if not isinstance(path, str) or (folder := local_folder(path)) is None:
        return []
    from transformers import AutoConfig

    try:
        content = AutoConfig.from_pretrained(str(folder), trust_remote_code=False).to_dict()
    except (OSError, ValueError, TypeError):
        return []  # no model that verl loads, or one of remote code, which a row refuses
    override: Any = OmegaConf.to_container(OmegaConf.create(setting(config, f"{_MODEL}.override_config", {})))
    content = {**content, **(content.get("text_config") or {}), **override}
    found = [name for name in ("vision_config", "audio_config") if content.get(name)]
    if kinds := {*(content.get("layer_types") or ())} - {"full_attention"}:
        found.append(f"layers of {' and '.join(sorted(kinds))}")
    elif content.get("sliding_window") and content.get("use_sliding_window", True):
        found.append(f"sliding_window={content['sliding_window']}")
    for name, value in content.items():
        is_other = "softcap" in name or ("drop" in name and not name.startswith("classifier"))
        if is_other and isinstance(value, int | float) and value > 0:
            found.append(f"{name}={value}")
    return found


_USED = If(_KEY)
_SHARED_PROMPTS = Feature(
    name="shared-prompts",
    used=_USED,
    requires=refused(
        Trainer(OUR_MODES, "computes each row's prompt again"),
        In(f"{ACTOR}.strategy", ("fsdp2",), "has another engine", line=Line(*ON_FSDP2, more=f", or {_OFF}")),
        Same("actor_rollout_ref.ref.strategy", f"{ACTOR}.strategy", "has another engine"),
        *(
            In(f"{ACTOR}.{key}", (1, None), "parts a row over ranks")
            for key in ("ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size")
        ),
        Off(f"{_MODEL}.use_fused_kernels", "makes log-probs without logits"),
        Off(f"{_MODEL}.trust_remote_code", "may have any attention"),
        Off(f"{_MODEL}.mtp.enable", "trains on further tokens at each position"),
        *(Off(f"{ACTOR}.{key}", _PACKED) for key in ("pad_to_length", "fsdp_config.pad_to_length")),
        *(Off(f"{ACTOR}.{key}.enable", "rounds weights in each pass") for key in ("qat", "fsdp_config.qat")),
        Off(f"{ACTOR}.calculate_sum_pi_squared", "reads the logits of verl's own pass"),
        NoneWith(
            f"{keys.DISTILLATION}.loss_mode",
            "forward_kl_topk",
            "reads the logits of verl's own pass",
            when=If("distillation.enabled"),
            line=Line(f"{keys.DISTILLATION}.loss_mode=k3"),
        ),
    ),
    checks={"shared-prompts-model": _check_model},
    notes={"shared-prompts-off": _advise},
    worker=f"{__package__}.engine:SharedPromptsWorkerMixin",
)


_OLD_LOG_PROBS = Feature(
    name="old-log-probs",
    used=If(_OLD),
    requires=refused(
        Trainer(("grpo_ext_sync",), "computes old log-probs of its own, or may train on other policies'"),
        In(f"{ACTOR}.strategy", STATISTIC_ENGINES, "was not tested", line=Line(*ON_FSDP2)),
        Off(BYPASS, "takes the rollout's log-probs, and no pass for them either"),
        *(Null(f"{CORRECTION}.{name}", _EARLY) for name in ("rollout_is", "rollout_rs")),
        Off("algorithm.use_kl_in_reward", _EARLY),
        In(
            keys.ESTIMATOR,
            (None,),
            _EARLY,
            test=lambda value, _: not str(value).endswith("optimal_token_baseline"),
            words="without optimal_token_baseline",
            line=Line(f"{_OLD}=false"),
        ),
        In(
            keys.LOSS,
            ("vanilla",),
            _EARLY,
            test=lambda _, config: (
                isinstance(loss := catalogue.loss_of(config), GroupLoss) or not getattr(loss, "needs", None)
            ),
            words="without a statistic",
            line=Line(f"{_OLD}=false"),
        ),
        In(f"{keys.POLICY_LOSS}.gvpo_terms", ("all", None), _EARLY),
        In(ANCHOR, ("old", None), _EARLY, line=Line(f"~{ANCHOR}")),
        Off(f"{SECTION}.stored_responses.share", _EARLY),
        In(f"{ACTOR}.ppo_epochs", (1,), "uses the rows again after the policy has moved"),
        Off(f"{ACTOR}.shuffle", "leaves open which rows the first update has"),
        Off(f"{ACTOR}.calculate_sum_pi_squared", "is computed in the pass that is left out"),
        In(f"{ROLLOUT}.calculate_log_probs", (True,), "leaves no log-probs until the update has made them"),
        In("trainer.critic_warmup", (0,), "has steps without an update of the actor"),
    ),
    trainer="grpo_verl_ext.verl_plugin.mini_batch.trainer:OldLogProbsMixin",
)

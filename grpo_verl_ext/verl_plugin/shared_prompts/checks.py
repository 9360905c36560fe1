"""The record of the feature ``shared_prompts``: what it was tested with, and the models that it refuses."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.catalogue import ON_FSDP2
from grpo_verl_ext.catalogue.requires import OUR_MODES, If, In, NoneWith, Off, Same, Trainer, refused
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import ACTOR, DISTILLATION, MODEL, SECTION, setting
from grpo_verl_ext.verl_plugin.features import Feature
from grpo_verl_ext.verl_plugin.model_files import local_folder

_KEY = f"{SECTION}.shared_prompts"
_MODEL = MODEL.removesuffix(".path")
_OFF = Line(f"{_KEY}=false")
_PACKED = "lays out the tokens of a pass otherwise"


def _check_model(config: DictConfig) -> None:
    """Refuse a model in a local folder with which other tokens would meet; `engine` compares any other."""
    path = setting(config, MODEL)
    if not _USED(config) or not isinstance(path, str) or (folder := local_folder(path)) is None:
        return
    from transformers import AutoConfig

    try:
        content = AutoConfig.from_pretrained(str(folder), trust_remote_code=False).to_dict()
    except (OSError, ValueError, TypeError):
        return  # no model that verl loads, or one of remote code, which a row refuses
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
    if found:
        why = f"{_KEY} is not tested with a model that has {', '.join(found)}"
        raise SettingError(MODEL, path, why=why, fix=_OFF)


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
            f"{DISTILLATION}.loss_mode",
            "forward_kl_topk",
            "reads the logits of verl's own pass",
            when=If("distillation.enabled"),
            line=Line(f"{DISTILLATION}.loss_mode=k3"),
        ),
    ),
    checks={"shared-prompts-model": _check_model},
    worker=f"{__package__}.engine:SharedPromptsWorkerMixin",
)

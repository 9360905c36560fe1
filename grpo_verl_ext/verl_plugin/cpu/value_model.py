"""Load verl's critic with an attention that the processor has.

Patch of ``verl.utils.model.load_valuehead_model``: verl loads the value model with
``attn_implementation="flash_attention_2"``, whatever the configuration says, and transformers refuses that
where the flash-attn package is missing. The replacement makes the same call with the configured attention.
"""

from typing import Any

import torch


def patch(model_module: Any) -> None:
    """Replace the function; runs when its module is imported. verl looks it up at each call."""
    model_module.load_valuehead_model = load_valuehead_model


def load_valuehead_model(
    local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool
) -> torch.nn.Module:
    """A token-classification model of ``model_config``: one value to a token."""
    from transformers import AutoModelForTokenClassification

    model: torch.nn.Module = AutoModelForTokenClassification.from_pretrained(
        local_path,
        torch_dtype=torch_dtype,
        config=model_config,
        attn_implementation=model_config._attn_implementation,
        trust_remote_code=trust_remote_code,
    )
    return model

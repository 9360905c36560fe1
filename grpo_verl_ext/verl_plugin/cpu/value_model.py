"""Load verl's critic with an attention implementation that runs on a CPU.

Patch of ``verl.utils.model.load_valuehead_model``: verl loads the value model with
``attn_implementation="flash_attention_2"``, ignoring the configuration, and transformers refuses that where
the flash-attn package is missing. The replacement makes the same call with the configured attention.
"""

from typing import Any

import torch


def patch(model_module: Any) -> None:
    """Replace the function when its module is imported; verl looks it up at each call."""
    model_module.load_valuehead_model = load_valuehead_model


def load_valuehead_model(
    local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool
) -> torch.nn.Module:
    """Load a token-classification model of ``model_config``, with one value per token."""
    from transformers import AutoModelForTokenClassification

    model: torch.nn.Module = AutoModelForTokenClassification.from_pretrained(
        local_path,
        torch_dtype=torch_dtype,
        config=model_config,
        attn_implementation=model_config._attn_implementation,
        trust_remote_code=trust_remote_code,
    )
    return model

"""Print with which attention verl loads a critic whose configuration asks for ``eager``."""

import tempfile

import torch
from transformers import AutoConfig, AutoModelForTokenClassification, Qwen2Config
from verl.utils.model import load_valuehead_model

SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 16, "num_labels": 1}

with tempfile.TemporaryDirectory() as folder:
    tiny = Qwen2Config(**SIZES, num_attention_heads=1, num_key_value_heads=1)
    AutoModelForTokenClassification.from_config(tiny).save_pretrained(folder)
    # as HFModelConfig does with critic.model.override_config.attn_implementation=eager
    config = AutoConfig.from_pretrained(folder, attn_implementation="eager")
    try:
        critic = load_valuehead_model(folder, torch.float32, config, trust_remote_code=False)
        print(f"asked for eager, loaded with {critic.config._attn_implementation}")
    except (ImportError, RuntimeError) as refused:
        print(f"asked for eager: {type(refused).__name__}: {refused}, after: {refused.__context__}")

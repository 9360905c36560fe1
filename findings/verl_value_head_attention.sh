#!/usr/bin/env bash
# One expects: `critic.model.override_config.attn_implementation=eager` frees a critic of flash-attn, as verl's page says.
# verl 0.9.1: `load_valuehead_model` asks transformers for flash_attention_2 all the same, so that PPO on FSDP ends
# before its first step where flash-attn is missing, with a message about value heads and trl.
# Issue #5210, pull request #4292 (open).
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" verl==0.9.1 torch==2.13.0 tensordict==0.10.0 transformers==5.10.4 ray==2.60.0
"$place/venv/bin/python" -W ignore - 2> "$place/stderr" << 'PYTHON' || { tail -5 "$place/stderr" >&2; exit 1; }
import sys
import tempfile

SEEN = [
    'asked for eager: refused, FlashAttention2 True',
]
seen = []

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
        seen.append(f"asked for eager, loaded with {critic.config._attn_implementation}")
    except (ImportError, RuntimeError) as refused:
        seen.append(f"asked for eager: refused, FlashAttention2 {'FlashAttention2' in f'{refused} {refused.__context__}'}")

print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON

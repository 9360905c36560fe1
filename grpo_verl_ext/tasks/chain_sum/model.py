"""The starting model: Qwen2's architecture at about half a million parameters."""

from __future__ import annotations

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from grpo_verl_ext.tasks.chain_sum.settings import Settings


def build_model(settings: Settings, tokenizer: Qwen2Tokenizer, *, seed: int) -> Qwen2ForCausalLM:
    """A float32 model with random weights, the same for the same seed; torch's generator is left alone."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.width,
        intermediate_size=settings.feed_forward,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=256,
        # Qwen2's 1e6 and 0.02 suit long contexts and wide models; with them this one hardly learns in time.
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model

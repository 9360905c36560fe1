"""The tokenizer and the starting model: Qwen2's architecture with about half a million parameters.

The tokenizer works on bytes: an id below 256 *is* its byte. Roles and tags are one token each; as bytes they
would be half of every prompt and response, and of the time that training on them takes.
"""

from __future__ import annotations

import torch
from transformers import AddedToken, GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from grpo_verl_ext.rewards.rules import TAGS
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = (END_OF_TEXT, TURN_START, TURN_END)
"""Special tokens, with ids 256, 257 and 258."""
WORDS = ("user", "assistant", *TAGS)
"""Words of one token each, with ids 259 to 264."""

# Qwen's template without its default system prompt, which would be most of every prompt here.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tokenizer() -> Qwen2Tokenizer:
    """Return the tokenizer, ready to be saved next to a model.

    Decoding its tokens gives any text back in Unicode's composed form (NFC), which Qwen2 tokenizers apply.
    """
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    tokenizer = Qwen2Tokenizer(
        vocab=letters | {mark: 256 + index for index, mark in enumerate(MARKS)},
        merges=[],
        unk_token=END_OF_TEXT,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        extra_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
    )
    # Not special, so that they stay in a text decoded without special tokens.
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    return tokenizer


def build_model(settings: TaskSettings, tokenizer: Qwen2Tokenizer, *, seed: int) -> Qwen2ForCausalLM:
    """Return a float32 model with random weights by ``seed``, without changing torch's random state."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.width,
        intermediate_size=settings.feed_forward,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=256,
        # Qwen2's 1e6 and 0.02 suit long contexts and wide models; with them this model learns too slowly.
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

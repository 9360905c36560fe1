"""A byte-level Qwen2 tokenizer: an id below 256 *is* its byte; roles and tags are one token each.

As bytes they would be half of every prompt and response, and of the time that training on them takes.
"""

from __future__ import annotations

from transformers import AddedToken, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from grpo_verl_ext.rewards.format import TAGS

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = (END_OF_TEXT, TURN_START, TURN_END)
"""Special tokens, with ids 256, 257 and 258."""
WORDS = ("user", "assistant", *TAGS)
"""Text of one token each, with ids 259 to 264."""

# Qwen's template without its default system prompt, which would be most of every prompt here.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tokenizer() -> Qwen2Tokenizer:
    """The tokenizer, ready to be saved next to a model.

    Any text comes back from its tokens in Unicode's composed form (NFC), which Qwen2 tokenizers apply.
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
    # Not special: they stay when a text is wanted without its special tokens.
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    return tokenizer

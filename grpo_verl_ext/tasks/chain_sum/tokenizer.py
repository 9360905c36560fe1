"""A byte-level Qwen2 tokenizer: no merges, so an id below 256 *is* its byte and a newline is one token."""

from __future__ import annotations

from transformers import Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = (END_OF_TEXT, TURN_START, TURN_END)
"""Special tokens, with ids 256, 257 and 258."""

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
    return Qwen2Tokenizer(
        vocab=letters | {mark: 256 + index for index, mark in enumerate(MARKS)},
        merges=[],
        unk_token=END_OF_TEXT,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        extra_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
    )

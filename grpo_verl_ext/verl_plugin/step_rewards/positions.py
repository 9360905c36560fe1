"""From characters of a decoded response to its tokens."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
"""Token ids → text, as verl's reward managers decode: special tokens left out."""


def last_token(decode: Decode, ids: Sequence[int], end: int) -> int:
    """Position of the token that completes the first ``end`` characters of the decoded response.

    Found by bisection on prefixes: a token that ends inside a character (bytes of one letter, half of an
    emoji) does not complete it, a special token that decodes to nothing completes nothing, and a token that
    reaches beyond ``end`` is the one.

    Args:
        decode: as the reward function's text was decoded.
        ids: all tokens of the response.
        end: 1 … number of characters of the text.
    """
    wanted = decode(ids)[:end]
    too_few, enough = 0, len(ids)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if decode(ids[:middle]).startswith(wanted):
            enough = middle
        else:
            too_few = middle
    return enough - 1

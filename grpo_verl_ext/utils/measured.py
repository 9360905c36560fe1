"""What a judge may compare with its tolerance: `max` drops or keeps NaN by its place in the list."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import SupportsFloat


def largest(errors: Iterable[SupportsFloat]) -> float:
    """Return the largest error; NaN counts as infinite.

    Raises:
        ValueError: nothing was measured.
    """
    found = [float(error) for error in errors]
    if not found:
        raise ValueError("nothing was measured")
    return math.inf if any(map(math.isnan, found)) else max(found)

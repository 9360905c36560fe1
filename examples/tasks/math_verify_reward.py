"""Reward function for verl: whether math-verify says that the response's answer is the ground truth.

    pip install math-verify
    reward.custom_reward_function.path=examples/tasks/math_verify_reward.py

For GSM8K, with tags or without, and MATH. math-verify ends what takes too long by a signal, which works in a
main thread only. verl calls reward functions in other threads, where a short response could then stop the
whole process. So another process compares, one for each of verl's reward processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from functools import cache
from importlib.util import find_spec
from select import select
from typing import Any

from grpo_verl_ext.rewards.rules import answer_of

SECONDS = 5
"""Seconds that math-verify may take to read an answer, and again to compare it."""
PATIENCE = 60
"""Seconds after which that process is ended and made anew: no signal ends what C computes."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: object, extra_info: object = None, **_: object
) -> dict[str, float]:
    """Return ``score`` and ``acc``, 1.0 if the answer is the ground truth, else 0.0, and ``not_compared``.

    The answer is the text in the last ``<answer>…</answer>``, else after the last ``####``, else what
    math-verify finds in the whole response, such as its last box. ``not_compared`` is 1.0 where math-verify
    took too long; the score is then 0.

    Raises:
        ModuleNotFoundError: math-verify is missing; the message has the line to type.
    """
    right = _comparison().ask(str(ground_truth), read_part(solution_str))
    score = float(right is True)
    return {"score": score, "acc": score, "not_compared": float(right is None)}


def read_part(solution_str: str) -> str:
    """Return the part of the response that math-verify reads."""
    tagged = answer_of(solution_str)
    return solution_str.rpartition("####")[2] if tagged is None else tagged


class Comparison:
    """A process that compares, started when it is first asked, and again after it was ended."""

    def __init__(self) -> None:
        self._process: Any = None  # Popen
        self._lock = threading.Lock()

    def ask(self, ground_truth: str, text: str, patience: float = PATIENCE) -> bool | None:
        """Return whether the text is the ground truth; None if that takes too long.

        Raises:
            RuntimeError: math-verify cannot be imported there.
        """
        with self._lock:
            if self._process is None:
                self._start()
            return self._exchange(ground_truth, text, patience)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        # imports are slow; a process that cannot make them ends at once
        if not self._exchange("1", "1", 10 * PATIENCE):
            raise RuntimeError(f"math-verify does not work. Type: {sys.executable} -c 'import math_verify'")

    def _exchange(self, ground_truth: str, text: str, patience: float) -> bool | None:
        process = self._process
        try:
            process.stdin.write(json.dumps([ground_truth, text]) + "\n")
            process.stdin.flush()
            if select([process.stdout], [], [], patience)[0]:
                right: bool | None = json.loads(process.stdout.readline())["right"]
                return right
        except (OSError, ValueError):
            pass  # it has ended
        process.kill()
        process.wait()
        self._process = None
        return None


@cache
def _comparison() -> Comparison:
    """Return this process's one."""
    if find_spec("math_verify") is None:
        raise ModuleNotFoundError("No module named 'math_verify'. Type: pip install math-verify")
    return Comparison()


def _serve() -> None:
    """Compare the pairs on standard input, one a line."""
    answers = os.fdopen(os.dup(1), "w")
    with contextlib.redirect_stdout(sys.stderr):
        for line in sys.stdin:
            print(json.dumps({"right": _is_right(*json.loads(line))}), file=answers, flush=True)


def _is_right(ground_truth: str, text: str) -> bool | None:
    from math_verify import parse, verify

    started = time.monotonic()
    wanted = parse("\\boxed{" + ground_truth + "}", parsing_timeout=SECONDS)
    right = bool(verify(wanted, parse(text, parsing_timeout=SECONDS), timeout_seconds=SECONDS))
    # math-verify, too, says no where it stops
    return right if right or time.monotonic() - started < SECONDS else None


if __name__ == "__main__":
    _serve()

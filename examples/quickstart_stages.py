"""Announce the stages of the quick start: which one begins, how long it takes, how long it took.

Standard library only: quickstart.sh announces the installation before anything is installed.
"""

import time
from collections.abc import Callable

EXPECTED_SECONDS = {"install": 30.0, "prepare": 40.0, "start": 60.0, "step": 6.5}
"""On 2 cores without a GPU; a step of the default run includes its share of tests and checkpoints."""

STAGES = ("install", "prepare", "start", "train")


class Stages:
    """Print each stage as it begins, and how long it took when it ends.

    ``started`` is the time at which quickstart.sh announced the installation; None if it did not.
    """

    def __init__(self, started: float | None = None, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.started = clock() if started is None else started
        self.began = self.started
        self.current = "" if started is None else STAGES[0]

    def begin(self, stage: str, what: str, seconds: float, shortcut: str = "") -> None:
        """End the previous stage and announce this one; do nothing if it is the current stage.

        Args:
            stage: one of ``STAGES``.
            what: description of the stage.
            seconds: time that it takes on 2 cores.
            shortcut: when it takes less time.
        """
        if stage == self.current:
            return
        self.end()
        self.current, self.began = stage, self.clock()
        number = f"[{STAGES.index(stage) + 1}/{len(STAGES)}]"
        print(f"{number} {what}: {about(seconds)} on 2 cores{shortcut}.", flush=True)

    def end(self) -> None:
        """Print how long the current stage took, if there is one."""
        if self.current:
            now = self.clock()
            print(
                f"      took {minutes(now - self.began)}; {minutes(now - self.started)} since the start",
                flush=True,
            )
        self.current = ""

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return round(self.clock() - self.started, 1)


def announce_installation() -> None:
    """Announce the first stage, which quickstart.py ends."""
    Stages().begin(
        "install",
        "Installing verl, vLLM for the processor and this package",
        EXPECTED_SECONDS["install"],
        ", a few seconds if they are installed already",
    )


def about(seconds: float) -> str:
    """Return a rough time in words: ``about 30 s``, ``about 2 minutes``."""
    if seconds < 55:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    whole = round(seconds / 60)
    return f"about {whole} minute{'s' * (whole > 1)}"


def minutes(seconds: float) -> str:
    """Return a measured time as ``1:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    announce_installation()

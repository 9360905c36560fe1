"""What the quick start says about its stages: which one begins, how long it takes, how long it took.

Standard library only: quickstart.sh announces the installation before anything is installed.
"""

import time
from collections.abc import Callable

EXPECTED_SECONDS = {"install": 30.0, "prepare": 40.0, "start": 60.0, "step": 6.5}
"""On 2 cores with no GPU; a step of the default run, its share of the tests and checkpoints included."""

STAGES = ("install", "prepare", "start", "train")


class Stages:
    """Announces each stage as it begins, and says when it ends how long it took.

    ``started`` is the time at which quickstart.sh announced the installation, None where it did not.
    """

    def __init__(self, started: float | None = None, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.started = clock() if started is None else started
        self.began = self.started
        self.current = "" if started is None else STAGES[0]

    def begin(self, stage: str, what: str, seconds: float, shortcut: str = "") -> None:
        """End the stage before, and announce this one; nothing if it is the current one already.

        Args:
            stage: one of ``STAGES``.
            what: what it does.
            seconds: how long it takes on 2 cores.
            shortcut: what may make it shorter.
        """
        if stage == self.current:
            return
        self.end()
        self.current, self.began = stage, self.clock()
        number = f"[{STAGES.index(stage) + 1}/{len(STAGES)}]"
        print(f"{number} {what}: {about(seconds)} on 2 cores{shortcut}.", flush=True)

    def end(self) -> None:
        """Say how long the current stage took, if there is one."""
        if self.current:
            now = self.clock()
            print(
                f"      took {minutes(now - self.began)}; {minutes(now - self.started)} since the start",
                flush=True,
            )
        self.current = ""

    def seconds(self) -> float:
        """Since the start."""
        return round(self.clock() - self.started, 1)


def announce_installation() -> None:
    """The first stage; quickstart.py ends it."""
    Stages().begin(
        "install",
        "Installing verl, vLLM for the processor and this package",
        EXPECTED_SECONDS["install"],
        ", a few seconds if they are installed already",
    )


def about(seconds: float) -> str:
    """A rough time in words: ``about 30 s``, ``about 2 minutes``."""
    if seconds < 55:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    whole = round(seconds / 60)
    return f"about {whole} minute{'s' * (whole > 1)}"


def minutes(seconds: float) -> str:
    """A measured time: ``1:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    announce_installation()

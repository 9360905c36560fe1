"""What a command or a training's process prints: tables, errors, a line after Ctrl-C, how a child ended."""

import io
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires
from typing import TYPE_CHECKING, Any

from grpo_verl_ext.utils.files import in_one_sentence

if TYPE_CHECKING:
    from rich.console import Console


def print_any_character() -> None:
    """Let a terminal without Unicode show codes such as ``\\u2212`` in place of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def make_console(*, at_least: int = 0, stderr: bool = False) -> "Console":
    """Return a console that never folds or cuts a line of text, so that paths can be copied whole.

    Tables may use ``at_least`` so many columns, even if the terminal is narrower.
    """
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False, markup=False, stderr=stderr)
    console.width = max(console.width, at_least) if console.is_terminal else 10_000
    return console


@contextmanager
def one_message(
    who: str, *errors: type[Exception], extra: str | None = None, elsewhere: str | None = None
) -> Iterator[None]:
    """Print an error of this package, of a file or folder, or of ``errors`` as one message, and exit with 1.

    The message begins with ``who``. It has the line that installs ``extra`` where an import fails, and
    ``elsewhere``, what to type for another place, where a file cannot be used.
    """
    try:
        yield
    except Exception as error:
        said: str | None = None
        if isinstance(error, errors) or type(error).__module__.startswith("grpo_verl_ext."):
            said = str(error)
        elif isinstance(error, ModuleNotFoundError) and extra:
            said, package = str(error), str(error.name).partition(".")[0]
            brought = (each for each in requires("grpo-verl-ext") or [] if f"extra == '{extra}'" in each)
            if any(each.startswith(package) for each in brought):
                said = f"{said}. Type: pip install '.[{extra}]', in a checkout of grpo_verl_ext"
        elif isinstance(error, OSError):
            said = in_one_sentence(error, elsewhere)
        if said is None:
            raise
        print(f"{who}: {said}", file=sys.stderr, flush=True)
        raise SystemExit(1) from error


@contextmanager
def interruptible() -> Iterator[None]:
    """After Ctrl-C, say how to resume and exit with status 130, as shells report it."""
    original = sys.unraisablehook

    def interrupt_again(dropped: Any) -> None:  # Python drops what is raised in a `__del__`
        if dropped.exc_type is not KeyboardInterrupt:
            original(dropped)
        elif (main := threading.main_thread().ident) is not None:
            threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()

    sys.unraisablehook = interrupt_again
    try:
        yield
    except KeyboardInterrupt as interrupt:
        print("\nInterrupted. Run the same command again to resume.", file=sys.stderr, flush=True)
        raise SystemExit(130) from interrupt
    finally:
        sys.unraisablehook = original


def say(words: str) -> None:
    """Print a line in the name of this package, at once, to the standard error of a training's process."""
    print(f"grpo_verl_ext: {words}", file=sys.stderr, flush=True)


def ending(status: int) -> str:
    """Say how a child process ended: ``status 1``, or for a signal, -4, ``SIGILL (Illegal instruction)``."""
    if status >= 0:
        return f"status {status}"
    names = {each.value: each.name for each in signal.Signals}
    return f"{names.get(-status, f'signal {-status}')} ({signal.strsignal(-status)})"

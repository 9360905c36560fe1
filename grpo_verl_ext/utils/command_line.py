"""Turn errors that the user can mend into one message and exit status 1, and Ctrl-C into status 130."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from grpo_verl_ext.utils.extras import line_to_install
from grpo_verl_ext.utils.files import in_one_sentence

INTERRUPTED = 130
"""Exit status of a program that Ctrl-C has ended, as shells report it."""
RESUME = "Interrupted. Run the same command again to resume."


@contextmanager
def one_message(
    who: str, *errors: type[Exception], extra: str | None = None, elsewhere: str | None = None
) -> Iterator[None]:
    """Print such an error, or that of a file or folder, as one message and exit with status 1.

    Args:
        who: first word of the message.
        errors: their types.
        extra: the package's extra that installs what the block imports.
        elsewhere: what to type so that the block reads and writes in another place.
    """
    try:
        yield
    except errors as error:
        typer.echo(f"{who}: {error}", err=True)
        raise SystemExit(1) from error
    except ModuleNotFoundError as error:
        if extra is None:
            raise
        typer.echo(f"{who}: {error}. Type: {line_to_install(extra)}", err=True)
        raise SystemExit(1) from error
    except OSError as error:
        sentence = in_one_sentence(error, elsewhere)
        if sentence is None:
            raise
        typer.echo(f"{who}: {sentence}", err=True)
        raise SystemExit(1) from error


@contextmanager
def interruptible() -> Iterator[None]:
    """After Ctrl-C, say how to resume and exit with status 130."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        typer.echo(f"\n{RESUME}", err=True)
        raise SystemExit(INTERRUPTED) from interrupt

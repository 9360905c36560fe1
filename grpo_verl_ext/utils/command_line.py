"""Turn errors that the user can mend into one message and exit status 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def one_message(who: str, *errors: type[Exception], extra: str | None = None) -> Iterator[None]:
    """Print such an error as one message and exit with status 1.

    Args:
        who: first word of the message.
        errors: their types.
        extra: the package's extra that installs what the block imports.
    """
    try:
        yield
    except errors as error:
        typer.echo(f"{who}: {error}", err=True)
        raise typer.Exit(1) from error
    except ModuleNotFoundError as error:
        if extra is None:
            raise
        typer.echo(f"{who}: {error}. Type: pip install 'grpo-verl-ext[{extra}]'", err=True)
        raise typer.Exit(1) from error

"""Where text goes: data to standard output, notes to standard error; colour only on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

# Width of tables that go to a file or a pipe.
_PLAIN_WIDTH = 110

Progress = Callable[[str, int, int], None]
"""(what, done, total)."""


def data_console() -> Console:
    """Standard output for tables."""
    return _console(sys.stdout)


def note_console() -> Console:
    """Standard error for progress."""
    return _console(sys.stderr)


def warn(message: str) -> None:
    """One line on standard error."""
    print(f"warning: {one_line(message)}", file=sys.stderr)


def one_line(message: str) -> str:
    """The message without line breaks or other control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in message).split())


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A callback that draws a bar on standard error; silent when that is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = note_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[int, object] = {}

        def report(what: str, done: int, total: int) -> None:
            if total not in tasks:
                tasks[total] = bar.add_task(what, total=total)
            bar.update(tasks[total], description=what, completed=done)  # type: ignore[arg-type]

        yield report


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    is_terminal = stream.isatty()
    plain = not is_terminal or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return Console(
        file=stream,
        no_color=plain,
        force_terminal=is_terminal,
        color_system=None if plain else "auto",
        width=None if is_terminal else _PLAIN_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )

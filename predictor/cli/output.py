"""JSON and files: one object on standard output, or in a file that appears whole or not at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from predictor.errors import OutputNotWritable
from predictor.files import write_whole


def write_json(value: Mapping[str, Any], target: Path | None = None) -> None:
    """Writes an indented object to `target`, or to standard output. Raises OutputNotWritable."""
    write_text(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n", target)


def write_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a list of objects, one a line, to standard output."""
    lines = ",\n".join(f"  {json.dumps(row, allow_nan=False, ensure_ascii=False)}" for row in rows)
    sys.stdout.write(f"[\n{lines}\n]\n" if rows else "[]\n")


def keep_input(source: str | Path, target: str | Path | None) -> None:
    """Raises OutputNotWritable where an output would take the place of the file that was read."""
    try:
        same = target is not None and Path(target).samefile(source)
    except (OSError, ValueError):
        # One of them does not exist, or is no path at all.
        return
    if same:
        raise OutputNotWritable(f"{target} is the file that is read; name another to write")


def write_text(text: str, target: Path | None = None) -> None:
    """Writes text to `target`, or to standard output. Raises OutputNotWritable."""
    if target is None:
        sys.stdout.write(text)
    else:
        write_bytes(text.encode(), target)


def write_bytes(data: bytes, target: Path) -> None:
    """Replaces `target` in one step. Raises OutputNotWritable; nothing half-written is left behind."""
    write_whole(target, lambda path: path.write_bytes(data))

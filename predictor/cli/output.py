"""JSON and files: one object on standard output, or in a file that appears whole or not at all."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from predictor.errors import OutputNotWritable


def write_json(value: Mapping[str, Any], target: Path | None = None) -> None:
    """Writes an indented object to `target`, or to standard output. Raises OutputNotWritable."""
    write_text(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n", target)


def write_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a list of objects, one a line, to standard output."""
    lines = ",\n".join(f"  {json.dumps(row, allow_nan=False, ensure_ascii=False)}" for row in rows)
    sys.stdout.write(f"[\n{lines}\n]\n" if rows else "[]\n")


def write_text(text: str, target: Path | None = None) -> None:
    """Writes text to `target`, or to standard output. Raises OutputNotWritable."""
    if target is None:
        sys.stdout.write(text)
    else:
        write_bytes(text.encode(), target)


def write_bytes(data: bytes, target: Path) -> None:
    """Replaces `target` in one step. Raises OutputNotWritable; nothing half-written is left behind."""
    partial: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        partial = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # mkstemp makes files private; an output should have the mode that the user's umask gives.
        umask = os.umask(0)
        os.umask(umask)
        partial.chmod(0o666 & ~umask)
        partial.replace(target)
    except OSError as error:
        if partial is not None:
            partial.unlink(missing_ok=True)
        raise OutputNotWritable(
            f"{target}: cannot be written ({error.strerror}); give a file in a folder you may write to",
            path=target,
        ) from None

"""Files that appear whole or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from predictor.errors import OutputNotWritable


def write_whole(path: Path, write: Callable[[Path], object], *, make_folder: bool = False) -> None:
    """Runs `write` on a path beside `path` and moves the result there; nothing half-written is left behind.

    A pipe or device is written as it is. Raises OutputNotWritable.
    """
    special = path.exists() and not path.is_file()
    partial = path if special else path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        if not special:
            partial.replace(path)
    except OSError as error:
        why = error.strerror or error
        raise OutputNotWritable(
            f"{path}: cannot be written ({why}); give a file in a folder you may write to", path=path
        ) from None
    finally:
        if not special:
            with suppress(OSError):
                partial.unlink()


def code_version(*folders: Path) -> str:
    """Hash of the Python code below folders: what it computed before another one is stale."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.resolve().rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()

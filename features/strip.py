"""Models without weights: small enough to mail, commit or upload, and priced exactly like the original."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from predictor.errors import OutputNotWritable
from predictor.features.model_file import ModelSource, load_model


def strip_model(source: ModelSource) -> bytes:
    """ONNX bytes with every weight payload replaced by a reference to an external file that does not exist.

    Kept: structure, shapes, element types, integers up to 1 KiB, single elements, the float sizes of Resize.
    Raises InvalidGraph as `read_graph` does.
    """
    return bytes(load_model(source).SerializeToString(deterministic=True))


def write_stripped(source: ModelSource, target: str | os.PathLike[str]) -> int:
    """Writes the stripped model to `target`, whole or not at all; returns its size in bytes.

    Raises InvalidGraph for a bad source and OutputNotWritable for a bad target.
    """
    data = strip_model(source)
    path = Path(target)
    temporary: str | None = None
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        # mkstemp files are private; a model is as readable as any other file its owner makes.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise OutputNotWritable(
            f"{os.fspath(target)!r} cannot be written: {error.strerror or error}", path=target
        ) from None
    return len(data)

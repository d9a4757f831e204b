"""Models without weights: small enough to mail, commit or upload, and priced exactly like the original."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from onnx import ModelProto

from predictor.features.reading.model_file import ModelSource, load_model
from predictor.files import write_whole

_NOTES = ("doc_string", "metadata_props")
# Fields with parts that carry notes themselves.
_HOLDERS = ("node", "attribute", "graphs", "initializer", "input", "output", "value_info")


def strip_model(source: ModelSource) -> bytes:
    """ONNX bytes with every weight payload replaced by a reference to an external file that does not exist.

    Kept: structure, shapes, element types, integers up to 1 KiB, single elements, the float sizes of Resize.
    Gone as well: documentation and metadata, which hold source paths and stack traces of whoever exported.
    Raises InvalidGraph as `read_graph` does.
    """
    model = load_model(source)
    _drop_notes(model)
    return bytes(model.SerializeToString(deterministic=True))


def _drop_notes(model: ModelProto) -> None:
    """Clears doc strings and metadata, in place, on every level."""
    pending: list[Any] = [model, model.graph, *model.functions]
    while pending:
        message = pending.pop()
        fields = message.DESCRIPTOR.fields_by_name
        for name in _NOTES:
            if name in fields:
                message.ClearField(name)
        for name in _HOLDERS:
            if name in fields:
                # Nodes and functions name their inputs and outputs in fields of the same name.
                pending.extend(part for part in getattr(message, name) if not isinstance(part, str))
        if message.DESCRIPTOR.name == "AttributeProto" and message.HasField("g"):
            pending.append(message.g)


def write_stripped(source: ModelSource, target: str | os.PathLike[str]) -> int:
    """Writes the stripped model to `target`, whole or not at all; returns its size in bytes.

    Raises InvalidGraph for a bad source and OutputNotWritable for a bad target.
    """
    data = strip_model(source)
    write_whole(Path(target), lambda path: path.write_bytes(data))
    return len(data)

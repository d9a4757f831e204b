"""From a path or bytes to a ModelProto without weights. External weight files are never opened."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto

from predictor.errors import InvalidGraph
from predictor.features.reading.weight_payloads import WireError, strip_bytes
from predictor.features.reading.weights import drop_payloads

ModelSource: TypeAlias = str | os.PathLike[str] | bytes
NODE_LIMIT = 200_000
DEPTH_LIMIT = 16
# onnx keeps versions in 32 bits; the newest one is below 30.
_OPSET_LIMIT = 2**31 - 1

# Below this size parsing everything costs less than walking the wire format in Python.
_PARSE_DIRECTLY_BYTES = 4 * 2**20
_FOREIGN = (
    (b"\x1f\x8b", "a gzip archive; decompress it first"),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint?); export the model with torch.onnx.export"),
    (b"\x89HDF", "an HDF5 file (a Keras model?); convert it with tf2onnx"),
    (b"\x80\x02", "a pickle (a PyTorch checkpoint?); export the model with torch.onnx.export"),
)


def load_model(source: ModelSource) -> ModelProto:
    """The model with every weight payload dropped.

    Raises InvalidGraph when the source is absent, unreadable, not ONNX, damaged, or beyond the limits
    (200,000 nodes, graphs nested 16 deep).
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return parse_model(bytes(source), "the bytes given")
    path = Path(source)
    label = repr(os.fspath(source))
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            # Reading a pipe may wait for ever, and /dev/zero never ends.
            raise InvalidGraph(f"{label} is {_special(status.st_mode)}; expected an .onnx file", path=path)
        if status.st_size <= _PARSE_DIRECTLY_BYTES:
            return parse_model(path.read_bytes(), label)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return parse_model(view, label)
    except FileNotFoundError:
        raise InvalidGraph(f"{label} does not exist; expected a path of an .onnx file", path=path) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidGraph(f"{label} cannot be read: {reason}", path=path) from None


def _special(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a pipe (give its bytes, or - for standard input)" if stat.S_ISFIFO(mode) else "a device or socket"


def parse_model(data: bytes | mmap.mmap, label: str) -> ModelProto:
    """The ModelProto in `data`, weights dropped, checked for having a graph within the limits."""
    if len(data) == 0:
        raise InvalidGraph(f"{label}: 0 bytes; expected an ONNX model")
    model = ModelProto()
    try:
        small = isinstance(data, bytes) and len(data) <= _PARSE_DIRECTLY_BYTES
        model.ParseFromString(data if small else strip_bytes(data))
    except (DecodeError, WireError, RecursionError):
        raise InvalidGraph(f"{label}: not an ONNX model; {_guess(bytes(data[:512]))}") from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise InvalidGraph(f"{label}: holds no ONNX graph; {_guess(bytes(data[:512]))}")
    if not model.opset_import:
        raise InvalidGraph(
            f"{label}: names no operator set version; export it again with ONNX IR version 3 or later"
        )
    opsets = (*model.opset_import, *(item for function in model.functions for item in function.opset_import))
    for opset in opsets:
        # Domains of one's own may count from 0; ONNX's begin at 1.
        least = 0 if opset.domain and not opset.domain.startswith("ai.onnx") else 1
        if not least <= opset.version <= _OPSET_LIMIT:
            raise InvalidGraph(
                f"{label}: operator set version {opset.version} of {opset.domain or 'ai.onnx'} does not "
                "exist; the file is damaged, or its exporter wrote no version"
            )
    check_limits(model.graph, label)
    try:
        _check_text(model)
    except TypeError:
        raise InvalidGraph(f"{label}: a name in it is no UTF-8 text; the file is damaged") from None
    drop_payloads(model)
    return model


def check_limits(graph: GraphProto, label: str) -> None:
    """Raises InvalidGraph beyond NODE_LIMIT nodes in all or DEPTH_LIMIT nested graphs."""
    count = 0
    pending = [(graph, 0)]
    while pending:
        current, depth = pending.pop()
        count += len(current.node)
        if count > NODE_LIMIT:
            raise InvalidGraph(
                f"{label}: more than {NODE_LIMIT} nodes; split the model or raise the question"
            )
        if depth > DEPTH_LIMIT:
            raise InvalidGraph(f"{label}: graphs nested more than {DEPTH_LIMIT} deep (If, Loop, Scan bodies)")
        for node in current.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    pending.append((attribute.g, depth + 1))
                pending.extend((inner, depth + 1) for inner in attribute.graphs)


def _check_text(model: ModelProto) -> None:
    """Raises TypeError for a name that is no UTF-8: protobuf hands such a string out as bytes."""
    pending = [model.graph]
    names = [item.domain for item in model.opset_import]
    for function in model.functions:
        names.extend((function.name, function.domain, *function.input, *function.output, *function.attribute))
        pending.extend(_nodes_text(function.node, names))
    while pending:
        graph = pending.pop()
        names.extend((graph.name, *(tensor.name for tensor in graph.initializer)))
        names.extend(sparse.values.name for sparse in graph.sparse_initializer)
        for info in (*graph.input, *graph.output, *graph.value_info):
            names.append(info.name)
            names.extend(dim.dim_param for dim in info.type.tensor_type.shape.dim)
        pending.extend(_nodes_text(graph.node, names))
    "".join(names)


def _nodes_text(nodes: Iterable[NodeProto], names: list[str]) -> list[GraphProto]:
    """Adds the nodes' names to `names`; returns the graphs nested in them."""
    nested: list[GraphProto] = []
    for node in nodes:
        names.extend((node.name, node.op_type, node.domain, *node.input, *node.output))
        for attribute in node.attribute:
            names.append(attribute.name)
            if attribute.HasField("g"):
                nested.append(attribute.g)
            nested.extend(attribute.graphs)
    return nested


def _guess(head: bytes) -> str:
    """What the file may be instead, from its first bytes."""
    for magic, meaning in _FOREIGN:
        if head.startswith(magic):
            return f"it looks like {meaning}"
    if head.lstrip()[:1] == b"{":
        return "it looks like JSON; `perfcast graph from-config` makes a model of a transformer's config.json"
    if head and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head):
        return "it looks like text"
    return "it is damaged, truncated or of another format"

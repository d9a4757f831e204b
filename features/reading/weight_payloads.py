"""Weight payloads cut out of an ONNX file before protobuf sees them.

Parsing a 1.6 GB model with inline weights copies every byte at least twice. The protobuf wire format tells
the length of each field, so weights can be stepped over: a mapped file is then read only where its
structure stands.

Only messages longer than `SMALL_BYTES` are opened; anything shorter is copied as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from mmap import mmap
from typing import TypeAlias

SMALL_BYTES = 2048

Buffer: TypeAlias = "bytes | mmap"
# Field numbers of onnx.proto3 that lead to tensors, by message.
_TENSOR = "tensor"
_CHILDREN: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: _TENSOR, 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: _TENSOR, 6: "graph", 10: _TENSOR, 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: _TENSOR, 2: _TENSOR},
}
# float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data
_PAYLOAD_FIELDS = frozenset({4, 5, 6, 7, 9, 10, 11})
_DEPTH_LIMIT = 100
# data_location (field 14) = EXTERNAL (1): what is left of a tensor whose payload was cut.
_EXTERNAL = bytes((14 << 3, 1))


class WireError(Exception):
    """The bytes are not a well-formed protobuf message."""


def strip_bytes(data: Buffer) -> bytes:
    """The same ModelProto without tensor payloads in fields longer than SMALL_BYTES. Raises WireError."""
    return b"".join(_message(data, 0, len(data), "model", 0))


def _message(data: Buffer, start: int, end: int, kind: str, depth: int) -> list[bytes]:
    if depth > _DEPTH_LIMIT:
        raise WireError("messages nested too deep")
    if kind == _TENSOR:
        return _tensor(data, start, end)
    children = _CHILDREN[kind]
    kept: list[bytes] = []
    copied = start
    for number, wire_type, field_start, body, field_end in _fields(data, start, end):
        child = children.get(number) if wire_type == 2 else None
        if child is None or field_end - body <= SMALL_BYTES:
            continue
        kept.append(data[copied:field_start])
        inner = _message(data, body, field_end, child, depth + 1)
        kept.append(_varint(number << 3 | 2) + _varint(sum(map(len, inner))))
        kept.extend(inner)
        copied = field_end
    kept.append(data[copied:end])
    return kept


def _tensor(data: Buffer, start: int, end: int) -> list[bytes]:
    kept: list[bytes] = []
    copied = start
    cut = False
    for number, _, field_start, _, field_end in _fields(data, start, end):
        if number in _PAYLOAD_FIELDS:
            kept.append(data[copied:field_start])
            copied = field_end
            cut = True
    kept.append(data[copied:end])
    return [*kept, _EXTERNAL] if cut else kept


def _fields(data: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(field number, wire type, start of the tag, start of the body, end) of each field of a message."""
    position = start
    while position < end:
        field_start = position
        tag, position = _read_varint(data, position, end)
        wire_type = tag & 7
        if tag < 8:
            raise WireError(f"field number 0 at byte {field_start}")
        if wire_type == 0:
            body = position
            _, position = _read_varint(data, position, end)
        elif wire_type == 2:
            length, body = _read_varint(data, position, end)
            position = body + length
        elif wire_type in (1, 5):
            body = position
            position += 8 if wire_type == 1 else 4
        else:
            raise WireError(f"wire type {wire_type} at byte {field_start}")
        if position > end:
            raise WireError(f"field at byte {field_start} runs past the end")
        yield tag >> 3, wire_type, field_start, body, position


def _read_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise WireError(f"number cut off at byte {position}")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)

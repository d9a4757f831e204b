"""Output types of one node from ONNX's own C++ inference.

Whole-model inference gives up at ConstantOfShape, Range, Expand, Pad and Mod because it does not carry the
constants that our folding knows. Asked node by node, with those constants handed in, the same C++ rules
answer (7 µs a node).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from onnx import NodeProto, TypeProto, checker, defs, shape_inference

from predictor.features.reading.tensor_type import Array, TensorType, read_type, tensor_proto


class NodeTypeError(Exception):
    """The node contradicts its inputs; the message is ONNX's reason in one line."""


def infer_outputs(
    node: NodeProto,
    version: int,
    inputs: Mapping[str, TensorType],
    constants: Mapping[str, Array],
    attributes_key: Hashable | None = None,
) -> dict[str, TensorType] | None:
    """Types of the node's outputs by name, or None when ONNX knows no such op or cannot look inside it.

    Args:
        version: opset version of the node's domain.
        inputs: types of (at least) the node's inputs; one that is missing makes the answer None.
        constants: contents of inputs where known.
        attributes_key: the attributes as one hashable value; lets equal nodes share their answer.

    Raises:
        NodeTypeError: the op's own rule rejects these inputs.
    """
    schema = find_schema(node.op_type, version, node.domain)
    if schema is None:
        return None
    known: list[tuple[TensorType, bytes] | None] = []
    for name in node.input:
        if not name:
            known.append(None)
            continue
        kind = inputs.get(name)
        if kind is None:
            return None
        array = constants.get(name)
        known.append((kind, b"" if array is None else array.tobytes()))
    outputs = tuple(node.output)
    if attributes_key is None:
        return dict(zip(outputs, _infer(schema, node, version, constants, known), strict=True))
    present = tuple(map(bool, outputs))
    key = (node.domain, node.op_type, version, attributes_key, tuple(known), present)
    found = _MEMO.get(key)
    if found is None:
        if len(_MEMO) >= _MEMO_LIMIT:
            _MEMO.clear()
        found = _MEMO[key] = _infer(schema, node, version, constants, known)
    return dict(zip(outputs, found, strict=True))


_PART_LIMIT = 2**16
_AXIS_LIMIT = 2**31


def _check_numbers(node: NodeProto) -> None:
    """Numbers that end the process inside ONNX's rules: it indexes, or writes out lists, without looking."""
    for attribute in node.attribute:
        number = attribute.i
        if attribute.name == "axis" and not -_AXIS_LIMIT <= number < _AXIS_LIMIT:
            raise NodeTypeError(f"axis {number} is none")
        if attribute.name == "batch_dims" and number < 0:
            raise NodeTypeError(f"batch_dims={number}; expected none below 0")
        if attribute.name == "num_outputs" and not len(node.output) <= number <= _PART_LIMIT:
            raise NodeTypeError(
                f"num_outputs={number} for {len(node.output)} outputs; expected {len(node.output)}"
            )


# A transformer of 900 nodes has some forty distinct ones; so do all candidates of a search together.
_MEMO: dict[Hashable, tuple[TensorType, ...]] = {}
_MEMO_LIMIT = 20_000
_NOTHING = TensorType(0, None)


def _infer(
    schema: Any,
    node: NodeProto,
    version: int,
    constants: Mapping[str, Array],
    known: Sequence[tuple[TensorType, bytes] | None],
) -> tuple[TensorType, ...]:
    """The C++ rule's answer for each output, in order."""
    _check_numbers(node)
    types: dict[str, bytes] = {}
    data: dict[str, bytes] = {}
    for name, operand in zip(node.input, known, strict=True):
        if operand is not None:
            types[name] = _type_bytes(operand[0])
            if name in constants:
                data[name] = tensor_proto(constants[name], operand[0].elem_type).SerializeToString()
    try:
        # The public wrapper serialises every type again on each call; these bytes are cached.
        encoded_node = node.SerializeToString()
        found = schema._infer_node_outputs(encoded_node, types, data, {}, {node.domain: version}, 10)
    except shape_inference.InferenceError as error:
        raise NodeTypeError(_one_line(str(error))) from None
    except (checker.ValidationError, RuntimeError, ValueError, IndexError) as error:
        raise NodeTypeError(_one_line(str(error))) from None
    return tuple(
        read_type(TypeProto.FromString(found[name])) if name in found else _NOTHING for name in node.output
    )


@lru_cache(maxsize=4096)
def find_schema(op_type: str, version: int, domain: str) -> Any | None:
    """The op's schema at that opset version, or None."""
    try:
        return defs.get_schema(op_type, max(version, 1), domain)
    except defs.SchemaError:
        return None


@lru_cache(maxsize=16384)
def _type_bytes(known: TensorType) -> bytes:
    if known.elem_type == 0 and known.container is None:
        return b""
    return bytes(known.to_proto().SerializeToString())


# Bounded: names of a damaged file may be megabytes long.
_WRONG_TYPE = re.compile(r"(\w{1,40}) typestr: \w{1,40}, has unsupported type: tensor\((\w{1,40})\)")


def _one_line(text: str) -> str:
    """ONNX's reason without its location prefix and type noise."""
    line = " ".join(text.split())
    for noise in ("[ShapeInferenceError] ", "[TypeInferenceError] "):
        line = line.replace(noise, "")
    return _WRONG_TYPE.sub(
        r"ONNX does not define it for \2 (operand \1); cast before it, or use the operator's quantised form",
        line,
    )

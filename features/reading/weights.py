"""Tensors without their payload: what a weight looks like once its numbers are gone.

A dropped payload becomes an external-data reference to a file that is never written: viewers still open the
model, and every reader of ours treats it like any model whose weight file is absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

DROPPED_LOCATION = "weights-dropped"
KEPT_PAYLOAD_BYTES = 1024

# Integer and boolean element types: what shapes, axes and indices are made of.
_INTEGER_TYPES = frozenset(
    {
        TensorProto.UINT8,
        TensorProto.INT8,
        TensorProto.UINT16,
        TensorProto.INT16,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.BOOL,
        TensorProto.UINT32,
        TensorProto.UINT64,
    }
)
_PAYLOAD_FIELDS = (
    "raw_data",
    "float_data",
    "int32_data",
    "string_data",
    "int64_data",
    "double_data",
    "uint64_data",
)
# Sizes that must be floats by ONNX's own definition; without them the output shape is lost.
_SHAPE_OPS = frozenset({"Shape", "Size"})
_FLOAT_SHAPE_OPS = frozenset({"Resize", "Upsample"})


def external_tensor(name: str, elem_type: int, dims: Sequence[int]) -> TensorProto:
    """A tensor whose payload is declared external and does not exist."""
    proto = TensorProto(name=name, data_type=elem_type, dims=dims, data_location=TensorProto.EXTERNAL)
    proto.external_data.add(key="location", value=DROPPED_LOCATION)
    return proto


def drop_payloads(model: ModelProto) -> None:
    """Removes, in place, every payload that no shape can depend on.

    Kept: integers and booleans up to 1 KiB, single elements, and the float sizes of Resize. Walks nested
    graphs, functions and tensor attributes.
    """
    for graph in _graphs(model.graph):
        sizes = _float_sizes(graph.node)
        for tensor in graph.initializer:
            _drop(tensor, keep_floats=tensor.name in sizes)
        for sparse in graph.sparse_initializer:
            _drop_sparse(sparse)
        _drop_in_nodes(graph.node, sizes)
    model.ClearField("training_info")
    for function in model.functions:
        _drop_in_nodes(function.node, _float_sizes(function.node))
        for node in function.node:
            for attribute in node.attribute:
                for inner in _attribute_graphs(attribute):
                    for graph in _graphs(inner):
                        _drop_in_nodes(graph.node, _float_sizes(graph.node))
                        for tensor in graph.initializer:
                            _drop(tensor, keep_floats=False)


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and all graphs nested in its nodes' attributes."""
    pending = [graph]
    while pending:
        current = pending.pop()
        yield current
        for node in current.node:
            for attribute in node.attribute:
                pending.extend(_attribute_graphs(attribute))


def _attribute_graphs(attribute: AttributeProto) -> Iterator[GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _float_sizes(nodes: Sequence[NodeProto]) -> frozenset[str]:
    """Names of values that the sizes of Resize-like ops are computed from."""
    pending = [name for node in nodes if node.op_type in _FLOAT_SHAPE_OPS for name in node.input[1:] if name]
    if not pending:
        return frozenset()
    writer = {name: node for node in nodes for name in node.output}
    found: set[str] = set()
    while pending:
        name = pending.pop()
        node = writer.get(name)
        # Behind a Shape stand activations and weights, which no size depends on.
        if name and name not in found:
            found.add(name)
            pending.extend(node.input if node is not None and node.op_type not in _SHAPE_OPS else ())
    return frozenset(found)


def _drop_in_nodes(nodes: Sequence[NodeProto], sizes: frozenset[str]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            keep = bool(node.output) and node.output[0] in sizes
            if attribute.HasField("t"):
                _drop(attribute.t, keep_floats=keep)
            for tensor in attribute.tensors:
                _drop(tensor, keep_floats=keep)
            if attribute.HasField("sparse_tensor"):
                _drop_sparse(attribute.sparse_tensor)
            for sparse in attribute.sparse_tensors:
                _drop_sparse(sparse)


def _drop(tensor: TensorProto, *, keep_floats: bool) -> None:
    elements = prod(tensor.dims)
    small = elements <= 1 or (elements <= 16 and keep_floats)
    if tensor.data_location != TensorProto.EXTERNAL and (
        small or (tensor.data_type in _INTEGER_TYPES and tensor.ByteSize() <= KEPT_PAYLOAD_BYTES + 256)
    ):
        return
    for field in _PAYLOAD_FIELDS:
        tensor.ClearField(field)
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=DROPPED_LOCATION)


def _drop_sparse(sparse: SparseTensorProto) -> None:
    _drop(sparse.values, keep_floats=False)
    _drop(sparse.indices, keep_floats=False)

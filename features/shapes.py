"""One walk over the nodes in order: what each value is (type) and, where small and constant, what it holds.

A type comes from, in this order: the folded contents, ONNX's rule for the node, our own rule, ONNX's
inference over the whole model (which sees into bodies), what the file declares, and what loop bodies state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, shape_inference

from predictor.errors import InvalidGraph, InvalidRequest, PerfcastError
from predictor.features.attributes import elem_type_of, read_attributes, tensor_contents
from predictor.features.binding import Binding
from predictor.features.body_types import body_types
from predictor.features.branches import taken_branch
from predictor.features.dim_expressions import evaluate
from predictor.features.folding import SHAPE_RULES, fold, fold_shape
from predictor.features.node_types import Array, Dim, NodeTypeError, TensorType, infer_outputs, read_type
from predictor.features.own_types import own_types
from predictor.features.rebatch import follow_batch
from predictor.features.structure import Call, order_calls

MAXIMUM_ELEMENTS = 2**63 - 1
_DEFAULT_VERSION = 1
_UNKNOWN = TensorType(0, None)
_TRACED_OPS = frozenset({"Reshape"})


@dataclass(frozen=True, slots=True)
class TypedCall:
    """A node with its attributes as Python values."""

    call: Call
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TypedModel:
    """Nodes in order, the type of every value that has one, and contents of small constants."""

    calls: tuple[TypedCall, ...]
    initializers: tuple[str, ...]
    types: Mapping[str, TensorType]
    contents: Mapping[str, Array]


def infer_types(model: ModelProto, binding: Binding, opsets: Mapping[str, int]) -> TypedModel:
    """Types and folded contents of all values.

    Raises:
        InvalidGraph: bad wiring, a node that contradicts its inputs, a negative or absurd size.
        InvalidRequest: the same, after the caller's batch replaced a hard-coded one.
    """
    # Infinity and NaN are legitimate constants (masks).
    with np.errstate(all="ignore"):
        return _Walk(model, binding, opsets).run()


class _Walk:
    """The state of one pass; lives only inside infer_types."""

    def __init__(self, model: ModelProto, binding: Binding, opsets: Mapping[str, int]) -> None:
        self.model = model
        self.binding = binding
        self.opsets = opsets
        self.types: dict[str, TensorType] = dict(binding.inputs)
        self.contents: dict[str, Array] = {}
        self.initializers: list[str] = []
        self.traced: Mapping[str, TensorType] | None = None
        if binding.traced is not None:
            # Read as exported first: only so does it show which dimensions of a constant held the batch.
            exported = Binding(binding.traced, binding.symbols, binding.replaced_batch or 1)
            self.traced = _Walk(model, exported, opsets).run().types

    def run(self) -> TypedModel:
        graph = self.model.graph
        for tensor in graph.initializer:
            self.add_initializer(tensor)
        for sparse in graph.sparse_initializer:
            self.types[sparse.values.name] = TensorType(sparse.values.data_type, tuple(sparse.dims))
            self.initializers.append(sparse.values.name)
        for name, known in self.types.items():
            self.check_size(name, known, None)
        pending = deque(order_calls(graph.node, self.types))
        typed: list[TypedCall] = []
        while pending:
            call = pending.popleft()
            attributes = read_attributes(call.node)
            branch = taken_branch(call.node, attributes, self.contents) if call.captured else None
            if branch is None:
                self.visit(call, attributes)
                typed.append(TypedCall(call, attributes))
                continue
            weights, nodes = branch
            for tensor in weights:
                self.add_initializer(tensor)
            pending.extendleft(reversed(order_calls(nodes, self.types)))
        self.check_outputs()
        return TypedModel(tuple(typed), tuple(self.initializers), self.types, self.contents)

    def add_initializer(self, tensor: Any) -> None:
        self.types[tensor.name] = TensorType(tensor.data_type, tuple(tensor.dims))
        self.initializers.append(tensor.name)
        array = tensor_contents(tensor)
        if array is not None:
            self.contents[tensor.name] = array

    def visit(self, call: Call, attributes: Mapping[str, Any]) -> None:
        node = call.node
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = self.opsets.get(domain, _DEFAULT_VERSION)
        if domain == "" and self.fold(call, attributes, version):
            return
        if self.follows_batch(call, domain):
            return
        try:
            key = _hashable(attributes, call)
            found = infer_outputs(node, version, self.types, self.contents, key) or {}
        except NodeTypeError as error:
            raise self.contradiction(call, str(error)) from None
        for position, name in enumerate(call.outputs):
            if not name:
                continue
            known = found.get(name, _UNKNOWN)
            if not known.is_complete:
                known = self.complete(call, domain, version, attributes, position, known)
            self.check_size(name, known, call)
            self.types[name] = known
        check = _CHECKS.get(node.op_type)
        if check is not None and domain == "":
            reason = check(call, self.types)
            if reason:
                raise self.contradiction(call, reason)

    def follows_batch(self, call: Call, domain: str) -> bool:
        """Types a Reshape to a constant that held the batch which the caller's replaced."""
        if self.traced is None or domain or call.node.op_type not in _TRACED_OPS or len(call.inputs) < 2:
            return False
        source, (output, *_) = call.inputs[0], call.outputs
        target = self.contents.get(call.inputs[1])
        before, bound = self.traced.get(source, _UNKNOWN).shape, self.types.get(source, _UNKNOWN).shape
        if target is None or before is None or bound is None:
            return False
        shape = follow_batch(before, bound, tuple(int(size) for size in target.ravel()))
        if shape is None or 0 in shape:
            return False
        if -1 in shape:
            rest = -prod(shape)
            if rest == 0 or prod(bound) % rest:
                return False
            shape = tuple(prod(bound) // rest if size == -1 else size for size in shape)
        if prod(shape) != prod(bound):
            return False
        self.types[output] = TensorType(self.types[source].elem_type, shape)
        return True

    def fold(self, call: Call, attributes: Mapping[str, Any], version: int) -> bool:
        """Computes the node when all its inputs are known; then types follow from the contents."""
        node = call.node
        contents = self.contents
        if node.op_type in SHAPE_RULES:
            arrays = fold_shape(
                node.op_type, attributes, self.types.get(call.inputs[0]) if call.inputs else None
            )
        elif all(name in contents or not name for name in call.inputs):
            arrays = fold(node.op_type, attributes, [contents.get(name) for name in call.inputs], version)
        else:
            return False
        if arrays is None or len(arrays) < len(call.outputs):
            return False
        for name, array in zip(call.outputs, arrays, strict=False):
            if name:
                self.contents[name] = array
                self.types[name] = TensorType(elem_type_of(array), array.shape)
        return True

    def complete(
        self,
        call: Call,
        domain: str,
        version: int,
        attributes: Mapping[str, Any],
        position: int,
        known: TensorType,
    ) -> TensorType:
        """Fills what ONNX's rule for the node left open."""
        name = call.outputs[position]
        inputs = [self.types.get(given) if given else None for given in call.inputs]
        integers = {key: value for key, value in attributes.items() if isinstance(value, int)}
        own = own_types(domain, call.node.op_type, version, inputs, integers)
        if position < len(own):
            known = _merge(known, own[position])
        # Looked at only when needed: inference over the whole model costs as much as everything else.
        if not known.is_complete:
            known = _merge(known, self.whole_model.get(name, _UNKNOWN))
        if not known.is_complete:
            known = _merge(known, self.declared.get(name, _UNKNOWN))
        if not known.is_complete:
            stated = body_types(call.node.op_type, attributes, call.inputs, self.types, self.contents)
            known = _merge(known, stated[position]) if position < len(stated) else known
        return known

    @cached_property
    def whole_model(self) -> Mapping[str, TensorType]:
        """ONNX's inference over everything, with the inputs bound; empty when it gives up."""
        model = ModelProto()
        model.CopyFrom(self.model)
        del model.graph.value_info[:]
        for info in model.graph.input:
            known = self.binding.inputs.get(info.name)
            if known is not None:
                info.type.CopyFrom(known.to_proto())
        for info in model.graph.output:
            info.type.tensor_type.ClearField("shape")
        try:
            inferred = shape_inference.infer_shapes(model, data_prop=True)
        except (shape_inference.InferenceError, RuntimeError, ValueError):
            return {}
        return {
            info.name: read_type(info.type) for info in (*inferred.graph.value_info, *inferred.graph.output)
        }

    @cached_property
    def declared(self) -> Mapping[str, TensorType]:
        """What the file says; useless once its batch was replaced."""
        if self.binding.replaced_batch is not None:
            return {}
        graph = self.model.graph
        return {info.name: self.bound(read_type(info.type)) for info in (*graph.value_info, *graph.output)}

    def bound(self, known: TensorType) -> TensorType:
        if known.dims is None:
            return known
        symbols = self.binding.symbols
        dims: list[Dim] = [evaluate(d, symbols) if isinstance(d, str) else d for d in known.dims]
        return replace(known, dims=tuple(dims))

    def check_size(self, name: str, known: TensorType, call: Call | None) -> None:
        shape = known.shape
        if shape is None:
            return
        if min(shape, default=0) < 0 or prod(shape) > MAXIMUM_ELEMENTS:
            place = f" of {call.label}" if call else ""
            text = "x".join(map(str, shape))
            raise InvalidGraph(f"value {name!r}{place} has shape {text}; a tensor cannot be that", value=name)

    def check_outputs(self) -> None:
        for info in self.model.graph.output:
            if info.name not in self.types:
                raise InvalidGraph(f"output {info.name!r} is written by no node", value=info.name)

    def contradiction(self, call: Call, reason: str) -> PerfcastError:
        shapes = ", ".join(_describe(self.types.get(name)) for name in call.inputs if name)
        message = f"node {call.label} cannot take inputs {shapes}: {reason}"
        old = self.binding.replaced_batch
        if old is None:
            traced = " If it was exported for other sizes, bind those or export it with dynamic ones"
            hint = f".{traced}" if self.binding.symbols else ""
            return InvalidGraph(message + hint, node=call.node.name)
        return InvalidRequest(
            f"{message}. The file hard-codes batch {old}; export it with a dynamic batch dimension, "
            f"or ask for batch {old}",
            field="batch",
            node=call.node.name,
        )


def _hashable(attributes: Mapping[str, Any], call: Call) -> Hashable | None:
    """The attributes as a key; None where they hold more than numbers and text (tensors, bodies)."""
    if len(attributes) < len(call.node.attribute):
        return None
    for value in attributes.values():
        if isinstance(value, np.ndarray | GraphProto):
            return None
    return tuple(attributes.items())


def _merge(known: TensorType, other: TensorType) -> TensorType:
    """`known` with its open parts filled from `other`."""
    elem_type = known.elem_type or other.elem_type
    if known.dims is None or other.dims is None or len(known.dims) != len(other.dims):
        return TensorType(elem_type, other.dims if known.dims is None else known.dims)
    pairs = zip(known.dims, other.dims, strict=True)
    return TensorType(elem_type, tuple(b if a.__class__ is not int else a for a, b in pairs))


def _describe(known: TensorType | None) -> str:
    if known is None or known.dims is None:
        return "(unknown)"
    return f"({', '.join('?' if size is None else str(size) for size in known.dims)})"


_Check = Callable[[Call, Mapping[str, TensorType]], str]


def _check_reshape(call: Call, types: Mapping[str, TensorType]) -> str:
    """ONNX's rule does not compare element counts."""
    before, after = types[call.inputs[0]].shape, types[call.outputs[0]].shape
    if before is None or after is None or prod(before) == prod(after):
        return ""
    return f"{prod(before)} elements do not fill shape {_describe(types[call.outputs[0]])}"


_CHECKS: Mapping[str, _Check] = {"Reshape": _check_reshape}

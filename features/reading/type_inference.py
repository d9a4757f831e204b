"""One walk over the nodes in order: what each value is (type) and, where small and constant, what it holds.

A type comes from, in this order: the folded contents, ONNX's rule for the node, our own rule, what the file
declares, and what loop bodies state. ONNX's inference over the whole model is not asked: bodies are opened
here, and on a damaged file it can write out a vector of any declared length, or abort the process.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

import predictor.features.reading.type_rules  # noqa: F401  (registers the rules)
from predictor.errors import InvalidGraph, InvalidRequest, PerfcastError
from predictor.features.programs.rules import has_rule
from predictor.features.reading.attributes import array_of, elem_type_of, read_attributes, tensor_contents
from predictor.features.reading.binding import Binding
from predictor.features.reading.body_weights import BodyWeights
from predictor.features.reading.branches import Opened, open_function
from predictor.features.reading.control import CONTROL_RULES, OPENING_LIMIT
from predictor.features.reading.dim_expressions import evaluate
from predictor.features.reading.folding import SHAPE_RULES, fold, fold_shape
from predictor.features.reading.hints import NO_HINTS, Hints, check_names
from predictor.features.reading.model_file import NODE_LIMIT
from predictor.features.reading.onnx_inference import NodeTypeError, infer_outputs
from predictor.features.reading.rebatch import follow_batch
from predictor.features.reading.structure import Call, calls_of, normal_domain, order_calls
from predictor.features.reading.tensor_type import Array, Dim, TensorType, described, merged, read_type
from predictor.features.reading.type_rules.containers import LENGTH_RULES
from predictor.features.reading.type_rules.operands import (
    LARGEST_TYPES,
    TYPES_AFTER_ONNX,
    TYPES_BEFORE_ONNX,
    Operands,
    TypeRule,
)
from predictor.features.reading.typed_model import TypedCall, TypedModel
from predictor.features.reading.weights import external_tensor
from predictor.registry import Registry
from predictor.types import Notice

MAXIMUM_ELEMENTS = 2**63 - 1
_DEFAULT_VERSION = 1
_PREFIX_LENGTH = 120
# Nodes that bodies and functions may add to those of the file: loops in loops multiply. Where a file is read
# twice, as exported and as asked for, both count.
_OPENED_LIMIT = 20_000
# Of these, nodes of loops that are run on trial, to see whether they end: tries in tries multiply.
_TRIED_LIMIT = 5_000
# Nodes that are gone over when bodies are opened, those of bodies in them included, at every level again.
_MOVED_LIMIT = 60_000
_NOTE_LIMIT = 32
_LARGEST_EMPTY = 2**40
_UNKNOWN = TensorType(0, None)
_TRACED_OPS = frozenset({"Reshape"})


def infer_types(
    model: ModelProto, binding: Binding, opsets: Mapping[str, int], hints: Hints = NO_HINTS
) -> TypedModel:
    """Types and folded contents of all values.

    Raises:
        InvalidGraph: bad wiring, a node that contradicts its inputs, a negative or absurd size.
        InvalidRequest: the same, after the caller's batch replaced a hard-coded one.
        UnknownName: a hint about a node or input that the graph does not have.
    """
    # Infinity and NaN are legitimate constants (masks).
    with np.errstate(all="ignore"):
        return _Walk(model, binding, opsets, hints).run()


@dataclass(frozen=True, slots=True)
class _Op:
    """A call with what selects its rules."""

    call: Call
    attributes: Mapping[str, Any]
    domain: str
    version: int


class _Walk:
    """The state of one pass; lives only inside infer_types."""

    def __init__(self, model: ModelProto, binding: Binding, opsets: Mapping[str, int], hints: Hints) -> None:
        self.model = model
        self.binding = binding
        self.opsets = opsets
        self.hints = hints
        self.types: dict[str, TensorType] = dict(binding.inputs)
        self.contents: dict[str, Array] = {}
        self.initializers: dict[str, None] = {}
        self.resident: dict[str, None] = {}
        self.assumed: set[str] = set()
        """Values whose shape is a bound or rests on one."""
        self.inner_declared: dict[str, TensorType] = {}
        self.notes: dict[Notice, None] = dict.fromkeys(binding.notes)
        self.names: set[str] = set()
        self.prefixes: set[str] = set()
        self.count = 0
        self.moved = 0
        self.tried = 0
        self.trials = 0
        """How many loops that are run on trial the walk is in."""
        self.limit = min(NODE_LIMIT, len(model.graph.node) + _OPENED_LIMIT)
        self.traced: Mapping[str, TensorType] | None = None
        if binding.traced is not None:
            # Read as exported first: only so does it show which dimensions of a constant held the batch.
            exported = Binding(binding.traced, binding.symbols, binding.replaced_batch or 1)
            first = _Walk(model, exported, opsets, hints)
            self.traced = first.run().types
            self.limit -= max(0, first.count - len(model.graph.node))
            self.moved = first.moved

    def run(self) -> TypedModel:
        graph = self.model.graph
        self.read_elements()
        for tensor in graph.initializer:
            self.add_initializer(tensor)
        for sparse in graph.sparse_initializer:
            self.types[sparse.values.name] = TensorType(sparse.values.data_type, tuple(sparse.dims))
            self.initializers[sparse.values.name] = None
        for name, known in self.types.items():
            self.check_size(name, known, None)
        typed = self.walk(graph.node)
        self.check_outputs()
        if self.hints:
            check_names(self.hints, self.binding.inputs, self.names)
        return TypedModel(
            tuple(typed),
            tuple(self.initializers),
            self.types,
            self.contents,
            tuple(self.notes),
            tuple(self.resident),
        )

    def given(self, calls: Sequence[Call]) -> Collection[str]:
        """Known values that the calls name: a body is small, and what is known may be much."""
        if self.count == 0:
            return self.types
        return {name for call in calls for name in (*call.reads, *call.outputs)} & self.types.keys()

    def walk(
        self, nodes: Sequence[NodeProto], captured: Sequence[tuple[str, ...]] | None = None
    ) -> list[TypedCall]:
        """Types nodes in order; those that stand for others (a branch, a function) are replaced by them."""
        typed: list[TypedCall] = []
        calls = calls_of(nodes, captured)
        for call in order_calls(calls, self.given(calls)):
            self.count += 1
            if self.count > self.limit:
                raise InvalidGraph(
                    f"bodies (If, Loop, Scan) and functions open to more than {_OPENED_LIMIT} nodes",
                    limit=OPENING_LIMIT,
                )
            self.tried += self.trials > 0
            if self.trials and self.tried > _TRIED_LIMIT:
                raise InvalidGraph("loops on trial open to too much; only a try is given up")
            if self.hints:
                self.names.update((call.node.name, *call.outputs))
            attributes = read_attributes(call.node)
            opened = self.open(call, attributes)
            if opened is None:
                self.visit(call, attributes)
                typed.append(TypedCall(call, attributes))
            else:
                typed.extend(opened)
        return typed

    def open(self, call: Call, attributes: Mapping[str, Any]) -> list[TypedCall] | None:
        """What stands for the call: its branch, its trips, the body of a function without a rule."""
        node = call.node
        version = self.version(node)
        rule = CONTROL_RULES.get(node.domain, node.op_type, version)
        if rule is not None:
            return rule(self, call, attributes)
        if has_rule(node.domain, node.op_type, version):
            return None
        opened = open_function(node, version, self.types, self.opsets, self.prefix(call))
        return None if opened is None else self.enter(opened)

    def enter(self, opened: Opened) -> list[TypedCall]:
        self.moved += opened.moved
        if self.moved > _MOVED_LIMIT:
            raise InvalidGraph(
                f"bodies (If, Loop, Scan) inside bodies hold too much: opening one after the other goes over "
                f"more than {_MOVED_LIMIT} nodes; nest them less deep, or move nodes out of them",
                limit=OPENING_LIMIT,
            )
        for name, proto in opened.declared.items():
            self.inner_declared[name] = self.bound(read_type(proto))
        return self.walk(opened.nodes, opened.captured)

    def prefix(self, call: Call) -> str:
        # Names inside bodies repeat their prefixes, so that they would double in length with every level.
        text = f"{(call.node.name or next(filter(None, call.outputs), call.node.op_type))[-_PREFIX_LENGTH:]}/"
        while text in self.prefixes:
            stem = next(filter(None, call.outputs), call.node.op_type)[-_PREFIX_LENGTH:]
            text = f"{stem}/{len(self.prefixes)}/"
        self.prefixes.add(text)
        return text

    def keep(self, weights: BodyWeights, prefix: str) -> None:
        for index, tensor in enumerate(weights.constants):
            kept = external_tensor(f"{prefix}{index}", tensor.data_type, tensor.dims)
            self.add_initializer(kept)
            self.resident[kept.name] = None
        self.resident.update(dict.fromkeys(weights.read & self.initializers.keys()))

    def note(self, code: str, message: str) -> None:
        if len(self.notes) < _NOTE_LIMIT:
            self.notes[Notice(code, message)] = None

    def cost(self, calls: Sequence[TypedCall]) -> float | None:
        from predictor.features.reading.branch_cost import cost_of

        return cost_of(calls, self.types, self.contents, self.opsets)

    def version(self, node: NodeProto) -> int:
        return self.opsets.get(normal_domain(node.domain), _DEFAULT_VERSION)

    def read_elements(self) -> None:
        """Contents of inputs that the caller gave, and of empty ones."""
        for name, known in self.binding.inputs.items():
            shape, given = known.shape, self.hints.elements.get(name)
            if shape is None or (given is None and 0 not in shape):
                continue
            size = prod(shape)
            if size != len(given or ()) or set(given or ()) != set(range(size)):
                raise InvalidRequest(
                    f"input {name!r} has {size} elements, and {len(given or ())} are given; expected "
                    f"{name}[0]=N to {name}[{size - 1}]=N",
                    field=f"dims.{name}",
                )
            numbers = [(given or {})[index] for index in range(size)]
            array = array_of(numbers, known.elem_type)
            # Beside an empty dimension others may be larger than numpy takes.
            if array is not None and prod(size or 1 for size in shape) < _LARGEST_EMPTY:
                self.contents[name] = array.reshape(shape)

    def add_initializer(self, tensor: TensorProto) -> None:
        self.types[tensor.name] = TensorType(tensor.data_type, tuple(tensor.dims))
        self.initializers[tensor.name] = None
        array = tensor_contents(tensor)
        if array is not None:
            self.contents[tensor.name] = array

    def visit(self, call: Call, attributes: Mapping[str, Any]) -> None:
        node = call.node
        op = _Op(call, attributes, normal_domain(node.domain), self.version(node))
        rests_on_bound = bool(self.assumed) and not self.assumed.isdisjoint(call.reads)
        if not op.domain and (self.fold(call, attributes, op.version) or self.fold_length(call)):
            if rests_on_bound:
                self.assumed.update(call.outputs)
            return
        if self.follows_batch(op):
            return
        exact = self.by_rule(TYPES_BEFORE_ONNX, op)
        try:
            key = _hashable(attributes, call)
            found = {} if exact else infer_outputs(node, op.version, self.types, self.contents, key) or {}
        except NodeTypeError as error:
            raise self.contradiction(call, str(error)) from None
        found.update(zip(call.outputs, exact, strict=False))
        for position, name in enumerate(call.outputs):
            if not name:
                continue
            known = found.get(name, _UNKNOWN)
            if not known.is_complete:
                known = self.complete(op, position, known)
            elif rests_on_bound:
                known = self.rather_declared(name, known)
            self.check_size(name, known, call)
            self.types[name] = known
        check = _CHECKS.get(node.op_type)
        if check is not None and not op.domain:
            reason = check(call, self.types)
            if reason:
                raise self.contradiction(call, reason)

    def rather_declared(self, name: str, known: TensorType) -> TensorType:
        """What the file says of a value whose inferred shape rests on a bound; else that shape, marked."""
        declared = self.declared.get(name)
        if declared is not None and declared.is_complete:
            return declared
        self.assumed.add(name)
        return known

    def by_rule(self, rules: Registry[TypeRule], op: _Op) -> tuple[TensorType, ...]:
        """Output types by our own rule; empty where there is none or it cannot tell."""
        call = op.call
        rule = rules.get(op.domain, call.node.op_type, op.version)
        if rule is None:
            return ()
        types = [self.types.get(name) if name else None for name in call.inputs]
        contents = [self.contents.get(name) if name else None for name in call.inputs]
        return rule(Operands(types, contents, op.attributes, len(call.outputs)))

    def fold_length(self, call: Call) -> bool:
        """Contents that follow from how many items a container has."""
        count = LENGTH_RULES.get(call.node.op_type)
        known = self.types.get(call.inputs[0]) if count and call.inputs else None
        if count is None or known is None or (known.container and known.items is None):
            return False
        array = np.asarray(count(known))
        self.contents[call.outputs[0]] = array
        self.types[call.outputs[0]] = TensorType(elem_type_of(array), ())
        return True

    def follows_batch(self, op: _Op) -> bool:
        """Types a Reshape to a constant that held the batch which the caller's replaced."""
        call = op.call
        if self.traced is None or op.domain or call.node.op_type not in _TRACED_OPS or len(call.inputs) < 2:
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

    def complete(self, op: _Op, position: int, known: TensorType) -> TensorType:
        """Fills what ONNX's rule for the node left open."""
        name = op.call.outputs[position]
        own = self.by_rule(TYPES_AFTER_ONNX, op)
        if position < len(own):
            known = merged(known, own[position])
        if not known.is_complete:
            known = merged(known, self.declared.get(name, _UNKNOWN))
        if known.is_complete:
            return known
        return self.assume(op, position, known)

    def assume(self, op: _Op, position: int, known: TensorType) -> TensorType:
        """Sizes that depend on data: the caller's, else the largest possible with a note."""
        call, name = op.call, op.call.outputs[position]
        given = self.given_size(call, position, known)
        if given.is_complete:
            return given
        bounds = self.by_rule(LARGEST_TYPES, op)
        if position >= len(bounds):
            return given
        bound = merged(given, bounds[position])
        if bound.is_complete:
            self.assumed.add(name)
            label = call.node.name or name
            self.note(
                "SIZE_ASSUMED",
                f"{call.label}: the size of output {position} depends on data; {described(bound)} is "
                f"assumed; --dim {label}.out.{position}=N gives another",
            )
        return bound

    def given_size(self, call: Call, position: int, known: TensorType) -> TensorType:
        """Unknown dimensions from the caller's hints; an unknown rank becomes 1."""
        if not self.hints.sizes:
            return known
        names = (call.node.name, *call.outputs)
        dims: tuple[Dim, ...] = (None,) if known.dims is None else known.dims
        filled = [
            dim if isinstance(dim, int) else self.hints.size(names, position, axis)
            for axis, dim in enumerate(dims)
        ]
        return known if None in filled else TensorType(known.elem_type, tuple(filled))

    @cached_property
    def declared(self) -> Mapping[str, TensorType]:
        """What the file says; useless once its batch was replaced."""
        if self.binding.replaced_batch is not None:
            return {}
        graph = self.model.graph
        found = {info.name: self.bound(read_type(info.type)) for info in (*graph.value_info, *graph.output)}
        return ChainMap(self.inner_declared, found)

    def bound(self, known: TensorType) -> TensorType:
        if known.dims is None or known.container:
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
        shapes = ", ".join(described(self.types.get(name)) for name in call.inputs if name)
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


_Check = Callable[[Call, Mapping[str, TensorType]], str]


def _check_reshape(call: Call, types: Mapping[str, TensorType]) -> str:
    """ONNX's rule does not compare element counts."""
    before, after = types[call.inputs[0]].shape, types[call.outputs[0]].shape
    if before is None or after is None or prod(before) == prod(after):
        return ""
    return f"{prod(before)} elements do not fill shape {described(types[call.outputs[0]])}"


_CHECKS: Mapping[str, _Check] = {"Reshape": _check_reshape}

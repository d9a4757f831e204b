"""The file's wiring: every value written once and before it is read, nodes in order, functions opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto, checker, inliner

from predictor.errors import InvalidGraph
from predictor.features.reading.model_file import NODE_LIMIT

_LISTED = 5


def normal_domain(domain: str) -> str:
    """`ai.onnx` and the empty string are one."""
    return "" if domain == "ai.onnx" else domain


@dataclass(frozen=True, slots=True)
class Call:
    """A node, its operands as Python strings, and the outer values that its bodies (If, Loop, Scan) read."""

    node: NodeProto
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captured: tuple[str, ...] = ()

    @classmethod
    def of(cls, node: NodeProto, captured: tuple[str, ...] | None = None) -> Call:
        """Reads the operands once: each look into protobuf builds them anew."""
        found = captured_names(node) if captured is None else captured
        return cls(node, tuple(node.input), tuple(node.output), found)

    @property
    def reads(self) -> tuple[str, ...]:
        """Every value the node depends on; an omitted operand is the empty string."""
        return self.inputs + self.captured if self.captured else self.inputs

    @property
    def label(self) -> str:
        """What to call the node in a message."""
        name = self.node.name or next((f"-> {output}" for output in self.outputs if output), "")
        return f"{self.node.op_type} {name!r}"


def calls_of(nodes: Sequence[NodeProto], captured: Sequence[tuple[str, ...]] | None = None) -> list[Call]:
    """The nodes as calls, but those without outputs: nothing can read them.

    Args:
        captured: for each node, where it is known, what its bodies read around it.
    """
    given = [None] * len(nodes) if captured is None else captured
    pairs = zip(nodes, given, strict=True)
    return [
        Call.of(node) if names is None else Call.of(node, names) for node, names in pairs if any(node.output)
    ]


def order_calls(calls: Sequence[Call], given: Iterable[str]) -> tuple[Call, ...]:
    """The calls in topological order; the file's own order where it is one.

    Args:
        given: values that exist beforehand (inputs and initializers).

    Raises:
        InvalidGraph: a value written twice, a value nobody writes, or a cycle.
    """
    known = set(given)
    # An omitted operand is always there.
    known.add("")
    writer: dict[str, int] = {}
    for index, call in enumerate(calls):
        for name in call.outputs:
            if not name:
                continue
            if name in writer or name in known:
                raise InvalidGraph(f"value {name!r} is written twice, again by {call.label}", value=name)
            writer[name] = index
    missing = {
        name: call.label for call in calls for name in call.reads if name not in writer and name not in known
    }
    if missing:
        listed = ", ".join(f"{name!r} (read by {label})" for name, label in list(missing.items())[:_LISTED])
        raise InvalidGraph(f"{len(missing)} values are read but written by no node: {listed}")
    if _is_ordered(calls, known):
        return tuple(calls)
    return _sorted(calls, writer)


def captured_names(node: NodeProto) -> tuple[str, ...]:
    """Values of enclosing graphs that the node's bodies read."""
    names: dict[str, None] = {}
    for body in bodies_of(node):
        names.update(_free_names(body))
    return tuple(names)


def bodies_of(node: NodeProto) -> list[GraphProto]:
    """The graphs in a node's attributes."""
    found: list[GraphProto] = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found.append(attribute.g)
        found.extend(attribute.graphs)
    return found


def check_initializers(graph: GraphProto) -> None:
    """Raises InvalidGraph when two initializers share a name or one has a negative dimension."""
    seen: set[str] = set()
    for tensor in graph.initializer:
        if tensor.name in seen:
            raise InvalidGraph(f"initializer {tensor.name!r} occurs twice", value=tensor.name)
        seen.add(tensor.name)
        if any(size < 0 for size in tensor.dims):
            shape = "x".join(map(str, tensor.dims))
            raise InvalidGraph(f"initializer {tensor.name!r} has shape {shape}; sizes cannot be negative")


def inline_functions(model: ModelProto) -> ModelProto:
    """The model with calls of its own functions replaced by their bodies.

    Raises InvalidGraph for functions that call themselves or grow beyond the node limit.
    """
    if not model.functions:
        return model
    _check_functions(model)
    try:
        return inliner.inline_local_functions(model, convert_version=False)
    except (RuntimeError, ValueError, checker.ValidationError) as error:
        raise InvalidGraph(f"model functions cannot be opened: {' '.join(str(error).split())}") from None


def _free_names(body: GraphProto) -> dict[str, None]:
    """Values of enclosing graphs that a body reads, each once: copies would double at every level."""
    local = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    local.update(name for node in body.node for name in node.output)
    reads = [name for node in body.node for name in (*node.input, *captured_names(node))]
    reads.extend(value.name for value in body.output)
    return dict.fromkeys(name for name in reads if name and name not in local)


def _is_ordered(calls: Sequence[Call], known: set[str]) -> bool:
    ready = set(known)
    for call in calls:
        if not ready.issuperset(call.reads):
            return False
        ready.update(call.outputs)
    return True


def _sorted(calls: Sequence[Call], writer: Mapping[str, int]) -> tuple[Call, ...]:
    """Kahn's algorithm, keeping the file's order among ready nodes as far as it goes."""
    waiting = [len({writer[name] for name in call.reads if name in writer}) for call in calls]
    readers: dict[int, list[int]] = {}
    for index, call in enumerate(calls):
        for source in {writer[name] for name in call.reads if name in writer}:
            readers.setdefault(source, []).append(index)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        following: list[int] = []
        for index in ready:
            order.append(index)
            for reader in readers.get(index, ()):
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    following.append(reader)
        ready = sorted(following)
    if len(order) < len(calls):
        stuck = [call.label for index, call in enumerate(calls) if waiting[index]]
        raise InvalidGraph(f"nodes depend on each other in a cycle: {', '.join(stuck[:_LISTED])}")
    return tuple(calls[index] for index in order)


def _check_functions(model: ModelProto) -> None:
    """Size after opening, by dynamic programming over the call graph: nothing is expanded to find out."""
    bodies = {(function.domain, function.name): function.node for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size_of(nodes: Sequence[NodeProto], stack: tuple[tuple[str, str], ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in stack:
                raise InvalidGraph(f"model function {key[0]}::{key[1]} calls itself")
            if key in bodies:
                if key not in sizes:
                    sizes[key] = size_of(bodies[key], (*stack, key))
                # Beyond the limit no exact count is needed: hostile files have counts of thousands of digits.
                total = min(total + sizes[key], NODE_LIMIT + 1)
            total += 1
            for body in bodies_of(node):
                total += size_of(body.node, stack)
        return total

    try:
        total = size_of(model.graph.node, ())
    except RecursionError:
        raise InvalidGraph("model functions call each other too deep") from None
    if total > NODE_LIMIT:
        raise InvalidGraph(
            f"model functions expand to more than {NODE_LIMIT} nodes, which is the most that is read"
        )

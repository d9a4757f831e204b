"""If, Loop, Scan and SequenceMap while a file is read: which body runs, how often, and with which types.

An If becomes its branch: the one that its condition or the caller names, else the costlier one, with a note.
Loop and Scan keep their body, typed, and how often it runs; a loop whose state changes type, or whose body
can only be typed step by step, is unrolled. SequenceMap is unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from predictor.errors import InvalidGraph, InvalidInput
from predictor.features.branches import Opened, aliases, open_body
from predictor.features.hints import Hints
from predictor.features.structure import Call
from predictor.features.tensor_type import Array, Container, Dim, TensorType, contained, read_type
from predictor.features.type_rules.containers import ITEM_LIMIT
from predictor.features.typed_model import TypedBody, TypedCall
from predictor.registry import Registry

UNROLL_NODES = 1024
"""Nodes that unrolling one loop may add."""
TRIP_COUNT = "perfcast_trip_count"
"""Attribute of a Loop or Scan: how often its body runs."""
_ENDLESS = 2**31
_INT64, _BOOL = int(TensorProto.INT64), int(TensorProto.BOOL)
_UNKNOWN = TensorType(0, None)


class Walker(Protocol):
    """What the rules use of the pass over the nodes."""

    types: dict[str, TensorType]
    contents: dict[str, Array]
    hints: Hints

    @property
    def declared(self) -> Mapping[str, TensorType]:
        """What the file says of values."""

    def walk(self, nodes: Sequence[NodeProto]) -> list[TypedCall]:
        """Types nodes and returns them, opened where they were."""

    def enter(self, opened: Opened) -> list[TypedCall]:
        """Types an opened body: its weights become the graph's."""

    def prefix(self, call: Call) -> str:
        """A prefix that no other name has."""

    def note(self, code: str, message: str) -> None:
        """Adds a notice to the graph."""

    def cost(self, calls: Sequence[TypedCall]) -> float | None:
        """A number that grows with what the nodes cost; None where a type is unknown."""

    def add_initializer(self, tensor: TensorProto) -> None:
        """Adds a leaf."""


ControlRule: TypeAlias = Callable[[Walker, Call, Mapping[str, Any]], "list[TypedCall] | None"]
CONTROL_RULES: Registry[ControlRule] = Registry("control rule")
"""Nodes that stand for the call, typed; None leaves it as it is."""


@CONTROL_RULES.register("", "If")
def _if(walk: Walker, call: Call, attributes: Mapping[str, Any]) -> list[TypedCall] | None:
    branches = {
        key: body
        for key in ("then_branch", "else_branch")
        if isinstance(body := attributes.get(key), GraphProto) and len(body.output) >= len(call.outputs)
    }
    names = {call.node.name, *call.outputs}
    chosen = _named_branch(walk, call, names)
    if chosen is not None and chosen not in branches:
        return None
    prefix = walk.prefix(call)
    if chosen is not None:
        opened = open_body(branches[chosen], prefix)
        return [*walk.enter(opened), *walk.walk(aliases(opened.outputs, call.outputs, prefix))]
    typed: dict[str, tuple[float, list[TypedCall], Opened]] = {}
    failures: list[InvalidInput] = []
    for key, body in branches.items():
        opened = open_body(body, f"{prefix}{key}/")
        try:
            calls = walk.enter(opened)
        except InvalidInput as error:
            # A branch for other shapes than these cannot be taken.
            failures.append(error)
            continue
        cost = walk.cost(calls)
        typed[key] = (-1.0 if cost is None else cost, calls, opened)
    if not typed:
        if failures:
            raise failures[0]
        return None
    key = max(typed, key=lambda name: typed[name][0])
    _, calls, opened = typed[key]
    if not failures:
        walk.note(
            "BRANCH_ASSUMED",
            f"{call.label}: its condition depends on data; the costlier {key} is priced; "
            f"--dim {_name(call)}.then_branch=1 or .else_branch=1 chooses",
        )
    return [*calls, *walk.walk(aliases(opened.outputs, call.outputs, prefix))]


def _named_branch(walk: Walker, call: Call, names: set[str]) -> str | None:
    if not names.isdisjoint(walk.hints.then_branches):
        return "then_branch"
    if not names.isdisjoint(walk.hints.else_branches):
        return "else_branch"
    condition = walk.contents.get(call.inputs[0]) if call.inputs else None
    if condition is None or condition.size != 1:
        return None
    return "then_branch" if bool(condition.ravel()[0]) else "else_branch"


def _name(call: Call) -> str:
    return call.node.name or next((name for name in call.outputs if name), call.node.op_type)


def _scalar(walk: Walker, name: str) -> int | None:
    array = walk.contents.get(name) if name else None
    return None if array is None or array.size != 1 else int(array.ravel()[0])


@CONTROL_RULES.register("", "Loop")
def _loop(walk: Walker, call: Call, attributes: Mapping[str, Any]) -> list[TypedCall] | None:
    body = attributes.get("body")
    if not isinstance(body, GraphProto) or len(body.input) < 2 or not body.output:
        return None
    inputs = (*call.inputs, "", "")
    given = next(
        (walk.hints.trips[name] for name in (call.node.name, *call.outputs) if name in walk.hints.trips), None
    )
    limit = _scalar(walk, inputs[0])
    if limit is not None and limit >= _ENDLESS:
        limit = None
    start = _scalar(walk, inputs[1]) if inputs[1] else 1
    if given is None and (start == 0 or (limit is not None and limit <= 0)):
        limit = 0
    prefix = walk.prefix(call)
    states = [walk.types.get(name, _UNKNOWN) for name in call.inputs[2:]]
    most = given if given is not None else limit
    try:
        calls, opened = _step(walk, body, prefix, states, start)
        results = [walk.types.get(name, _UNKNOWN) for name in opened.outputs[1 : 1 + len(states)]]
        settled = _agree(states, results) and all(_is_typed(item, walk.types) for item in calls)
        ends = _scalar(walk, opened.outputs[0])
    except InvalidInput:
        if most is None or most * len(body.node) > UNROLL_NODES:
            raise
        calls, opened, results, settled, ends = [], None, [], False, None
    if given is None and most != 0:
        if ends == 0:
            # The body itself says that it runs once.
            most, given = 1, 1
        elif ends is None and most is None:
            counted = _unrolled(
                walk, body, call, prefix + "try/", UNROLL_NODES // max(1, len(body.node)), start
            )
            if counted is not None:
                return counted
    if most is None:
        most = _declared_trips(walk, call, len(states))
    if most is None:
        most = 1
        walk.note(
            "TRIPS_ASSUMED",
            f"{call.label}: how often it runs depends on data; 1 trip is priced; "
            f"--dim {_name(call)}.trip_count=N gives another number",
        )
    elif given is None and ends is None and most:
        walk.note(
            "TRIPS_BOUND",
            f"{call.label}: it may end early; all {most} trips are priced; "
            f"--dim {_name(call)}.trip_count=N gives another number",
        )
    if not settled and most * len(body.node) <= UNROLL_NODES:
        unrolled = _unrolled(walk, body, call, prefix + "step/", most, start)
        if unrolled is not None:
            return unrolled
    if opened is None:
        return None
    if not settled and most:
        grown = [_grown(before, after, most) for before, after in zip(states, results, strict=True)]
        calls, opened = _step(walk, body, prefix + "last/", grown, start)
        results = [walk.types.get(name, _UNKNOWN) for name in opened.outputs[1 : 1 + len(states)]]
        walk.note(
            "LOOP_GROWS", f"{call.label}: its state grows; every trip is priced as the last and largest"
        )
    finals = results if most else states
    stacked = [
        _stacked(walk.types.get(name, _UNKNOWN), most, 0) for name in opened.outputs[1 + len(states) :]
    ]
    return [_kept(walk, call, attributes, opened, calls, most, [*finals, *stacked])]


def _declared_trips(walk: Walker, call: Call, state_count: int) -> int | None:
    """Trips by the declared length of what the loop collects."""
    for name in call.outputs[state_count:]:
        known = walk.declared.get(name) if name else None
        if known is not None and known.dims and isinstance(known.dims[0], int):
            return known.dims[0]
    return None


def _step(
    walk: Walker, body: GraphProto, prefix: str, states: Sequence[TensorType], start: int | None
) -> tuple[list[TypedCall], Opened]:
    """One trip with states of these types and an unknown number."""
    opened = open_body(body, prefix)
    formal = [TensorType(_INT64, ()), TensorType(_BOOL, ()), *states]
    walk.types.update(zip(opened.inputs, formal, strict=False))
    if start:
        # A trip that runs was asked to.
        walk.contents[opened.inputs[1]] = np.array(True)
    return walk.enter(opened), opened


def _is_typed(item: TypedCall, types: Mapping[str, TensorType]) -> bool:
    return all(not name or types.get(name, _UNKNOWN).is_complete for name in item.call.outputs)


def _agree(before: Sequence[TensorType], after: Sequence[TensorType]) -> bool:
    return len(before) == len(after) and all(
        one.is_complete and one == other for one, other in zip(before, after, strict=True)
    )


def _grown(before: TensorType, after: TensorType, trips: int) -> TensorType:
    """The state before the last trip, when each adds what the first added."""
    first, second = before.shape, after.shape
    if first is None or second is None or len(first) != len(second):
        if before.container is Container.SEQUENCE and after.items and before.items is not None:
            added = after.items[len(before.items) :]
            if len(before.items) + len(added) * trips > ITEM_LIMIT:
                raise InvalidGraph(f"a loop of {trips} trips fills a list beyond {ITEM_LIMIT} items")
            more = added * (trips - 1)
            return contained(Container.SEQUENCE, (*before.items, *more), after.elem_type)
        return after
    dims = tuple(max(0, a + (b - a) * (trips - 1)) for a, b in zip(first, second, strict=True))
    return TensorType(after.elem_type, dims)


def _unrolled(
    walk: Walker, body: GraphProto, call: Call, prefix: str, most: int, start: int | None
) -> list[TypedCall] | None:
    """The trips one after the other, until the loop's own condition is known to be false.

    None when a trip cannot be typed, or (under the prefix `try/`) when `most` trips do not show an end.
    """
    calls: list[TypedCall] = []
    states = list(call.inputs[2:])
    steps: list[tuple[str, ...]] = []
    ended = False
    for trip in range(most):
        inner = f"{prefix}{trip}/"
        number, going = f"{inner}trip", f"{inner}going"
        walk.add_initializer(numpy_helper.from_array(np.array(trip, dtype=np.int64), number))
        walk.add_initializer(numpy_helper.from_array(np.array(True), going))
        formal = [info.name for info in body.input]
        opened = open_body(body, inner, dict(zip(formal, [number, going, *states], strict=False)))
        try:
            calls.extend(walk.enter(opened))
        except InvalidGraph:
            return None
        states = list(opened.outputs[1 : 1 + len(states)])
        steps.append(opened.outputs[1 + len(states) :])
        goes_on = _scalar(walk, opened.outputs[0])
        if goes_on == 0:
            ended = True
            break
        if goes_on is None and prefix.endswith("try/"):
            return None
    if prefix.endswith("try/") and not ended:
        return None
    nodes = aliases(states, call.outputs, prefix)
    for index, name in enumerate(call.outputs[len(states) :]):
        if name and steps:
            parts = [step[index] for step in steps]
            listed = f"{prefix}{name}/all"
            nodes.append(helper.make_node("SequenceConstruct", parts, [listed], name=listed))
            nodes.append(
                helper.make_node(
                    "ConcatFromSequence", [listed], [name], name=prefix + name, axis=0, new_axis=1
                )
            )
        elif name:
            info = body.output[1 + len(states) + index]
            walk.types[name] = _stacked(read_type(info.type), 0, 0)
    calls.extend(walk.walk(nodes))
    return calls


@CONTROL_RULES.register("", "Scan", since=9)
def _scan(walk: Walker, call: Call, attributes: Mapping[str, Any]) -> list[TypedCall] | None:
    body, scanned = attributes.get("body"), attributes.get("num_scan_inputs", 0)
    if not isinstance(body, GraphProto) or not 1 <= scanned <= len(call.inputs):
        return None
    state_count = len(call.inputs) - scanned
    states = [walk.types.get(name, _UNKNOWN) for name in call.inputs[:state_count]]
    axes = attributes.get("scan_input_axes", (0,) * scanned)
    slices, length = [], None
    for name, axis in zip(call.inputs[state_count:], axes, strict=False):
        known = walk.types.get(name, _UNKNOWN)
        if not known.dims:
            return None
        axis %= len(known.dims)
        size = known.dims[axis]
        length = size if isinstance(size, int) else length
        slices.append(TensorType(known.elem_type, (*known.dims[:axis], *known.dims[axis + 1 :])))
    if length is None:
        return None
    opened = open_body(body, walk.prefix(call))
    walk.types.update(zip(opened.inputs, [*states, *slices], strict=False))
    calls = walk.enter(opened)
    places = attributes.get("scan_output_axes", (0,) * len(opened.outputs))
    stacked = [
        _stacked(walk.types.get(name, _UNKNOWN), length, axis)
        for name, axis in zip(opened.outputs[state_count:], places, strict=False)
    ]
    return [_kept(walk, call, attributes, opened, calls, length, [*states, *stacked])]


@CONTROL_RULES.register("", "Scan", since=8)
def _batched_scan(walk: Walker, call: Call, attributes: Mapping[str, Any]) -> list[TypedCall] | None:
    """Opset 8: (lengths, states [B, ...], inputs [B, L, ...]); the body sees one sample and one step."""
    body, scanned = attributes.get("body"), attributes.get("num_scan_inputs", 0)
    if not isinstance(body, GraphProto) or not 1 <= scanned < len(call.inputs):
        return None
    operands = [walk.types.get(name, _UNKNOWN) for name in call.inputs[1:]]
    first = operands[-scanned].shape
    if first is None or len(first) < 2:
        return None
    samples, length = first[:2]
    state_count = len(operands) - scanned
    formal = [_dropped(known, 1) for known in operands[:state_count]]
    formal += [_dropped(known, 2) for known in operands[state_count:]]
    opened = open_body(body, walk.prefix(call))
    walk.types.update(zip(opened.inputs, formal, strict=False))
    calls = walk.enter(opened)
    stacked = [
        _stacked(_stacked(walk.types.get(name, _UNKNOWN), length, 0), samples, 0)
        for name in opened.outputs[state_count:]
    ]
    types = [*operands[:state_count], *stacked]
    # The lengths decide nothing here; without them the operands are the body's, one by one.
    call = replace(call, inputs=call.inputs[1:])
    return [_kept(walk, call, attributes, opened, calls, samples * length, types)]


def _dropped(known: TensorType, count: int) -> TensorType:
    return known if known.dims is None else replace(known, dims=known.dims[count:])


def _stacked(step: TensorType, count: int, axis: int) -> TensorType:
    """The results of all steps along a new axis."""
    if step.dims is None or step.container:
        return _UNKNOWN
    place = axis % (len(step.dims) + 1)
    dims: tuple[Dim, ...] = (*step.dims[:place], count, *step.dims[place:])
    return TensorType(step.elem_type, dims)


def _kept(
    walk: Walker,
    call: Call,
    attributes: Mapping[str, Any],
    opened: Opened,
    calls: Sequence[TypedCall],
    trips: int,
    types: Sequence[TensorType],
) -> TypedCall:
    """The call with its typed body; its outputs get their types."""
    written = {name for item in calls for name in item.call.outputs}.union(opened.inputs)
    read = [name for item in calls for name in item.call.reads]
    captured = tuple(dict.fromkeys(name for name in (*read, *opened.outputs) if name and name not in written))
    for name, known in zip(call.outputs, types, strict=False):
        if name:
            walk.types[name] = known
    kept = {key: value for key, value in attributes.items() if not isinstance(value, GraphProto)}
    return TypedCall(
        replace(call, captured=captured),
        {**kept, TRIP_COUNT: trips},
        TypedBody(tuple(calls), opened.inputs, opened.outputs, captured),
    )


@CONTROL_RULES.register("", "SequenceMap")
def _sequence_map(walk: Walker, call: Call, attributes: Mapping[str, Any]) -> list[TypedCall] | None:
    body, first = attributes.get("body"), walk.types.get(call.inputs[0]) if call.inputs else None
    if not isinstance(body, GraphProto) or first is None or first.items is None:
        return None
    if len(first.items) * len(body.node) > UNROLL_NODES:
        raise InvalidGraph(
            f"{call.label}: {len(first.items)} items by {len(body.node)} nodes; at most {UNROLL_NODES} nodes "
            "are opened"
        )
    prefix = walk.prefix(call)
    calls: list[TypedCall] = []
    results: list[tuple[str, ...]] = []
    for index in range(len(first.items)):
        inner = f"{prefix}{index}/"
        place = f"{inner}place"
        walk.add_initializer(numpy_helper.from_array(np.array(index, dtype=np.int64), place))
        given: dict[str, str] = {}
        picks: list[NodeProto] = []
        for info, name in zip(body.input, call.inputs, strict=False):
            known = walk.types.get(name, _UNKNOWN)
            given[info.name] = name
            if known.container is Container.SEQUENCE:
                given[info.name] = f"{inner}{info.name}"
                picks.append(
                    helper.make_node("SequenceAt", [name, place], [given[info.name]], name=given[info.name])
                )
        calls.extend(walk.walk(picks))
        opened = open_body(body, inner, given)
        calls.extend(walk.enter(opened))
        results.append(opened.outputs)
    joins = []
    for index, name in enumerate(call.outputs):
        if name and results:
            parts = [step[index] for step in results]
            joins.append(helper.make_node("SequenceConstruct", parts, [name], name=prefix + name))
        elif name:
            elem_type = read_type(body.output[index].type).elem_type
            joins.append(
                helper.make_node("SequenceEmpty", [], [name], name=prefix + name, dtype=elem_type or 1)
            )
    return [*calls, *walk.walk(joins)]

"""Loop: how often it runs, and one typed trip that stands for all; unrolled where the trips differ.

Trips come from the caller, from the file's constants, from running the condition on known contents, or from
the declared length of what the loop collects; else one trip is priced, with a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from predictor.errors import InvalidGraph, InvalidInput
from predictor.features.reading.branches import Opened, aliases, open_body
from predictor.features.reading.control.walker import (
    CONTROL_RULES,
    UNKNOWN,
    UNROLL_NODES,
    Walker,
    kept,
    label_of,
    scalar,
    stacked,
)
from predictor.features.reading.structure import Call
from predictor.features.reading.tensor_type import Container, TensorType, contained, read_type
from predictor.features.reading.type_rules.containers import ITEM_LIMIT
from predictor.features.reading.typed_model import TypedCall

# Exporters write the largest integer for "until the condition fails".
_ENDLESS = 2**31
_INT64, _BOOL = int(TensorProto.INT64), int(TensorProto.BOOL)


@dataclass(frozen=True, slots=True)
class _Loop:
    """A Loop while it is read.

    Attributes:
        prefix: that of the names inside.
        states: types of what is carried, before the first trip.
        start: the condition before the first trip; None when it depends on data.
    """

    walk: Walker
    call: Call
    body: GraphProto
    prefix: str
    states: Sequence[TensorType]
    start: int | None


@dataclass(frozen=True, slots=True)
class _Trip:
    """One trip, typed.

    Attributes:
        results: types of what is carried, after it.
        settled: True when they are those before it, and all inside is typed: every trip looks alike.
        goes_on: the condition after it; None when it depends on data.
    """

    calls: list[TypedCall]
    opened: Opened
    results: Sequence[TensorType]
    settled: bool
    goes_on: int | None


@CONTROL_RULES.register("", "Loop")
def _loop(walk: Walker, call: Call, attributes: Mapping[str, Any]) -> list[TypedCall] | None:
    body = attributes.get("body")
    if not isinstance(body, GraphProto) or len(body.input) < 2 or not body.output:
        return None
    if len(call.outputs) >= len(body.output):
        raise InvalidGraph(
            f"{call.label} has {len(call.outputs)} outputs, its body {len(body.output)}; expected one less: "
            "the body's first is the condition"
        )
    hinted = (walk.hints.trips[name] for name in (call.node.name, *call.outputs) if name in walk.hints.trips)
    given = next(hinted, None)
    limit, start = _limit_and_start(walk, call)
    most = limit if given is None else given
    states = [walk.types.get(name, UNKNOWN) for name in call.inputs[2:]]
    loop = _Loop(walk, call, body, walk.prefix(call), states, start)
    try:
        trip = _typed_trip(loop, loop.prefix, states)
    except InvalidInput:
        if most is None or most * len(body.node) > UNROLL_NODES:
            raise
        trip = None
    goes_on = None if trip is None else trip.goes_on
    if given is None and most != 0:
        if goes_on == 0:
            # The body itself says that it runs once.
            most, given = 1, 1
        elif goes_on is None and most is None:
            counted = _counted(loop, UNROLL_NODES // max(1, len(body.node)))
            if counted is not None:
                return counted
    exact = given is not None or goes_on is not None
    trips = _trips(loop, most, exact=exact)
    settled = trip is not None and trip.settled
    if not settled and trips * len(body.node) <= UNROLL_NODES:
        unrolled = _unrolled(loop, "step/", trips, must_end=False)
        if unrolled is not None:
            return unrolled
    if trip is None:
        return None
    if not settled and trips:
        trip = _last_trip(loop, trip, trips)
    finals = trip.results if trips else states
    collected = [
        stacked(walk.types.get(name, UNKNOWN), trips, 0) for name in trip.opened.outputs[1 + len(states) :]
    ]
    return [kept(walk, call, attributes, trip.opened, trip.calls, trips, [*finals, *collected])]


def _limit_and_start(walk: Walker, call: Call) -> tuple[int | None, int | None]:
    """The file's bound on the trips and its condition before the first, where they are constants."""
    count, condition = (*call.inputs, "", "")[:2]
    limit = scalar(walk, count)
    start = scalar(walk, condition) if condition else 1
    if limit is not None and limit >= _ENDLESS:
        limit = None
    if start == 0 or (limit is not None and limit <= 0):
        limit = 0
    return limit, start


def _trips(loop: _Loop, most: int | None, *, exact: bool) -> int:
    """How many trips are priced; a note where that is a guess or a bound."""
    walk, call = loop.walk, loop.call
    if most is None:
        most = _declared_trips(walk, call, len(loop.states))
    if most is None:
        walk.note(
            "TRIPS_ASSUMED",
            f"{call.label}: how often it runs depends on data; 1 trip is priced; "
            f"--dim {label_of(call)}.trip_count=N gives another number",
        )
        return 1
    if not exact and most:
        walk.note(
            "TRIPS_BOUND",
            f"{call.label}: it may end early; all {most} trips are priced; "
            f"--dim {label_of(call)}.trip_count=N gives another number",
        )
    return most


def _declared_trips(walk: Walker, call: Call, state_count: int) -> int | None:
    """Trips by the declared length of what the loop collects."""
    for name in call.outputs[state_count:]:
        known = walk.declared.get(name) if name else None
        if known is not None and known.dims and isinstance(known.dims[0], int):
            return known.dims[0]
    return None


def _typed_trip(loop: _Loop, prefix: str, states: Sequence[TensorType]) -> _Trip:
    """One trip with states of these types and an unknown number."""
    walk = loop.walk
    opened = open_body(loop.body, prefix)
    formal = [TensorType(_INT64, ()), TensorType(_BOOL, ()), *states]
    walk.types.update(zip(opened.inputs, formal, strict=False))
    if loop.start:
        # A trip that runs was asked to.
        walk.contents[opened.inputs[1]] = np.array(True)
    calls = walk.enter(opened)
    results = [walk.types.get(name, UNKNOWN) for name in opened.outputs[1 : 1 + len(states)]]
    settled = _agree(states, results) and all(_is_typed(item, walk.types) for item in calls)
    return _Trip(calls, opened, results, settled, scalar(walk, opened.outputs[0]))


def _last_trip(loop: _Loop, first: _Trip, trips: int) -> _Trip:
    """The last and largest trip of a loop whose state grows as it did in the first."""
    pairs = zip(loop.states, first.results, strict=True)
    grown = [_grown(before, after, trips) for before, after in pairs]
    last = _typed_trip(loop, loop.prefix + "last/", grown)
    loop.walk.note(
        "LOOP_GROWS", f"{loop.call.label}: its state grows; every trip is priced as the last and largest"
    )
    return last


def _is_typed(item: TypedCall, types: Mapping[str, TensorType]) -> bool:
    return all(not name or types.get(name, UNKNOWN).is_complete for name in item.call.outputs)


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


def _counted(loop: _Loop, most: int) -> list[TypedCall] | None:
    """The trips of a loop that is run on trial until it ends by itself; None where it does not."""
    loop.walk.trials += 1
    try:
        return _unrolled(loop, "try/", most, must_end=True)
    finally:
        loop.walk.trials -= 1


def _unrolled(loop: _Loop, stem: str, most: int, *, must_end: bool) -> list[TypedCall] | None:
    """The trips one after the other, until the loop's own condition is known to be false.

    None when a trip cannot be typed, or, where the loop `must_end`, when `most` trips do not show an end.
    """
    walk, body, prefix = loop.walk, loop.body, loop.prefix + stem
    calls: list[TypedCall] = []
    states = list(loop.call.inputs[2:])
    collected: list[tuple[str, ...]] = []
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
        collected.append(opened.outputs[1 + len(states) :])
        goes_on = scalar(walk, opened.outputs[0])
        if goes_on == 0:
            ended = True
            break
        if goes_on is None and must_end:
            return None
    if must_end and not ended:
        return None
    joins = _joins(loop, prefix, len(states), collected)
    return [*calls, *walk.walk([*aliases(states, loop.call.outputs, prefix), *joins])]


def _joins(loop: _Loop, prefix: str, state_count: int, collected: Sequence[Sequence[str]]) -> list[NodeProto]:
    """Nodes that stack what the trips collected; without trips the outputs are empty and get their types."""
    nodes: list[NodeProto] = []
    for index, name in enumerate(loop.call.outputs[state_count:]):
        if name and collected:
            parts = [names[index] for names in collected]
            listed = f"{prefix}{name}/all"
            nodes.append(helper.make_node("SequenceConstruct", parts, [listed], name=listed))
            nodes.append(
                helper.make_node(
                    "ConcatFromSequence", [listed], [name], name=prefix + name, axis=0, new_axis=1
                )
            )
        elif name:
            info = loop.body.output[1 + state_count + index]
            loop.walk.types[name] = stacked(read_type(info.type), 0, 0)
    return nodes

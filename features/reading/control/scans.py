"""Scan, whose length is that of what it scans, and SequenceMap, which is unrolled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from predictor.errors import InvalidGraph
from predictor.features.reading.branches import open_body
from predictor.features.reading.control.walker import (
    CONTROL_RULES,
    UNKNOWN,
    UNROLL_NODES,
    Walker,
    kept,
    stacked,
    whole_numbers,
)
from predictor.features.reading.structure import Call
from predictor.features.reading.tensor_type import Container, TensorType, read_type
from predictor.features.reading.typed_model import TypedCall


@CONTROL_RULES.register("", "Scan", since=9)
def _scan(walk: Walker, call: Call, attributes: Mapping[str, Any]) -> list[TypedCall] | None:
    body, scanned = attributes.get("body"), attributes.get("num_scan_inputs", 0)
    if not isinstance(body, GraphProto) or not isinstance(scanned, int):
        return None
    if not 1 <= scanned <= len(call.inputs):
        return None
    state_count = len(call.inputs) - scanned
    states = [walk.types.get(name, UNKNOWN) for name in call.inputs[:state_count]]
    axes = whole_numbers(attributes, "scan_input_axes", (0,) * scanned)
    slices, length = [], None
    for name, axis in zip(call.inputs[state_count:], axes, strict=False):
        known = walk.types.get(name, UNKNOWN)
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
    places = whole_numbers(attributes, "scan_output_axes", (0,) * len(opened.outputs))
    collected = [
        stacked(walk.types.get(name, UNKNOWN), length, axis)
        for name, axis in zip(opened.outputs[state_count:], places, strict=False)
    ]
    return [kept(walk, call, attributes, opened, calls, length, [*states, *collected])]


@CONTROL_RULES.register("", "Scan", since=8)
def _batched_scan(walk: Walker, call: Call, attributes: Mapping[str, Any]) -> list[TypedCall] | None:
    """Opset 8: (lengths, states [B, ...], inputs [B, L, ...]); the body sees one sample and one step."""
    body, scanned = attributes.get("body"), attributes.get("num_scan_inputs", 0)
    if not isinstance(body, GraphProto) or not isinstance(scanned, int):
        return None
    if not 1 <= scanned < len(call.inputs):
        return None
    operands = [walk.types.get(name, UNKNOWN) for name in call.inputs[1:]]
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
    collected = [
        stacked(stacked(walk.types.get(name, UNKNOWN), length, 0), samples, 0)
        for name in opened.outputs[state_count:]
    ]
    types = [*operands[:state_count], *collected]
    # The lengths decide nothing here; without them the operands are the body's, one by one.
    call = replace(call, inputs=call.inputs[1:])
    return [kept(walk, call, attributes, opened, calls, samples * length, types)]


def _dropped(known: TensorType, count: int) -> TensorType:
    return known if known.dims is None else replace(known, dims=known.dims[count:])


@CONTROL_RULES.register("", "SequenceMap")
def _sequence_map(walk: Walker, call: Call, attributes: Mapping[str, Any]) -> list[TypedCall] | None:
    body, first = attributes.get("body"), walk.types.get(call.inputs[0]) if call.inputs else None
    if not isinstance(body, GraphProto) or first is None or first.items is None:
        return None
    if len(call.outputs) > len(body.output):
        raise InvalidGraph(
            f"{call.label} has {len(call.outputs)} outputs, its body {len(body.output)}; expected as many"
        )
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
            known = walk.types.get(name, UNKNOWN)
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

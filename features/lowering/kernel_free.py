"""Deletes what no kernel is launched for from a draft: shape arithmetic, nodes that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from predictor.features.draft import CONSTANT, Draft
from predictor.features.graph import Node, Value
from predictor.features.reading.aliases import keeps_order, keeps_type

# Shape arithmetic runs on the host; a single float is a scale that a framework computes there too.
_HOST_INTEGERS = 4096
_HOST_FLOATS = 1


def drop_host_arithmetic(draft: Draft) -> None:
    """Deletes nodes whose results are small and depend on constants alone; the results become buffers."""
    for index, slot in enumerate(draft.slots):
        for node in slot:
            if all(_is_host_value(draft, name) for name in node.outputs):
                draft.buffers.update(name for name in node.outputs if name)
                draft.put(index, ())


def drop_no_ops(draft: Draft) -> None:
    """Deletes nodes that return their first input unchanged, and points their readers at it."""
    renamed: dict[str, str] = {}
    for index, slot in enumerate(draft.slots):
        for node in slot:
            if node.op_type in _NO_OPS and not node.domain and _NO_OPS[node.op_type](node, draft.values):
                renamed[node.outputs[0]] = node.inputs[0]
                draft.put(index, ())
    if renamed:
        draft.rename(renamed)


def _is_host_value(draft: Draft, name: str) -> bool:
    if not name:
        return True
    value = draft.values.get(name)
    if value is None or draft.depends_on(name) != CONSTANT:
        return False
    return value.elements <= (_HOST_FLOATS if value.dtype.is_float else _HOST_INTEGERS)


# A Dropout of inference is gone when a graph has been read; one that is left drops. A Reshape is no alias in
# a file (later passes read layouts off it), but one to the shape that it gets runs nothing.
_NO_OPS: Mapping[str, Callable[[Node, Mapping[str, Value]], bool]] = {
    "Identity": lambda _node, _values: True,
    "Cast": keeps_type,
    "Reshape": keeps_type,
    "Expand": keeps_type,
    "Transpose": lambda node, _values: keeps_order(node),
}

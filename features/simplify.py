"""What never becomes a kernel: shape arithmetic, casts to the same type, identities, dead code."""

from __future__ import annotations

from predictor.features.draft import CONSTANT, Draft
from predictor.features.graph import Node

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
            if node.op_type in _NO_OPS and not node.domain and _NO_OPS[node.op_type](draft, node):
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


def _always(draft: Draft, node: Node) -> bool:
    return True


def _keeps_type(draft: Draft, node: Node) -> bool:
    before, after = draft.values[node.inputs[0]], draft.values[node.outputs[0]]
    return before.dtype is after.dtype and before.shape == after.shape


def _keeps_order(draft: Draft, node: Node) -> bool:
    permutation = node.attributes.get("perm")
    return isinstance(permutation, tuple) and permutation == tuple(range(len(permutation)))


# A Dropout of inference is gone when a graph has been read; one that is left drops.
_NO_OPS = {
    "Identity": _always,
    "Cast": _keeps_type,
    "Reshape": _keeps_type,
    "Expand": _keeps_type,
    "Transpose": _keeps_order,
}

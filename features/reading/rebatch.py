"""Reshape targets traced with one batch, read with another.

A model exported without dynamic dimensions holds its batch in the constants of its Reshapes. Where tracing
shows which dimension of the target carried the batch, that dimension follows the new one; elsewhere the
target is left, and the reader reports the node.
"""

from __future__ import annotations

from predictor.features.graph import Shape


def follow_batch(traced: Shape, bound: Shape, target: Shape) -> Shape | None:
    """The target for an operand whose shape went from `traced` to `bound`; None when it cannot be told.

    The operand must have grown along one axis, and the target must keep all dimensions before that axis:
    then the axis opens a group of dimensions in the target, too, and the first of them is its outermost
    factor.

    >>> follow_batch((1, 8, 26, 26), (3, 8, 26, 26), (1, 5408))
    (3, 5408)
    >>> follow_batch((128, 1, 64), (128, 32, 64), (128, 8, 8))
    (128, 256, 8)
    """
    if len(traced) != len(bound):
        return None
    grown = [axis for axis, (old, new) in enumerate(zip(traced, bound, strict=True)) if old != new]
    if len(grown) != 1:
        return None
    axis = grown[0]
    if axis >= len(target):
        return None
    kept = all(size in (0, traced[place]) for place, size in enumerate(target[:axis]))
    scaled, rest = divmod(target[axis] * bound[axis], traced[axis] or 1)
    if not kept or rest or target[axis] < 1:
        return None
    followed = (*target[:axis], scaled, *target[axis + 1 :])
    # 0 is ONNX's word for "as in the operand".
    return tuple(
        bound[place] if size == 0 and place < len(bound) else size for place, size in enumerate(followed)
    )

"""Attention that sees a window of its keys: what a wider window costs, and never less.

Boosters know windows of a few lengths, and between them, or from the widest to none, their answer can fall.
So a windowed kernel is priced at windows of powers of two, each no less than a narrower one and none above
the kernel without a window (a library may mask its scores); lengths between are interpolated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from predictor.features.programs.work import AttentionShape, OpWork
from predictor.features.tables.tiles import FloatArray

_NARROWEST = 64


def has_window(work: OpWork) -> bool:
    """Whether the work is an attention with a window."""
    return isinstance(work.shape, AttentionShape) and work.shape.window > 0


def without_window(work: OpWork) -> OpWork:
    """The kernel that sees all keys; any work without a window is itself."""
    return _with_window(work, 0) if has_window(work) else work


def window_times_s(works: Sequence[OpWork], price: Callable[[Sequence[OpWork]], FloatArray]) -> FloatArray:
    """(n,) times of windowed attention; `price` gives (m,) times of m works."""
    knots = [_knots(work) for work in works]
    priced = price([_with_window(work, knot) for work, own in zip(works, knots, strict=True) for knot in own])
    found = np.zeros(len(works))
    ends = np.cumsum([len(own) for own in knots])
    for i, (work, own) in enumerate(zip(works, knots, strict=True)):
        *windowed, whole = priced[ends[i] - len(own) : ends[i]]
        times = np.minimum(np.maximum.accumulate([*windowed, whole]), whole)
        found[i] = np.interp(_shape(work).window, [*own[:-1], _shape(work).kv_length], times)
    return found


def _shape(work: OpWork) -> AttentionShape:
    assert isinstance(work.shape, AttentionShape)
    return work.shape


def _knots(work: OpWork) -> list[int]:
    """Windows to price, the whole length (0) last."""
    count = max(0, (_shape(work).kv_length - 1).bit_length() - _NARROWEST.bit_length() + 1)
    return [*(_NARROWEST << i for i in range(count)), 0]


def _with_window(work: OpWork, window: int) -> OpWork:
    shape = _shape(work)
    other = replace(shape, window=window)
    share = other.pairs / max(1, shape.pairs)
    return replace(
        work,
        shape=other,
        matrix_flops=round(work.matrix_flops * share),
        vector_flops=round(work.vector_flops * share),
    )

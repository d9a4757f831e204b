"""Stages of equally many layers, as Megatron-LM cuts a model, whatever embedding and head weigh.

The pieces of a rank's costs are merged into one piece per virtual stage, so that no other cut is left.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from predictor.compose.interval import FloatArray
from predictor.compose.rank_costs import Gradients, IntArray, RankCosts


def even_ends(kinds: Sequence[Hashable], stages: int) -> IntArray | None:
    """Where virtual stages end when each has equally many layers; None with fewer layers than stages.

    Args:
        kinds: (pieces,) equal numbers for equal pieces; the longest run of them are the layers.
    """
    first, last = _longest_run(kinds)
    count = last - first
    if count < stages:
        return None
    ends = np.array([first + round(count * (index + 1) / stages) for index in range(stages)], dtype=np.intp)
    ends[-1] = len(kinds)
    return ends


def _longest_run(kinds: Sequence[Hashable]) -> tuple[int, int]:
    best, first = (0, 0), 0
    for index in range(1, len(kinds) + 1):
        if index == len(kinds) or kinds[index] != kinds[first]:
            best = max(best, (first, index), key=lambda run: run[1] - run[0])
            first = index
    return best


def merged(columns: RankCosts, ends: IntArray) -> RankCosts:
    """`columns` with the pieces between two of `ends` as one."""
    begins = np.concatenate([[0], ends[:-1]]).astype(np.intp)
    owner = np.repeat(np.arange(len(ends)), ends - begins)

    def total(values: FloatArray) -> FloatArray:
        return np.asarray(np.add.reduceat(values, begins, axis=-1))

    # Backward visits a stage's pieces from the last to the first: those above a piece run before it.
    done = np.cumsum(columns.backward_s)
    above = done[ends[owner] - 1] - done
    old = columns.gradients
    offset = old.offset_s + above[old.piece]
    below = {group: _below(values, begins, owner) for group, values in columns.held_s.items()}
    held = {group: values + below[group][old.piece] for group, values in old.held_s.items()}
    tied = [
        (tuple(dict.fromkeys(int(owner[piece]) for piece in pieces)), size) for pieces, size in columns.tied
    ]
    return RankCosts(
        forward_s=total(columns.forward_s),
        backward_s=total(columns.backward_s),
        weight_s=total(columns.weight_s),
        kernel_s=total(columns.kernel_s),
        gap_s=total(columns.gap_s),
        exchange_s={group: total(values) for group, values in columns.exchange_s.items()},
        sent_bytes={group: total(values) for group, values in columns.sent_bytes.items()},
        held_s={group: total(values) for group, values in columns.held_s.items()},
        parameter_bytes=total(columns.parameter_bytes),
        expert_bytes=total(columns.expert_bytes),
        crossing_bytes=columns.crossing_bytes[ends - 1],
        optimizer_s=columns.optimizer_s,
        gradients=Gradients(owner[old.piece], offset, old.size_bytes, old.is_expert, held),
        tied=tuple((holders, size) for holders, size in tied if len(holders) > 1),
        partial_bytes={group: total(values) for group, values in columns.partial_bytes.items()},
        adding_s_per_byte=columns.adding_s_per_byte,
    )


def _below(values: FloatArray, begins: IntArray, owner: IntArray) -> FloatArray:
    """(k,) sum over the pieces of the same stage below each, which backward visits after it."""
    before = np.cumsum(values) - values
    return np.asarray(before - before[begins[owner]])

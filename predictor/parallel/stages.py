"""Cutting pieces into stages: the slowest as fast as possible, then evenly, where little crosses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidPlan

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

# Costs within this share of the best bottleneck count as equal to it.
_TOLERANCE = 1e-9


def balanced_chunks(cost_s: FloatArray, cut_s: FloatArray, stages: int, chunks: int) -> IntArray:
    """Ends of `stages * chunks` virtual stages, of which every stage runs `chunks`, one in `stages` apart.

    Cut as `balanced_stages`; then single cuts move by a piece while that relieves the busiest stage.

    Raises InvalidPlan when there are fewer pieces than virtual stages.
    """
    ends = balanced_stages(cost_s, cut_s, stages * chunks)
    if chunks == 1:
        return ends
    before = np.concatenate([[0.0], np.cumsum(cost_s)])
    while True:
        moved = _relieved(before, ends, stages)
        if moved is None:
            return ends
        ends = moved


def _relieved(before: FloatArray, ends: IntArray, stages: int) -> IntArray | None:
    """The best cut that differs in one place by one piece, if it is better."""
    moves = np.concatenate([np.eye(len(ends) - 1, len(ends), dtype=np.intp)] * 2)
    moves[len(ends) - 1 :] *= -1
    tried = np.concatenate([ends[None], ends + moves])
    tried = tried[(np.diff(tried, axis=1, prepend=0) > 0).all(axis=1)]
    sums = np.diff(before[tried], axis=1, prepend=0.0)
    by_stage = sums.reshape(len(sums), -1, stages).sum(axis=1)
    # Ties go to even chunks.
    score = by_stage.max(axis=1) + _TOLERANCE * np.square(sums).sum(axis=1) / before[-1]
    best = int(score.argmin())
    return tried[best] if score[best] < score[0] * (1 - _TOLERANCE / 10) else None


def balanced_stages(cost_s: FloatArray, cut_s: FloatArray, stages: int) -> IntArray:
    """Ends of the stages: stage s holds the pieces from ends[s - 1] to ends[s] - 1.

    The largest sum of costs in a stage is as small as any cut allows. Stages that end where equal shares of
    the costs do are taken when they reach that; else, among all cuts that do, the one with the smallest sum
    of squared stage costs, relative to the largest, plus cut costs: even stages, and boundaries where little
    crosses.

    Args:
        cost_s: (k,) time of each piece, forward and backward.
        cut_s: (k,) time of the messages behind each piece, both ways.

    Raises InvalidPlan when there are fewer pieces than stages.
    """
    k = len(cost_s)
    if stages > k:
        raise InvalidPlan(
            f"plan: {stages} pipeline stages, but the graph can be cut into {k} pieces at most; lower pp or "
            "virtual_stages",
            field="plan.pp",
        )
    if stages == 1:
        return np.array([k], dtype=np.intp)
    before = np.concatenate([[0.0], np.cumsum(cost_s)])
    shares = _equal_shares(before, cut_s, stages)
    largest = float(np.diff(before[shares], prepend=0.0).max())
    least = max(float(cost_s.max()), float(before[-1]) / stages)
    if largest > least * (1 + _TOLERANCE):
        worst = _bottleneck(before, stages, least, largest)
        if largest > worst * (1 + _TOLERANCE):
            return _even(before, cut_s, stages, worst * (1 + _TOLERANCE))
    return shares


def _equal_shares(before: FloatArray, cut_s: FloatArray, stages: int) -> IntArray:
    """Ends nearest to equal shares of the costs, every stage with a piece."""
    k = len(before) - 1
    targets = before[-1] * np.arange(1, stages) / stages
    above = np.clip(np.searchsorted(before, targets), 1, k - 1)
    below = np.maximum(above - 1, 1)
    weight = np.abs(before[[below, above]] - targets) + cut_s[[below - 1, above - 1]]
    ends = np.where(weight[0] <= weight[1], below, above)
    # Every stage has a piece: push ends up from the left, then down from the right.
    order = np.arange(1, stages)
    ends = np.maximum.accumulate(ends - order) + order
    ends = np.minimum(ends, k - stages + order)
    return np.append(ends, k).astype(np.intp)


def _bottleneck(before: FloatArray, stages: int, low: float, high: float) -> float:
    """The smallest possible largest stage, between `low` and `high`: bisection over greedy filling."""
    k = len(before) - 1

    def ends(limit: float) -> list[int]:
        reach = np.searchsorted(before, before + limit * (1 + _TOLERANCE), side="right") - 1
        steps = reach.tolist()
        found, position = [], 0
        for _ in range(stages):
            position = steps[position] if position < k else k
            found.append(position)
        return found

    if ends(low)[-1] == k:
        return low
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        if ends(middle)[-1] == k:
            high = middle
        else:
            low = middle
    # The bottleneck is a sum of whole pieces: that of the cut which the bisection has found.
    found = [0, *ends(high)]
    return float(np.diff(before[found]).max())


def _even(before: FloatArray, cut_s: FloatArray, stages: int, limit: float) -> IntArray:
    """The cheapest cut, by dynamic programming over (stages, end), with no stage above `limit`."""
    k = len(before) - 1
    sums = before[None, :] - before[:, None]
    stage_cost = np.where(
        (sums <= limit) & (np.arange(k + 1)[None, :] > np.arange(k + 1)[:, None]),
        np.square(sums) / max(limit, 1e-300),
        np.inf,
    )
    best = np.full(k + 1, np.inf)
    best[0] = 0.0
    choice = np.zeros((stages, k + 1), dtype=np.intp)
    cuts = np.concatenate([[0.0], cut_s[:-1], [0.0]])
    for stage in range(stages):
        total = best[:, None] + stage_cost
        choice[stage] = total.argmin(axis=0)
        best = total.min(axis=0) + cuts
    ends = [k]
    for stage in range(stages - 1, 0, -1):
        ends.append(int(choice[stage, ends[-1]]))
    return np.array(ends[::-1], dtype=np.intp)

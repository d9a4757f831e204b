"""Pipelines whose stages run on different devices: cut so that no stage holds up the others.

Each stage's pieces cost what they take on that stage's own device. The cut makes the slowest stage as fast as
any cut can: a dynamic programme over stages and pieces. The optimizer's step of every stage is priced at the
pace of the slowest device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from predictor.compose.even_stages import merged
from predictor.compose.interval import FloatArray
from predictor.compose.rank_costs import Gradients, IntArray, RankCosts
from predictor.errors import InvalidPlan


def mixed_ends(cost_s: FloatArray) -> IntArray:
    """(stages,) ends of the stages that make the largest of their costs least.

    Among cuts of one bottleneck, the one whose squared costs sum to the least.

    Args:
        cost_s: (stages, pieces) time of each piece on each stage's device.

    Raises InvalidPlan: fewer pieces than stages.
    """
    stages, count = cost_s.shape
    if stages > count:
        raise InvalidPlan(
            f"plan: {stages} pipeline stages, but the graph can be cut into {count} pieces at most; lower pp",
            field="plan.pp",
        )
    before = np.concatenate([np.zeros((stages, 1)), np.cumsum(cost_s, axis=1)], axis=1)
    later = np.arange(count + 1)[None, :] > np.arange(count + 1)[:, None]
    largest, squares = np.full(count + 1, np.inf), np.full(count + 1, np.inf)
    largest[0] = squares[0] = 0.0
    choice = np.zeros((stages, count + 1), dtype=np.intp)
    for stage in range(stages):
        own = np.where(later, before[stage][None, :] - before[stage][:, None], np.inf)
        worst = np.maximum(largest[:, None], own)
        least = worst.min(axis=0)
        with np.errstate(invalid="ignore"):
            ties = np.where(worst <= least * (1 + 1e-12), squares[:, None] + own**2, np.inf)
        choice[stage] = ties.argmin(axis=0)
        largest, squares = least, ties.min(axis=0)
    ends = [count]
    for stage in range(stages - 1, 0, -1):
        ends.append(int(choice[stage, ends[-1]]))
    return np.array(ends[::-1], dtype=np.intp)


def mixed_columns(columns: Sequence[RankCosts], ends: IntArray) -> RankCosts:
    """Costs with one piece a stage, each as its own device has it.

    Args:
        columns: by stage, costs of all pieces on that stage's device.
    """
    whole = [merged(each, ends) for each in columns]
    stages = np.arange(len(whole))

    def own(name: str) -> FloatArray:
        return np.stack([getattr(each, name) for each in whole])[stages, ..., stages].T

    def groups(name: str) -> dict[str, FloatArray]:
        names = getattr(whole[0], name)
        return {
            group: np.stack([getattr(each, name)[group] for each in whole])[stages, ..., stages].T
            for group in names
        }

    # Backward visits the stages from the last to the first.
    parts = [_gradients_of(whole[stage].gradients, stage) for stage in stages[::-1].tolist()]
    return replace(
        whole[0],
        forward_s=own("forward_s"),
        backward_s=own("backward_s"),
        weight_s=own("weight_s"),
        kernel_s=own("kernel_s"),
        gap_s=own("gap_s"),
        exchange_s=groups("exchange_s"),
        held_s=groups("held_s"),
        optimizer_s=max((each.optimizer_s for each in whole), key=lambda step: float(step.sum())),
        gradients=Gradients(
            piece=np.concatenate([part.piece for part in parts]),
            offset_s=np.concatenate([part.offset_s for part in parts]),
            size_bytes=np.concatenate([part.size_bytes for part in parts]),
            is_expert=np.concatenate([part.is_expert for part in parts]),
            held_s={
                group: np.concatenate([part.held_s[group] for part in parts]) for group in parts[0].held_s
            },
        ),
    )


def _gradients_of(gradients: Gradients, stage: int) -> Gradients:
    mine = gradients.piece == stage
    return Gradients(
        gradients.piece[mine],
        gradients.offset_s[mine],
        gradients.size_bytes[mine],
        gradients.is_expert[mine],
        {group: values[mine] for group, values in gradients.held_s.items()},
    )

"""How long exchanges inside the graph hold a link in backward, while gradients wait to leave over it.

A link serves one exchange at a time: those inside the graph, which keep the rank waiting, go first, and the
averaging of gradients takes what they leave. Two groups share a link when both lie within nodes, or both
reach across them: elsewhere their narrowest links differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.compose.interval import FloatArray
from predictor.parallel.collectives import GroupShape

IntArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Exchanges:
    """The exchanges of one group in the backward pass of a rank, (e,) each, in program order.

    Attributes:
        piece: that runs each. start_s, end_s: on the link, of one clock with the gradients.
    """

    piece: IntArray
    start_s: FloatArray
    end_s: FloatArray

    def held_s(self, pieces: int) -> FloatArray:
        """(pieces,) time on the link of each piece."""
        return np.bincount(self.piece, weights=self.end_s - self.start_s, minlength=pieces).astype(np.float64)

    def held_after_s(self, ready_s: FloatArray, piece: IntArray) -> FloatArray:
        """(g,) time on the link after each moment, by exchanges of the same piece.

        Args:
            ready_s: (g,) moments. piece: (g,) that each belongs to.
        """
        left = self.end_s - np.maximum(self.start_s, ready_s[:, None])
        return np.asarray((np.maximum(left, 0.0) * (self.piece == piece[:, None])).sum(axis=1))


def share_a_link(one: GroupShape, other: GroupShape) -> bool:
    """Whether the narrowest links of two groups are the same."""
    return (one.nodes > 1) == (other.nodes > 1)

"""What the power model remembers of the jobs it was trained on: their residuals, lent to jobs alike.

Kernel ridge regression with a Gaussian kernel over job signatures: a job unlike all others gets nothing, a
job that was measured on another device gets nearly all of what was seen there. The trees need no feature that
tells networks apart, which made errors on unseen networks larger (15 % instead of 12 % on Zeus).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

FIRM, SHY = 0.02, 0.1
"""Ridges: the weight of "nothing" beside a job that is the same. Shy where a stranger's residual may not fit,
firm for a job on its own device."""


@dataclass(frozen=True, slots=True)
class JobMemory:
    """Signatures (n, d) of measured jobs, and the weights (n,) of their kernels."""

    signatures: FloatArray
    weights: FloatArray

    @classmethod
    def of(cls, signatures: FloatArray, residuals: FloatArray, ridge: float) -> JobMemory:
        """Fitted to what each job (n, d) left unexplained (n,). Signatures must differ."""
        kernel = _kernel(signatures, signatures)
        weights = np.linalg.solve(kernel + ridge * np.eye(len(residuals)), residuals)
        return cls(signatures, np.asarray(weights, dtype=np.float64))

    @classmethod
    def empty(cls) -> JobMemory:
        """Remembers nothing."""
        return cls(np.zeros((0, 0)), np.zeros(0))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobMemory:
        """Inverse of `to_json`."""
        weights = np.array([float(x) for x in data["weights"].split()])
        rows = [[float(x) for x in row.split()] for row in data["signatures"]]
        return cls(np.array(rows, dtype=np.float64).reshape(len(weights), -1), weights)

    def to_json(self) -> dict[str, Any]:
        """Numbers for a bundle, a row of them in one text."""
        return {
            "signatures": [" ".join(f"{x:.7g}" for x in row) for row in self.signatures],
            "weights": " ".join(f"{x:.7g}" for x in self.weights),
        }

    def recall(self, signature: Sequence[float]) -> float:
        """What jobs alike left unexplained; 0 for an empty signature."""
        return float(self._kernels(signature) @ self.weights)

    def nearness(self, signature: Sequence[float]) -> float:
        """From 0 (no job alike was measured) to 1 (the same job was)."""
        return float(self._kernels(signature).max(initial=0.0))

    def _kernels(self, signature: Sequence[float]) -> FloatArray:
        if not signature or not len(self.weights) or self.signatures.shape[1] != len(signature):
            return np.zeros(len(self.weights))
        row: FloatArray = _kernel(np.asarray(signature, dtype=np.float64)[None, :], self.signatures)[0]
        return row


def _kernel(left: FloatArray, right: FloatArray) -> FloatArray:
    distance = np.square(left[:, None, :] - right[None, :, :]).sum(axis=2)
    return np.asarray(np.exp(-distance / 2), dtype=np.float64)

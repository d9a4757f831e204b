"""The plan of a job: how many replicas, and how gradients are reduced."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.errors import InvalidPlan
from predictor.units import MIB


@dataclass(frozen=True, slots=True)
class Plan:
    """Data parallelism over `dp` devices; each runs global batch / dp samples.

    bucket_bytes: gradients are all-reduced in buckets of about this size while backward goes on; torch
        DDP takes 25 MiB.
    overlap: False sends all gradients after backward.
    """

    dp: int = 1
    bucket_bytes: int = 25 * MIB
    overlap: bool = True

    def __post_init__(self) -> None:
        if self.dp < 1:
            raise InvalidPlan(f"plan: dp is {self.dp}; expected at least 1 device", field="dp")
        if self.bucket_bytes < 1:
            raise InvalidPlan(
                f"plan: bucket_bytes is {self.bucket_bytes}; expected at least 1", field="bucket_bytes"
            )

    @property
    def device_count(self) -> int:
        """Devices the plan uses."""
        return self.dp

"""The plan of a job: how many replicas, and how gradients are reduced."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.checks import whole_number
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
        dp = whole_number(self.dp, "plan: dp", "dp", "at least 1 device", InvalidPlan)
        size = whole_number(
            self.bucket_bytes, "plan: bucket_bytes", "bucket_bytes", "at least 1", InvalidPlan
        )
        object.__setattr__(self, "dp", dp)
        object.__setattr__(self, "bucket_bytes", size)

    @property
    def device_count(self) -> int:
        """Devices the plan uses."""
        return self.dp

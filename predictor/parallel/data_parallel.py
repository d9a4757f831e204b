"""Data parallelism: gradients are all-reduced in buckets while backward goes on, as torch's DDP does.

Buckets fill in the order in which gradients become ready. A bucket's all-reduce starts when its last gradient
is ready and the previous all-reduce is done (one communication stream). What outlives backward is exposed.
Li et al. 2020, "PyTorch Distributed: experiences on accelerating data parallel training", arXiv:2006.15704.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from predictor.errors import InvalidPlan
from predictor.features.programs.work import ParameterGradient
from predictor.hardware.spec import ClusterSpec
from predictor.parallel.collectives import all_reduce_sent_bytes, all_reduce_time_s
from predictor.parallel.plan import Plan
from predictor.units import MIB

Times: TypeAlias = Sequence[float] | npt.NDArray[np.float64]

# torch DDP makes the first bucket small, so that communication starts early (torch.distributed: 1 MiB).
FIRST_BUCKET_BYTES = MIB


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that travel together.

    ready_s: when the last of them exists, in device time from the start of the iteration.
    """

    size_bytes: int
    ready_s: float
    gradient_count: int


@dataclass(frozen=True, slots=True)
class OverlapResult:
    """Gradient reduction of one iteration, seen by one rank.

    Attributes:
        exposed_s: communication that outlives backward.
        communication_s: all communication, hidden or not; never below `exposed_s`.
        finish_s: when the last gradient is reduced, from the start of the iteration.
        bucket_count: all-reduces of the iteration.
        bytes_sent: bytes this rank sends.
    """

    exposed_s: float = 0.0
    communication_s: float = 0.0
    finish_s: float = 0.0
    bucket_count: int = 0
    bytes_sent: float = 0.0


def fill_buckets(
    gradients: Sequence[ParameterGradient], op_end_times_s: Times, bucket_bytes: int
) -> tuple[Bucket, ...]:
    """Buckets in the order in which they become ready.

    A bucket closes as soon as it holds its limit, so one large gradient is a bucket of its own; the first
    limit is FIRST_BUCKET_BYTES, never above `bucket_bytes`.

    Args:
        op_end_times_s: device time at the end of each op of the program, from the start of the iteration.

    Raises:
        InvalidPlan: a gradient names an op beyond `op_end_times_s`.
    """
    ordered = sorted(gradients, key=lambda gradient: gradient.op_index)
    if ordered and (ordered[0].op_index < 0 or ordered[-1].op_index >= len(op_end_times_s)):
        raise InvalidPlan(
            f"data parallel: a gradient is ready after op {ordered[-1].op_index}, but {len(op_end_times_s)} "
            "op times are given; expected one time per op of the program",
            field="op_end_times_s",
        )
    buckets: list[Bucket] = []
    size_bytes = members = 0
    limit_bytes = min(FIRST_BUCKET_BYTES, bucket_bytes)
    for gradient in ordered:
        size_bytes += gradient.size_bytes
        members += 1
        if size_bytes >= limit_bytes:
            buckets.append(Bucket(size_bytes, float(op_end_times_s[gradient.op_index]), members))
            size_bytes = members = 0
            limit_bytes = bucket_bytes
    if members:
        buckets.append(Bucket(size_bytes, float(op_end_times_s[ordered[-1].op_index]), members))
    return tuple(buckets)


def schedule_gradients(
    gradients: Sequence[ParameterGradient],
    op_end_times_s: Times,
    plan: Plan,
    cluster: ClusterSpec,
) -> OverlapResult:
    """When gradients are reduced over `plan.dp` replicas, and what of it backward does not hide.

    Backward ends with the op that makes the last gradient. With `plan.overlap` off every bucket waits for it.

    Args:
        gradients: of one replica, in any order.
        op_end_times_s: device time at the end of each op of the program, from the start of the iteration.
    """
    if plan.dp == 1 or not gradients:
        return OverlapResult()
    buckets = fill_buckets(gradients, op_end_times_s, plan.bucket_bytes)
    backward_end_s = buckets[-1].ready_s
    free_s = 0.0 if plan.overlap else backward_end_s
    costs_s = {
        size_bytes: all_reduce_time_s(size_bytes, plan.dp, cluster)
        for size_bytes in {bucket.size_bytes for bucket in buckets}
    }
    for bucket in buckets:
        free_s = max(free_s, bucket.ready_s) + costs_s[bucket.size_bytes]
    total_s = sum(costs_s[bucket.size_bytes] for bucket in buckets)
    return OverlapResult(
        # Rounding may leave the difference a hair above the sum that it cannot exceed.
        exposed_s=min(free_s - backward_end_s, total_s),
        communication_s=total_s,
        finish_s=free_s,
        bucket_count=len(buckets),
        bytes_sent=sum(all_reduce_sent_bytes(bucket.size_bytes, plan.dp) for bucket in buckets),
    )

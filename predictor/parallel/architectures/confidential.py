"""Data parallelism between trusted enclaves: each message is sealed by its sender and opened by its receiver.

A ring all-reduce over N ranks has 2 (N - 1) sub-steps per bucket; crypto costs per sub-step and per byte:

    buckets = ceil(G / C)
    T = buckets 2 (N - 1) (alpha_link + alpha_tee) + 2 (N - 1) / N G (1 / B_link + 1 / B_seal + 1 / B_open)

Lee et al. 2025, "Characterization of GPU TEE overheads in distributed data parallel ML training",
arXiv:2501.11771: GPT-2-XL on four GPUs takes 41.6 times as long with 25 MiB buckets, 3.03 times with large
ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from predictor.checks import positive_number, whole_number
from predictor.errors import InvalidRequest
from predictor.hardware.spec import LinkSpec
from predictor.units import MIB

PUBLISHED_SLOWDOWN, PUBLISHED_LARGE_SLOWDOWN = 41.6, 3.03
PUBLISHED_BUCKET_BYTES = 25 * MIB


@dataclass(frozen=True, slots=True)
class DdpJob:
    """Replicas that all-reduce their gradients bucket by bucket after computing.

    Attributes:
        gradient_bytes: of one replica. ranks: replicas. compute_s: forward, backward and step of one.
        link: between two neighbours of the ring.
    """

    gradient_bytes: float
    ranks: int
    compute_s: float
    link: LinkSpec

    def __post_init__(self) -> None:
        positive_number(self.gradient_bytes, "gradient_bytes", "gradient_bytes", "bytes above 0")
        positive_number(self.compute_s, "compute_s", "compute_s", "seconds above 0")
        whole_number(self.ranks, "ranks", "ranks", "at least 1")

    def bucket_count(self, bucket_bytes: float) -> int:
        """All-reduces of a step."""
        positive_number(bucket_bytes, "bucket_bytes", "bucket_bytes", "bytes above 0")
        return ceil(self.gradient_bytes / bucket_bytes)


@dataclass(frozen=True, slots=True)
class ConfidentialLink:
    """What crypto adds: `alpha_s` to a message, and to a byte its time at `bytes_per_s` on each side."""

    alpha_s: float
    bytes_per_s: float


def plain_step_s(job: DdpJob, bucket_bytes: float) -> float:
    """A step without enclaves."""
    hops = 2 * (job.ranks - 1)
    messages = job.bucket_count(bucket_bytes) * hops
    carried_bytes = hops / job.ranks * job.gradient_bytes
    return job.compute_s + messages * job.link.latency_s + carried_bytes / job.link.bytes_per_s


def crypto_s(job: DdpJob, bucket_bytes: float, confidential: ConfidentialLink) -> float:
    """What sealing and opening adds to a step."""
    hops = 2 * (job.ranks - 1)
    messages = job.bucket_count(bucket_bytes) * hops
    carried_bytes = hops / job.ranks * job.gradient_bytes
    return messages * confidential.alpha_s + 2 * carried_bytes / confidential.bytes_per_s


def step_s(job: DdpJob, bucket_bytes: float, confidential: ConfidentialLink | None = None) -> float:
    """A step; exactly the plain one without `confidential`."""
    plain = plain_step_s(job, bucket_bytes)
    return plain if confidential is None else plain + crypto_s(job, bucket_bytes, confidential)


def slowdown(job: DdpJob, bucket_bytes: float, confidential: ConfidentialLink) -> float:
    """Step with enclaves over the step without."""
    return step_s(job, bucket_bytes, confidential) / plain_step_s(job, bucket_bytes)


def fit_confidential(
    job: DdpJob,
    *,
    small: tuple[float, float] = (PUBLISHED_BUCKET_BYTES, PUBLISHED_SLOWDOWN),
    large: tuple[float, float] | None = None,
) -> ConfidentialLink:
    """The two constants from two measured slowdowns of `job`.

    Args:
        small, large: (bucket bytes, slowdown); by default the published ones, the second taken with all
            gradients in one bucket.

    Raises InvalidRequest when no positive constants give both slowdowns.
    """
    points = (small, large or (job.gradient_bytes, PUBLISHED_LARGE_SLOWDOWN))
    hops = 2 * (job.ranks - 1)
    carried_bytes = hops / job.ranks * job.gradient_bytes
    added = [(factor - 1) * plain_step_s(job, bucket) for bucket, factor in points]
    messages = [hops * job.bucket_count(bucket) for bucket, _ in points]
    if messages[0] == messages[1] or not carried_bytes:
        raise InvalidRequest(
            f"confidential link: {job.bucket_count(points[0][0])} buckets in both measurements; expected two "
            "bucket sizes that differ in their number, and at least 2 ranks",
            field="large",
        )
    alpha_s = (added[0] - added[1]) / (messages[0] - messages[1])
    byte_s = (added[1] - messages[1] * alpha_s) / (2 * carried_bytes)
    if alpha_s <= 0 or byte_s <= 0:
        raise InvalidRequest(
            f"confidential link: slowdowns {points[0][1]:g} and {points[1][1]:g} give {alpha_s:.3g} s a "
            f"message and {byte_s:.3g} s a byte; expected both above 0: check the bucket sizes",
            field="large",
        )
    return ConfidentialLink(alpha_s, 1 / byte_s)

"""How many learners a shared-memory parameter server feeds: the scale-up limit of one box.

Learners L with mini-batches of b samples and t(b) = t0 + t1 b move 2 M L / t(b) bytes a second through the
box; up to L* = floor(B t(b) / (2 M)) of them, speed grows with their number. Traffic of an epoch, 2 M times
samples / b, does not depend on L. Zhang et al. 2017, "GaDei: on scale-up training as a service for deep
learning", ICDM, arXiv:1611.06213.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predictor.checks import positive_number, real_number, whole_number


@dataclass(frozen=True, slots=True)
class LearnerWorkload:
    """A model of `model_bytes` whose mini-batch of b samples takes `fixed_s` + b * `sample_s`."""

    model_bytes: float
    fixed_s: float
    sample_s: float

    def __post_init__(self) -> None:
        positive_number(self.model_bytes, "model_bytes", "model_bytes", "bytes above 0")
        positive_number(self.sample_s, "sample_s", "sample_s", "seconds above 0")
        real_number(self.fixed_s, "fixed_s", "fixed_s", "seconds from 0", 0, float("inf"))

    def batch_s(self, batch: int) -> float:
        """Time of one mini-batch."""
        return self.fixed_s + self.sample_s * whole_number(batch, "batch", "batch", "at least 1")


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """What a box can feed.

    Attributes:
        demand_bytes_per_s: of all learners. learners: the most that still speed up linearly.
        speedup: over one learner. epoch_bytes: traffic of one epoch.
    """

    demand_bytes_per_s: float
    learners: int
    speedup: float
    epoch_bytes: float


def scale_up(
    workload: LearnerWorkload, *, batch: int, learners: int, box_bytes_per_s: float, samples: int
) -> ScaleUp:
    """The limit for one mini-batch size.

    Args:
        box_bytes_per_s: what the box moves between learners and server. samples: of an epoch.
    """
    learners = whole_number(learners, "learners", "learners", "at least 1")
    samples = whole_number(samples, "samples", "samples", "at least 1")
    positive_number(box_bytes_per_s, "box_bytes_per_s", "box_bytes_per_s", "bytes/s above 0")
    batch_s = workload.batch_s(batch)
    per_learner = 2 * workload.model_bytes / batch_s
    most = int(box_bytes_per_s // per_learner)
    # Below one learner, the box holds even a single one back.
    ceiling = float(most) if most else box_bytes_per_s / per_learner
    return ScaleUp(
        demand_bytes_per_s=per_learner * learners,
        learners=most,
        speedup=min(float(learners), ceiling),
        epoch_bytes=2 * workload.model_bytes * samples / batch,
    )


def worst_of(workloads: Sequence[LearnerWorkload], *, batch: int, box_bytes_per_s: float) -> int:
    """Learners that a service may give every customer at one fixed mini-batch size."""
    return min(
        scale_up(job, batch=batch, learners=1, box_bytes_per_s=box_bytes_per_s, samples=1).learners
        for job in workloads
    )

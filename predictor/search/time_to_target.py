"""Hybrid data and model parallelism by time to a target accuracy, not by time per iteration.

    time to target = T * S * E     seconds per iteration, iterations per epoch, epochs to the target

More replicas mean a larger global batch, and from some batch on more epochs. Splitting the model inside each
replica adds devices without a larger batch: on M N devices it beats N M replicas when

    SU_M > M * (SE_MN / SE_N) * (E_N / E_MN)

SU_M is the speed-up of an iteration by M-way splitting, SE_N = T_1 / T_N how well N replicas scale. Pal et
al. 2019, "Optimizing multi-GPU parallelization strategies for deep learning training",
arXiv:1907.13257.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, exp, log

from predictor.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class EpochCurve:
    """Epochs to the target by global batch: E = least * (1 + batch / critical).

    Attributes:
        least_epochs: of a small batch. critical_batch: where twice as many are needed.
    """

    least_epochs: float
    critical_batch: float

    def __post_init__(self) -> None:
        """Raises InvalidRequest for numbers that are not above 0."""
        if not (self.least_epochs > 0 and self.critical_batch > 0):
            raise InvalidRequest(
                f"epoch curve: {self.least_epochs} epochs, critical batch {self.critical_batch}; expected "
                "numbers above 0",
                field="epochs",
            )

    def __call__(self, batch: float) -> float:
        """Epochs at this global batch."""
        return self.least_epochs * (1 + batch / self.critical_batch)


@dataclass(frozen=True, slots=True)
class EpochTable:
    """Measured epochs to the target by global batch; between them on a straight line in logarithms.

    Below the smallest batch its epochs are taken; above the largest the last slope goes on.
    """

    epochs_by_batch: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        """Raises InvalidRequest for an empty table or numbers that are not above 0."""
        rows = tuple(sorted(self.epochs_by_batch))
        if not rows or any(batch <= 0 or epochs <= 0 for batch, epochs in rows):
            raise InvalidRequest(
                "epoch table: expected at least one (batch, epochs), all above 0", field="epochs"
            )
        object.__setattr__(self, "epochs_by_batch", rows)

    def __call__(self, batch: float) -> float:
        """Epochs at this global batch."""
        rows = self.epochs_by_batch
        if batch <= rows[0][0] or len(rows) == 1:
            return rows[0][1]
        after = min(bisect_left(rows, (batch, 0.0)), len(rows) - 1)
        (x0, y0), (x1, y1) = rows[after - 1], rows[after]
        return exp(log(y0) + (log(y1) - log(y0)) * log(batch / x0) / log(x1 / x0))


Epochs = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Split:
    """`replicas` of `ways` devices each, and what they take.

    Attributes:
        iteration_s: of the global batch. epochs, time_s: to the target.
    """

    replicas: int
    ways: int
    iteration_s: float
    epochs: float
    time_s: float

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.replicas * self.ways


def splits_by_target(
    iteration_s: Mapping[tuple[int, int], float], samples: int, batch_per_replica: int, epochs: Epochs
) -> list[Split]:
    """Time to the target of every (replicas, ways), fewest devices first, the best of each number first.

    Args:
        iteration_s: seconds per iteration by (replicas, ways), e.g. of predictions.
        samples: of the data set. batch_per_replica: samples of one replica in an iteration.
        epochs: an EpochCurve, an EpochTable or any function of the global batch.
    """
    found = []
    for (replicas, ways), seconds in iteration_s.items():
        batch = replicas * batch_per_replica
        needed = epochs(batch)
        found.append(Split(replicas, ways, seconds, needed, seconds * ceil(samples / batch) * needed))
    return sorted(found, key=lambda split: (split.devices, split.time_s))


def crossover_devices(splits: list[Split]) -> int | None:
    """The fewest devices on which splitting the model beats replicas alone; None where it never does."""
    plain = {split.devices: split.time_s for split in splits if split.ways == 1}
    wins = [
        split.devices
        for split in splits
        if split.ways > 1 and split.devices in plain and split.time_s < plain[split.devices]
    ]
    return min(wins, default=None)


def hybrid_wins(speed_up: float, ways: int, efficiency_ratio: float, epoch_growth: float) -> bool:
    """Whether M-way splitting of each replica beats M times as many replicas.

    Args:
        speed_up: SU_M of one iteration. efficiency_ratio: SE_MN / SE_N. epoch_growth: E_MN / E_N.
    """
    return speed_up > ways * efficiency_ratio / epoch_growth


def hybrid_gain(speed_up: float, ways: int, efficiency_ratio: float, epoch_growth: float) -> float:
    """How much faster to the target, over M times as many replicas; 0 where both are equal."""
    return speed_up * epoch_growth / (ways * efficiency_ratio) - 1

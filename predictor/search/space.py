"""Which plans are looked at: a grid of choices, and the candidates in it as columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidPlan
from predictor.parallel.plan import Plan
from predictor.types import Recompute, Schedule

IntArray = NDArray[np.int64]

SCHEDULES = tuple(Schedule)
RECOMPUTES = tuple(Recompute)
"""What the codes of a table's columns index."""
# GPipe is 1F1B with more activations alive.
_PIPELINES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE)


@dataclass(frozen=True, slots=True)
class Facts:
    """What of a model, a job and a cluster bounds the choices.

    Attributes:
        batch: samples per iteration over all devices. layers: repeated layers, 0 where none repeat.
        pieces: places where stages can begin. experts: experts of each mixture, 0 without any.
        devices: of the cluster. per_node: devices of a node.
        selective: whether selective recomputation would run anything again.
    """

    batch: int
    layers: int
    pieces: int
    experts: int
    devices: int
    per_node: int
    training: bool
    selective: bool = True


WHOLE_SHARE = 0


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Choices, axis by axis; a candidate takes one of each.

    Attributes:
        max_devices: no candidate uses more. dp: None is every divisor of the batch.
        samples: sizes of a microbatch; WHOLE_SHARE is all samples of a replica at once.
        chunks: model chunks per device, above 1 interleaved.
    """

    max_devices: int
    dp: tuple[int, ...]
    tp: tuple[int, ...] = (1,)
    pp: tuple[int, ...] = (1,)
    cp: tuple[int, ...] = (1,)
    ep: tuple[int, ...] = (1,)
    sequence_parallel: tuple[bool, ...] = (False, True)
    zero: tuple[int, ...] = (0, 1, 2, 3)
    samples: tuple[int, ...] = (1, 2, 4, 8)
    schedules: tuple[Schedule, ...] = _PIPELINES
    chunks: tuple[int, ...] = (2, 3, 4)
    recompute: tuple[Recompute, ...] = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)


def default_space(facts: Facts, max_devices: int | None = None) -> SearchSpace:
    """Choices that engineers consider.

    Tensor groups stay within a node; stages are dealt evenly over the repeated layers, or number a power of
    two; sequences are not split, which a caller asks for (`cp`).
    """
    limit = facts.devices if max_devices is None else min(max_devices, facts.devices)
    layers = facts.layers or facts.pieces
    powers = tuple(2**n for n in range(16) if 2**n <= max(limit, 1))
    pp = sorted({n for n in range(1, facts.pieces + 1) if layers % n == 0} | set(powers))
    return SearchSpace(
        max_devices=limit,
        dp=divisors(facts.batch),
        tp=tuple(n for n in divisors(facts.per_node) if n <= limit),
        pp=tuple(n for n in pp if n <= min(facts.pieces, limit)),
        ep=tuple(n for n in powers if facts.experts and n <= facts.experts) or (1,),
        samples=(WHOLE_SHARE, *(2**n for n in range(9) if 2**n <= facts.batch)),
        schedules=_PIPELINES if facts.training else (Schedule.ONE_F_ONE_B,),
        recompute=tuple(kind for kind in Recompute if facts.selective or kind is not Recompute.SELECTIVE),
    )


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


@dataclass(frozen=True, slots=True)
class PlanTable:
    """n candidates, (n,) whole numbers each; `schedule` and `recompute` index SCHEDULES and RECOMPUTES.

    `samples` is the size of a microbatch; all else as in Plan.
    """

    dp: IntArray
    tp: IntArray
    pp: IntArray
    cp: IntArray
    ep: IntArray
    sequence_parallel: IntArray
    zero: IntArray
    samples: IntArray
    microbatches: IntArray
    schedule: IntArray
    virtual_stages: IntArray
    recompute: IntArray

    def __len__(self) -> int:
        return len(self.dp)

    @property
    def devices(self) -> IntArray:
        """(n,) devices that each candidate uses."""
        return self.dp * self.tp * self.pp * self.cp

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> PlanTable:
        """The chosen candidates."""
        return PlanTable(*(getattr(self, field.name)[rows] for field in fields(self)))

    def plan(self, row: int) -> Plan:
        """One candidate as a plan."""
        return Plan(
            dp=int(self.dp[row]),
            tp=int(self.tp[row]),
            pp=int(self.pp[row]),
            cp=int(self.cp[row]),
            ep=int(self.ep[row]),
            sequence_parallel=bool(self.sequence_parallel[row]),
            zero=int(self.zero[row]),
            microbatches=int(self.microbatches[row]),
            schedule=SCHEDULES[int(self.schedule[row])],
            virtual_stages=int(self.virtual_stages[row]),
            recompute=RECOMPUTES[int(self.recompute[row])],
        )


def candidates(space: SearchSpace, facts: Facts) -> PlanTable:
    """All candidates of a space that the counts allow. Raises InvalidPlan when there are none.

    Left out as never better or meaningless: ZeRO-2 and -3 with a pipeline (every microbatch would gather or
    reduce), ZeRO of one replica, sequence parallelism without tensor parallelism, chunks without a pipeline.
    """
    found = [part for part in _parts(space if facts.training else _for_inference(space), facts) if len(part)]
    if not found:
        raise InvalidPlan(
            f"plan search: no combination fits {facts.batch} samples and {space.max_devices} devices; allow "
            "more devices or another batch",
            field="max_devices",
        )
    return PlanTable(
        *(np.concatenate([getattr(part, field.name) for part in found]) for field in fields(PlanTable))
    )


def _for_inference(space: SearchSpace) -> SearchSpace:
    """What `Plan.for_inference` leaves of a space."""
    return replace(
        space,
        zero=tuple(zero for zero in space.zero if zero in (0, 3)),
        schedules=tuple(schedule for schedule in space.schedules if schedule is not Schedule.ZERO_BUBBLE),
        recompute=(Recompute.NONE,),
    )


def _parts(space: SearchSpace, facts: Facts) -> Iterator[PlanTable]:
    for tp, cp, ep, sequence_parallel in product(space.tp, space.cp, space.ep, space.sequence_parallel):
        if sequence_parallel and tp == 1:
            continue
        for pp in space.pp:
            if tp * cp * pp > space.max_devices:
                continue
            grid = _grid(space, facts, tp * cp * pp, ep, pp)
            for schedule, chunks in _schedules(space, facts, pp):
                fits = (
                    grid if schedule is not Schedule.INTERLEAVED else grid.take(grid.microbatches % pp == 0)
                )
                for recompute in space.recompute:
                    size = len(fits)
                    fixed = {
                        "tp": tp,
                        "cp": cp,
                        "ep": ep,
                        "pp": pp,
                        "sequence_parallel": int(sequence_parallel),
                        "schedule": SCHEDULES.index(schedule),
                        "virtual_stages": chunks,
                        "recompute": RECOMPUTES.index(recompute),
                    }
                    yield replace(
                        fits, **{name: np.full(size, value, dtype=np.int64) for name, value in fixed.items()}
                    )


def _schedules(space: SearchSpace, facts: Facts, pp: int) -> Iterator[tuple[Schedule, int]]:
    if pp == 1:
        yield Schedule.ONE_F_ONE_B, 1
        return
    layers = facts.layers or facts.pieces
    for schedule in space.schedules:
        if schedule is not Schedule.INTERLEAVED:
            yield schedule, 1
            continue
        for chunks in space.chunks:
            if pp * chunks <= min(layers, facts.pieces):
                yield schedule, chunks


def _grid(space: SearchSpace, facts: Facts, others: int, ep: int, pp: int) -> PlanTable:
    """dp x samples x zero, the rest filled with ones."""
    zeros = [zero for zero in space.zero if pp == 1 or zero <= 1]
    dp, samples, zero = (
        axis.ravel()
        for axis in np.meshgrid(
            np.array(space.dp, dtype=np.int64),
            np.array(space.samples, dtype=np.int64),
            np.array(zeros or [0], dtype=np.int64),
            indexing="ij",
        )
    )
    share = facts.batch // dp
    whole = samples == WHOLE_SHARE
    samples = np.where(whole, np.maximum(share, 1), samples)
    keep = (facts.batch % dp == 0) & (dp * others <= space.max_devices) & (dp % ep == 0)
    keep &= (share >= samples) & (share % samples == 0) & ~(whole & np.isin(share, space.samples))
    keep &= (zero == 0) | (dp > 1)
    dp, samples, zero, share = dp[keep], samples[keep], zero[keep], share[keep]
    one = np.ones_like(dp)
    return PlanTable(dp, one, one, one, one, one, zero, samples, share // samples, one, one, one)

"""Fits the log-linear prior: damped Gauss-Newton on log times, with the harness of each source beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec
from predictor.models.steps.beliefs import first_log, kin, strength
from predictor.models.steps.harness import (
    FIXED,
    HOST,
    MACHINE,
    MILLISECOND,
    SLOTS,
    WORK,
    Harness,
    Keys,
    pulls,
    starts,
)
from predictor.models.steps.prior import (
    DEVICE_KIND,
    DEVICE_KINDS,
    EFFECTS,
    GROUP_COUNT,
    LOG_HIGHEST,
    LOG_LOWEST,
    DeviceKernel,
    Levels,
    Prior,
)
from predictor.models.steps.total import Total

_DEVICE_PULL, _SLOPE_PULL = 6.0, 5.0
_ROUNDS, _FURTHER_ROUNDS = 8, 3
_HUBER = 0.3
_LARGEST_STEP = 1.0
_NUGGET = 0.2
"""Share of a machine's effect that is its own, whatever its device."""


@dataclass(frozen=True, slots=True)
class PriorRows:
    """What a fit needs: r iterations, n ops.

    Attributes:
        row: (n,) iteration of each op. group: (n,). floor_s, log_learned: (n,).
        log_time, weight: (r,). level: (r, effects). slope: (r,) column.
        device, source: (r,) index into `devices` and `sources`. harness: names of its effects.
    """

    row: Levels
    group: Levels
    floor_s: FloatArray
    log_learned: FloatArray
    timed: NDArray[np.bool_]
    log_time: FloatArray
    weight: FloatArray
    level: Levels
    slope: Levels
    device: Levels
    devices: tuple[DeviceSpec, ...]
    source: Levels
    sources: tuple[str, ...]
    harness: Mapping[str, Keys]


@dataclass(frozen=True, slots=True)
class PriorFit:
    """A fitted prior, and all its weights: where a fit on other weights of the rows can start."""

    prior: Prior
    weights: FloatArray


def fit_prior(rows: PriorRows, total: Total, start: FloatArray | None = None) -> PriorFit:
    """Fits all weights; `total` composes op times into that of an iteration.

    `start`: weights of a fit on the same rows, of which some now weigh nothing; fewer steps do then.
    """
    design = _Design(rows)
    weights = design.first() if start is None else start
    for _ in range(_ROUNDS if start is None else _FURTHER_ROUNDS):
        op_s = rows.floor_s * np.exp(design.log_multiplier(weights))
        harness = design.harness(weights)
        timed = total.added(harness.host_log(rows.harness), harness.fixed_s(rows.harness))
        shares, log_total = timed.shares(op_s)
        residual = rows.log_time - log_total
        robust = rows.weight / np.sqrt(1 + (residual / _HUBER) ** 2)
        weights = design.step(weights, shares, timed.host_shares(op_s), residual, robust)
    return PriorFit(design.prior(weights), weights)


@dataclass(frozen=True, slots=True)
class _Block:
    """Weights of one effect on ops: (classes, levels), from `start` on in the vector of all."""

    start: int
    classes: int
    levels: int
    of_op: Levels
    level: Levels
    sloped: bool = False

    @property
    def place(self) -> slice:
        return slice(self.start, self.start + self.classes * self.levels)

    def columns_of(self, position: int) -> Levels:
        """(levels,) weights of one class."""
        return self.start + position * self.levels + np.arange(self.levels)


def _tie(penalty: FloatArray, some: Levels, others: Levels, pull: float) -> None:
    """Pulls weights to each other, pair by pair."""
    for mine, yours, sign in ((some, some, 1), (others, others, 1), (some, others, -1), (others, some, -1)):
        penalty[mine, yours] += sign * pull


class _Design:
    """Where each weight sits in one vector, and the normal equations of a step.

    Blocks in order: each effect's (class, level), devices (kind, device), slopes (class, 2), and the names of
    each slot of the harness. Only classes that occur have columns.
    """

    def __init__(self, rows: PriorRows) -> None:
        self._rows = rows
        self._many = np.bincount(rows.row, minlength=len(rows.log_time)) > 1
        self._present = np.unique(rows.group)
        position = np.full(GROUP_COUNT, -1, dtype=np.intp)
        position[self._present] = np.arange(len(self._present))
        by_class = position[rows.group]
        self._kernel = DeviceKernel.of(rows.devices)
        count = len(rows.devices)
        self._likeness = np.array([self._kernel.likeness(device) for device in rows.devices]).reshape(
            count, -1
        )
        self._inverse = np.asarray(np.linalg.inv(self._likeness + 1e-6 * np.eye(count)), dtype=np.float64)
        self._blocks: list[_Block] = []
        for (size, _), level in zip(EFFECTS.values(), rows.level.T, strict=True):
            self._add(len(self._present), size, by_class, level)
        self._add(len(DEVICE_KINDS), count, DEVICE_KIND[rows.group], rows.device)
        self._add(len(self._present), 2, by_class, rows.slope, sloped=True)
        self._slots: dict[str, slice] = {}
        end = self._blocks[-1].place.stop
        for slot, keys in rows.harness.items():
            self._slots[slot] = slice(end, end := end + len(keys.names))
        self._count = end
        self._target = self.start()
        self._penalty = self._pulls()

    def _add(self, classes: int, size: int, of_op: Levels, level: Levels, *, sloped: bool = False) -> None:
        start = self._blocks[-1].place.stop if self._blocks else 0
        self._blocks.append(_Block(start, classes, size, of_op, level, sloped))

    def start(self) -> FloatArray:
        """Effects where they are believed to be, slopes at 1; devices and harnesses at 0."""
        weights = np.zeros(self._count)
        for block, effect in zip(self._blocks, EFFECTS, strict=False):
            levels = [first_log(effect, level, self._present) for level in range(block.levels)]
            weights[block.place] = np.stack(levels, axis=1).ravel()
        weights[self._blocks[-1].place] = 1.0
        return weights

    def first(self) -> FloatArray:
        """Where the fit starts."""
        weights = self.start()
        for slot, values in starts(self._rows.harness).items():
            weights[self._slots[slot]] = values
        return weights

    def log_multiplier(self, weights: FloatArray) -> FloatArray:
        """(n,) of every op, harness included."""
        rows = self._rows
        harness = self.harness(weights).work_log(rows.harness)[rows.row]
        found = harness.copy()
        for block in self._blocks:
            value = weights[block.start + block.of_op * block.levels + block.level[rows.row]]
            found += value * rows.log_learned if block.sloped else value
        return np.where(rows.timed, rows.log_learned + harness, np.clip(found, LOG_LOWEST, LOG_HIGHEST))

    def harness(self, weights: FloatArray) -> Harness:
        """What the weights say of every source's way of timing."""
        return Harness(
            {
                slot: dict(zip(keys.names, map(float, weights[self._slots[slot]]), strict=True))
                for slot, keys in self._rows.harness.items()
            }
        )

    def step(
        self,
        weights: FloatArray,
        shares: FloatArray,
        beside: tuple[FloatArray, FloatArray],
        residual: FloatArray,
        robust: FloatArray,
    ) -> FloatArray:
        """One Gauss-Newton step on the penalised, weighted squares; `beside`: slopes of host and copies."""
        jacobian, kernels = self._jacobian(shares, beside)
        used = np.asarray((np.abs(jacobian).sum(axis=0) > 0) | (abs(kernels).sum(axis=0).A1 > 0))
        narrow, sparse = jacobian[:, used], kernels[:, used]
        many, one = robust[self._many], robust[~self._many]
        normal = ((narrow * many[:, None].astype(np.float32)).T @ narrow).astype(np.float64)
        normal += (sparse.T @ sparse.multiply(one[:, None]).tocsr()).toarray()
        pull = self._penalty @ (weights - self._target)
        right = narrow.T @ (many * residual[self._many]) + sparse.T @ (one * residual[~self._many])
        found = np.linalg.solve(normal + self._penalty[np.ix_(used, used)], right - pull[used])
        moved = weights.copy()
        moved[used] += np.clip(found, -_LARGEST_STEP, _LARGEST_STEP)
        return moved

    def prior(self, weights: FloatArray) -> Prior:
        """The weights by class; classes that never occurred keep the starting point."""
        *effect_blocks, device_block, slope_block = self._blocks
        columns = [weights[block.place].reshape(-1, block.levels) for block in effect_blocks]
        effects = np.zeros((GROUP_COUNT, sum(block.levels for block in effect_blocks)))
        effects[:, 0] = first_log("base", 0, np.arange(GROUP_COUNT))
        effects[self._present] = np.concatenate(columns, axis=1)
        slope = np.ones((GROUP_COUNT, slope_block.levels))
        slope[self._present] = weights[slope_block.place].reshape(-1, slope_block.levels)
        device = weights[device_block.place].reshape(len(DEVICE_KINDS), -1)
        return Prior(effects, device, slope, self._kernel, self._inverse, self.harness(weights))

    def _jacobian(
        self, shares: FloatArray, beside: tuple[FloatArray, FloatArray]
    ) -> tuple[NDArray[np.float32], Any]:
        """Slopes of the log times by every weight: dense of iterations of many ops, sparse of kernels."""
        from scipy.sparse import csr_matrix

        rows, count = self._rows, len(self._rows.log_time)
        jacobian = np.zeros((int(self._many.sum()), self._count), dtype=np.float32)
        lines = np.arange(len(jacobian))
        alone = ~self._many[rows.row]
        line = (np.cumsum(~self._many) - 1)[rows.row[alone]]
        entries: list[tuple[NDArray[np.intp], FloatArray]] = []
        moving = np.where(rows.timed, 0.0, shares)
        for block in self._blocks:
            slope = moving * rows.log_learned if block.sloped else moving
            flat = rows.row * block.classes + block.of_op
            values = np.bincount(flat, weights=slope, minlength=count * block.classes)
            level = block.level[:, None]
            columns = block.start + np.arange(block.classes)[None] * block.levels + level
            jacobian[lines[:, None], columns[self._many]] = values.reshape(count, -1)[self._many]
            column = block.start + block.of_op * block.levels + block.level[rows.row]
            entries.append((column[alone], slope[alone]))
        host, fixed = beside
        slopes = {
            WORK: np.bincount(rows.row, weights=shares, minlength=count),
            HOST: host,
            FIXED: fixed * MILLISECOND,
        }
        for slot, keys in rows.harness.items():
            moved = slopes[SLOTS[slot][0]]
            jacobian[lines, self._slots[slot].start + keys.index[self._many]] = moved[self._many]
        places = np.concatenate([column for column, _ in entries])
        found = np.concatenate([values for _, values in entries])
        shape = (count - len(jacobian), self._count)
        return jacobian, csr_matrix((found, (np.tile(line, len(entries)), places)), shape=shape)

    def _pulls(self) -> FloatArray:
        """(weights, weights) strength of the pull to the target: diagonal, but between devices."""
        penalty = np.zeros((self._count, self._count))
        *effect_blocks, device_block, slope_block = self._blocks
        thousands = float(self._rows.weight.sum()) / 1000
        for block, (effect, (_, pull)) in zip(effect_blocks, EFFECTS.items(), strict=True):
            pulls_of = pull + thousands * strength(effect, self._present)
            penalty[block.place, block.place] = np.diag(np.repeat(pulls_of, block.levels))
        of_devices = np.kron(np.eye(device_block.classes), _DEVICE_PULL * self._inverse)
        penalty[device_block.place, device_block.place] = of_devices
        penalty[slope_block.place, slope_block.place] = _SLOPE_PULL * np.eye(slope_block.classes * 2)
        for block in (*effect_blocks, slope_block):
            for gradient, forward, like in kin(self._present):
                _tie(penalty, block.columns_of(gradient), block.columns_of(forward), thousands * like)
        for slot, of_names in pulls(self._rows.harness).items():
            penalty[self._slots[slot], self._slots[slot]] = np.diag(of_names)
        return self._with_machines(penalty)

    def _with_machines(self, penalty: FloatArray) -> FloatArray:
        """Devices that are alike are alike in a source's machines too: a new one there takes theirs."""
        names = self._rows.harness[MACHINE].names
        place = {device.id: i for i, device in enumerate(self._rows.devices)}
        start, pull = self._slots[MACHINE].start, SLOTS[MACHINE][1]
        for harness in sorted({name.split("|")[0] for name in names} - {""}):
            members = [i for i, name in enumerate(names) if name.split("|")[0] == harness]
            devices = [place[names[i].split("|")[1]] for i in members]
            likeness = self._likeness[np.ix_(devices, devices)] + _NUGGET * np.eye(len(devices))
            columns = start + np.array(members)
            penalty[np.ix_(columns, columns)] = pull * np.linalg.inv(likeness)
        return penalty

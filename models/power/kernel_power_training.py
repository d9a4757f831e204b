"""Training of the kernel power model: the law by least absolute errors over all families, trees per family.

Rough tables count less, and every table alike in the law. Spreads are conformal: shapes left out for a known
chip, the law of the other chips for a new one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.hardware.catalog import find_device
from predictor.hardware.sustained import matrix_peak
from predictor.models.bundle import TrainedModel
from predictor.models.calibration import conformal_quantile
from predictor.models.device_identity import device_numbers
from predictor.models.power.kernel_power import FAMILIES, KernelLaw, KernelPowerModel, KernelRows

if TYPE_CHECKING:
    import polars as pl

FloatArray = NDArray[np.float64]

ROUNDS = 250
PARAMETERS: Mapping[str, object] = {
    "objective": "reg:absoluteerror",
    "tree_method": "hist",
    "max_depth": 7,
    "eta": 0.15,
    "subsample": 0.8,
    "colsample_bytree": 0.9,
    "min_child_weight": 5.0,
    "seed": 7,
    "nthread": 1,
}
PRIOR = KernelLaw(
    base=0.4,
    compute=2.0,
    memory=1.0,
    compute_power=0.6,
    memory_power=1.2,
    start_us=3.0,
    sharpness=5.0,
    floor=0.18,
)
_PULL = 0.002
_LAW_ROWS = 4000
_FAMILY_ROWS = 120_000
_SMOOTH = 0.05


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Kernel readings as columns (n,): facts, envelope, limit, family, table, shape, chip, roughness."""

    rows: KernelRows
    envelope_w: FloatArray
    limit_w: FloatArray
    family: NDArray[np.str_]
    table: NDArray[np.str_]
    shape: NDArray[np.str_]
    chip: NDArray[np.str_]
    device: NDArray[np.str_]
    roughness: FloatArray

    def take(self, index: NDArray[Any]) -> KernelTable:
        """The rows at `index`."""
        rest = {name: getattr(self, name)[index] for name in self.__slots__ if name != "rows"}
        return KernelTable(rows=self.rows.take(index), **rest)

    @property
    def weight(self) -> FloatArray:
        """(n,) weights: a table twice as rough as 5 % counts a fifth."""
        return 1.0 / (1.0 + np.square(self.roughness / _SMOOTH))

    def __len__(self) -> int:
        return len(self.envelope_w)


def kernel_table(rows: pl.DataFrame) -> KernelTable:
    """The rows of the corpus as a table. Raises InvalidData when there are none."""
    if not rows.height:
        raise InvalidData("kernel power: no rows; build the corpus with aiconfigurator-power")
    facts = [json.loads(text) for text in rows["configuration"]]
    names = rows["device"].to_list()
    devices = {name: find_device(name) for name in set(names)}

    def column(key: str) -> FloatArray:
        return np.array([fact[key] for fact in facts], dtype=np.float64)

    def of_device(value: Mapping[str, float]) -> FloatArray:
        return np.array([value[name] for name in names])

    time_s, flops, moved = column("latency_s"), np.maximum(column("flops"), 1.0), column("moved_bytes")
    peak = np.array([matrix_peak(devices[n], f["compute"]) for n, f in zip(names, facts, strict=True)])
    bandwidth = of_device({name: device.memory_bytes_per_s for name, device in devices.items()})
    sizes = np.array([fact["sizes"] for fact in facts], dtype=np.float64)
    chips = rows["device_group"].to_numpy().astype(str)
    tables = [
        f"{subject} {chip} {fact['stack']} {fact['precision']}"
        for subject, chip, fact in zip(rows["subject"], chips, facts, strict=True)
    ]
    return KernelTable(
        rows=KernelRows(
            compute_utilisation=flops / peak / time_s,
            memory_utilisation=moved / bandwidth / time_s,
            time_s=time_s,
            tiles_per_core=column("tiles") / of_device({n: float(d.core_count) for n, d in devices.items()}),
            bits=column("bits"),
            matrix_over_vector=peak / of_device({n: d.vector_flops_per_s for n, d in devices.items()}),
            intensity=flops / moved,
            bytes_over_cache=moved / of_device({n: d.l2_bytes or 5e7 for n, d in devices.items()}),
            # TensorRT-LLM's readings on the B200 lie below vLLM's at equal times (data notes); answers are
            # given as vLLM reads.
            reads_low=np.array([float(fact["stack"] == "trtllm") for fact in facts]),
            rows=sizes[:, 0],
            columns=sizes[:, 1],
            depth=sizes[:, 2],
        ),
        envelope_w=column("envelope_w"),
        limit_w=of_device({name: device.tdp_w for name, device in devices.items()}),
        family=np.array([fact["family"] for fact in facts]),
        table=np.array(tables),
        shape=rows["model_group"].to_numpy().astype(str),
        chip=chips,
        device=np.array(names),
        roughness=column("table_roughness"),
    )


def shape_folds(table: KernelTable, count: int) -> NDArray[np.intp]:
    """(n,) fold of each row: all rows of one shape, on whatever chip, stack or type, are in one."""
    names, inverse = np.unique(table.shape, return_inverse=True)
    fold = np.array([crc32(name.encode()) % count for name in names], dtype=np.intp)
    return fold[inverse]


def fit_kernel_power(table: KernelTable, seed: int = 7) -> TrainedModel:
    """Law and trees, without spreads of their own."""
    import xgboost

    generator = np.random.default_rng(seed)
    law = fit_law(table, generator)
    boosters: dict[str, bytes] = {}
    for family in FAMILIES:
        index = np.flatnonzero(table.family == family)
        if not index.size:
            continue
        if index.size > _FAMILY_ROWS:
            index = np.sort(generator.choice(index, _FAMILY_ROWS, replace=False))
        part = table.take(index)
        fraction = law.fraction(part.rows)
        matrix = xgboost.DMatrix(
            part.rows.features(fraction),
            label=np.log(part.envelope_w / (fraction * part.limit_w)),
            weight=part.weight / part.weight.mean(),
        )
        booster = xgboost.train(dict(PARAMETERS), matrix, num_boost_round=ROUNDS)
        boosters[family] = bytes(booster.save_raw("ubj"))
    devices = sorted({tuple(device_numbers(find_device(name))) for name in np.unique(table.device)})
    return TrainedModel(
        boosters=boosters,
        params={
            "law": asdict(law),
            "devices": [list(numbers) for numbers in devices],
            "log_spread": {"known_device": 1.0, "new_device": 1.0},
            "row_count": len(table),
        },
    )


def train_kernel_power(table: KernelTable) -> TrainedModel:
    """Trains on all rows and calibrates: a fifth of the shapes left out, and each chip."""
    trained = fit_kernel_power(table)
    fold = shape_folds(table, 5)
    held = table.take(np.flatnonzero(fold == 0))
    known = log_errors(fit_kernel_power(table.take(np.flatnonzero(fold != 0))), held)
    chips = np.unique(table.chip)
    new = [
        log_errors(fit_kernel_power(table.take(table.chip != chip)), table.take(table.chip == chip))
        for chip in chips
        if len(chips) > 1
    ]
    spread = {
        "known_device": conformal_quantile(known),
        "new_device": conformal_quantile(np.concatenate(new)) if new else 1.0,
    }
    return replace(trained, params={**trained.params, "log_spread": spread})


def log_errors(trained: TrainedModel, held: KernelTable) -> FloatArray:
    """(n,) log(envelope / predicted) of rows that the training did not see."""
    return np.asarray(np.log(held.envelope_w / predicted_w(trained, held)), dtype=np.float64)


def predicted_w(trained: TrainedModel, held: KernelTable) -> FloatArray:
    """(n,) watts that a trained model answers, chip by chip."""
    model = KernelPowerModel.from_trained(trained)
    watts = np.empty(len(held))
    for name in np.unique(held.device):
        index = np.flatnonzero(held.device == name)
        part = held.take(index)
        watts[index] = model.watts_of(part.rows, part.family, find_device(str(name)))
    return watts


def fit_law(table: KernelTable, generator: np.random.Generator) -> KernelLaw:
    """Least mean absolute log error over a sample in which every table counts alike; coordinate search."""
    names, inverse, counts = np.unique(table.table, return_inverse=True, return_counts=True)
    share = table.weight / counts[inverse] / len(names)
    size = min(_LAW_ROWS, len(table))
    sample = table.take(generator.choice(len(table), size, replace=False, p=share / share.sum()))

    def loss(law: KernelLaw) -> float:
        errors = np.log(sample.envelope_w / (law.fraction(sample.rows) * sample.limit_w))
        pull = sum(float(np.log(a / b)) ** 2 for a, b in zip(astuple(law), astuple(PRIOR), strict=True))
        return float(np.abs(errors).mean() + _PULL * pull)

    found, best, step = PRIOR, loss(PRIOR), 1.4
    while step > 1.01:
        improved = False
        for name in _NAMES:
            for factor in (step, 1 / step):
                candidate = replace(found, **{name: min(getattr(found, name) * factor, _MOST.get(name, 1e9))})
                value = loss(candidate)
                if value < best - 1e-7:
                    found, best, improved = candidate, value, True
        if not improved:
            step = step**0.5
    return found


_NAMES: Sequence[str] = tuple(field.name for field in fields(KernelLaw))
_MOST: Mapping[str, float] = {"floor": 0.5, "sharpness": 12.0}

"""The one schema every measurement is written in, whatever its publisher called it.

A row says: `subject` (what ran) on `device` in `configuration` had `value` `unit` of `quantity`, as seen by
`scope`. `device_group` and `model_group` are what leave-one-group-out evaluation holds out, never features.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from predictor.errors import InvalidData

if TYPE_CHECKING:
    import polars as pl

SCHEMA_VERSION = "perfcast.measurement/1"

COLUMNS: Mapping[str, str] = {
    "subject": "String",
    "subject_kind": "String",
    "device": "String",
    "configuration": "String",
    "quantity": "String",
    "value": "Float64",
    "unit": "String",
    "scope": "String",
    "source": "String",
    "device_group": "String",
    "model_group": "String",
}
"""Column -> polars type name.

subject: model or op name; subject_kind: `op` or `model`. device: catalogue id. configuration: canonical JSON
(`canonical`) of everything else that was fixed in the run: for ops the work, for models batch, precision,
optimizer, power limit ... quantity: a key of UNITS. scope: who looked (see SCOPES).
device_group: the chip. model_group: the model family, or the op family.
"""

UNITS: Mapping[str, str] = {
    "latency": "s",
    "iteration_time": "s",
    "epoch_time": "s",
    "device_peak_memory": "bytes",
    "allocator_peak_memory": "bytes",
    "average_power": "W",
    "energy": "J",
    "device_busy_share": "1",
    "epochs_to_target": "1",
}
"""Quantity -> the one unit it is stored in."""

SCOPES = frozenset(
    {
        "kernel",
        "kernel_and_dispatch",
        "host_wall",
        "allocator",
        "device_monitor",
        "gpu_board",
        "host_cpu",
        "node_ac",
    }
)
"""kernel: replayed in a graph, no host in it. kernel_and_dispatch: device events around one call.
device_monitor: vendor's tool, context included. gpu_board: the boards alone. host_cpu: the processors' own
counters. node_ac: input of the node."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows of a source with what became of all it holds: `available`, `used`, and the others by reason."""

    frame: pl.DataFrame
    counts: Mapping[str, int]


def canonical(configuration: Mapping[str, object]) -> str:
    """JSON with sorted keys and no spaces: equal configurations are equal strings."""
    return json.dumps(configuration, sort_keys=True, separators=(",", ":"), allow_nan=False)


def conform(frame: pl.DataFrame, source: str) -> pl.DataFrame:
    """`frame` with exactly the schema's columns, sorted, so that equal rows give equal files.

    Raises InvalidData naming the source and the offending column, unit or value.
    """
    import polars as pl

    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise InvalidData(f"source {source}: column(s) {', '.join(missing)} missing; schema {SCHEMA_VERSION}")
    frame = frame.select(pl.col(name).cast(getattr(pl, kind)) for name, kind in COLUMNS.items())
    nulls = [name for name in COLUMNS if frame[name].null_count()]
    if nulls:
        raise InvalidData(f"source {source}: empty cells in {', '.join(nulls)}; every cell must be filled")
    for quantity, unit in frame.select("quantity", "unit").unique().sort("quantity", "unit").iter_rows():
        if UNITS.get(quantity) != unit:
            raise InvalidData(f"source {source}: {quantity} in {unit!r}; expected one of {dict(UNITS)}")
    strange = sorted(set(frame["scope"].unique()) - SCOPES)
    if strange:
        raise InvalidData(
            f"source {source}: scope {strange[0]!r}; expected one of {', '.join(sorted(SCOPES))}"
        )
    wrong = frame.filter(~(pl.col("value").is_finite() & (pl.col("value") > 0)))
    if wrong.height:
        raise InvalidData(
            f"source {source}: {wrong.height} values are not above 0, first {wrong['value'][0]}"
        )
    return frame.sort(list(COLUMNS))

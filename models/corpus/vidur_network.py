"""Vidur's profiles of all-reduce and send/receive inside a node: kernels as the profiler saw them.

There is one row per rank; the slowest rank's median counts. Sizes are a fine sweep with noise of its own: all
within a quarter octave become one row (median time at the geometric mean size). Left out: groups over several
nodes, whose network is not named; the pair of A40, whose rate says that no bridge joins them; and the H100
pair's send/receive, which repeats the A100 pair's numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.hardware.links import pcie_bytes_per_s
from predictor.models.corpus.exchanges import Exchange, frame_of
from predictor.models.corpus.schema import Counted

if TYPE_CHECKING:
    import polars as pl

SOURCE = "vidur-network"
_BRIDGE = ("nvlink", 300e9)
_SYSTEMS: Mapping[str, tuple[str, bool, Mapping[int, tuple[str, float]]]] = {
    "a100_dgx": ("a100-sxm-80gb", False, {}),
    "h100_dgx": ("h100-sxm-80gb", True, {}),
    "a100_pairwise_nvlink": ("a100-pcie-80gb", False, {2: _BRIDGE, 4: ("pcie", pcie_bytes_per_s(4))}),
    "h100_pairwise_nvlink": ("h100-nvl-94gb", False, {2: _BRIDGE, 4: ("pcie", pcie_bytes_per_s(5))}),
}
"""Topology -> device, whether its switch reduces, and links by ranks where they are not the device's own."""
_SWITCHED: Mapping[str, tuple[str, float]] = {"a100_dgx": ("nvlink", 300e9), "h100_dgx": ("nvlink", 450e9)}
_STEPS_PER_OCTAVE = 2
_COPIED = ("h100_pairwise_nvlink", "send_recv")


def read(folder: Path) -> Counted:
    """One `latency` row per topology, collective, ranks and half octave of size."""
    import polars as pl

    frame = pl.read_csv(folder / "network.csv.gz", infer_schema_length=None)
    inside = frame.filter(pl.col("num_workers") == pl.col("devices_per_node"))
    known = inside.filter(pl.col("topology").is_in(list(_SYSTEMS)))
    own = known.filter((pl.col("topology") != _COPIED[0]) | (pl.col("collective") != _COPIED[1]))
    time_ms = pl.coalesce("time_stats.all_reduce.median", "time_stats.send_recv.median")
    keys = ["topology", "collective", "num_workers"]
    slowest = own.group_by(*keys, "size").agg(time_ms.max().alias("ms")).filter(pl.col("ms") > 0)
    step = (pl.col("size").log(2) * _STEPS_PER_OCTAVE).round().cast(pl.Int64)
    rows = (
        slowest.with_columns(step.alias("step"))
        .group_by(*keys, "step")
        .agg(pl.col("size").log().mean().exp().round().cast(pl.Int64), pl.col("ms").median())
        .drop("step")
        .sort(*keys, "size")
    )
    counts = {
        "available": frame.height,
        "used": rows.height,
        "over several nodes: network not named": frame.height - inside.height,
        "pair without a bridge": inside.height - known.height,
        "copy of another pair's numbers": known.height - own.height,
        "another rank, or a size nearby: merged": own.height - rows.height,
    }
    return Counted(frame_of(_exchanges(rows), SOURCE), counts)


def _exchanges(rows: pl.DataFrame) -> Iterator[tuple[Exchange, float]]:
    for topology, collective, ranks, size, milliseconds in rows.iter_rows():
        device, in_switch, links = _SYSTEMS[topology]
        exchange = Exchange(
            system=f"{SOURCE}/{topology}",
            device=device,
            collective=collective,
            size_bytes=size,
            library="nccl",
            timer="profiler",
            ranks=ranks,
            per_node=ranks,
            in_switch=in_switch,
            intra=_SWITCHED[topology] if topology in _SWITCHED else links[ranks],
        )
        yield exchange, milliseconds * 1e-3

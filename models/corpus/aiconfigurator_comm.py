"""AIConfigurator's tables of collectives inside one node: NCCL, inference stacks' own all-reduce, oneCCL.

`message_size` counts elements: 16-bit rows take twice as long as 8-bit ones of the same size, and only so
does a large all-gather stay below the rate of its link. Sizes here are bytes of the whole tensor. The switch
reduces 16-bit numbers only. Equal keys under several versions and folders are merged: their median stays.
Own kernels called one by one from Python took 20 to 45 µs at any small size, the time of the call: only those
replayed in a graph are read. Expert-parallel exchanges (DeepEP, TRT-LLM) are not read yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.models.corpus.exchanges import Exchange, device_link, frame_of
from predictor.models.corpus.schema import Counted

if TYPE_CHECKING:
    import polars as pl

SOURCE = "aiconfigurator-comm"
DEVICES: Mapping[str, str] = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "b200_sxm": "b200-sxm-180gb",
    "b300_sxm": "b300-sxm-288gb",
    "gb200": "gb200-superchip-186gb",
    "gb300": "gb300-superchip-288gb",
    "l40s": "l40s-pcie-48gb",
    "rtx_pro_6000_server": "rtx-pro-6000-server-96gb",
    "b60": "arc-pro-b60-24gb",
}
"""The publisher's systems -> catalogue ids."""

REDUCING_SWITCHES = frozenset({"h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300"})
"""NVSwitch of the third generation and later."""
_BYTES = {"half": 2, "int8": 1, "bfloat16": 2}
_NAMES = {"alltoall": "all_to_all"}
_EAGER = "timed with its call from Python"
_REPEATED = "the same key measured again: median taken"


def read(folder: Path) -> Counted:
    """One `latency` row per system, library, collective, type, ranks and size."""
    import polars as pl

    nccl = _table(folder / "nccl_perf.csv.gz", "nccl", "nccl_dtype")
    intel = _table(folder / "oneccl_perf.csv.gz", "oneccl", "nccl_dtype")
    own = _table(folder / "custom_allreduce_perf.csv.gz", "custom", "allreduce_dtype")
    graphs = own.filter(~pl.col("kernel_source").str.contains("eager"))
    keys = ["system", "library", "op_name", "dtype", "num_gpus", "message_size"]
    parts = [part.select(*keys, "latency") for part in (nccl, intel, graphs)]
    rows = pl.concat(parts).group_by(keys).agg(pl.col("latency").median()).sort(keys)
    available = nccl.height + intel.height + own.height
    counts = {
        "available": available,
        "used": rows.height,
        _EAGER: own.height - graphs.height,
        _REPEATED: available - (own.height - graphs.height) - rows.height,
    }
    return Counted(frame_of(_exchanges(rows), SOURCE), counts)


def _table(path: Path, library: str, dtype: str) -> pl.DataFrame:
    import polars as pl

    frame = pl.read_csv(path).rename({dtype: "dtype"})
    return frame.with_columns(pl.lit(library).alias("library")).filter(pl.col("latency") > 0)


def _exchanges(rows: pl.DataFrame) -> Iterator[tuple[Exchange, float]]:
    for system, library, name, dtype, ranks, size, milliseconds in rows.iter_rows():
        device = DEVICES[system]
        exchange = Exchange(
            system=f"{SOURCE}/{system}",
            device=device,
            collective=_NAMES.get(name, name),
            size_bytes=size * _BYTES[dtype],
            library=library,
            timer="loop",
            ranks=ranks,
            per_node=ranks,
            in_switch=library == "nccl" and system in REDUCING_SWITCHES and _BYTES[dtype] == 2,
            intra=device_link(device),
        )
        yield exchange, milliseconds * 1e-3

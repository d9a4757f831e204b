"""Public logs of nccl-tests and rccl-tests: in one node, and across nodes over InfiniBand, RoCE, EFA.

Used are lines whose devices, ranks and network are known. Left out: Trainium (ranks unknown), the cluster
without a device, the A800 cluster (network not named), and the all-gather that its publisher timed cold.
Rates between nodes are nameplate, per device. Lines of equal system, ranks and size are merged (median).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.models.corpus.exchanges import Exchange, device_link, frame_of
from predictor.models.corpus.schema import Counted

if TYPE_CHECKING:
    import polars as pl

SOURCE = "nccl-tests-logs"
DEVICES: Mapping[str, str] = {
    "V100-SXM2-32GB": "v100-sxm-32gb",
    "A100-SXM4-40GB": "a100-sxm-40gb",
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "H100-SXM5-80GB": "h100-sxm-80gb",
    "H200-SXM5-141GB": "h200-sxm-141gb",
    "MI300X": "mi300x-oam-192gb",
    "MI325X": "mi325x-oam-256gb",
    "RTX 3090": "rtx-3090-24gb",
    "RTX 4090": "rtx-4090-24gb",
}
"""The publishers' names -> catalogue ids."""
_NETWORKS: Mapping[str, tuple[str, float]] = {
    "EFA 100Gb/s (no GPUDirect)": ("efa", 1.5625e9),
    "EFA v1 4x100Gb/s": ("efa", 6.25e9),
    "EFA v2 32x100Gb/s": ("efa", 50e9),
    "GPUDirect-TCPXO 8x200Gb/s": ("ethernet", 25e9),
    "InfiniBand NDR 8x400Gb/s": ("infiniband", 50e9),
    "RoCE 8x Broadcom (bnxt_re)": ("roce", 50e9),
    "RoCE 8x Broadcom (bnxt_re) NCCL_ALGO=Ring": ("roce", 50e9),
    "RoCE/IB ~100Gb/s NIC (MTU 256)": ("roce", 12.5e9),
}
"""Network as logged -> kind, nameplate bytes/s of one device (MI300X, MI325X: eight ports of 400 Gb/s)."""
_COLD = ("GCP a3-megagpu-8g GKE", "all_gather")
_REDUCING = ("H100", "H200")


def read(folder: Path) -> Counted:
    """One `latency` row per system, collective, ranks and size."""
    import polars as pl

    frame = pl.read_csv(folder / "nccl_tests_parsed.csv")
    usable = frame.filter(
        pl.col("gpu").is_in(list(DEVICES))
        & pl.col("ranks").is_not_null()
        & ((pl.col("nodes") == 1) | pl.col("inter_node").is_in(list(_NETWORKS)))
        & ((pl.col("system") != _COLD[0]) | (pl.col("collective") != _COLD[1]))
        & (pl.col("time_us") > 0)
        & (pl.col("size_B") > 0)
    )
    keys = ["system", "gpu", "collective", "ranks", "nodes", "inter_node", "size_B"]
    rows = usable.group_by(keys).agg(pl.col("time_us").median()).sort(keys)
    counts = {
        "available": frame.height,
        "used": rows.height,
        "device, ranks or network unknown, or cold": frame.height - usable.height,
        "the same line again: median taken": usable.height - rows.height,
    }
    return Counted(frame_of(_exchanges(rows), SOURCE), counts)


def _exchanges(rows: pl.DataFrame) -> Iterator[tuple[Exchange, float]]:
    for system, gpu, collective, ranks, nodes, network, size, microseconds in rows.iter_rows():
        device = DEVICES[gpu]
        reduces = gpu.startswith(_REDUCING) and "NVLS off" not in system
        exchange = Exchange(
            system=f"{SOURCE}/{system}",
            device=device,
            collective=collective,
            size_bytes=int(size),
            library="nccl",
            timer="loop",
            ranks=int(ranks),
            per_node=int(ranks) // int(nodes),
            in_switch=reduces,
            intra=device_link(device),
            inter=None if nodes == 1 else _NETWORKS[network],
        )
        yield exchange, microseconds * 1e-6

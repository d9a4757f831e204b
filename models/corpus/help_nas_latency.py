"""HELP (NeurIPS'21): latencies by device of networks from NAS-Bench-201, FBNet and Once-for-all.

FBNet's networks have their sizes for CIFAR. What one row holds: the forward pass of one network in FP32, in
eager PyTorch on GPUs and Xeons (batch 1 where none is named), TFLite on the Raspberry Pi and phones.
Neighbours of one space differ little, and all of them would outnumber every other source, so an evenly spaced
sample of each space is used. Left out beside it: Eyeriss and FPGA, which are simulated, and phones in whole
milliseconds below 20.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.features.architectures.searched import fbnet, nasbench201, once_for_all
from predictor.features.graph import Graph
from predictor.features.reading.reader import read_graph
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.whole_model import ReadRows, WholeModelRow, gathered, measurements
from predictor.types import Mode, Precision

if TYPE_CHECKING:
    import polars as pl

SOURCE = "help-nas-latency"
SPACES: Mapping[str, int] = {"nasbench201": 200, "fbnet": 100, "ofa": 100}
"""Space -> networks in the sample."""
DEVICES: Mapping[str, str] = {
    "1080ti": "gtx-1080-ti-11gb",
    "2080ti": "rtx-2080-ti-11gb",
    "titan_rtx": "titan-rtx-24gb",
    "titanx": "titan-x-pascal-12gb",
    "titanxp": "titan-xp-12gb",
    "titan_xp": "titan-xp-12gb",
    "v100": "v100-sxm-16gb",
    "gold_6226": "xeon-gold-6226",
    "gold_6240": "xeon-gold-6240",
    "silver_4114": "xeon-silver-4114",
    "silver_4210r": "xeon-silver-4210r",
    "raspi4": "raspberry-pi-4-4gb",
    "pixel2": "pixel-2",
    "pixel3": "pixel-3",
    "essential_ph_1": "essential-ph-1",
    "samsung_a50": "galaxy-a50",
    "samsung_s7": "galaxy-s7",
}
"""The publisher's names -> catalogue ids."""
_SIMULATED = frozenset({"eyeriss", "fpga"})
_MOBILE = frozenset({"raspi4", "pixel2", "pixel3", "essential_ph_1", "samsung_a50", "samsung_s7"})
_COARSE_BELOW_MS = 20.0


def read_rows(folder: Path) -> ReadRows:
    """Rows of the sampled networks on every named device."""
    return gathered(_rows(folder))


def _rows(folder: Path) -> Iterator[WholeModelRow | str]:
    for space in SPACES:
        cells = _table(folder, space)
        chosen = set(_sample(len(cells), SPACES[space]))
        for index, (_, latencies) in enumerate(cells):
            for column, milliseconds in latencies.items():
                yield _row(space, index, column, milliseconds) if index in chosen else "beyond the sample"


def read(folder: Path) -> pl.DataFrame:
    """The rows in the measurement schema."""
    return measurements(read_rows(folder).rows, SOURCE)


def graph(folder: Path, key: str, batch: int, mode: Mode) -> Graph:
    """The network `space-row`."""
    space, row = key.rsplit("-", 1)
    name = _table(folder, space)[int(row)][0]
    if space == "nasbench201":
        return read_graph(nasbench201(name, batch=batch))
    if space == "fbnet":
        return read_graph(fbnet(name, batch=batch))
    chosen = json.loads(name)
    data = once_for_all(chosen["ks"], chosen["e"], chosen["d"], batch=batch, image=chosen["r"], width=1.2)
    return read_graph(data)


def _sample(count: int, size: int) -> Iterator[int]:
    return (index * count // size for index in range(size))


@cache
def _table(folder: Path, space: str) -> list[tuple[str, dict[str, float]]]:
    """(network, milliseconds by column) of each row."""
    import polars as pl

    frame = pl.read_csv(folder / f"{space}_latency_ms.csv.gz")
    return [(name, dict(zip(frame.columns[1:], values, strict=True))) for name, *values in frame.iter_rows()]


def _row(space: str, index: int, column: str, milliseconds: float) -> WholeModelRow | str:
    """A row, or why there is none."""
    head, _, tail = column.rpartition("_")
    name, batch = (head, int(tail)) if head in DEVICES and tail.isdigit() else (column, 1)
    if name in _SIMULATED:
        return "simulated"
    if name in _MOBILE and milliseconds == int(milliseconds) and milliseconds < _COARSE_BELOW_MS:
        return "whole milliseconds below 20"
    device = DEVICES[name]
    return WholeModelRow(
        graph=f"{space}-{index}",
        model=space,
        family=space,
        device=device,
        device_group=chip_of(device),
        batch=batch,
        measured_s=milliseconds * 1e-3,
        mode=Mode.INFER,
        precision=Precision.FP32,
        framework="tflite" if name in _MOBILE else "torch",
    )

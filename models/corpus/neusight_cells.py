"""NeuSight's whole-model timings: language models in FP32 with TF32 off, one device, eager or compiled.

What one row holds: one forward pass (mode inf), or forward, loss and backward without an optimizer step
(train); PyTorch 2.1.0 with CUDA 12.1, 2.4.1 on AMD. Cells of four devices are left out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.features.architectures import architecture
from predictor.features.graph import Graph
from predictor.features.reading.reader import read_graph
from predictor.models.corpus.neusight import DEVICES
from predictor.models.corpus.whole_model import ReadRows, WholeModelRow, measurements
from predictor.types import Mode, Precision, Runtime

if TYPE_CHECKING:
    import polars as pl

SOURCE = "neusight-cells"
_FOLDER = "neusight"
_TABLE = "e2e_labels.csv"
_DEVICE_IDS: Mapping[str, str] = {name.replace(" ", "_"): device for name, device in DEVICES.items()}


def read_rows(folder: Path) -> ReadRows:
    """All cells of one device; `folder` is that of the source `neusight` or a sibling of it."""
    import polars as pl

    rows, dropped = [], 0
    for record in pl.read_csv(folder.parent / _FOLDER / _TABLE).iter_rows(named=True):
        device = _DEVICE_IDS.get(record["device"])
        if record["option"] not in (None, "", "fusion") or device is None:
            dropped += 1
            continue
        release = 2.04 if record["device"].startswith("AMD") else 2.01
        compiled = record["option"] == "fusion"
        rows.append(
            WholeModelRow(
                graph=f"{record['model']}-{record['seqlen']}",
                model=record["model"],
                family=record["model"],
                device=device,
                device_group=device.split("-")[0],
                batch=record["batch"],
                measured_s=record["e2e_latency_ms"] * 1e-3,
                mode=Mode.TRAIN if record["mode"] == "train" else Mode.INFER,
                precision=Precision.FP32,
                runtime=Runtime.COMPILED if compiled else Runtime.EAGER,
                framework_version=release,
                compiler_release=release if compiled else 0.0,
                cuda=0.0 if record["device"].startswith("AMD") else 12.1,
            )
        )
    return ReadRows(tuple(rows), {"four devices": dropped})


def read(folder: Path) -> pl.DataFrame:
    """The rows in the measurement schema."""
    return measurements(read_rows(folder).rows, SOURCE)


def graph(folder: Path, key: str, batch: int, mode: Mode) -> Graph:
    """The published configuration as a graph."""
    name, sequence = key.rsplit("-", 1)
    model = architecture(name, batch=batch, sequence=int(sequence), training=mode is Mode.TRAIN)
    return read_graph(model)

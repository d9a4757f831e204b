"""Gavel (OSDI'20): steps per second of six PyTorch training jobs, alone on one K80, P100 or V100.

What one row holds: a step of the job with optimizer and data loading, FP32; small models wait for their data.
Used is the physical cluster's file; the simulation's repeats most of its numbers. `consolidated` says nothing
about one worker. A3C is left out: its step is mostly a simulated game on the host. Rows of several workers
are sums over them and concern links, not one device.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.features.graph import Graph
from predictor.models.corpus.built_graphs import built_graph
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.whole_model import ReadRows, WholeModelRow, gathered, measurements
from predictor.types import Mode, Optimizer, Precision

if TYPE_CHECKING:
    import polars as pl

SOURCE = "gavel"
DEVICES: Mapping[str, str] = {"k80": "k80-pcie-12gb", "p100": "p100-pcie-16gb", "v100": "v100-sxm-16gb"}
"""The publisher's names -> catalogue ids: one die of a K80, the V100 of AWS p3."""

_JOBS: Mapping[str, tuple[str, Optimizer, int]] = {
    "ResNet-18": ("resnet18_cifar", Optimizer.MOMENTUM, 0),
    "ResNet-50": ("resnet50", Optimizer.MOMENTUM, 0),
    "Transformer": ("seq2seq_transformer", Optimizer.ADAM, 0),
    "LM": ("lstm_language_model", Optimizer.SGD, 0),
    "Recommendation": ("recommendation_autoencoder", Optimizer.ADAM, 0),
    "CycleGAN": ("cyclegan", Optimizer.ADAM, 1),
}
"""Job -> graph, optimizer, batch where the name holds none."""


def read_rows(folder: Path) -> ReadRows:
    """Rows of one worker that ran."""
    import polars as pl

    raw = pl.read_csv(folder / "gavel_isolated.csv").filter(pl.col("scale_factor") == 1)
    seen: set[tuple[str, str]] = set()
    records = raw.sort("file", "device", "job", "consolidated").iter_rows(named=True)
    return gathered(_row(record, seen) for record in records)


def read(folder: Path) -> pl.DataFrame:
    """The rows in the measurement schema."""
    return measurements(read_rows(folder).rows, SOURCE)


def graph(folder: Path, key: str, batch: int, mode: Mode) -> Graph:
    """The training graph of a job."""
    return built_graph(key, batch, mode)


def _row(record: Mapping[str, Any], seen: set[tuple[str, str]]) -> WholeModelRow | str:
    """A row, or why there is none."""
    if record["file"] != "physical_cluster_throughputs.json":
        return "copy in the simulation's file"
    cell = (record["device"], record["job"])
    if cell in seen:
        return "repeated for unconsolidated workers"
    seen.add(cell)
    if record["model"] not in _JOBS:
        return "host simulation (A3C)"
    if not record["steps_per_s"]:
        return "did not run"
    name, optimizer, batch = _JOBS[record["model"]]
    device = DEVICES[record["device"]]
    return WholeModelRow(
        graph=name,
        model=record["model"],
        family=record["model"],
        device=device,
        device_group=chip_of(device),
        batch=int(record["batch_size"] or batch),
        measured_s=1.0 / record["steps_per_s"],
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=optimizer,
        framework_version=1.01,
        input_copy=True,
    )

"""pytorch-gpu-benchmark: torchvision models at batch 12 on six cards, training and inference.

What one row holds: one iteration with the copy of its images to the device; training is zero_grad, forward,
cross entropy and backward, without an optimizer step. Precisions are those of `model.half()`, `.float()` and
`.double()`; FP32 of the A100 (NGC 20.10) multiplies in TF32. The median of 50 iterations is used (20 in
the 2019 harness, which ran an older torch). More than one GPU is DataParallel: replicated from one process
each iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.features.graph import Graph
from predictor.models.corpus.built_graphs import built_graph
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.whole_model import ReadRows, WholeModelRow, measurements
from predictor.types import Mode, Precision

if TYPE_CHECKING:
    import polars as pl

SOURCE = "pytorch_gpu_benchmark"
HARNESSES = ("2019", "2020+")
DEVICES: Mapping[str, str] = {
    "GeForce RTX 2080 Ti": "rtx-2080-ti-11gb",
    "TITAN Xp": "titan-xp-12gb",
    "TITAN RTX": "titan-rtx-24gb",
    "A100-SXM4-40GB": "a100-sxm-40gb",
    "GeForce GTX 1080 Ti": "gtx-1080-ti-11gb",
    "TITAN V": "titan-v-12gb",
}
"""The publisher's names -> catalogue ids."""

# torch and CUDA of the harnesses, as the repositories' logs and containers date them.
_VERSIONS = {"2019": (1.01, 10.0), "2020+": (1.04, 10.1)}
_A100_VERSION = (1.07, 11.1)
_FAMILIES = ("wide_resnet", "resnext", "resnet", "vgg", "densenet", "squeezenet", "mnasnet", "shufflenet")


def read_rows(folder: Path) -> ReadRows:
    """All rows. Cells that two runs measured count once: each run has half the weight."""
    import polars as pl

    raw = pl.read_csv(folder / "torchvision_step_times.csv.gz")
    cell = ("device", "n_gpus", "precision", "mode", "model", "harness")
    runs = raw.with_columns(runs=pl.len().over(cell)).sort(*cell, "src")
    return ReadRows(tuple(_row(record) for record in runs.iter_rows(named=True)))


def read(folder: Path) -> pl.DataFrame:
    """The rows in the measurement schema."""
    return measurements(read_rows(folder).rows, SOURCE)


def graph(folder: Path, key: str, batch: int, mode: Mode) -> Graph:
    """The torchvision model `key`."""
    return built_graph(key, batch, mode)


def harness_of(row: WholeModelRow) -> str:
    """2019 or 2020+."""
    return HARNESSES[0] if row.framework_version == _VERSIONS["2019"][0] else HARNESSES[1]


def _row(record: Mapping[str, Any]) -> WholeModelRow:
    device, model = DEVICES[record["device"]], record["model"]
    precision = Precision(record["precision"])
    is_a100 = device == "a100-sxm-40gb"
    version, cuda = _A100_VERSION if is_a100 else _VERSIONS[record["harness"]]
    return WholeModelRow(
        graph=model,
        model=model,
        family=next((name for name in _FAMILIES if model.startswith(name)), model),
        device=device,
        device_group=chip_of(device),
        batch=record["batch_per_gpu"],
        measured_s=record["time_ms_median"] * 1e-3,
        mode=Mode(record["mode"]),
        precision=Precision.TF32 if is_a100 and precision is Precision.FP32 else precision,
        framework_version=version,
        cuda=cuda,
        devices=record["n_gpus"],
        input_copy=True,
        weight=1.0 / record["runs"],
    )

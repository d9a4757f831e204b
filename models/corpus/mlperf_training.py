"""MLPerf Training results of one node: ResNet-50 and Mask R-CNN, whose networks are known.

What one row holds: the median throughput of a closed-division submission as the time of a step of its global
batch, optimizer, data loading and exchange included; tuned by its submitter. NVIDIA's code (MXNet, PyTorch,
mixed precision, channels-last, kernels in CUDA graphs) runs in nearly all of them. The other benchmarks pack
or bucket their samples (BERT, RNN-T), or have a network that no graph here is of. A throughput that appears
twice for one benchmark and device count is one result submitted again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.features.graph import Graph
from predictor.models.corpus.built_graphs import built_graph
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.whole_model import ReadRows, WholeModelRow, gathered, measurements
from predictor.types import Layout, Mode, Optimizer, Precision

if TYPE_CHECKING:
    import polars as pl

SOURCE = "mlperf_training"
_GRAPHS = {"resnet": "resnet50", "maskrcnn": "mask_rcnn_r50_fpn"}
_DEVICES = (
    ("A100-SXM4-40GB", "a100-sxm-40gb"),
    ("A100-SXM-40GB", "a100-sxm-40gb"),
    ("A100-SXM4-80GB", "a100-sxm-80gb"),
    ("A100-SXM-80GB", "a100-sxm-80gb"),
    ("A100-PCIe-80GB", "a100-pcie-80gb"),
    ("A100-PCIE-80GB", "a100-pcie-80gb"),
    ("A100-PCIe-40GB", "a100-pcie-40gb"),
    ("A100-PCIE-40GB", "a100-pcie-40gb"),
    ("A30", "a30-pcie-24gb"),
    ("H100-SXM5-96GB", "h100-sxm-96gb"),
    ("H100-SXM", "h100-sxm-80gb"),
    ("H100-PCIe", "h100-pcie-80gb"),
    ("H200-SXM5", "h200-sxm-141gb"),
    ("A10G", "a10g-pcie-24gb"),
    ("A40", "a40-pcie-48gb"),
    ("L40S", "l40s-pcie-48gb"),
    ("L40", "l40-pcie-48gb"),
    ("L4", "l4-pcie-24gb"),
    ("RTX A5000", "rtx-a5000-24gb"),
    ("RTX 4090", "rtx-4090-24gb"),
)
"""Part of an accelerator's name -> catalogue id; the first that is found."""


def read_rows(folder: Path) -> ReadRows:
    """Rows of one node; nearly all of several devices."""
    import polars as pl

    raw = pl.read_csv(folder / "mlperf_training_aggregated.csv.gz", infer_schema_length=None)
    seen: set[tuple[object, ...]] = set()
    records = raw.sort("round", "org", "system", "benchmark").iter_rows(named=True)
    return gathered(_row(record, seen) for record in records)


def read(folder: Path) -> pl.DataFrame:
    """The rows in the measurement schema."""
    return measurements(read_rows(folder).rows, SOURCE)


def graph(folder: Path, key: str, batch: int, mode: Mode) -> Graph:
    """The network of a benchmark."""
    return built_graph(key, batch, mode)


def _row(record: Mapping[str, Any], seen: set[tuple[object, ...]]) -> WholeModelRow | str:
    """A row, or why there is none."""
    benchmark, accelerator = record["benchmark"], record["accelerator"] or ""
    if record["nodes"] != 1:
        return "several nodes"
    if benchmark not in _GRAPHS:
        return "no graph of the benchmark here"
    device = next((device for part, device in _DEVICES if part in accelerator), None)
    if device is None:
        return "another vendor's accelerator"
    rate, batch, count = record["throughput_median"], record["global_batch_size"], record["n_devices"]
    if not rate or not batch or not count or batch % count:
        return "no throughput with a batch"
    key = (benchmark, count, rate)
    if key in seen:
        return "submitted again"
    seen.add(key)
    return WholeModelRow(
        graph=_GRAPHS[benchmark],
        model=benchmark,
        family=benchmark,
        device=device,
        device_group=chip_of(device),
        batch=int(batch / count),
        measured_s=batch / rate,
        mode=Mode.TRAIN,
        precision=Precision.AMP,
        layout=Layout.NHWC,
        optimizer=Optimizer.MOMENTUM,
        framework="mxnet" if benchmark == "resnet" else "torch",
        launch="graph",
        devices=int(count),
        input_copy=True,
    )

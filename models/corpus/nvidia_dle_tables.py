"""NVIDIA's DeepLearningExamples: throughputs and latencies of PyTorch folders' READMEs on T4, V100 and A100.

Used are training throughputs of eight models and average inference latencies of three classifiers; one
value is one row. FP32 on A100 multiplies in TF32. Throughputs are of the whole machine,
batches per GPU; the classifiers' tables name none and use the READMEs' 256 (ResNet-50) and 128 (ResNeXt-101).
Mixed precision of convolutional networks runs channels-last. Left out: other frameworks, Triton servers
(queueing and network are in their latencies), percentiles of latencies, models without a graph here or
without a precision (Transformer-XL's inference), and results of several nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.features.graph import Graph
from predictor.models.corpus.built_graphs import built_graph, graph_key
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.whole_model import ReadRows, WholeModelRow, gathered, measurements
from predictor.types import Layout, Mode, Optimizer, Precision

if TYPE_CHECKING:
    import polars as pl

SOURCE = "nvidia_dle_tables"
_DEVICES = (
    ("A100 80GB", "a100-sxm-80gb"),
    ("A100 40GB", "a100-sxm-40gb"),
    ("V100 16GB", "v100-sxm-16gb"),
    ("V100 32GB", "v100-sxm-32gb"),
    ("With 32G", "v100-sxm-32gb"),
    ("T4", "t4-pcie-16gb"),
)
"""Part of a heading -> catalogue id; the first that is found."""


@dataclass(frozen=True, slots=True)
class _Example:
    """Graph, optimizer, items of the throughput per sample, and batch where the table names none."""

    graph: str
    optimizer: Optimizer = Optimizer.NONE
    half: Precision = Precision.AMP
    items: float = 1.0
    batch: int | None = None
    layout: Layout = Layout.NCHW


_NHWC: Mapping[str, Any] = {"optimizer": Optimizer.MOMENTUM, "layout": Layout.NHWC}
_XL: Mapping[str, Any] = {"optimizer": Optimizer.ADAM, "half": Precision.FP16}
_TRAINING: Mapping[tuple[str, str], _Example] = {
    ("Classification/ConvNets/resnet50v1.5", ""): _Example("resnet50", batch=256, **_NHWC),
    ("Classification/ConvNets/resnext101-32x4d", ""): _Example("resnext101_32x4d", batch=128, **_NHWC),
    ("Detection/SSD", ""): _Example("ssd300_resnet50", **_NHWC),
    ("Segmentation/MaskRCNN", ""): _Example("mask_rcnn_r50_fpn", **_NHWC),
    ("LanguageModeling/BERT", "Fine-tuning"): _Example(graph_key("bert_large_spans", sequence=384), **_XL),
    ("LanguageModeling/Transformer-XL", "Base model"): _Example("transformer_xl_base", items=192.0, **_XL),
    ("LanguageModeling/Transformer-XL", "Large model"): _Example("transformer_xl_large", items=384.0, **_XL),
    ("Translation/GNMT", ""): _Example("gnmt", items=54.0, **_XL),
    # The table's samples per second are millions.
    ("Recommendation/NCF", ""): _Example("ncf", items=1e-6, **_XL),
}
_INFERENCE: Mapping[str, Mapping[str, str]] = {
    "Classification/ConvNets/resnet50v1.5": {"": "resnet50"},
    "Classification/ConvNets/resnext101-32x4d": {"": "resnext101_32x4d"},
    "Classification/ConvNets/efficientnet": {
        "efficientnet-b0": "efficientnet_b0",
        "efficientnet-b4": "efficientnet_b4",
    },
}
_HALF = frozenset({"mixed", "FP16"})


def read_rows(folder: Path) -> ReadRows:
    """One row per value of the tables above."""
    import polars as pl

    raw = pl.read_csv(folder / "nvidia_dle_performance_tables.csv.gz", infer_schema_length=None)
    return gathered(_row(record) for record in raw.iter_rows(named=True))


def read(folder: Path) -> pl.DataFrame:
    """The rows in the measurement schema."""
    return measurements(read_rows(folder).rows, SOURCE)


def graph(folder: Path, key: str, batch: int, mode: Mode) -> Graph:
    """The model of a table."""
    return built_graph(key, batch, mode)


def _row(record: Mapping[str, Any]) -> WholeModelRow | str:
    """A row, or why there is none."""
    model, heading = record["model"], record["device_heading"] or ""
    if record["framework"] != "PyTorch":
        return "other framework"
    if "triton" in model or "trt" in model.lower():
        return "inference server"
    device = next((device for part, device in _DEVICES if part in heading), None)
    if device is None or "Multi-node" in heading or heading.startswith("Training performance: 8x"):
        return "no single node named"
    return (_training if record["task"] == "training" else _inference)(record, device)


def _training(record: Mapping[str, Any], device: str) -> WholeModelRow | str:
    model, section = record["model"], record["section"]
    example = next((e for (name, part), e in _TRAINING.items() if name == model and part in section), None)
    if example is None:
        return "model without a graph here"
    batch = example.batch or record["batch_size"]
    if "hroughput" not in record["metric"] or not record["value"] or not batch:
        return "no throughput with a batch"
    count = int(record["n_gpus"] or 1)
    # NCF's batch is of all GPUs.
    shared = count if model == "Recommendation/NCF" else 1
    is_half = "ixed" in record["metric"]
    return _timed(
        record,
        device,
        example.graph,
        batch=int(batch) // shared,
        measured_s=batch / shared * count * example.items / record["value"],
        precision=example.half if is_half else _full(device),
        mode=Mode.TRAIN,
        optimizer=example.optimizer,
        layout=example.layout if is_half else Layout.NCHW,
        devices=count,
    )


def _inference(record: Mapping[str, Any], device: str) -> WholeModelRow | str:
    cells = json.loads(record["row_json"])
    place = f"{record['section']} {cells.get('Model', '')}"
    graphs = _INFERENCE.get(record["model"], {})
    name = next((graph for part, graph in graphs.items() if part in place), None)
    if name is None:
        return "model without a graph here"
    if not record["metric"].startswith("Latency Avg") or not record["value"]:
        return "other metric of a latency"
    is_half = record["precision"] in _HALF or "ixed" in place or "FP16" in place
    return _timed(
        record,
        device,
        name,
        batch=int(record["batch_size"]),
        measured_s=record["value"] * 1e-3,
        precision=Precision.AMP if is_half else _full(device),
        mode=Mode.INFER,
        layout=Layout.NHWC if is_half else Layout.NCHW,
    )


def _full(device: str) -> Precision:
    return Precision.TF32 if chip_of(device) == "a100" else Precision.FP32


def _timed(record: Mapping[str, Any], device: str, graph: str, **facts: Any) -> WholeModelRow:
    return WholeModelRow(
        graph=graph,
        model=record["model"],
        family=record["model"].rsplit("/", 1)[-1],
        device=device,
        device_group=chip_of(device),
        framework_version=1.07 if chip_of(device) == "a100" else 1.04,
        input_copy=True,
        **facts,
    )

"""Lambda's deep-learning benchmark: training of NVIDIA's PyTorch examples on 28 kinds of GPU.

What one row holds: the median over the runs of one system of a task at one precision and batch; optimizer
step, data loading and the copy to the device are in the time. FP32 from Ampere on multiplies in TF32. Batches
are per GPU, or global for NCF, Transformer-XL and Mask R-CNN. Rates in tokens or samples become times by what
one item is: a GNMT sentence pair has 2 x 27 tokens on average, a Tacotron 2 clip 566 frames (LJSpeech), a
WaveGlow segment 8,000 samples. Transformer-XL ran without adaptive softmax (its commands name none, and its
memory at batch 2 and 4 differs by the full softmax of 267,735 words).

Left out: runs without a printed throughput (failed, timed out, out of memory; all Transformer-XL of the
second series), and systems that only say `A100` or `V100`. Equal systems share one weight per cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.features.graph import Graph
from predictor.models.corpus.built_graphs import built_graph, graph_key
from predictor.models.corpus.chips import chip_of, multiplies_in_tf32
from predictor.models.corpus.whole_model import (
    ReadRows,
    WholeModelRow,
    gathered,
    measurements,
)
from predictor.releases import release_number
from predictor.types import Mode, Optimizer, Precision

if TYPE_CHECKING:
    import polars as pl

SOURCE = "lambda_pytorch"


@dataclass(frozen=True, slots=True)
class Task:
    """One workload.

    Attributes:
        half: what its FP16 runs are, before torch `half_until`; from then on they take as long as FP32 runs
            at the same batch (six kinds of GPU, WaveGlow, within 0.5 %), so their flag had no effect.
        items: items of its printed rate per sample of its batch.
    """

    graph: str
    half: Precision
    optimizer: Optimizer
    items: float = 1.0
    half_until: float = 99.0


# Apex O2 and `--fp16` keep the model in FP16; O1 and native autocast are AMP. LAMB is priced as Adam.
TASKS: Mapping[str, Task] = {
    "ssd": Task("ssd300_resnet50", Precision.AMP, Optimizer.MOMENTUM),
    "resnet50": Task("resnet50", Precision.FP16, Optimizer.MOMENTUM),
    "maskrcnn": Task("mask_rcnn_r50_fpn", Precision.AMP, Optimizer.MOMENTUM),
    "bert_base_squad": Task(graph_key("bert_base_spans", sequence=384), Precision.FP16, Optimizer.ADAM),
    "bert_large_squad": Task(graph_key("bert_large_spans", sequence=384), Precision.FP16, Optimizer.ADAM),
    "gnmt": Task("gnmt", Precision.FP16, Optimizer.ADAM, items=54.0),
    "ncf": Task("ncf", Precision.FP16, Optimizer.ADAM),
    "tacotron2": Task("tacotron2", Precision.AMP, Optimizer.ADAM, items=566.0, half_until=1.13),
    "waveglow": Task("waveglow", Precision.AMP, Optimizer.ADAM, items=8000.0, half_until=1.13),
    "transformerxlbase": Task(
        graph_key("transformer_xl_base", adaptive=0, segment=192), Precision.FP16, Optimizer.ADAM, items=192.0
    ),
    "transformerxllarge": Task(
        graph_key("transformer_xl_large", adaptive=0, segment=256),
        Precision.FP16,
        Optimizer.ADAM,
        items=256.0,
    ),
}
_GLOBAL_BATCH = frozenset({"ncf", "transformerxlbase", "transformerxllarge", "maskrcnn"})
AMBIGUOUS = frozenset({"A100", "V100"})
DEVICES: Mapping[str, str] = {
    "A10": "a10-pcie-24gb",
    "A100 40GB PCIe": "a100-pcie-40gb",
    "A100 40GB SXM4": "a100-sxm-40gb",
    "A100 80GB PCIe": "a100-pcie-80gb",
    "A100 80GB SXM4": "a100-sxm-80gb",
    "A40": "a40-pcie-48gb",
    "GTX 1080 Ti": "gtx-1080-ti-11gb",
    "H100 80GB PCIe": "h100-pcie-80gb",
    "H100 80GB SXM5": "h100-sxm-80gb",
    "Quadro RTX 5000": "quadro-rtx-5000-16gb",
    "Quadro RTX 6000": "quadro-rtx-6000-24gb",
    "Quadro RTX 8000": "quadro-rtx-8000-48gb",
    "RTX 2070 Max-Q": "rtx-2070-max-q-8gb",
    "RTX 2080 Max-Q": "rtx-2080-max-q-8gb",
    "RTX 2080 Super Max-Q": "rtx-2080-super-max-q-8gb",
    "RTX 2080 Ti": "rtx-2080-ti-11gb",
    "RTX 3070": "rtx-3070-8gb",
    "RTX 3080": "rtx-3080-10gb",
    "RTX 3080 Max-Q": "rtx-3080-max-q-16gb",
    "RTX 3090": "rtx-3090-24gb",
    "RTX A4000": "rtx-a4000-16gb",
    "RTX A4500": "rtx-a4500-20gb",
    "RTX A5000": "rtx-a5000-24gb",
    "RTX A5500": "rtx-a5500-24gb",
    "RTX A6000": "rtx-a6000-48gb",
    "Titan RTX": "titan-rtx-24gb",
    # Both are Tesla_V100-SXM2-16GB to nvidia-smi.
    "V100 16GB": "v100-sxm-16gb",
    "V100 16GB SXM2": "v100-sxm-16gb",
}
"""The publisher's names -> catalogue ids."""

_CELL = (
    "results_dir",
    "system",
    "gpu",
    "n_gpus_actual",
    "task",
    "precision_tag",
    "torch",
    "cuda",
    "global_batch",
)


def read_rows(folder: Path) -> ReadRows:
    """One row per system, task, precision and batch; those of more than one GPU are marked."""
    import polars as pl

    raw = pl.read_csv(folder / "lambda_pytorch_runs.csv.gz", infer_schema_length=None)
    cells = raw.group_by(_CELL).agg(pl.col("throughput_global").median()).sort(_CELL)
    found = gathered(_row(record) for record in cells.iter_rows(named=True))
    equal = Counter(_cell(row) for row in found.rows)
    rows = tuple(replace(row, weight=1.0 / equal[_cell(row)]) for row in found.rows)
    return ReadRows(rows, found.dropped)


def read(folder: Path) -> pl.DataFrame:
    """The rows in the measurement schema."""
    return measurements(read_rows(folder).rows, SOURCE)


def graph(folder: Path, key: str, batch: int, mode: Mode) -> Graph:
    """The training graph of a task."""
    return built_graph(key, batch, mode)


def _cell(row: WholeModelRow) -> tuple[object, ...]:
    return (row.graph, row.device, row.batch, row.precision, row.framework_version, row.devices)


def _row(record: Mapping[str, Any]) -> WholeModelRow | str:
    """A row, or why there is none."""
    if record["gpu"] in AMBIGUOUS:
        return "ambiguous device"
    rate, batch, count = record["throughput_global"], record["global_batch"], record["n_gpus_actual"]
    if not rate or not batch:
        return "no throughput"
    task = TASKS[record["task"]]
    device = DEVICES[record["gpu"]]
    version = release_number(record["torch"])
    if record["precision_tag"] == "FP32" or version >= task.half_until:
        precision = Precision.TF32 if multiplies_in_tf32(device) else Precision.FP32
    else:
        precision = Precision.AMP if record["precision_tag"] == "AMP" else task.half
    if batch % count:
        return "batch does not divide over the GPUs"
    return WholeModelRow(
        graph=task.graph,
        model=record["task"],
        family=record["task"],
        device=device,
        device_group=chip_of(device),
        batch=int(batch) // count,
        measured_s=batch * task.items / rate,
        mode=Mode.TRAIN,
        precision=precision,
        optimizer=task.optimizer,
        framework_version=version,
        cuda=_cuda(record["cuda"]),
        devices=count,
        input_copy=True,
    )


def _cuda(text: str | None) -> float:
    """`V10.2.89` -> 10.2; 0 where no file says."""
    return float(".".join(text.removeprefix("V").split(".")[:2])) if text else 0.0

"""The training table of the memory model: measured rows joined with features of the same model's program.

The graphs are the weight-stripped timm exports of `timm_onnx`. Reading 800 graphs at up to five batch sizes
takes minutes, so the table is part of the built corpus. Models without an export, or with one that cannot
be priced, are left out and named in the result.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.errors import InvalidData, PerfcastError
from predictor.models.corpus.build import Progress, read_source, silent, write_table
from predictor.models.memory.peak import FEATURES, memory_features, workspace_potential_bytes
from predictor.types import Mode, Optimizer, Precision, Runtime

if TYPE_CHECKING:
    import polars as pl

    from predictor.features.programs.work import Program

TABLE = "memory_features"
GRAPH_FOLDER = "timm_onnx"

# Default input size of the timm model where it is not the smallest of the exported sizes (timm 1.0.12,
# pretrained_cfg).
DEFAULT_SIZES: Mapping[str, int] = {
    "convnext_large_mlp": 320,
    "efficientnet_b1": 240,
    "efficientnet_b5": 448,
    "regnety_1280": 384,
    "regnety_640": 384,
    "resnet101": 224,
    "resnet101d": 256,
    "resnet152": 224,
    "resnet152d": 256,
    "resnet18": 224,
    "resnet34": 224,
    "resnet50": 224,
    "resnet50d": 224,
    "resnext101_32x8d": 224,
    "resnext50_32x4d": 224,
    "seresnextaa101d_32x8d": 288,
    "seresnextaa201d_32x8d": 384,
    "wide_resnet101_2": 224,
    "wide_resnet50_2": 224,
}


# The file's FakeTensor bytes are those of another input size than the name and timm say (336 against 256
# pixels).
MISLABELLED = frozenset({"vitamin_xlarge_336"})


@dataclass(frozen=True, slots=True)
class _Job:
    """One model at some batch sizes."""

    model: str
    file: Path
    batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """`frame`: one row per measurement that has a program. `skipped`: model -> why it has none."""

    frame: pl.DataFrame
    skipped: Mapping[str, str]


def graph_files(folder: Path) -> Mapping[str, Path]:
    """Model name -> export at the model's default input size. Raises InvalidData when the index is absent."""
    index = folder / "index.jsonl"
    if not index.is_file():
        raise InvalidData(
            f"{index}: not found; the memory rows need the graphs of {GRAPH_FOLDER} beside them"
        )
    sizes: dict[str, dict[int, Path]] = {}
    for line in index.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        sizes.setdefault(entry["model"], {})[int(entry["image_size"])] = folder / entry["file"]
    return {model: found[_default_size(model, found)] for model, found in sorted(sizes.items())}


def _default_size(model: str, sizes: Mapping[int, Path]) -> int:
    wanted = DEFAULT_SIZES.get(model, 0)
    return wanted if wanted in sizes else min(sizes)


def write_memory_features(
    root: Path, corpus: Path, *, workers: int = 2, progress: Progress = silent
) -> MemoryTable:
    """Builds the table and writes `corpus`/memory_features.parquet.

    Reads the corpus' gpumemnet rows and the graphs in `root`/timm_onnx. Raises InvalidData when either is
    absent, OutputNotWritable when the file cannot be written.
    """
    table = memory_table(
        read_source(corpus, "gpumemnet"), root / GRAPH_FOLDER, workers=workers, progress=progress
    )
    write_table(table.frame, corpus, TABLE)
    return table


def memory_table(
    rows: pl.DataFrame, graphs: Path, *, workers: int = 2, progress: Progress = silent
) -> MemoryTable:
    """One row per measurement with a graph: FEATURES, reserved_bytes, potential_bytes, measured_bytes, keys.

    Args:
        rows: `device_peak_memory` rows of the measurement schema (subject: timm name).
        graphs: folder of the exports.
        workers: processes.
    """
    import polars as pl

    rows = rows.filter(pl.col("quantity") == "device_peak_memory").with_columns(
        autotuner_peak=pl.col("configuration").str.contains("autotuner_peak"),
        batch=pl.col("configuration").map_elements(
            lambda text: json.loads(text)["batch"], return_dtype=pl.Int64
        ),
    )
    files = graph_files(graphs)
    batches = {str(model): part["batch"] for (model,), part in rows.group_by("subject")}
    jobs = [
        _Job(name, files[name], tuple(sorted(batches[name])))
        for name in sorted(batches)
        if name in files and name not in MISLABELLED
    ]
    skipped = {name: f"{GRAPH_FOLDER} holds no export" for name in sorted(batches) if name not in files}
    skipped |= dict.fromkeys(sorted(MISLABELLED & batches.keys()), "measured at another input size")
    found: list[dict[str, object]] = []
    # A forked child may inherit a lock that OpenMP held in its parent, and wait for ever.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for done, (job, records) in enumerate(zip(jobs, pool.map(_records, jobs, chunksize=4), strict=True)):
            if isinstance(records, str):
                skipped[job.model] = records
            else:
                found += records
            progress(TABLE, done + 1, len(jobs))
    features = pl.DataFrame(found, infer_schema_length=None)
    frame = (
        rows.rename({"value": "measured_bytes"})
        .select("subject", "batch", "measured_bytes", "device", "model_group", "autotuner_peak")
        .join(features, on=["subject", "batch"], how="inner")
        .sort("subject", "batch")
    )
    return MemoryTable(frame, skipped)


def _records(job: _Job) -> list[dict[str, object]] | str:
    data = gzip.decompress(job.file.read_bytes())
    try:
        return [_record(job.model, batch, training_program(data, batch)) for batch in job.batches]
    except PerfcastError as error:
        return error.message


def training_program(data: bytes, batch: int) -> Program:
    """The job of the rows: FP32 training with SGD momentum, eager. Raises InvalidGraph."""
    from predictor.features.programs.program import build_program
    from predictor.features.reading.reader import read_graph

    return build_program(
        read_graph(data, batch=batch),
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=Optimizer.MOMENTUM,
        runtime=Runtime.EAGER,
    )


def _record(model: str, batch: int, program: Program) -> dict[str, object]:
    values = memory_features(program)
    return {
        "subject": model,
        "batch": batch,
        "reserved_bytes": float(program.memory.reserved_bytes),
        "potential_bytes": workspace_potential_bytes(program),
        **dict(zip(FEATURES, (float(value) for value in values), strict=True)),
    }

"""Brackets of memory: the largest batch that trained on a card of 24 GB and the next that did not.

timm's benchmark.py lowers the batch until a training step runs (amp, SGD with momentum, RTX 3090), so every
row of `timm_train_rtx3090_oom_brackets.csv.gz` with `oom_at_batch` says twice where a peak lies: not above
the card at `batch_size`, above it at `oom_at_batch`. They are bounds, not values. Graphs: timm_onnx.

Left out: rows whose initial batch fitted, models without an export at the row's size, and rows that state
another number of parameters than the graph has (in two files `convnext_tiny_in22ft1k` is ConvNeXt-B).
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.errors import InvalidData, PerfcastError
from predictor.models.corpus.attention_graphs import written_out
from predictor.models.corpus.build import Progress, silent
from predictor.models.corpus.timm import GRAPHS, export_of, exports, family
from predictor.models.memory.peak import FEATURES, memory_features, workspace_potential_bytes
from predictor.types import Layout, Mode, Optimizer, Precision

if TYPE_CHECKING:
    import polars as pl

    from predictor.features.programs.work import Program

TABLE = "bracket_memory"
FOLDER, FILE = "timm_benchmarks", "timm_train_rtx3090_oom_brackets.csv.gz"
DEVICE = "rtx-3090-24gb"
_TOLERANCE = 0.02
# Under autocast weights are FP32.
_WIDE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Bracket:
    """One row: `fitted` samples ran, `failed` did not. `parameters`: as the row states."""

    model: str
    family: str
    image_size: int
    layout: Layout
    torch: str
    fitted: int
    failed: int
    parameters: int


def read_brackets(folder: Path) -> tuple[list[Bracket], dict[str, int]]:
    """Usable brackets, and how many rows were left out by reason. Raises InvalidData: a file is absent."""
    import polars as pl

    path = folder / FILE
    if not path.is_file():
        raise InvalidData(f"{path}: not found; it holds timm's out-of-memory brackets")
    known = exports(folder.parent / GRAPHS)
    found: list[Bracket] = []
    skipped: Counter[str] = Counter()
    for row in pl.read_csv(path, infer_schema_length=None, schema_overrides={"torch": pl.String}).iter_rows(
        named=True
    ):
        size = int(row["img_size"])
        model = export_of(str(row["model"]), size, known)
        if row["oom_at_batch"] is None:
            skipped["the initial batch fitted"] += 1
        elif model is None:
            skipped["no export of that name and size"] += 1
        else:
            found.append(
                Bracket(
                    model=model,
                    family=family(model),
                    image_size=size,
                    layout=Layout(row["layout"]),
                    torch=str(row["torch"]),
                    fitted=int(row["batch_size"]),
                    failed=int(row["oom_at_batch"]),
                    parameters=round(float(row["param_count"]) * 1e6),
                )
            )
    return found, dict(skipped)


def bracket_table(folder: Path, *, progress: Progress = silent) -> pl.DataFrame:
    """Two rows per bracket, one for each batch: FEATURES, sizes in bytes, whether it ran, and keys.

    `reserved_bytes` is what an allocator keeps with room to spare, `needed_bytes` what it cannot do without.
    """
    import polars as pl

    brackets, _ = read_brackets(folder)
    graphs: dict[tuple[str, int], list[Bracket]] = {}
    for bracket in brackets:
        graphs.setdefault((bracket.model, bracket.image_size), []).append(bracket)
    found: list[dict[str, object]] = []
    for done, ((model, size), rows) in enumerate(sorted(graphs.items())):
        progress(TABLE, done, len(graphs))
        data = gzip.decompress((folder.parent / GRAPHS / f"{model}-{size}.onnx.gz").read_bytes())
        programs: dict[tuple[int, Layout], Mapping[str, float] | None] = {}
        for row in rows:
            for batch, ran in ((row.fitted, True), (row.failed, False)):
                key = (batch, row.layout)
                if key not in programs:
                    programs[key] = _numbers(data, *key)
                numbers = programs[key]
                if numbers is not None and _is_of(row, numbers):
                    found.append(
                        {
                            "model": model,
                            "family": row.family,
                            "image_size": size,
                            "layout": row.layout.value,
                            "torch": row.torch,
                            "batch": batch,
                            "ran": ran,
                            **numbers,
                        }
                    )
    progress(TABLE, len(graphs), len(graphs))
    return pl.DataFrame(found, infer_schema_length=None)


def _is_of(row: Bracket, numbers: Mapping[str, float]) -> bool:
    """The row's parameters are the graph's."""
    return abs(row.parameters / numbers["parameters"] - 1.0) <= _TOLERANCE


def _numbers(data: bytes, batch: int, layout: Layout) -> Mapping[str, float] | None:
    """What the memory model reads of the program; None where there is no program."""
    try:
        program = training_program(data, batch, layout)
    except PerfcastError:
        return None
    assert program.timeline is not None
    values = memory_features(program)
    return {
        "parameters": program.memory.parameter_bytes / _WIDE_BYTES,
        "needed_bytes": float(program.timeline.needed_bytes()),
        "reserved_bytes": float(program.memory.reserved_bytes),
        "potential_bytes": workspace_potential_bytes(program),
        **dict(zip(FEATURES, (float(value) for value in values), strict=True)),
    }


def training_program(data: bytes, batch: int, layout: Layout) -> Program:
    """The job of the rows: autocast to FP16, SGD with momentum, eager, no fused attention, kept gradients.

    They are of torch 1.10 to 1.12: attention is written out, and `zero_grad` keeps what it sets to zero.

    Raises InvalidGraph.
    """
    from predictor.features.lowering.lower import lower
    from predictor.features.programs.program import program_of
    from predictor.features.reading.reader import read_graph

    graph = lower(read_graph(data, batch=batch), precision=Precision.AMP, training=True, layout=layout)
    return program_of(
        written_out(graph),
        mode=Mode.TRAIN,
        precision=Precision.AMP,
        optimizer=Optimizer.MOMENTUM,
        keeps_gradients=True,
    )

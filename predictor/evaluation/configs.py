"""Transformers built from configurations against the implementations they describe (G4).

The other side was measured once with transformers on torch's meta device and is stored beside the
configurations (`python benchmarks/configs.py --measure`), so that scoring needs neither. FLOPs are those of
matrix products and convolutions, which is what torch's FlopCounterMode counts. It counts the whole square of
causal scores where a fused kernel computes, and perfcast counts, the lower triangle; the score compares with
the square put back, and the report shows both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictor.errors import InvalidData
from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow
from predictor.features.architectures.from_config import from_config
from predictor.features.programs.program import build_program
from predictor.features.programs.work import AttentionShape, OpWork
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime

MEASURED = "measured.json"
FOLDER = Path(__file__).resolve().parents[2] / "tests" / "assets" / "configs"
"""Where a checkout keeps the configurations."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the implementation has and does; batch and sequence are those of its forward pass.

    `past` tokens are cached before one decoding step of `step_flops`; 0 where no step was measured.
    """

    name: str
    batch: int
    sequence: int
    parameters: int
    single_parameters: int
    """Of these, tensors of one element, which the reader takes for constants."""
    flops: int
    past: int = 0
    step_flops: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration on both sides; `flops` counts triangles, `square_flops` whole squares."""

    reference: Reference
    parameters: int
    flops: int
    square_flops: int
    step_flops: int = 0

    @property
    def parameter_difference(self) -> int:
        """Ours minus theirs, single elements aside."""
        return self.parameters + self.reference.single_parameters - self.reference.parameters

    @property
    def flops_ratio(self) -> float:
        """Ours over theirs, both with whole squares."""
        return self.square_flops / self.reference.flops

    @property
    def step_ratio(self) -> float | None:
        """Ours over theirs for one decoding step; None where none was measured."""
        return self.step_flops / self.reference.step_flops if self.reference.step_flops else None


def read_references(folder: Path) -> list[Reference]:
    """References in name order. Raises InvalidData when the file is absent or damaged."""
    path = folder / MEASURED
    try:
        found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["configurations"]
        return [Reference(name=name, **found[name]) for name in sorted(found)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidData(
            f"{path}: no measured configurations ({error}); expected tests/assets/configs of a checkout"
        ) from None


def compare(folder: Path, reference: Reference) -> Comparison:
    """Builds one configuration and counts it."""
    path, batch = folder / f"{reference.name}.json", reference.batch
    parameters, works = _counted(from_config(path, batch=batch, sequence=reference.sequence))
    step: list[OpWork] = []
    if reference.step_flops:
        source = reference.past
        _, step = _counted(from_config(path, batch=batch, past_length=reference.past, source_length=source))
    return Comparison(
        reference,
        parameters,
        sum(work.matrix_flops for work in works),
        sum(_square_flops(work) for work in works),
        sum(work.matrix_flops for work in step),
    )


def _counted(data: bytes) -> tuple[int, list[OpWork]]:
    """Parameters and forward works of a graph."""
    graph = read_graph(data)
    program = build_program(
        graph, mode=Mode.INFER, precision=Precision.FP32, optimizer=Optimizer.NONE, runtime=Runtime.EAGER
    )
    return graph.parameter_count, [op.work for op in program.ops]


def _square_flops(work: OpWork) -> int:
    """Matrix FLOPs with causal attention as a whole square."""
    shape = work.shape
    if not isinstance(shape, AttentionShape):
        return work.matrix_flops
    pairs = shape.batch * shape.heads * shape.q_length * shape.kv_length
    return 2 * pairs * (shape.head_dim + shape.value_dim)


def config_suite(folder: Path = FOLDER) -> tuple[list[EvaluationRow], list[Table]]:
    """Rows and table of all configurations. Raises InvalidData where there is no checkout."""
    found = [compare(folder, reference) for reference in read_references(folder)]
    return config_rows(found), [config_table(found)]


def config_rows(found: Sequence[Comparison]) -> list[EvaluationRow]:
    """How many parameter counts differ, and how far FLOPs are off at most; none for no comparison."""
    if not found:
        return []
    wrong = sum(item.parameter_difference != 0 for item in found)
    errors = [abs(item.flops_ratio - 1.0) for item in found]
    scores = (("wrong_parameter_counts", float(wrong), 0.0), ("max_flops_error", max(errors), 0.01))
    rows = [
        EvaluationRow("G4", "graphs", "none", "configurations", metric, value, goal, len(found))
        for metric, value, goal in scores
    ]
    steps = [abs(item.step_ratio - 1.0) for item in found if item.step_ratio is not None]
    if steps:
        rows.append(
            EvaluationRow(
                "G4", "graphs", "none", "decoding steps", "max_flops_error", max(steps), 0.01, len(steps)
            )
        )
    return rows


def config_table(found: Sequence[Comparison]) -> Table:
    """One line per configuration."""
    lines = tuple(
        (
            item.reference.name,
            f"{item.reference.batch} x {item.reference.sequence}",
            f"{item.parameters:,}",
            f"{item.reference.parameters:,}",
            str(item.parameter_difference),
            f"{item.square_flops / 1e9:,.3f}",
            f"{item.reference.flops / 1e9:,.3f}",
            f"{item.flops_ratio:.5f}",
            f"{item.flops / item.reference.flops:.4f}",
            "" if item.step_ratio is None else f"{item.step_flops / 1e9:,.3f} after {item.reference.past}",
            "" if item.step_ratio is None else f"{item.step_ratio:.5f}",
        )
        for item in found
    )
    header = (
        *("configuration", "batch x sequence", "parameters", "theirs", "difference"),
        *("GFLOP", "theirs", "ratio", "ratio, triangles", "step, GFLOP", "ratio"),
    )
    return Table("Configurations", header, lines)

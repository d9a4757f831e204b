"""Formulas of training architectures against the values that their studies give (D5), and shards that add up.

The figures are those of reference systems 0, 4 and 8: exact ratios, the golden table of step times, bytes of
ResNet-50 and BERT from their graphs, placements of parameter servers, end points of confidential links.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow, error_rows
from predictor.features.architectures import architecture
from predictor.features.lowering.lower import lower
from predictor.features.programs.program import build_program, program_of
from predictor.features.programs.work import Program
from predictor.features.reading.reader import read_graph
from predictor.hardware.spec import LinkSpec
from predictor.parallel.architectures.confidential import (
    PUBLISHED_BUCKET_BYTES,
    DdpJob,
    fit_confidential,
    plain_step_s,
    slowdown,
    step_s,
)
from predictor.parallel.architectures.pai import CASES, SYSTEMS, Workload, step_time, sweep, workload_of
from predictor.parallel.architectures.servers import busiest_node_bytes
from predictor.parallel.plan import Plan
from predictor.parallel.sharding import sharding
from predictor.types import Mode, Optimizer, Precision, Runtime, TrainingArchitecture

_SUITE = "distributed"
_EXACT, _TABLE, _ROUNDED = 1e-9, 1e-3, 3e-3

# ms: input, compute-bound, memory-bound, weights, sum, and the largest of input, compute and weights.
_GOLDEN_MS = {
    "multi_interests": (37.29, 13.74, 143.43, 73.20, 267.65, 157.17),
    "resnet50": (5.43, 202.60, 45.57, 10.20, 263.80, 248.17),
    "nmt": (0.00, 324.68, 145.14, 38.00, 507.82, 469.82),
    "bert": (0.01, 272.73, 153.29, 42.86, 468.88, 426.01),
    "speech": (114.86, 1025.97, 29.14, 0.0, 1169.97, 1055.12),
    "gcn": (0.17, 42.95, 36.84, 85.71, 165.68, 85.71),
}
# Half a unit of the table's last digit.
_ROUNDING_MS = 0.005


def _row(group: str, metric: str, value: float, goal: float, n: int) -> EvaluationRow:
    return EvaluationRow("D5", _SUITE, "formula", group, metric, float(value), goal, n)


def _weights_s(kind: TrainingArchitecture) -> float:
    return step_time(Workload("job", kind, 0.0, 0.0, 0.0, 1e9), SYSTEMS["pai"]).communication_s


def pai_rows() -> list[EvaluationRow]:
    """Ratios of moving weights, and the golden table."""
    servers = _weights_s(TrainingArchitecture.PS_WORKER)
    job = Workload("job", TrainingArchitecture.PS_WORKER, 0.0, 0.0, 0.0, 1e9)
    ethernet = sweep(job, SYSTEMS["pai"], "ethernet_bytes_per_s", [12.5e9, 1.25e9])
    found = (
        servers / _weights_s(TrainingArchitecture.ALLREDUCE_LOCAL),
        servers / _weights_s(TrainingArchitecture.ALLREDUCE_CLUSTER),
        *ethernet,
    )
    ratios = [abs(value - exact) for value, exact in zip(found, (21, 21 / 17, 7 / 3, 7 / 15), strict=True)]
    worst = 0.0
    for name, expected in _GOLDEN_MS.items():
        step = step_time(CASES[name], SYSTEMS["pai"])
        ideal_s = step_time(CASES[name], SYSTEMS["pai"], overlap=1.0).total_s
        parts = step.input_s, step.flop_s, step.memory_s, step.communication_s, step.total_s, ideal_s
        for value_s, value_ms in zip(parts, expected, strict=True):
            beyond = max(0.0, abs(value_s * 1e3 - value_ms) - _ROUNDING_MS)
            worst = max(worst, beyond / value_ms if value_ms else beyond)
    return [
        _row("PAI ratios", "largest_difference", max(ratios), _EXACT, len(ratios)),
        _row("PAI golden table", "largest_error", worst, _TABLE, 6 * len(_GOLDEN_MS)),
    ]


def _training_program(name: str, batch: int, optimizer: Optimizer) -> Program:
    return build_program(
        read_graph(architecture(name, batch=batch)),
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=optimizer,
        runtime=Runtime.EAGER,
    )


def bytes_rows() -> list[EvaluationRow]:
    """Parameter and traffic bytes of ResNet-50 and BERT, from their graphs."""
    cases = (
        ("resnet50", 64, Optimizer.MOMENTUM, 102.2e6, 357.8e6),
        ("bert_base_pretraining", 12, Optimizer.ADAM, 440e6, 1.54e9),
    )
    errors = []
    for name, batch, optimizer, parameter_bytes, traffic_bytes in cases:
        program = _training_program(name, batch, optimizer)
        job = workload_of(program, name, TrainingArchitecture.ALLREDUCE_LOCAL)
        errors += [
            program.memory.parameter_bytes / parameter_bytes - 1,
            job.traffic_bytes / traffic_bytes - 1,
        ]
    return [_row("bytes from graphs", "largest_error", float(np.abs(errors).max()), _ROUNDED, len(errors))]


def server_rows() -> list[EvaluationRow]:
    """Placements of parameter servers: 7/8, 1/4 and 1/8 at eight workers."""
    cc, cs, ncc, ncs = (busiest_node_bytes(kind, 97e6, 8) for kind in ("cc", "cs", "ncc", "ncs"))
    differences = [abs(cc / ncc - 7 / 8), abs(cs / cc - 1 / 4), abs(ncs / ncc - 1 / 8)]
    return [_row("PHub ratios", "largest_difference", max(differences), 0.0, len(differences))]


def confidential_rows() -> list[EvaluationRow]:
    """End points, monotony between them, and nothing changed without enclaves."""
    parameters = read_graph(architecture("gpt2_xl", batch=1)).parameter_count
    # Compute time and link are assumptions: the checks hold for any.
    job = DdpJob(4.0 * parameters, 4, 0.5, LinkSpec("pcie", 5e-6, 25e9))
    link = fit_confidential(job)
    sizes = np.geomspace(PUBLISHED_BUCKET_BYTES, job.gradient_bytes, 20)
    slow = np.array([slowdown(job, float(size), link) for size in sizes])
    ends = max(abs(slow[0] / 41.6 - 1), abs(slow[-1] / 3.03 - 1))
    off = [abs(step_s(job, float(size)) - plain_step_s(job, float(size))) for size in sizes]
    return [
        _row("TEE end points", "largest_error", ends, _EXACT, 2),
        _row("TEE rises with the bucket", "count", float((np.diff(slow) > 0).sum()), 0.0, len(slow) - 1),
        _row("TEE off", "largest_difference", max(off), 0.0, len(off)),
    ]


_SHARDED = ("gpt2", "bert_base", "switch4", "resnet50", "vgg16", "mobilenet_v2")


def sharding_rows(ranks: Sequence[int] = (2, 4)) -> tuple[list[EvaluationRow], Table]:
    """D8: FLOPs of products and bytes of weights over all tensor ranks, as a share of the whole."""
    repeated, cells = [], []
    for name in _SHARDED:
        whole = lower(read_graph(architecture(name, batch=4)), training=True)
        flops = _matrix_flops(program_of(whole, mode=Mode.TRAIN))
        held = sum(whole.values[parameter].size_bytes for parameter in whole.parameters)
        for tp in ranks:
            found = sharding(whole, Plan(tp=tp), training=True)
            local = program_of(found.graph, mode=Mode.TRAIN)
            share = tp * _matrix_flops(local) / flops
            weights = tp * sum(found.graph.values[p].size_bytes for p in whole.parameters) / held
            repeated.append(share - 1)
            said = "; ".join(note.message for note in found.notes if note.code == "NOT_SPLIT")
            cells.append((name, str(tp), f"{share:.4f}", f"{weights:.4f}", said or "-"))
    rows = error_rows(
        np.array(repeated), id="D8", suite=_SUITE, hold="formula", group="FLOPs beyond the whole, tp 2 and 4"
    )
    header = "model", "tp", "FLOPs of all ranks", "weights of all ranks", "whole on every rank"
    return rows, Table(
        "Sharding: what all tensor ranks compute and hold, over the whole", header, tuple(cells)
    )


def _matrix_flops(program: Program) -> int:
    return sum(op.work.matrix_flops for op in program.ops)


def architecture_rows() -> tuple[list[EvaluationRow], list[Table]]:
    """All rows of D5 and the shards of D8."""
    sharded, table = sharding_rows()
    rows = [*pai_rows(), *bytes_rows(), *server_rows(), *confidential_rows(), *sharded]
    return rows, [table]

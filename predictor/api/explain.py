"""Groups equal ops of a priced program for explanations."""

from __future__ import annotations

from collections import defaultdict

from predictor.compose.time import ProgramCosts
from predictor.features.programs.work import OpInstance, Program
from predictor.hardware.spec import DeviceSpec
from predictor.models.ops.floor import is_absent
from predictor.types import OpCostRow


def explain_program(program: Program, costs: ProgramCosts, device: DeviceSpec) -> tuple[OpCostRow, ...]:
    """One row per (op type, work), most expensive first; `share_fraction` is of the device's busy time.

    What `device` never runs is left out.
    """
    groups: dict[tuple[str, int, bool], list[OpInstance]] = defaultdict(list)
    for op, unique in zip(program.ops, costs.index, strict=True):
        if not is_absent(op.work, device):
            groups[op.op_type, int(unique), op.covered].append(op)
    total_s = float(costs.time_s.sum()) or 1.0
    rows = [
        _row(op_type, unique, covered, ops, costs, total_s)
        for (op_type, unique, covered), ops in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.time_s, row.op_type, row.example_node)))


def _row(
    op_type: str, unique: int, covered: bool, ops: list[OpInstance], costs: ProgramCosts, total_s: float
) -> OpCostRow:
    work = ops[0].work
    time_s = float(costs.unique.time_s[unique]) * len(ops)
    return OpCostRow(
        op_type=op_type,
        family=work.family.value,
        kind=work.kind,
        phase=work.phase.value,
        count=len(ops),
        time_s=time_s,
        share_fraction=time_s / total_s,
        floor_s=float(costs.unique.floor_s[unique]) * len(ops),
        flops=work.flops * len(ops),
        moved_bytes=work.moved_bytes * len(ops),
        bound=costs.unique.bound[unique],
        source=costs.unique.source[unique] if covered else "fallback",
        example_node=ops[0].node,
    )

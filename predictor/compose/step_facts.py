"""What the step correction is told of an iteration under a plan: shares and ratios, gathered once."""

from __future__ import annotations

import numpy as np

from predictor.compose.interval import FloatArray
from predictor.compose.rank_costs import IntArray
from predictor.compose.time import ProgramCosts, TimeCost
from predictor.features.dtype import Compute
from predictor.features.programs.work import Family, Program
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.hardware.sustained import matrix_peak
from predictor.models.ops.floor import is_absent
from predictor.models.plans.step_correction import StepFacts
from predictor.parallel.plan import Plan
from predictor.parallel.rank_program import RankProgram

_NARROW = {Compute.FP8: 1, Compute.FP4: 2}


def op_copies(rank: RankProgram, rows: IntArray | None) -> FloatArray:
    """(ops,) how often each op runs in a microbatch of the whole model.

    Args:
        rows: for each piece of the whole model the piece of `rank` that stands for it; None where `rank` is
        the whole one.
    """
    if rows is None or rank.pieces is None:
        return np.ones(len(rank.program.ops))
    copies = np.bincount(rows, minlength=len(rank.pieces)).astype(np.float64)
    nodes = zip(rank.pieces.nodes, rank.pieces.piece_of_nodes(), strict=True)
    names = {node.name: float(copies[piece]) for node, piece in nodes}
    # The optimizer's ops are of no node: they stand for all layers alike.
    mean = float(copies.mean())
    return np.array([names.get(op.node, mean) for op in rank.program.ops])


def step_facts(
    program: Program,
    costs: ProgramCosts,
    copies: FloatArray,
    time: TimeCost,
    plan: Plan,
    device: DeviceSpec,
    cluster: ClusterSpec | None,
) -> StepFacts:
    """Facts of one iteration.

    Args:
        program, costs: of one microbatch of a rank. copies: as `op_copies` gives.
        time: of the whole iteration.
    """
    works = [op.work for op in program.ops]
    time_s = costs.time_s * copies
    kernels_s = max(float(time_s.sum()), 1e-30)
    flops = np.array([float(work.matrix_flops) for work in works]) * copies
    kernels = [0 if is_absent(work, device) else work.launch_count for work in works]
    launches = float((np.array(kernels) * copies).sum())
    family_s: dict[str, float] = {}
    for work, seconds in zip(works, time_s.tolist(), strict=True):
        family_s[work.family.value] = family_s.get(work.family.value, 0.0) + seconds
    products = np.array([work.family in _PRODUCTS for work in works], dtype=bool)
    peak = matrix_peak(device, "fp16")
    narrow = max((_NARROW.get(work.compute, 0) for work in works), default=0)
    products_s = float(time_s[products].sum())
    return StepFacts(
        composed_s=time.iteration.value,
        breakdown_s=dict(time.breakdown_s),
        family_share={name: seconds / kernels_s for name, seconds in sorted(family_s.items())},
        product_rate=float(flops[products].sum()) / max(products_s, 1e-30) / peak,
        product_flops=float(flops[products].sum()) / max(1.0, float(copies[products].sum())) / peak,
        kernel_s=kernels_s / max(1.0, launches),
        narrow=narrow,
        dp=plan.dp,
        tp=plan.tp,
        pp=plan.pp,
        cp=plan.cp,
        ep=plan.ep,
        zero=plan.zero,
        microbatches=plan.microbatches,
        virtual_stages=plan.virtual_stages,
        recompute=plan.recompute.value,
        samples=program.batch,
        nodes=-(-plan.device_count // cluster.devices_per_node) if cluster else 1,
        ridge=peak / device.memory_bytes_per_s,
        intra_ratio=cluster.intra_node.bytes_per_s / device.memory_bytes_per_s if cluster else 0.0,
        inter_ratio=cluster.inter_node.bytes_per_s / device.memory_bytes_per_s if cluster else 0.0,
    )


_PRODUCTS = frozenset({Family.MATMUL, Family.BATCHED_MATMUL})

"""Exchanges of tensor-parallel ranks in parts, beside the products that they serve."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.compose.rank_costs import RankCosts, rank_costs
from predictor.features.lowering.layers import segments
from predictor.features.programs.program import program_of
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.parallel.collectives import collective_time_s
from predictor.parallel.placement import group_place
from predictor.parallel.plan import Plan
from predictor.parallel.rank_program import RankProgram
from predictor.types import Mode
from tests.unit.features.graphs import Sketch

LINK = LinkSpec("nvlink", 1e-6, 1e11)
CLUSTER = ClusterSpec("c", "d", 8, 1, LINK, LINK)
WIDTH, ROWS = 1024, 64


def costs(product_s: float, tp: int, *, tp_overlap: bool) -> RankCosts:
    """A gather, a product, a pointwise op, a product and a scatter, as sequence parallelism makes them."""
    sketch = Sketch()
    x = sketch.input("x", ROWS // tp, WIDTH)
    about = {"domain": "perfcast", "group": "tp", "ranks": tp, "axis": 0}
    whole = sketch.node("AllGather", [x], (ROWS, WIDTH), **about)
    for name in ("up", "down"):
        weight = sketch.parameter(name, WIDTH, WIDTH)
        whole = sketch.node("Linear", [whole, weight], (ROWS, WIDTH), domain="perfcast")
        if name == "up":
            whole = sketch.node("Relu", [whole], (ROWS, WIDTH))
    graph = sketch.graph(sketch.node("ReduceScatter", [whole], (ROWS // tp, WIDTH), **about), batch=ROWS)
    program = program_of(graph, mode=Mode.INFER)
    kernels = np.array([0.0 if op.work.family == "communication" else product_s for op in program.ops])
    plan = Plan(tp=tp, sequence_parallel=True, tp_overlap=tp_overlap)
    return rank_costs(RankProgram(program, graph, segments(graph)), kernels, 1.0, plan, CLUSTER)


def exchange_s(kind: str, tp: int) -> float:
    place = group_place(Plan(tp=tp), "tp", CLUSTER)
    return float(collective_time_s(kind, float(ROWS * WIDTH * 4), place, CLUSTER))


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("share", [0.25, 4.0])
def test_the_shorter_of_exchange_and_product_leaves_one_part_exposed(tp: int, share: float) -> None:
    gather, scatter = exchange_s("all_gather", tp), exchange_s("reduce_scatter", tp)
    product_s = share * gather
    inline, beside = (costs(product_s, tp, tp_overlap=flag) for flag in (False, True))
    assert inline.exchange_s["tp"].sum() == pytest.approx(gather + scatter)
    hidden = sum(min(one, product_s) * (1 - 1 / tp) for one in (gather, scatter))
    assert beside.exchange_s["tp"].sum() == pytest.approx(gather + scatter - hidden)
    assert beside.kernel_s.sum() == inline.kernel_s.sum()
    assert beside.sent_bytes["tp"].sum() == inline.sent_bytes["tp"].sum()

"""Sharded graphs compute what the whole graph computes, rank by rank, with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.features.graph import Graph
from predictor.parallel.plan import Plan
from predictor.parallel.sharding import sharding
from predictor.types import CpKind
from tests.unit.parallel.sharding.models import CONFIGS, attention_in_pieces, config_graph, residual_cnn
from tests.unit.parallel.sharding.spmd import leaves, run, run_sharded

GRAPHS = {
    **{name: config_graph(name) for name in CONFIGS},
    "pieces": attention_in_pieces(),
    "cnn": residual_cnn(),
}
SEQUENCES = [name for name in GRAPHS if name not in ("cnn", "mixtral", "gpt_oss")]


def same(graph: Graph, plan: Plan, group: str, parts: int, *, training: bool) -> None:
    given = leaves(graph)
    sharded = sharding(graph, plan, training=training)
    # Something is split, so that the comparison says something.
    assert any(
        sharded.graph.values[name].shape != value.shape
        for name, value in graph.values.items()
        if name in sharded.graph.values
    )
    for ours, theirs in zip(run_sharded(graph, sharded, group, parts, given), run(graph, given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", GRAPHS)
def test_tensor_parallel(name: str, tp: int, training: bool) -> None:
    same(GRAPHS[name], Plan(tp=tp), "tp", tp, training=training)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", SEQUENCES)
def test_sequence_parallel(name: str, training: bool) -> None:
    same(GRAPHS[name], Plan(tp=2, sequence_parallel=True), "tp", 2, training=training)


@pytest.mark.parametrize("kind", CpKind)
@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("name", SEQUENCES)
def test_context_parallel(name: str, cp: int, kind: CpKind) -> None:
    same(GRAPHS[name], Plan(cp=cp, cp_kind=kind), "cp", cp, training=True)

"""Gradients of sharded graphs: with the declared conjugates, each rank gets its share of the whole one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from predictor.parallel.plan import Plan
from predictor.parallel.sharding import sharding
from predictor.types import CpKind
from tests.unit.parallel.sharding.models import attention_in_pieces, config_graph, residual_cnn
from tests.unit.parallel.sharding.spmd import leaves

torch = pytest.importorskip("torch")

NAMES = ("gpt2", "llama", "phi3", "gpt_neox", "bert", "t5")
GRAPHS = {
    **{name: config_graph(name) for name in NAMES},
    "pieces": attention_in_pieces(),
    "cnn": residual_cnn(),
}
_SEQUENCES = ("gpt2", "llama", "t5", "pieces")
CASES = [
    *((name, Plan(tp=2), "tp", 2) for name in GRAPHS),
    ("llama", Plan(tp=4), "tp", 4),
    *((name, Plan(tp=2, sequence_parallel=True), "tp", 2) for name in _SEQUENCES),
    *((name, Plan(cp=2), "cp", 2) for name in _SEQUENCES),
    ("gpt2", Plan(cp=2, cp_kind=CpKind.ALL_TO_ALL), "cp", 2),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads wait for one another on a busy machine; these products are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "plan", "group", "parts"),
    CASES,
    ids=[
        f"{name}-{group}{parts}-{plan.sequence_parallel}-{plan.cp_kind}" for name, plan, group, parts in CASES
    ],
)
def test_gradients_of_the_ranks_are_those_of_the_whole(name: str, plan: Plan, group: str, parts: int) -> None:
    from tests.unit.parallel.sharding.spmd_torch import cut, gradients

    graph = GRAPHS[name]
    given = leaves(graph)
    sharded = sharding(graph, plan, training=True)
    found, cuts = gradients(graph, sharded, group, parts, given)
    (whole,), _ = gradients(graph, sharding(graph, Plan(), training=True), group, 1, given)
    assert whole
    for parameter, expected in whole.items():
        shards = [rank[parameter] for rank in found]
        split = cuts[parameter]
        if sharded.parameters[parameter].partial_over:
            assert split is None
            shards = [torch.stack(shards).sum(0)]
        for rank, shard in enumerate(shards):
            mine = expected if split is None else cut(expected, split, parts, rank)
            torch.testing.assert_close(shard, mine, rtol=1e-6, atol=1e-8, msg=lambda m: f"{parameter}: {m}")  # noqa: B023

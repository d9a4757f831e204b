"""A fingerprint follows what a graph computes and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType
from predictor.features.graph import Graph
from predictor.features.reading.reader import read_graph
from tests.unit.features.graph_edits import renamed

# One step of a random network on (batch, 8, 6, 6): an op and which earlier value it reads besides the newest.
_STEPS = st.lists(
    st.tuples(st.sampled_from(["conv", "norm", "relu", "gelu", "add", "mul", "shared"]), st.integers(0, 50)),
    min_size=1,
    max_size=10,
)


def network(steps: list[tuple[str, int]], *, channels: int = 8, dtype: DType = DType.FLOAT32) -> bytes:
    b = GraphBuilder("net", dtype=dtype)
    values = [b.input("x", ("batch", channels, 6, 6))]
    shared = b.parameter((channels, 1, 1))
    for op, pick in steps:
        x, other = values[-1], values[pick % len(values)]
        made: dict[str, Callable[[], Tensor]] = {
            "conv": lambda x=x: b.conv(x, channels, kernel=3),
            "norm": lambda x=x: b.batch_norm(x),
            "relu": lambda x=x: b.relu(x),
            "gelu": lambda x=x: b.gelu(x),
            "add": lambda x=x, other=other: b.add(x, other),
            "mul": lambda x=x, other=other: b.mul(x, other),
            "shared": lambda x=x: b.mul(x, shared),
        }
        values.append(made[op]())
    return b.build([values[-1]])


@given(_STEPS, st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_names_and_order_do_not_count(steps: list[tuple[str, int]], seed: int) -> None:
    data = network(steps)
    before, after = read_graph(data, batch=2), read_graph(renamed(data, seed), batch=2)
    assert after.fingerprint == before.fingerprint
    assert after.parameter_count == before.parameter_count
    assert len(after.nodes) == len(before.nodes)


@given(_STEPS, st.integers(0, 9), st.sampled_from(["conv", "norm", "relu", "gelu", "add", "mul", "shared"]))
@settings(max_examples=60, deadline=None)
def test_another_op_counts(steps: list[tuple[str, int]], place: int, op: str) -> None:
    place %= len(steps)
    changed = [*steps]
    changed[place] = (op, steps[place][1])
    same = read_graph(network(changed)).fingerprint == read_graph(network(steps)).fingerprint
    assert same == (_meaning(changed) == _meaning(steps))


def _meaning(steps: list[tuple[str, int]]) -> str:
    """The computation as text: what the last value is made of. Weighted ops each have their own weights."""
    values = ["x"]
    for index, (op, pick) in enumerate(steps):
        x, other = values[-1], values[pick % len(values)]
        detail = f",{other}" if op in ("add", "mul") else f"#{index}" if op in ("conv", "norm") else ""
        values.append(f"{op}({x}{detail})")
    return values[-1]


@given(_STEPS)
@settings(max_examples=30, deadline=None)
def test_shape_batch_and_type_count(steps: list[tuple[str, int]]) -> None:
    data = network(steps)
    variants = [
        read_graph(data, batch=2),
        read_graph(data, batch=3),
        read_graph(network(steps, channels=4), batch=2),
        read_graph(network(steps, dtype=DType.FLOAT16), batch=2),
    ]
    assert len({graph.fingerprint for graph in variants}) == len(variants)


def _fingerprint(build: Callable[[GraphBuilder, Tensor], Tensor]) -> str:
    b = GraphBuilder()
    return read_graph(b.build([build(b, b.input("x", (2, 8, 6, 6)))])).fingerprint


def test_attributes_count() -> None:
    prints = {
        _fingerprint(lambda b, x: b.conv(x, 8, kernel=3)),
        _fingerprint(lambda b, x: b.conv(x, 8, kernel=3, padding=1, groups=2)),
        _fingerprint(lambda b, x: b.conv(x, 8, kernel=3, padding=2, dilation=2)),
        _fingerprint(lambda b, x: b.conv(x, 8, kernel=1)),
        _fingerprint(lambda b, x: b.conv(x, 8, kernel=3, bias=True)),
    }
    assert len(prints) == 5


def test_constants_count_where_shapes_agree() -> None:
    def padded(before: int) -> Callable[[GraphBuilder, Tensor], Tensor]:
        return lambda b, x: b.op("Pad", [x, b.constant([0, 0, before, 0, 0, 0, 2 - before, 0])])

    assert _fingerprint(padded(0)) != _fingerprint(padded(2))


def _chain(order: str) -> str:
    b = GraphBuilder()
    x = b.input("x", (2, 8))
    weights = {letter: b.parameter((8, 8)) for letter in set(order)}
    for letter in order:
        x = b.relu(b.matmul(x, weights[letter]))
    return read_graph(b.build([x])).fingerprint


@pytest.mark.parametrize("other", ["aabb", "abcd", "aaaa", "abba", "aaab"])
def test_which_weight_is_shared_counts(other: str) -> None:
    assert _chain("abab") != _chain(other)
    assert _chain("abab") == _chain("baba")


def test_a_trained_operand_is_no_input() -> None:
    b = GraphBuilder()
    trained = b.build([b.mul(b.input("x", (2, 8)), b.parameter((2, 8)))])
    b = GraphBuilder()
    fed = b.build([b.mul(b.input("x", (2, 8)), b.input("w", (2, 8)))])
    assert read_graph(trained).fingerprint != read_graph(fed).fingerprint


def test_output_order_counts() -> None:
    def build(flip: bool) -> Graph:
        b = GraphBuilder()
        x = b.input("x", (2, 8))
        outputs = [b.relu(x), b.tanh(x)]
        return read_graph(b.build(outputs[::-1] if flip else outputs))

    assert build(True).fingerprint != build(False).fingerprint

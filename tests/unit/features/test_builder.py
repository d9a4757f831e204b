"""Graphs built in Python take the same path as exported ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from predictor.errors import InvalidGraph
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType
from predictor.features.graph import Graph
from predictor.features.reading.reader import read_graph

Build = Callable[[GraphBuilder, Tensor], Tensor]


def built(make: Build, *shape: int | str, batch: int = 2) -> Graph:
    b = GraphBuilder("one")
    return read_graph(b.build([make(b, b.input("x", shape))]), batch=batch)


IMAGE = ("batch", 8, 12, 12)
# (what, input shape, shape of the output at batch 2, parameters)
CASES: list[tuple[str, Build, tuple[int | str, ...], tuple[int, ...], int]] = [
    ("conv", lambda b, x: b.conv(x, 16, kernel=3, stride=2), IMAGE, (2, 16, 6, 6), 8 * 16 * 9),
    (
        "conv valid",
        lambda b, x: b.conv(x, 4, kernel=(3, 1), padding=0, bias=True),
        IMAGE,
        (2, 4, 10, 12),
        100,
    ),
    ("conv 1d", lambda b, x: b.conv(x, 6, kernel=5, groups=2), ("n", 8, 20), (2, 6, 20), 6 * 4 * 5),
    ("dilated", lambda b, x: b.conv(x, 8, kernel=3, dilation=2), IMAGE, (2, 8, 12, 12), 576),
    ("transposed", lambda b, x: b.conv_transpose(x, 4, kernel=2, stride=2), IMAGE, (2, 4, 24, 24), 132),
    ("linear", lambda b, x: b.linear(x, 5), ("batch", 7, 6), (2, 7, 5), 35),
    ("gemm", lambda b, x: b.linear(x, 5, bias=False), ("batch", 6), (2, 5), 30),
    ("layer norm", lambda b, x: b.layer_norm(x), ("batch", 7, 6), (2, 7, 6), 12),
    ("rms norm", lambda b, x: b.rms_norm(x), ("batch", 7, 6), (2, 7, 6), 6),
    ("batch norm", lambda b, x: b.batch_norm(x), IMAGE, (2, 8, 12, 12), 16),
    ("group norm", lambda b, x: b.group_norm(x, 4), IMAGE, (2, 8, 12, 12), 16),
    ("relu6", lambda b, x: b.relu6(x), IMAGE, (2, 8, 12, 12), 0),
    ("gelu", lambda b, x: b.gelu(x, approximate="tanh"), IMAGE, (2, 8, 12, 12), 0),
    ("silu", lambda b, x: b.silu(x), IMAGE, (2, 8, 12, 12), 0),
    ("hard swish", lambda b, x: b.hard_swish(x), IMAGE, (2, 8, 12, 12), 0),
    ("tanh", lambda b, x: b.tanh(b.sub(x, b.div(x, b.constant(2.0)))), IMAGE, (2, 8, 12, 12), 0),
    ("softmax", lambda b, x: b.softmax(x, axis=1), IMAGE, (2, 8, 12, 12), 0),
    ("max pool", lambda b, x: b.max_pool(x, kernel=3, stride=2, padding=1), IMAGE, (2, 8, 6, 6), 0),
    ("avg pool", lambda b, x: b.avg_pool(x, kernel=2), IMAGE, (2, 8, 6, 6), 0),
    ("global pool", lambda b, x: b.flatten(b.global_pool(x)), IMAGE, (2, 8), 0),
    ("mean", lambda b, x: b.reduce_mean(x, [2, 3]), IMAGE, (2, 8), 0),
    ("resize", lambda b, x: b.resize(x, 2.0, mode="linear"), IMAGE, (2, 8, 24, 24), 0),
    ("reshape", lambda b, x: b.reshape(x, (0, 2, -1)), IMAGE, (2, 2, 576), 0),
    ("transpose", lambda b, x: b.transpose(x, (0, 2, 3, 1)), IMAGE, (2, 12, 12, 8), 0),
    ("concat", lambda b, x: b.concat([x, x], axis=1), IMAGE, (2, 16, 12, 12), 0),
    ("split", lambda b, x: b.split(x, 4, axis=1)[2], IMAGE, (2, 2, 12, 12), 0),
    ("split by sizes", lambda b, x: b.split(x, (5, 1, 2), axis=1)[0], IMAGE, (2, 5, 12, 12), 0),
    (
        "expand",
        lambda b, x: b.expand(b.reshape(x, (0, 8, -1, 1)), ("batch", 8, 144, 3)),
        IMAGE,
        (2, 8, 144, 3),
        0,
    ),
    (
        "expand a weight",
        lambda b, x: b.concat([b.expand(b.parameter((1, 8, 1, 12)), ("batch", 8, 1, 12)), x], axis=2),
        IMAGE,
        (2, 8, 13, 12),
        96,
    ),
    ("slice", lambda b, x: b.slice(x, 2, 11, axis=3, step=2), IMAGE, (2, 8, 12, 5), 0),
    ("gather", lambda b, x: b.gather(x, b.constant([0, 3]), axis=1), IMAGE, (2, 2, 12, 12), 0),
    ("attention", lambda b, x: b.attention(x, x, x), IMAGE, (2, 8, 12, 12), 0),
    ("generic", lambda b, x: b.op("Elu", [x], alpha=0.5), IMAGE, (2, 8, 12, 12), 0),
]


@pytest.mark.parametrize(
    ("make", "given", "shape", "parameters"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_methods(make: Build, given: tuple[int | str, ...], shape: tuple[int, ...], parameters: int) -> None:
    graph = built(make, *given)
    assert graph.values[graph.outputs[0]].shape == shape
    assert graph.parameter_count == parameters


def test_embeddings_can_be_tied() -> None:
    b = GraphBuilder()
    ids = b.input("ids", ("batch", 5), DType.INT64)
    table = b.parameter((30, 8), "table")
    x = b.embedding(ids, 30, 8, table=table)
    graph = read_graph(b.build([b.matmul(x, b.transpose(table, (1, 0)))]), batch=4)
    assert graph.parameter_count == 240
    assert graph.values[graph.outputs[0]].shape == (4, 5, 30)
    assert graph.values["ids"].dtype is DType.INT64


def test_what_is_built_under_one_key_shares_its_weights() -> None:
    b = GraphBuilder()
    x = b.input("x", ("batch", 6))
    for key in ("even", "odd", "even", "odd"):
        with b.shared_weights(key):
            x = b.relu(b.linear(x, 6))
    graph = read_graph(b.build([b.linear(x, 6)]), batch=2)
    assert graph.parameter_count == 3 * (36 + 6)
    assert sum(node.op_type == "Gemm" for node in graph.nodes) == 5


def test_shared_weights_must_be_the_same_ones() -> None:
    b = GraphBuilder()
    x = b.input("x", ("batch", 6))
    with b.shared_weights("layer"):
        y = b.linear(x, 4)
    other_sizes = pytest.raises(InvalidGraph, match=r"first application has \(6, 4\), this one \(4, 4\)")
    with other_sizes, b.shared_weights("layer"):
        b.linear(y, 4)
    one_too_many = pytest.raises(InvalidGraph, match="first application has no further weight")
    with one_too_many, b.shared_weights("layer"):
        b.linear(b.linear(x, 4), 4)
    nested = pytest.raises(InvalidGraph, match="inside another")
    with nested, b.shared_weights("outer"), b.shared_weights("layer"):
        b.linear(x, 4)
    # A failed application leaves nothing behind.
    assert b.linear(x, 9).shape == ("batch", 9)


def test_a_symbol_to_expand_to_must_be_one_of_an_input() -> None:
    b = GraphBuilder()
    with pytest.raises(InvalidGraph, match="no input has a dimension 'samples'"):
        b.expand(b.parameter((1, 4)), ("samples", 4))


def test_half_precision_graphs() -> None:
    b = GraphBuilder(dtype=DType.BFLOAT16)
    graph = read_graph(b.build([b.layer_norm(b.linear(b.input("x", (2, 4)), 8))]))
    assert {value.dtype for value in graph.values.values()} == {DType.BFLOAT16}


def test_ops_of_other_domains_keep_the_shape() -> None:
    b = GraphBuilder()
    x = b.input("x", ("batch", 6))
    y = b.op("SkipLayerNormalization", [x, x, b.parameter((6,))], 4, domain="com.microsoft")
    assert y[0].shape == ("batch", 6)
    assert y[1].shape == ("batch", 1)
    z = b.op("FusedMatMul", [y[0], b.parameter((9, 6))], domain="com.microsoft", transB=1)
    graph = read_graph(b.build([z]), batch=3)
    assert graph.values[graph.outputs[0]].shape == (3, 9)
    assert graph.opsets["com.microsoft"] == 1


def test_building_twice_gives_the_same_bytes() -> None:
    def build() -> bytes:
        b = GraphBuilder("same")
        return b.build([b.batch_norm(b.conv(b.input("x", ("n", 3, 8, 8)), 4, kernel=3))])

    assert build() == build()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda b, x: b.matmul(x, b.parameter((5, 5))),
        lambda b, x: b.conv(x, 8, kernel=(3, 3, 3)),
        lambda b, x: b.conv(x, 9, kernel=3, groups=4),
        lambda b, x: b.linear(b.transpose(x, (1, 2, 3, 0)), 4),
        lambda b, x: b.input("x", (1,)),
    ],
)
def test_what_does_not_fit_is_refused_at_once(wrong: Build) -> None:
    b = GraphBuilder()
    with pytest.raises(InvalidGraph):
        wrong(b, b.input("x", ("batch", 8, 12, 12)))


def test_a_graph_needs_an_output() -> None:
    with pytest.raises(InvalidGraph, match="output"):
        GraphBuilder().build([])

"""Frozen weights, in few bits or beside adapters, are shared by ranks as trained ones are."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.features.architectures.from_config import from_config
from predictor.features.graph import Graph
from predictor.features.lowering.adapters import Adapters, adapt
from predictor.features.lowering.lower import lower
from predictor.features.reading.reader import read_graph
from predictor.parallel.plan import Plan
from predictor.parallel.sharding.book import Book
from predictor.parallel.sharding.front import shard
from predictor.parallel.sharding.layout import cut
from predictor.types import Precision

WIDTH, HIDDEN = 256, 512
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
}
PRODUCTS = ("Linear", "BlockLinear", "MatMulNBits", "GemmFloat8")
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64}


def lowered(quantised: dict[str, Any] | None = None) -> Graph:
    config = {**LLAMA, "quantization_config": quantised}
    return lower(read_graph(from_config(config, batch=2, sequence=16)), precision=Precision.BF16)


def product_bytes(graph: Graph) -> int:
    """Bytes of what products store: weights, scales and zeros."""
    products = (node for node in graph.nodes if node.op_type in PRODUCTS)
    read = {name for node in products for name in node.inputs[1:]}
    return sum(graph.values[name].size_bytes for name in read & (graph.buffers | graph.parameters))


def unsplit(graph: Graph) -> list[str]:
    return [note.message for note in graph.notes if note.code == "NOT_SPLIT"]


@pytest.mark.parametrize("quantised", [GPTQ, {"quant_method": "fp8"}, {"load_in_8bit": True}])
@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_hold_equal_parts_of_narrow_weights(quantised: dict[str, Any], tp: int) -> None:
    whole = lowered(quantised)
    local = shard(whole, Plan(tp=tp), training=False)
    assert unsplit(local) == []
    # Whole on every rank: a scale that a row or tensor shares, and zeros of half a byte in rows that are cut.
    spared = 0.01
    share = product_bytes(local) / product_bytes(whole)
    assert 1 / tp <= share <= 1 / tp + spared


def test_sizes_that_a_kernel_reads_off_its_attributes_are_local() -> None:
    local = shard(lowered(GPTQ), Plan(tp=4), training=False)
    found = {
        (node.attributes["K"], node.attributes["N"]) for node in local.nodes if node.op_type == "MatMulNBits"
    }
    assert found == {(WIDTH, WIDTH // 4), (WIDTH // 4, WIDTH), (WIDTH, HIDDEN // 4), (HIDDEN // 4, WIDTH)}
    # Two a layer, and one behind the words that ranks share.
    assert [node.op_type for node in local.nodes].count("AllReduce") == 5


def test_rows_whose_blocks_do_not_divide_say_so() -> None:
    graph = lowered({**GPTQ, "group_size": 96})
    index = next(i for i, node in enumerate(graph.nodes) if node.op_type == "MatMulNBits")
    found = Book(graph, 4, training=False).ask(index, 1, cut(1, (3,)))
    assert found == "MatMulNBits has 3 blocks of 96, which do not divide over 4 ranks"


def test_frozen_weights_beside_adapters_are_split() -> None:
    plain = lowered()
    for adapters in (Adapters(8), Adapters(8, quantize="nf4")):
        whole = adapt(plain, adapters)
        local = shard(whole, Plan(tp=2), training=True)
        assert product_bytes(local) < 0.6 * product_bytes(whole)

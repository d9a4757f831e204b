"""Weights of inference in few bits: the pass against configurations that ask for the same."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from predictor.errors import InvalidRequest
from predictor.features.architectures.from_config import from_config
from predictor.features.builder import GraphBuilder
from predictor.features.graph import Graph
from predictor.features.lowering.fusion import recognise
from predictor.features.lowering.narrow_weights import store_weights
from predictor.features.programs.program import build_program
from predictor.features.programs.work import OpWork
from predictor.features.reading.reader import read_graph
from predictor.request import PredictionRequest
from predictor.types import Mode, Optimizer, Precision, Runtime, Weights

FOLDER = Path(__file__).parents[2] / "assets" / "configs"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "attention_bias": True,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = json.loads((FOLDER / "deepseek-v3.json").read_text())
DEEPSEEK |= {"num_hidden_layers": 4, "hidden_size": 512, "vocab_size": 1000}
SAME = {
    Weights.INT4: {"quant_method": "gptq", "bits": 4, "group_size": 128},
    Weights.INT8: {"load_in_8bit": True},
    Weights.FP8: {"quant_method": "fp8"},
}


def graph_of(config: dict[str, Any]) -> Graph:
    return read_graph(from_config(config, batch=2, sequence=16))


def products(graph: Graph, weights: Weights = Weights.FULL) -> Counter[OpWork]:
    program = build_program(
        graph,
        mode=Mode.INFER,
        precision=Precision.BF16,
        optimizer=Optimizer.NONE,
        runtime=Runtime.EAGER,
        weights=weights,
    )
    assert all(op.covered for op in program.ops)
    return Counter(op.work for op in program.ops if op.work.matrix_flops)


@pytest.mark.parametrize("config", [LLAMA, MIXTRAL, DEEPSEEK], ids=["llama", "mixtral", "deepseek"])
@pytest.mark.parametrize("weights", SAME)
def test_a_plain_model_stored_so_runs_the_products_of_one_that_says_so(
    config: dict[str, Any], weights: Weights
) -> None:
    asked = graph_of({**config, "quantization_config": SAME[weights]})
    found, wanted = products(graph_of(config), weights), products(asked)
    # A bias is added in the product, not behind it.
    assert _shapes(found) == _shapes(wanted)
    without_bias = {**config, "attention_bias": False}
    asked = graph_of({**without_bias, "quantization_config": SAME[weights]})
    assert products(graph_of(without_bias), weights) == products(asked)


def _shapes(works: Counter[OpWork]) -> Counter[tuple[object, ...]]:
    return Counter((work.kind, work.compute, work.shape, work.matrix_flops) for work in works.elements())


def test_weights_with_several_readers_and_convolutions_stay() -> None:
    b = GraphBuilder()
    x = b.relu(b.conv(b.input("image", (2, 3, 16, 16)), 8, kernel=3))
    rows, weight = b.flatten(b.global_pool(x)), b.parameter((8, 8), "twice")
    x = b.relu(b.linear(b.linear(rows, 8, weight=weight), 8, weight=weight))
    graph = recognise(read_graph(b.build([b.linear(x, 10)])))
    stored = store_weights(graph, Weights.INT4)
    assert stored.nodes == graph.nodes
    assert [note.code for note in stored.notes] == ["WEIGHTS"]


def test_full_weights_change_nothing() -> None:
    graph = graph_of(LLAMA)
    assert store_weights(graph, Weights.FULL) is graph


def test_training_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="weights: int8 is for inference"):
        PredictionRequest("model.onnx", "a100-pcie-40gb", mode=Mode.TRAIN, weights=Weights.INT8)


@pytest.mark.parametrize("weights", [Weights.INT8, Weights.INT4])
def test_an_engine_finishes_narrow_products_as_it_does_full_ones(weights: Weights) -> None:
    full, narrow = (
        Counter(
            op.work.family
            for op in build_program(
                graph_of(LLAMA),
                mode=Mode.INFER,
                precision=Precision.FP16,
                optimizer=Optimizer.NONE,
                runtime=Runtime.TENSORRT,
                weights=stored,
            ).ops
            if op.work.launch_count
        )
        for stored in (Weights.FULL, weights)
    )
    assert narrow == full

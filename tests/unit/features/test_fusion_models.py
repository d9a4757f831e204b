"""Whole models: the shipped exports, and the public ones where the data folder is there."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from predictor.features.graph import Graph
from predictor.features.lowering.fusion import fuse, recognise
from predictor.features.reading.reader import read_graph
from predictor.types import Runtime
from tests.public_data import public_data
from tests.unit.features.spelling import kinds
from tests.unit.features.test_fusion_blocks import check_order

EXAMPLES = Path(__file__).parents[3] / "examples"
PRE_NORM = [
    "LayerNormalization",
    *("Linear", "Attention", "Linear", "Add"),
    "LayerNormalization",
    *("Linear", "Gelu", "Linear", "Add"),
]
POST_NORM = [
    *("Linear", "Attention", "Linear", "Add"),
    "LayerNormalization",
    *("Linear", "Gelu", "Linear", "Add"),
    "LayerNormalization",
]


def example(name: str, **dims: int) -> Graph:
    return read_graph(EXAMPLES / f"{name}.onnx", batch=2, dims=dims)


def test_vit_block_is_ten_kernels() -> None:
    found = kinds(recognise(example("vit_b16")))
    start = found.index("LayerNormalization")
    assert found[start : start + 120] == PRE_NORM * 12


def test_gpt2_block_is_ten_kernels_and_causal() -> None:
    graph = recognise(example("gpt2"))
    found = kinds(graph)
    start = found.index("LayerNormalization")
    assert found[start : start + 120] == PRE_NORM * 12
    attention = [node for node in graph.nodes if node.op_type == "Attention"]
    assert {node.attributes["causal"] for node in attention} == {1}


def test_bert_block_is_ten_kernels_with_a_mask() -> None:
    graph = recognise(example("bert_base", sequence=128))
    found = kinds(graph)
    start = found.index("Linear")
    assert found[start : start + 120] == POST_NORM * 12
    assert all(len(node.inputs) == 4 for node in graph.nodes if node.op_type == "Attention")


def test_resnet50_compiled_is_its_convolutions_with_one_epilogue_each() -> None:
    graph = fuse(example("resnet50"), Runtime.COMPILED)
    # Two convolutions of each of the four projection blocks share the epilogue of their sum.
    assert Counter(kinds(graph)) == {"Conv": 53, "FusedPointwise": 49, "MaxPool": 1, "Linear": 1}


def test_nothing_that_a_model_trains_is_lost() -> None:
    for name in ("vit_b16", "gpt2", "resnet50", "unet", "mobilenet_v2"):
        graph = example(name)
        for runtime in Runtime:
            fused = fuse(graph, runtime)
            check_order(fused)
            read = {name for node in fused.nodes for name in node.inputs}
            assert graph.parameters <= read
            assert fused.parameter_count == graph.parameter_count


PUBLIC = {
    # name: (kernels that must be there, kernels that must not)
    "vit_base_patch16_224-224": ({"Linear": 49, "Attention": 12, "Gelu": 12}, {"Erf", "Contiguous"}),
    "beit_base_patch16_224-224": ({"Linear": 49, "Attention": 12, "Gelu": 12}, {"Softmax", "Contiguous"}),
    "swin_tiny_patch4_window7_224-224": ({"Linear": 52, "Softmax": 12, "Gelu": 12}, {"Attention"}),
    "convnext_tiny-224": ({"Linear": 37, "Gelu": 18, "Conv": 22, "Contiguous": 1}, {"Erf"}),
    "efficientnet_b0-224": ({"Silu": 49, "Conv": 81, "BatchNormalization": 49}, {"Contiguous"}),
    "levit_256-224": ({"HardSwish": 31, "Softmax": 14}, {"Clip"}),
    "efficientnet_b0_g8_gn-224": ({"GroupNormalization": 49, "Silu": 49}, {"InstanceNormalization"}),
    "nfnet_f0-192": ({"Gelu": 52, "BatchNormalization": 57}, {"Sub"}),
}


@pytest.mark.data
@pytest.mark.parametrize("name", PUBLIC)
def test_public_export(name: str) -> None:
    path = public_data("timm_onnx", f"{name}.onnx.gz")
    graph = read_graph(gzip.decompress(path.read_bytes()), batch=2)
    fused = recognise(graph)
    check_order(fused)
    counts = Counter(kinds(fused))
    wanted, unwanted = PUBLIC[name]
    assert {op_type: counts[op_type] for op_type in wanted} == wanted
    assert not unwanted & counts.keys()
    assert recognise(fused).nodes == fused.nodes

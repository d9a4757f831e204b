from pathlib import Path

import pytest

from predictor.features.architectures import ARCHITECTURES
from predictor.features.graph import Graph
from predictor.features.lowering.lower import lower
from predictor.features.lowering.recompute import replayed_nodes
from predictor.features.lowering.thin import KEPT_LAYERS, thinned
from predictor.features.programs.program import program_of
from predictor.features.programs.work import Program
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Precision, Recompute
from tests.unit.features.graphs import Sketch

ROOT = Path(__file__).resolve().parents[3]


def lowered(name: str) -> Graph:
    source = ROOT / "examples" / name if name.endswith(".onnx") else ARCHITECTURES[name]()
    return lower(read_graph(source, batch=8), training=True)


def trained(graph: Graph, recompute: Recompute) -> Program:
    return program_of(graph, mode=Mode.TRAIN, precision=Precision.FP32, recompute=recompute)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        # Layers that repeat and hold nearly everything, ...
        ("gpt2.onnx", 0.6),
        # ... blocks of which the first of each size stays, ...
        ("resnet50.onnx", 0.8),
        ("mobilenet_v2.onnx", 0.8),
        # ... and graphs in which hardly any layer is there twice.
        ("unet.onnx", 0.6),
        ("densenet121", 0.4),
        ("vgg16", 0.95),
    ],
)
def test_full_recomputation_saves_memory_for_at_most_another_forward_pass(name: str, most: float) -> None:
    graph = lowered(name)
    plain, again = trained(graph, Recompute.NONE), trained(graph, Recompute.FULL)
    assert again.memory.live_peak_bytes < most * plain.memory.live_peak_bytes
    flops = sum(op.work.matrix_flops for op in plain.ops)
    # Backward is two forward passes, or less: the first layer's input has no gradient.
    assert flops < sum(op.work.matrix_flops for op in again.ops) < 1.37 * flops
    runs = replayed_nodes(graph, Recompute.FULL)
    assert min(map(len, runs)) > 1
    assert [node for run in runs for node in run] == sorted({node for run in runs for node in run})


def test_thin_graphs_run_the_same_layers_again() -> None:
    # The layers are more than half of the graph, those of them that a search keeps are not.
    layers, tail = 30, 12
    s = Sketch()
    name = s.node("MatMul", [s.input("x", 4, 8), s.parameter("first", 8, 64)], (4, 64))
    for index in range(layers):
        h = s.node("MatMul", [name, s.parameter(f"w{index}", 64, 64)], (4, 64))
        name = s.node("Add", [s.node("Tanh", [h], (4, 64)), name], (4, 64))
    width = 64
    for index in range(tail):
        w = s.parameter(f"tail{index}", width, width + 8)
        width += 8
        name = s.node("Erf", [s.node("MatMul", [name, w], (4, width))], (4, width))
    graph = s.graph(name)
    thin = thinned(graph).graph
    assert len(thin.nodes) < len(graph.nodes)
    for found, count in ((graph, layers), (thin, KEPT_LAYERS)):
        runs = replayed_nodes(found, Recompute.FULL)
        assert len(runs) == count
        assert set(map(len, runs)) == {3}

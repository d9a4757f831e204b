"""Detectors, recurrent and generative workloads against published sizes, and their training graphs."""

from __future__ import annotations

import pytest

from predictor.errors import InvalidGraph, InvalidRequest
from predictor.features.architectures import architecture
from predictor.features.architectures.searched import fbnet, nasbench201, once_for_all
from predictor.features.builder import GraphBuilder
from predictor.features.graph import Graph
from predictor.features.programs.program import build_program
from predictor.features.programs.work import Phase, Program
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime


def program_of(graph: Graph, mode: Mode = Mode.INFER) -> Program:
    return build_program(
        graph, mode=mode, precision=Precision.FP32, optimizer=Optimizer.NONE, runtime=Runtime.EAGER
    )


def weights_of(graph: Graph) -> int:
    """Parameters and frozen convolution weights; no frozen norms, which torchvision counts as buffers."""
    frozen = [value for name, value in graph.values.items() if name.startswith("frozen")]
    return graph.parameter_count + sum(v.elements for v in frozen if len(v.shape) == 4 and v.shape[0] != 1)


@pytest.mark.parametrize(
    ("name", "parameters", "options"),
    [
        # torchvision's detectors (91 classes, background among them); 4 x 1025 and 257 weights for a box and
        # a mask of the background are theirs, its P6 reads 256 channels and not 2048.
        ("faster_rcnn_r50_fpn", 41_755_286 - 4 * 1025, {"classes": 91}),
        ("mask_rcnn_r50_fpn", 44_401_393 - 4 * 1025 - 257, {"classes": 91}),
        ("retinanet_r50_fpn", 34_014_999 + (2048 - 256) * 256 * 9, {"classes": 91}),
        ("yolov3", 61_949_149, {}),
        # NVIDIA's examples: 160 M, 192 M, 28.19 M, 268 M. A bias of one element counts as no parameter.
        ("gnmt", 160_671_296, {}),
        ("transformer_xl_base", 191_950_298, {}),
        ("tacotron2", 28_193_153 - 1, {}),
        ("ncf", 31_832_577 - 1, {}),
    ],
)
def test_has_the_published_parameters(name: str, parameters: int, options: dict[str, int]) -> None:
    assert weights_of(read_graph(architecture(name, batch=1, **options))) == pytest.approx(
        parameters, rel=3e-4
    )


def test_yolov3_has_the_published_work() -> None:
    # 65.86 billion operations at 416 x 416.
    program = program_of(read_graph(architecture("yolov3", batch=1)))
    assert sum(op.work.matrix_flops for op in program.ops) == pytest.approx(65.86e9, rel=0.01)


def test_ssd300_has_8732_boxes() -> None:
    graph = read_graph(architecture("ssd300_resnet50", batch=2))
    assert {graph.values[name].shape for name in graph.outputs} == {(2, 4, 8732), (2, 81, 8732)}


@pytest.mark.parametrize(
    "name",
    [
        "ssd300_resnet50",
        "retinanet_r50_fpn",
        "mask_rcnn_r50_fpn",
        "faster_rcnn_r50_c4",
        "keypoint_rcnn_x101_fpn",
        "mask_rcnn_r50_dc5",
        "panoptic_r50_fpn",
        "rpn_r50_c4",
        "fast_rcnn_r50_fpn",
        "gnmt",
        "ncf",
        "transformer_xl_base",
        "tacotron2",
        "waveglow",
        "lstm_language_model",
        "recommendation_autoencoder",
        "cyclegan",
    ],
)
def test_trains_every_parameter_by_known_rules(name: str) -> None:
    graph = read_graph(architecture(name, batch=2, training=True))
    program = program_of(graph, Mode.TRAIN)
    assert all(op.covered for op in program.ops)
    assert sum(gradient.size_bytes for gradient in program.gradients) == 4 * graph.parameter_count


def test_frozen_stages_have_no_backward_pass() -> None:
    graph = read_graph(architecture("mask_rcnn_r50_fpn", batch=1, training=True))
    program = program_of(graph, Mode.TRAIN)
    backward = [op.node for op in program.ops if op.work.phase is Phase.BACKWARD and op.op_type == "Conv"]
    # The stem and the first stage: the first ten convolutions and their shortcut.
    early = [node.name for node in graph.nodes if node.op_type == "Conv"][:11]
    assert not set(early) & set(backward)
    assert backward


def test_the_decoder_of_tacotron_runs_once_per_frame() -> None:
    def launches(frames: int) -> int:
        graph = read_graph(architecture("tacotron2", batch=2, frames=frames))
        return sum(op.work.launch_count for op in program_of(graph).ops)

    assert launches(200) - launches(100) == launches(300) - launches(200) > 2500


def test_a_frozen_weight_is_no_parameter() -> None:
    b = GraphBuilder()
    y = b.matmul(b.input("x", (2, 8)), b.frozen((8, 4)))
    graph = read_graph(b.build([b.linear(y, 3)]))
    assert graph.parameter_count == 4 * 3 + 3
    with pytest.raises(InvalidGraph):
        b.input("frozen", (1,))


def test_searched_networks_have_the_published_size() -> None:
    # NAS-Bench-201 lists 1.531546 M parameters and 220.11969 M multiply-adds for the cell of convolutions,
    # 0.073306 M and 7.78305 M for the one of skips alone.
    conv, skip = "nor_conv_3x3", "skip_connect"
    cells = {
        f"|{conv}~0|+|{conv}~0|{conv}~1|+|{conv}~0|{conv}~1|{conv}~2|": (1_531_546, 220.11969),
        f"|none~0|+|none~0|none~1|+|{skip}~0|none~1|none~2|": (73_306, 7.78305),
    }
    for cell, (parameters, mega_macs) in cells.items():
        graph = read_graph(nasbench201(cell, batch=1))
        assert graph.parameter_count == parameters
        macs = sum(op.work.matrix_flops for op in program_of(graph).ops) / 2e6
        assert macs == pytest.approx(mega_macs, rel=1e-4)


def test_a_cell_of_unknown_operations_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="nor_conv_5x5"):
        nasbench201("|nor_conv_5x5~0|+|none~0|none~1|+|none~0|none~1|none~2|")
    with pytest.raises(InvalidRequest, match="22"):
        fbnet("k3_e1 skip")


def test_once_for_all_takes_depths_and_widths() -> None:
    small = read_graph(once_for_all([3] * 20, [3] * 20, [2] * 5, batch=2, image=128))
    large = read_graph(once_for_all([7] * 20, [6] * 20, [4] * 5, batch=2, image=224, width=1.2))
    assert small.parameter_count < large.parameter_count
    assert large.values[large.inputs[0]].shape == (2, 3, 224, 224)

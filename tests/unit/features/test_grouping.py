"""A compiler's groups: what is fused, what is paid, and that the result is still a graph."""

from __future__ import annotations

from collections.abc import Callable

from predictor.features.builder import Tensor
from predictor.features.graph import Graph, Node
from predictor.features.lowering.fusion import fuse
from predictor.features.programs.program import build_program
from predictor.features.programs.work import Phase
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime
from tests.unit.features.spelling import Spelling, kinds, spelled
from tests.unit.features.test_fusion_blocks import check_order

SHAPE = (2, 16, 8, 8)
ELEMENTS = 2 * 16 * 8 * 8


def compiled(graph: Graph) -> Graph:
    result = fuse(graph, Runtime.COMPILED)
    check_order(result)
    return result


def groups(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op_type == "FusedPointwise"]


def test_a_chain_becomes_one_node_that_pays_its_ends_only() -> None:
    graph = compiled(spelled(lambda s, x: s("Exp", s("Relu", s("Mul", x, x))), SHAPE))
    (node,) = graph.nodes
    assert (node.domain, node.inputs, node.outputs) == ("perfcast", ("x",), graph.outputs)
    assert node.attributes == {"kinds": "Mul,Relu,Exp", "flops": 3 * ELEMENTS, "op_count": 3}


def test_one_op_alone_is_left_alone() -> None:
    assert kinds(compiled(spelled(lambda s, x: s.conv(s("Relu", x), 4, kernel=3), SHAPE))) == ["Relu", "Conv"]


def test_conv_batch_norm_and_activation_become_conv_and_one_epilogue() -> None:
    graph = compiled(spelled(lambda s, x: s.relu(s.batch_norm(s.conv(x, 16, kernel=3))), SHAPE))
    assert kinds(graph) == ["Conv", "FusedPointwise"]
    assert groups(graph)[0].attributes["kinds"] == "BatchNormalization,Relu"


def test_a_bias_is_written_by_the_kernel_that_reads_the_convolution() -> None:
    def biases(build: Callable[[Spelling, Tensor], Tensor]) -> list[object]:
        graph = compiled(spelled(build, SHAPE))
        return [n.attributes.get("perfcast_fused_bias") for n in graph.nodes if n.op_type == "Conv"]

    assert biases(lambda s, x: s.relu(s.conv(x, 16, kernel=3, bias=True))) == [1]
    assert biases(lambda s, x: s.relu(s("Reshape", s.conv(x, 16, kernel=3, bias=True), [2, -1]))) == [1]
    assert biases(lambda s, x: s.conv(s.conv(x, 16, kernel=3, bias=True), 4, kernel=3)) == [None, None]


def test_a_kernel_between_two_ops_parts_them() -> None:
    """Residual block: the value that both the convolution and the addition read is written once."""

    def build(s: Spelling, x: Tensor) -> Tensor:
        start = s("Relu", s("Neg", x))
        return s("Abs", s("Add", s.conv(start, 16, kernel=3), start))

    graph = compiled(spelled(build, SHAPE))
    assert kinds(graph) == ["FusedPointwise", "Conv", "FusedPointwise"]
    first, second = groups(graph)
    assert set(second.inputs) == {first.outputs[0], graph.nodes[1].outputs[0]}


def test_a_shortcut_is_postponed_into_the_group_that_reads_it() -> None:
    """ResNet's projection shortcut: its batch norm runs with the addition, although it could run earlier."""

    def build(s: Spelling, x: Tensor) -> Tensor:
        main = s.relu(s.batch_norm(s.conv(x, 16, kernel=3)))
        main = s.batch_norm(s.conv(main, 16, kernel=3))
        return s.relu(s.add(main, s.batch_norm(s.conv(x, 16, kernel=1))))

    graph = compiled(spelled(build, SHAPE))
    assert sorted(node.attributes["kinds"] for node in groups(graph)) == [
        "BatchNormalization,BatchNormalization,Add,Relu",
        "BatchNormalization,Relu",
    ]


def test_normalisation_joins_its_neighbours_through_views() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        summed = s("Add", x, s("Relu", x))
        rows = s("Reshape", summed, [2, 16, 64])
        return s.linear(s("LayerNormalization", rows, s.parameter((64,), "w")), 8)

    graph = compiled(spelled(build, SHAPE))
    assert kinds(graph, views=True) == ["FusedPointwise", "Linear"]
    assert groups(graph)[0].attributes["kinds"] == "Relu,Add,LayerNormalization"


def test_a_view_that_is_read_outside_stays_outside() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        return s.linear(s("Reshape", s("Exp", s("Relu", x)), [2, 16, 64]), 8)

    assert kinds(compiled(spelled(build, SHAPE)), views=True) == ["FusedPointwise", "Reshape", "Linear"]


def test_a_value_read_inside_and_outside_is_written() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        start = s("Relu", x)
        return s("Concat", s.max_pool(start, kernel=2), s.max_pool(s("Exp", start), kernel=2), axis=0)

    node = groups(compiled(spelled(build, SHAPE)))[0]
    assert len(node.outputs) == 2


def test_hidden_copies_fuse_with_what_made_them() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        turned = s("Transpose", s("Relu", x), perm=[0, 2, 3, 1])
        return s.linear(s("Reshape", turned, [2, 4, 256]), 8)

    graph = compiled(spelled(build, SHAPE))
    assert groups(graph)[0].attributes["kinds"] == "Relu,Contiguous"


def test_what_libraries_select_is_fused_with_nothing() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        chosen = s("NonZero", s("Relu", s("Neg", x)))
        return s("Neg", s("Cast", chosen, to=1))

    graph = compiled(spelled(build, SHAPE))
    assert kinds(graph) == ["FusedPointwise", "NonZero", "FusedPointwise"]


def test_nothing_trains_behind_a_selection() -> None:
    """Detections are numbers of boxes: no gradient comes back through their suppression."""
    s = Spelling(opset=18)
    boxes, scores = s.input("boxes", (1, 50, 4)), s.input("scores", (1, 3, 50))
    boxes = s.mul(boxes, s.parameter((4,)))
    chosen = s("NonMaxSuppression", boxes, scores, [10], 0.5)
    graph = read_graph(s.build([s("Neg", s("Cast", chosen, to=1))]))
    for runtime in (Runtime.EAGER, Runtime.COMPILED):
        program = build_program(
            graph,
            mode=Mode.TRAIN,
            precision=Precision.FP32,
            optimizer=Optimizer.SGD,
            runtime=runtime,
        )
        assert not any(op.work.phase is Phase.BACKWARD for op in program.ops)

"""Activations, normalisations and linear layers: what the exporters of torch 2.13 write, node by node.

Each spelling was read off an export (tests/unit/features/test_fusion_exports.py repeats them with torch).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from predictor.features.builder import Tensor
from predictor.features.graph import Graph
from predictor.features.lowering.fusion import fuse
from predictor.features.reading.reader import read_graph
from predictor.types import Runtime
from tests.unit.features.spelling import Spelling, kinds, only, spelled

Build = Callable[[Spelling, Tensor], Tensor]
SHAPE = (2, 5, 16)


def gelu_erf_script(s: Spelling, x: Tensor) -> Tensor:
    return s("Mul", s("Mul", x, s("Add", s("Erf", s("Div", x, 1.4142135)), 1.0)), 0.5)


def gelu_erf_dynamo(s: Spelling, x: Tensor) -> Tensor:
    return s("Mul", x, s("Mul", 0.5, s("Add", s("Erf", s("Div", x, 1.4142135)), 1.0)))


def gelu_tanh_script(s: Spelling, x: Tensor) -> Tensor:
    inner = s("Mul", 0.7978845, s("Add", x, s("Mul", 0.044715, s("Mul", x, s("Mul", x, x)))))
    return s("Mul", 0.5, s("Mul", x, s("Add", 1.0, s("Tanh", inner))))


def gelu_tanh_dynamo(s: Spelling, x: Tensor) -> Tensor:
    inner = s("Mul", 0.7978845, s("Add", x, s("Mul", 0.044715, s("Pow", x, 3.0))))
    return s("Mul", x, s("Mul", 0.5, s("Add", s("Tanh", inner), 1.0)))


def gelu_tanh_by_hand(s: Spelling, x: Tensor) -> Tensor:
    inner = s("Mul", s("Add", x, s("Mul", s("Pow", x, 3.0), 0.044715)), 0.7978845)
    return s("Mul", s("Mul", x, 0.5), s("Add", s("Tanh", inner), 1.0))


def gelu_quick(s: Spelling, x: Tensor) -> Tensor:
    return s("Mul", x, s("Sigmoid", s("Mul", x, 1.702)))


def silu(s: Spelling, x: Tensor) -> Tensor:
    return s("Mul", x, s("Sigmoid", x))


def mish(s: Spelling, x: Tensor) -> Tensor:
    return s("Mul", x, s("Tanh", s("Softplus", x)))


def hard_swish_by_hand(s: Spelling, x: Tensor) -> Tensor:
    return s("Div", s("Mul", x, s("Clip", s("Add", x, 3.0), 0.0, 6.0)), 6.0)


def softplus_dynamo(s: Spelling, x: Tensor) -> Tensor:
    return s("Where", s("Greater", x, 20.0), x, s("Softplus", x))


def layer_norm(s: Spelling, x: Tensor) -> Tensor:
    centred = s("Sub", x, s("ReduceMean", x, axes=[-1]))
    variance = s("ReduceMean", s("Pow", centred, 2.0), axes=[-1])
    scaled = s("Div", centred, s("Sqrt", s("Add", variance, 1e-5)))
    return s("Add", s("Mul", scaled, s.parameter((16,), "w")), s.parameter((16,), "b"))


def layer_norm_plain(s: Spelling, x: Tensor) -> Tensor:
    centred = s("Sub", x, s("ReduceMean", x, axes=[-1]))
    variance = s("ReduceMean", s("Pow", centred, 2.0), axes=[-1])
    return s("Div", centred, s("Sqrt", s("Add", variance, 1e-5)))


def rms_scale(s: Spelling, x: Tensor) -> Tensor:
    mean = s("ReduceMean", s("Pow", x, 2.0), [-1], keepdims=1)
    return s("Mul", x, s("Reciprocal", s("Sqrt", s("Add", mean, 1e-6))))


def rms_norm_dynamo(s: Spelling, x: Tensor) -> Tensor:
    return s("Mul", rms_scale(s, x), s.parameter((16,), "w"))


def rms_norm_by_hand(s: Spelling, x: Tensor) -> Tensor:
    return s("Mul", s.parameter((16,), "w"), rms_scale(s, x))


def group_norm(s: Spelling, x: Tensor) -> Tensor:
    grouped = s("Reshape", x, [0, 4, -1])
    normed = s("InstanceNormalization", grouped, s.constant([1.0] * 4), s.constant([0.0] * 4))
    restored = s("Reshape", normed, list(x.shape))
    weight, bias = (s("Unsqueeze", s.parameter((16,), name), [1, 2]) for name in "wb")
    return s("Add", s("Mul", restored, weight), bias)


def linear_script(s: Spelling, x: Tensor) -> Tensor:
    product = s("MatMul", x, s("Transpose", s.parameter((4, 16), "w"), perm=[1, 0]))
    return s("Add", s.parameter((4,), "b"), product)


def linear_dynamo(s: Spelling, x: Tensor) -> Tensor:
    return s("Add", s("MatMul", x, s.parameter((16, 4), "w")), s.parameter((4,), "b"))


@pytest.mark.parametrize(
    ("build", "op_type", "kernels"),
    [
        (gelu_erf_script, "Gelu", 5),
        (gelu_erf_dynamo, "Gelu", 5),
        (gelu_tanh_script, "Gelu", 9),
        (gelu_tanh_dynamo, "Gelu", 8),
        (silu, "Silu", 2),
        (mish, "Mish", 3),
        (softplus_dynamo, "Softplus", 3),
        (rms_norm_dynamo, "RMSNormalization", 7),
        (linear_script, "Linear", 2),
        (linear_dynamo, "Linear", 2),
    ],
)
def test_an_exported_block_is_one_kernel_in_eager_mode(build: Build, op_type: str, kernels: int) -> None:
    fused = fuse(spelled(build, SHAPE))
    assert kinds(fused, views=True) == [op_type]
    assert fused.nodes[0].attributes["eager_kernel_count"] == kernels


@pytest.mark.parametrize(
    ("build", "op_type", "eager_count"),
    [
        (gelu_tanh_by_hand, "Gelu", 8),
        (gelu_quick, "Gelu", 3),
        (hard_swish_by_hand, "HardSwish", 4),
        (rms_norm_by_hand, "RMSNormalization", 7),
        (layer_norm, "LayerNormalization", 9),
    ],
)
def test_a_block_written_by_hand_is_one_kernel_only_when_compiled(
    build: Build, op_type: str, eager_count: int
) -> None:
    graph = spelled(build, SHAPE, opset=17 if build is layer_norm else 18)
    assert len(fuse(graph).nodes) == eager_count
    assert kinds(fuse(graph, Runtime.COMPILED)) == [op_type]


@pytest.mark.parametrize("build", [layer_norm, layer_norm_plain])
def test_layer_norm_before_opset_17_comes_from_the_exporter(build: Build) -> None:
    node = only(fuse(spelled(build, SHAPE, opset=14)), "LayerNormalization")
    assert node.attributes["axis"] == -1
    assert node.inputs[0] == "x"


def test_layer_norm_keeps_its_weights_and_the_plain_one_gets_a_scale_of_the_row() -> None:
    affine = only(fuse(spelled(layer_norm, SHAPE, opset=14)), "LayerNormalization")
    assert affine.inputs == ("x", "w", "b")
    graph = fuse(spelled(layer_norm_plain, SHAPE, opset=14))
    (scale,) = graph.nodes[0].inputs[1:]
    assert graph.values[scale].shape == (16,)
    assert scale in graph.buffers


def test_a_mean_over_the_channels_is_no_layer_norm() -> None:
    def channels_first(s: Spelling, x: Tensor) -> Tensor:
        centred = s("Sub", x, s("ReduceMean", x, axes=[1]))
        variance = s("ReduceMean", s("Pow", centred, 2.0), axes=[1])
        return s("Div", centred, s("Sqrt", s("Add", variance, 1e-5)))

    graph = spelled(channels_first, (2, 16, 4, 4), opset=14)
    assert "LayerNormalization" not in kinds(fuse(graph))


def test_group_norm_with_its_affine() -> None:
    graph = fuse(spelled(group_norm, (2, 16, 8, 8)))
    assert kinds(graph, views=True) == ["GroupNormalization"]
    assert graph.nodes[0].inputs == ("x", "w", "b")
    assert graph.nodes[0].attributes["num_groups"] == 4


@pytest.mark.parametrize(("build", "transposed"), [(linear_script, 1), (linear_dynamo, 0)])
def test_linear_reads_the_parameter_itself(build: Build, transposed: int) -> None:
    node = only(fuse(spelled(build, SHAPE)), "Linear")
    assert node.inputs == ("x", "w", "b")
    assert node.attributes["transposed_weight"] == transposed


@pytest.mark.parametrize("trans_b", [0, 1])
def test_gemm_of_a_weight_is_linear(trans_b: int) -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        weight = s.parameter((4, 16) if trans_b else (16, 4), "w")
        return s("Gemm", x, weight, s.parameter((4,), "b"), transB=trans_b)

    assert only(fuse(spelled(build, (8, 16))), "Linear").attributes["transposed_weight"] == trans_b


def test_gemm_with_a_factor_stays() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        return s("Gemm", x, s.parameter((16, 4), "w"), s.parameter((4,), "b"), alpha=0.5)

    assert kinds(fuse(spelled(build, (8, 16)))) == ["Gemm"]


def test_a_bias_of_another_length_is_no_bias() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        return s("Add", s("MatMul", x, s.parameter((16, 4), "w")), s.parameter((5, 4), "position"))

    assert kinds(fuse(spelled(build, SHAPE))) == ["Linear", "Add"]


def test_addcmul_is_one_kernel_as_exported_and_three_as_an_author_would_write_it() -> None:
    def exported(s: Spelling, x: Tensor) -> Tensor:
        bias, weight = s.parameter((16,), "b"), s.parameter((16,), "w")
        return s("Add", bias, s("Mul", s("Mul", weight, x), [1.0]))

    def by_hand(s: Spelling, x: Tensor) -> Tensor:
        return s("Add", s("Mul", s("Mul", s.parameter((16,), "w"), x), 0.5), s.parameter((16,), "b"))

    assert kinds(fuse(spelled(exported, SHAPE))) == ["Addcmul"]
    assert kinds(fuse(spelled(by_hand, SHAPE))) == ["Mul", "Mul", "Add"]


def test_a_block_whose_inside_is_read_elsewhere_stays() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        gate = s("Sigmoid", x)
        return s("Add", s("Mul", x, gate), gate)

    assert kinds(fuse(spelled(build, SHAPE))) == ["Sigmoid", "Mul", "Add"]


def test_a_block_whose_inside_is_a_graph_output_stays() -> None:
    s = Spelling()
    x = s.input("x", SHAPE)
    gate = s("Sigmoid", x)

    assert kinds(fuse(read_graph(s.build([gate, s("Mul", x, gate)])))) == ["Sigmoid", "Mul"]


def test_statistics_of_a_training_mode_batch_norm_cost_nothing() -> None:
    """Weight standardisation: mean and variance are spelled in front of the BatchNormalization."""

    def build(s: Spelling, x: Tensor) -> Tensor:
        weight = s("Reshape", s.parameter((16, 3, 3, 3), "w"), [1, 16, 27])
        rows = s("Transpose", weight, perm=[0, 2, 1])
        mean = s("ReduceMean", rows, axes=[0, 1], keepdims=0)
        centred = s("Sub", rows, s("ReduceMean", rows, axes=[0, 1], keepdims=1))
        variance = s("ReduceMean", s("Mul", centred, centred), axes=[0, 1], keepdims=0)
        statistics = (s.parameter((16,), "gain"), s.constant([0.0] * 16), mean, variance)
        normed, _, _ = s.op("BatchNormalization", [weight, *statistics], 3, training_mode=1)
        return s("Conv", x, s("Reshape", normed, [16, 3, 3, 3]), kernel_shape=[3, 3])

    graph = fuse(spelled(build, (2, 3, 8, 8), opset=17))
    assert kinds(graph) == ["BatchNormalization", "Conv"]
    assert graph.nodes[1].attributes["training_mode"] == 1


def test_shape_arithmetic_identities_and_casts_to_the_same_type_vanish() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        rows = s("Gather", s("Shape", x), s.constant(0), axis=0)
        shape = s("Concat", s("Unsqueeze", rows, [0]), [80], axis=0)
        kept = s("Cast", s("Identity", x), to=1)
        return s("Relu", s("Reshape", kept, shape))

    assert kinds(fuse(spelled(build, SHAPE)), views=True) == ["Reshape", "Relu"]


def check_order(graph: Graph) -> None:
    known = {*graph.inputs, *graph.parameters, *graph.buffers, *graph.constants}
    for node in graph.nodes:
        assert known.issuperset(name for name in node.inputs if name), node
        known.update(node.outputs)
    assert known.issuperset(graph.outputs)
    assert known.issubset(graph.values.keys() | graph.constants.keys())


@pytest.mark.parametrize("runtime", list(Runtime))
@pytest.mark.parametrize("build", [gelu_tanh_script, layer_norm, group_norm, linear_script])
def test_the_result_is_a_graph_again_and_a_second_pass_changes_nothing(
    build: Build, runtime: Runtime
) -> None:
    shape = (2, 16, 8, 8) if build is group_norm else SHAPE
    once = fuse(spelled(build, shape, opset=14), runtime)
    check_order(once)
    assert fuse(once, runtime).nodes == once.nodes

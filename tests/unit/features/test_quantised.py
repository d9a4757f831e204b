"""Quantise-dequantise graphs: integer products when compiled for inference, as written otherwise."""

from __future__ import annotations

from predictor.features.dtype import Compute, DType
from predictor.features.graph import Graph
from predictor.features.programs.program import build_program
from predictor.features.programs.work import Family, OpWork
from predictor.types import Mode, Optimizer, Precision, Runtime
from tests.unit.features.graphs import Sketch


def works(graph: Graph, mode: Mode = Mode.INFER, runtime: Runtime = Runtime.COMPILED) -> list[OpWork]:
    program = build_program(
        graph,
        mode=mode,
        precision=Precision.FP16 if runtime is Runtime.COMPILED else Precision.FP32,
        optimizer=Optimizer.NONE,
        runtime=runtime,
    )
    return [op.work for op in program.ops]


def quantised(s: Sketch, name: str, shape: tuple[int, ...]) -> str:
    scale, zero = s.buffer("scale." + name), s.buffer("zero." + name, dtype=DType.INT8)
    return s.node("QuantizeLinear", [name, scale, zero], shape, dtype=DType.INT8)


def dequantised(s: Sketch, name: str, shape: tuple[int, ...]) -> str:
    scale = s.buffer("scale." + name)
    return s.node("DequantizeLinear", [name, scale], shape)


def layer(*, weight_in_graph: bool = False, second_reader: bool = False) -> Graph:
    """x -> Q -> DQ -> Conv(., DQ(w)) -> Relu -> Q -> DQ."""
    s = Sketch()
    data = (1, 8, 6, 6)
    x = dequantised(s, quantised(s, s.input("x", *data), data), data)
    shape = (16, 8, 3, 3)
    if weight_in_graph:
        stored = quantised(s, s.parameter("w", *shape), shape)
    else:
        stored = s.buffer("w", *shape, dtype=DType.INT8)
    out = (1, 16, 4, 4)
    y = s.node("Conv", [x, dequantised(s, stored, shape)], out, kernel_shape=(3, 3))
    activated = s.node("Relu", [y], out)
    result = dequantised(s, quantised(s, activated, out), out)
    return s.graph(result, *([y] if second_reader else []))


def test_a_compiled_layer_multiplies_integers() -> None:
    (convolution,) = [work for work in works(layer()) if work.family is Family.CONVOLUTION]
    assert convolution.compute is Compute.INT8
    # One byte each: 288 inputs, 1152 weights, 256 results.
    assert (convolution.read_bytes, convolution.write_bytes) == (288 + 1152, 256)
    assert convolution.parameter_bytes == 1152
    # The input's quantisation and the result's dequantisation are left.
    assert [work.kind for work in works(layer())] == ["quantize", "conv", "dequantize"]


def test_a_weight_quantised_in_the_graph_is_stored() -> None:
    kinds = [work.kind for work in works(layer(weight_in_graph=True))]
    assert kinds == ["quantize", "conv", "dequantize"]


def test_a_result_with_other_readers_stays_a_float() -> None:
    found = works(layer(second_reader=True))
    (convolution,) = [work for work in found if work.family is Family.CONVOLUTION]
    assert convolution.compute is Compute.INT8
    assert convolution.write_bytes == 2 * 256


def test_eager_frameworks_run_what_is_written() -> None:
    found = works(layer(), runtime=Runtime.EAGER)
    (convolution,) = [work for work in found if work.family is Family.CONVOLUTION]
    assert convolution.compute is Compute.FP32
    assert [work.kind for work in found].count("dequantize") == 3


def test_training_keeps_the_floats() -> None:
    found = works(layer(weight_in_graph=True), Mode.TRAIN)
    assert {work.compute for work in found if work.family is Family.CONVOLUTION} == {Compute.FP16}
    assert len([work for work in found if work.family is Family.CONVOLUTION]) >= 2


def test_weights_of_few_bits_are_read_packed() -> None:
    s = Sketch()
    x = s.input("x", 4, 32)
    w = dequantised(s, s.buffer("w", 32, 16, dtype=DType.INT4), (32, 16))
    (product,) = [work for work in works(s.graph(s.node("MatMul", [x, w], (4, 16)))) if work.matrix_flops]
    assert product.compute is Compute.FP16
    # 128 activations of 2 bytes, 512 weights of half a byte.
    assert product.read_bytes == 256 + 256
    assert product.parameter_bytes == 256

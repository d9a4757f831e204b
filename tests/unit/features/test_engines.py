"""What each runtime makes of the same small graphs: which kernels run, and what they move."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from predictor.errors import InvalidRequest
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.programs.program import build_program
from predictor.features.programs.work import Program
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime

EAGER, COMPILED = Runtime.EAGER, Runtime.COMPILED
ORT, TRT = Runtime.ONNXRUNTIME, Runtime.TENSORRT
C, SIDE, BATCH = 8, 6, 2
IMAGE = BATCH * C * SIDE * SIDE


def program(data: bytes, runtime: Runtime, precision: Precision = Precision.FP32) -> Program:
    return build_program(
        read_graph(data, batch=BATCH),
        mode=Mode.INFER,
        precision=precision,
        optimizer=Optimizer.NONE,
        runtime=runtime,
        strict=True,
    )


def kernels(data: bytes, runtime: Runtime) -> list[str]:
    return [op.op_type for op in program(data, runtime).ops]


def moved(data: bytes, runtime: Runtime) -> int:
    return sum(op.work.moved_bytes for op in program(data, runtime).ops)


def image(b: GraphBuilder) -> Tensor:
    return b.input("image", ("batch", C, SIDE, SIDE))


def residual_block(activation: str = "Relu") -> bytes:
    """conv, norm, activation; conv, norm, added to the input, activation."""
    b = GraphBuilder()
    x = image(b)
    y = b.op(activation, [b.batch_norm(b.conv(x, C, kernel=3))])
    y = b.op(activation, [b.add(b.batch_norm(b.conv(y, C, kernel=3)), x)])
    return b.build([y])


CONV = C * C * 9
GOLDEN = {
    EAGER: ["Conv", "BatchNormalization", "Relu", "Conv", "BatchNormalization", "Add", "Relu"],
    COMPILED: ["Conv", "FusedPointwise", "Conv", "FusedPointwise"],
    ORT: ["FusedProduct", "FusedProduct"],
    TRT: ["FusedProduct", "FusedProduct"],
}


@pytest.mark.parametrize("runtime", list(Runtime))
def test_kernels_of_a_residual_block(runtime: Runtime) -> None:
    assert kernels(residual_block(), runtime) == GOLDEN[runtime]


@pytest.mark.parametrize("runtime", [ORT, TRT])
def test_a_folded_block_moves_operands_once(runtime: Runtime) -> None:
    found = program(residual_block(), runtime)
    first, second = (op.work for op in found.ops)
    # Input, weight and shift are read, the result is written; the second reads what is added as well.
    assert first.read_bytes == 4 * (IMAGE + CONV + C)
    assert second.read_bytes == 4 * (2 * IMAGE + CONV + C)
    assert first.write_bytes == second.write_bytes == 4 * IMAGE
    products = 2 * BATCH * SIDE * SIDE * CONV
    assert first.matrix_flops == second.matrix_flops == products
    # The shift and the ReLU; the addition too.
    assert (first.vector_flops, second.vector_flops) == (2 * IMAGE, 3 * IMAGE)
    assert all(op.work.launch_count == 1 for op in found.ops)


def test_what_was_folded_is_not_kept_but_still_counted() -> None:
    eager, engine = program(residual_block(), EAGER), program(residual_block(), ORT)
    assert engine.parameter_count == eager.parameter_count == 2 * (CONV + 2 * C)
    assert engine.memory.parameter_bytes + engine.memory.buffer_bytes == 4 * 2 * (CONV + C)
    assert eager.memory.parameter_bytes + eager.memory.buffer_bytes == 4 * 2 * (CONV + 4 * C)


def test_engines_differ_in_the_activations_that_they_take_over() -> None:
    assert kernels(residual_block("HardSwish"), ORT) == [
        *("FusedProduct", "HardSwish", "FusedProduct", "Add", "HardSwish"),
    ]
    assert kernels(residual_block("HardSwish"), TRT) == ["FusedProduct", "FusedProduct"]


def test_a_norm_whose_input_others_read_stays() -> None:
    b = GraphBuilder()
    y = b.conv(image(b), C, kernel=1)
    data = b.build([b.batch_norm(y), b.relu(y)])
    assert sorted(kernels(data, ORT)) == ["BatchNormalization", "Conv", "Relu"]


def transformer(gelu: str = "none") -> bytes:
    b = GraphBuilder()
    x = b.input("x", ("batch", 16, 32))
    y = b.layer_norm(x)
    q, k, v = b.split(b.linear(y, 96), 3, axis=-1)
    heads = [b.transpose(b.reshape(part, [0, 0, 4, 8]), [0, 2, 1, 3]) for part in (q, k, v)]
    mixed = b.attention(*heads)
    x = b.add(x, b.linear(b.reshape(b.transpose(mixed, [0, 2, 1, 3]), [0, 0, 32]), 32))
    y = b.linear(b.gelu(b.linear(b.layer_norm(x), 64), approximate=gelu), 32)
    return b.build([b.layer_norm(b.add(x, y))])


TRANSFORMER = {
    EAGER: [
        # Queries, keys and values are views of one tensor, which no batch of matrices can be.
        *("LayerNormalization", "Linear", "Contiguous", "Contiguous", "MatMul", "Mul", "Softmax"),
        *("Contiguous", "MatMul", "Contiguous", "Linear", "Add", "LayerNormalization"),
        *("Linear", "Gelu", "Linear", "Add", "LayerNormalization"),
    ],
    # Attention by its pattern; heads are taken where they are.
    ORT: [
        *("LayerNormalization", "Linear", "Attention", "Linear", "SkipLayerNormalization"),
        *("Linear", "BiasGelu", "Linear", "SkipLayerNormalization"),
    ],
    TRT: [
        *("LayerNormalization", "Linear", "Attention", "FusedProduct", "LayerNormalization"),
        *("FusedProduct", "FusedProduct", "LayerNormalization"),
    ],
}


@pytest.mark.parametrize("runtime", [EAGER, ORT, TRT])
def test_kernels_of_a_transformer_block(runtime: Runtime) -> None:
    assert kernels(transformer(), runtime) == TRANSFORMER[runtime]


def test_the_sum_of_a_joined_norm_is_written_where_it_is_read_again() -> None:
    found = program(transformer(), ORT)
    first, last = (op.work for op in found.ops if op.op_type == "SkipLayerNormalization")
    size = 4 * BATCH * 16 * 32
    assert first.write_bytes == 2 * size
    assert last.write_bytes == size


def test_the_bias_moves_into_the_activation() -> None:
    work = next(op.work for op in program(transformer(), ORT).ops if op.op_type == "BiasGelu")
    assert work.read_bytes == 4 * (BATCH * 16 * 64 + 64)


@pytest.mark.parametrize(("runtime", "expected"), [(EAGER, 0), (ORT, 3), (TRT, 1)])
def test_cuts_and_transpositions_copy_where_tensors_have_no_strides(runtime: Runtime, expected: int) -> None:
    b = GraphBuilder()
    x = b.input("x", ("batch", 8, 12))
    first, second = b.split(x, 2, axis=-1)
    turned = b.transpose(first, [0, 2, 1])
    data = b.build([b.transpose(b.slice(second, 0, 4, axis=1), [2, 0, 1]), b.matmul(turned, second)])
    found = program(data, runtime)
    # A Split, a Slice and one Transpose; that of a product's operand runs nothing. TensorRT joins the moves.
    assert sum(op.op_type != "MatMul" for op in found.ops) == expected


def test_weights_alone_are_computed_beforehand() -> None:
    b = GraphBuilder()
    x = b.input("x", ("batch", 16))
    weight = b.parameter((16, 16), "w")
    scaled = b.mul(weight, b.parameter((16,), "gain"))
    data = b.build([b.matmul(x, scaled)])
    assert kernels(data, EAGER) == ["Mul", "Linear"]
    assert kernels(data, ORT) == kernels(data, TRT) == ["Linear"]
    assert program(data, ORT).memory.parameter_bytes == 4 * 256
    assert program(data, ORT).parameter_count == 256 + 16


@pytest.mark.parametrize("runtime", [ORT, TRT])
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.AMP])
def test_other_precisions_fuse_alike(runtime: Runtime, precision: Precision) -> None:
    works = program(residual_block(), runtime, precision).ops
    assert len({op.node for op in works if op.op_type == "FusedProduct"}) == 2


@pytest.mark.parametrize("runtime", [ORT, TRT])
def test_engines_do_not_train(runtime: Runtime) -> None:
    with pytest.raises(InvalidRequest, match="runs inference only"):
        build_program(
            read_graph(residual_block(), batch=BATCH),
            mode=Mode.TRAIN,
            precision=Precision.FP32,
            optimizer=Optimizer.SGD,
            runtime=runtime,
        )


def test_each_runtime_moves_at_most_what_the_one_before_moves() -> None:
    order: Sequence[Runtime] = (EAGER, COMPILED, TRT)
    for data in (residual_block(), transformer()):
        found = [moved(data, runtime) for runtime in order]
        assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("runtime", "count"), [(ORT, 2), (TRT, 0), (Runtime.EAGER, 2), (Runtime.COMPILED, 0)]
)
def test_who_lays_images_itself_converts_none(runtime: Runtime, count: int) -> None:
    for data in (residual_block(), fused_block()):
        works = program(data, runtime, Precision.FP16).ops
        assert sum(op.work.kind == "image_conversion" for op in works) == count


def fused_block() -> bytes:
    """Two convolutions as ONNX Runtime's own optimiser writes them."""
    b = GraphBuilder()
    y = image(b)
    for _ in range(2):
        weight = b.parameter((C, C, 3, 3))
        y = b.op("FusedConv", [y, weight], domain="com.microsoft", activation="Relu", pads=[1, 1, 1, 1])
    return b.build([y])

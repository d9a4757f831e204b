"""Hand-derived cases of the forward rules of ops that move bytes: norms, elements, copies, pooling."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.features.dtype import DType
from predictor.features.programs.op_view import OpView
from predictor.features.programs.work import (
    Contraction,
    Elements,
    Family,
    Rows,
)
from tests.unit.features.graphs import view
from tests.unit.features.ops.forward import check, only, work_of


def test_layer_norm() -> None:
    op = view(
        "LayerNormalization", [(2, 3, 8), (8,), (8,)], [(2, 3, 8)], attributes={"axis": -1}, weights=[1, 2]
    )
    check(
        only(op),
        family=Family.NORMALIZATION,
        kind="layer_norm",
        shape=Rows(6, 8),
        vector_flops=8 * 48,
        read_bytes=4 * (48 + 16),
        write_bytes=4 * 48,
        parameter_bytes=64,
    )


def test_layer_norm_over_several_axes() -> None:
    op = view("LayerNormalization", [(2, 3, 8), (3, 8)], [(2, 3, 8)], attributes={"axis": 1})
    assert only(op).shape == Rows(2, 24)


def test_batch_norm_scales_in_inference_and_takes_statistics_in_training() -> None:
    shapes: list[Any] = [(4, 8, 5, 5), (8,), (8,), (8,), (8,)]
    infer = only(view("BatchNormalization", shapes, [(4, 8, 5, 5)]))
    first, second = work_of(view("BatchNormalization", shapes, [(4, 8, 5, 5)], training=True))
    check(infer, kind="batch_norm_inference", vector_flops=2 * 800, shape=Rows(8, 100))
    check(first, kind="batch_norm_statistics", vector_flops=4 * 800, read_bytes=3200, write_bytes=4 * 16)
    check(second, kind="batch_norm", vector_flops=4 * 800, shape=Rows(8, 100), read_bytes=4 * 816)


@pytest.mark.parametrize(
    ("op_type", "attributes", "rows"),
    [
        ("InstanceNormalization", {}, Rows(32, 25)),
        ("GroupNormalization", {"num_groups": 2}, Rows(8, 100)),
        ("RMSNormalization", {"axis": -1}, Rows(160, 5)),
        ("LpNormalization", {"axis": 1}, Rows(100, 8)),
    ],
)
def test_rows_of_the_other_norms(op_type: str, attributes: Any, rows: Rows) -> None:
    op = view(op_type, [(4, 8, 5, 5), (8,), (8,)], [(4, 8, 5, 5)], attributes=attributes, opset=23)
    assert work_of(op)[-1].shape == rows


def test_softmax_rows_by_opset() -> None:
    shapes: list[Any] = [(2, 3, 4, 5)]
    new = only(view("Softmax", shapes, shapes, attributes={"axis": 1}))
    old = only(view("Softmax", shapes, shapes, attributes={"axis": 2}, opset=11))
    assert new.shape == Rows(40, 3)
    assert old.shape == Rows(6, 20)
    assert new.vector_flops == 5 * 120


@pytest.mark.parametrize("op_type", ["Relu", "Tanh", "Exp", "Neg", "Abs", "Erf", "Sqrt"])
def test_unary_ops_cost_one_flop_an_element(op_type: str) -> None:
    work = only(view(op_type, [(3, 5)], [(3, 5)]))
    check(work, family=Family.ELEMENTWISE, vector_flops=15, read_bytes=60, write_bytes=60, shape=Elements(15))
    assert work.kind == op_type.lower()


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Pow"])
def test_binary_ops_read_a_broadcast_operand_once(op_type: str) -> None:
    work = only(view(op_type, [(4, 8), (8,)], [(4, 8)]))
    check(work, kind=op_type.lower(), read_bytes=4 * 40, write_bytes=4 * 32, vector_flops=32)


def test_square_reads_its_operand_once() -> None:
    op = view("Mul", [(4, 8)], [(4, 8)])
    twice = OpView("", "Mul", {}, (op.inputs[0], op.inputs[0]), op.outputs, 21)
    assert only(twice).read_bytes == 4 * 32


@pytest.mark.parametrize(("op_type", "kind"), [("Gelu", "gelu"), ("Silu", "silu"), ("Mish", "mish")])
def test_fused_activations(op_type: str, kind: str) -> None:
    work = only(view(op_type, [(8,)], [(8,)], domain="perfcast"))
    check(work, kind=kind, launch_count=1, read_bytes=32, write_bytes=32)


def test_sum_of_many_runs_one_kernel_per_further_operand() -> None:
    works = work_of(view("Sum", [(8,)] * 4, [(8,)]))
    assert [work.read_bytes for work in works] == [64, 64, 64]


def test_comparison_writes_bytes() -> None:
    work = only(view("Greater", [(16,), (16,)], [(16,)], output_dtypes={0: DType.BOOL}))
    check(work, read_bytes=128, write_bytes=16, element_bits=32)


def test_where_reads_condition_and_branches() -> None:
    work = only(view("Where", [(16,), (16,), (16,)], [(16,)], input_dtypes={0: DType.BOOL}))
    check(work, read_bytes=16 + 128, write_bytes=64)


def test_fused_group_pays_only_its_border() -> None:
    op = view(
        "FusedPointwise",
        [(4, 8), (8,)],
        [(4, 8)],
        domain="perfcast",
        attributes={"kinds": "Add,Relu", "flops": 64, "op_count": 2},
    )
    check(only(op), read_bytes=4 * 40, write_bytes=4 * 32, vector_flops=64, launch_count=1)


@pytest.mark.parametrize(
    "op_type", ["Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Expand", "Slice", "Split"]
)
def test_views_run_nothing(op_type: str) -> None:
    assert work_of(view(op_type, [(4, 8), (2,)], [(8, 4)], input_dtypes={1: DType.INT64})) == ()


def test_transpose_copies_unless_marked_or_trivial() -> None:
    shapes: list[Any] = [(2, 3, 4)]
    copied = only(view("Transpose", shapes, [(2, 4, 3)], attributes={"perm": (0, 2, 1)}))
    check(copied, family=Family.COPY, kind="transpose", read_bytes=96, write_bytes=96, vector_flops=0)
    marked = view("Transpose", shapes, [(2, 4, 3)], attributes={"perm": (0, 2, 1), "perfcast_view": 1})
    trivial = view("Transpose", [(2, 1, 4)], [(1, 2, 4)], attributes={"perm": (1, 0, 2)})
    assert work_of(marked) == work_of(trivial) == ()


def test_copies() -> None:
    concat = only(view("Concat", [(2, 3), (2, 5)], [(2, 8)], attributes={"axis": 1}))
    check(concat, family=Family.COPY, kind="concat", read_bytes=64, write_bytes=64)
    cast = only(view("Cast", [(8,)], [(8,)], output_dtypes={0: DType.FLOAT16}))
    check(cast, kind="cast", read_bytes=32, write_bytes=16)
    assert work_of(view("Cast", [(8,)], [(8,)])) == ()
    pad = only(view("Pad", [(1, 4, 4), (6,)], [(1, 6, 6)], input_dtypes={1: DType.INT64}))
    check(pad, read_bytes=64, write_bytes=144)
    contiguous = only(view("Contiguous", [(8,)], [(8,)], domain="perfcast"))
    check(contiguous, read_bytes=32, write_bytes=32)


def test_dropout_only_in_training() -> None:
    assert work_of(view("Dropout", [(8,)], [(8,)])) == ()
    check(only(view("Dropout", [(8,)], [(8,)], training=True)), read_bytes=32, write_bytes=32 + 8)


def test_embedding_reads_the_rows_it_picks() -> None:
    op = view("Gather", [(1000, 16), (2, 5)], [(2, 5, 16)], input_dtypes={1: DType.INT64}, weights=[0])
    check(
        only(op),
        family=Family.GATHER,
        kind="embedding",
        read_bytes=4 * 160 + 8 * 10,
        write_bytes=4 * 160,
        parameter_bytes=4 * 160,
    )


def test_known_single_index_is_a_view_and_an_unknown_one_is_not() -> None:
    shapes: list[Any] = [(2, 5, 8), ()]
    known = view(
        "Gather", shapes, [(2, 8)], attributes={"axis": 1}, input_dtypes={1: DType.INT64}, constants={1: (0,)}
    )
    unknown = view("Gather", shapes, [(2, 8)], attributes={"axis": 1}, input_dtypes={1: DType.INT64})
    assert work_of(known) == ()
    assert only(unknown).kind == "gather"


def test_scatter_copies_then_writes_updates() -> None:
    op = view("ScatterND", [(10, 4), (3, 1), (3, 4)], [(10, 4)], input_dtypes={1: DType.INT64})
    copy, scatter = work_of(op)
    check(copy, read_bytes=160, write_bytes=160)
    check(scatter, read_bytes=48 + 24, write_bytes=48)


@pytest.mark.parametrize(
    ("op_type", "kind"), [("ReduceMean", "mean"), ("ReduceSum", "sum"), ("ReduceMax", "max")]
)
def test_reductions(op_type: str, kind: str) -> None:
    work = only(view(op_type, [(4, 8, 5)], [(4, 1, 5)]))
    check(work, family=Family.REDUCTION, kind=kind, shape=Rows(20, 8), vector_flops=160, read_bytes=640)


def test_top_k_and_arg_max_and_running_sum() -> None:
    top = view("TopK", [(4, 100), (1,)], [(4, 5), (4, 5)], output_dtypes={1: DType.INT64})
    check(only(top), shape=Rows(4, 100), write_bytes=4 * 20 + 8 * 20)
    arg = view("ArgMax", [(4, 100)], [(4, 1)], output_dtypes={0: DType.INT64})
    check(only(arg), shape=Rows(4, 100), write_bytes=32)
    scan = view("CumSum", [(4, 6), ()], [(4, 6)], input_dtypes={1: DType.INT64}, constants={1: (1,)})
    check(only(scan), shape=Rows(4, 6))


def test_pooling() -> None:
    op = view("MaxPool", [(1, 2, 8, 8)], [(1, 2, 4, 4)], attributes={"kernel_shape": (3, 3)})
    check(only(op), family=Family.POOLING, kind="max_pool", vector_flops=32 * 9, write_bytes=4 * 32)
    training = view(
        "MaxPool", [(1, 2, 8, 8)], [(1, 2, 4, 4)], attributes={"kernel_shape": (3, 3)}, training=True
    )
    assert only(training).write_bytes == (4 + 8) * 32
    whole = only(view("GlobalAveragePool", [(2, 3, 7, 7)], [(2, 3, 1, 1)]))
    check(whole, family=Family.REDUCTION, shape=Rows(6, 49), vector_flops=294)


def test_resize_by_mode() -> None:
    shapes: list[Any] = [(1, 2, 4, 4), None, (4,)]
    nearest = only(view("Resize", shapes, [(1, 2, 8, 8)], attributes={"mode": "nearest"}))
    linear = only(view("Resize", shapes, [(1, 2, 8, 8)], attributes={"mode": "linear"}))
    check(nearest, vector_flops=0, read_bytes=128, write_bytes=512)
    check(linear, vector_flops=2 * 4 * 128, kind="resize_linear")
    assert work_of(view("Resize", shapes, [(1, 2, 4, 4)])) == ()


@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers(op_type: str, gates: int) -> None:
    shapes: list[Any] = [(10, 2, 6), (2, gates * 8, 6), (2, gates * 8, 8)]
    work = only(view(op_type, shapes, [(10, 2, 2, 8)]))
    check(
        work,
        family=Family.RECURRENT,
        shape=Contraction(20, 2, gates * 8, 14),
        matrix_flops=2 * 20 * 2 * gates * 8 * 14,
    )


def test_quantisation() -> None:
    quantize = view(
        "QuantizeLinear",
        [(16,), (), ()],
        [(16,)],
        input_dtypes={2: DType.INT8},
        output_dtypes={0: DType.INT8},
    )
    check(only(quantize), kind="quantize", write_bytes=16, vector_flops=64)
    dynamic = view(
        "DynamicQuantizeLinear", [(16,)], [(16,), (), ()], output_dtypes={0: DType.INT8, 2: DType.INT8}
    )
    assert [work.kind for work in work_of(dynamic)] == ["max", "quantize"]


def test_shapes_and_constants_run_nothing_and_generators_write() -> None:
    assert work_of(view("Shape", [(4, 8)], [(2,)], output_dtypes={0: DType.INT64})) == ()
    assert work_of(view("Constant", [], [(8,)])) == ()
    check(only(view("RandomNormal", [], [(8,)])), read_bytes=0, write_bytes=32)


def test_cross_entropy_is_a_log_softmax_and_a_sum() -> None:
    op = view(
        "SoftmaxCrossEntropyLoss",
        [(6, 100), (6,)],
        [()],
        attributes={"reduction": "mean"},
        input_dtypes={1: DType.INT64},
    )
    softmax, loss = work_of(op)
    check(softmax, kind="log_softmax", shape=Rows(6, 100), read_bytes=2400, write_bytes=2400)
    check(loss, family=Family.REDUCTION, read_bytes=24 + 48, write_bytes=4)


def test_fourier_transforms() -> None:
    dft = view("DFT", [(2, 16, 1)], [(2, 16, 2)], opset=17, attributes={"axis": 1})
    check(only(dft), shape=Rows(2, 16), vector_flops=2 * 5 * 16 * 4, read_bytes=128, write_bytes=256)
    stft = view("STFT", [(1, 64, 1), (), (16,)], [(1, 4, 9, 2)], input_dtypes={1: DType.INT64})
    check(only(stft), shape=Rows(4, 16), vector_flops=4 * 5 * 16 * 4)


def test_deformable_convolution_samples_then_multiplies() -> None:
    op = view("DeformConv", [(1, 4, 8, 8), (6, 4, 3, 3), (1, 18, 8, 8)], [(1, 6, 8, 8)])
    sample, product = work_of(op)
    check(sample, family=Family.GATHER, write_bytes=4 * 4 * 9 * 64)
    check(product, family=Family.CONVOLUTION, matrix_flops=2 * 6 * 64 * 4 * 9)


def test_unpooling_writes_zeros_then_scatters() -> None:
    op = view("MaxUnpool", [(1, 2, 4, 4), (1, 2, 4, 4)], [(1, 2, 8, 8)], input_dtypes={1: DType.INT64})
    assert [work.kind for work in work_of(op)] == ["fill", "scatter"]

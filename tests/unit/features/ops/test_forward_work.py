"""Hand-derived cases of the forward rules of products, convolutions and attention."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.features.dtype import Compute, DType
from predictor.features.ops.elementwise import nary
from predictor.features.programs.work import (
    AttentionShape,
    Contraction,
    Convolution,
    Family,
    OpWork,
)
from predictor.types import Precision
from tests.unit.features.graphs import view
from tests.unit.features.ops.forward import check, only, work_of


def test_product_with_a_weight_matrix_is_one_large_product() -> None:
    work = only(view("MatMul", [(2, 3, 8), (8, 16)], [(2, 3, 16)], weights=[1]))
    check(
        work,
        family=Family.MATMUL,
        kind="linear",
        shape=Contraction(1, 6, 16, 8),
        matrix_flops=2 * 6 * 16 * 8,
        read_bytes=4 * (48 + 128),
        write_bytes=4 * 96,
        parameter_bytes=4 * 128,
        launch_count=1,
        compute=Compute.FP32,
    )


def test_product_of_activations_is_a_batch_of_products() -> None:
    work = only(view("MatMul", [(2, 4, 5, 8), (2, 4, 8, 7)], [(2, 4, 5, 7)]))
    check(work, family=Family.BATCHED_MATMUL, shape=Contraction(8, 5, 7, 8), matrix_flops=2 * 8 * 5 * 7 * 8)
    assert work.parameter_bytes == 0


def test_broadcast_operand_is_read_once() -> None:
    work = only(view("MatMul", [(6, 5, 8), (1, 8, 7)], [(6, 5, 7)]))
    check(work, shape=Contraction(6, 5, 7, 8), read_bytes=4 * (6 * 40 + 56), write_bytes=4 * 6 * 35)


def test_vector_products() -> None:
    assert only(view("MatMul", [(8,), (8, 3)], [(3,)])).shape == Contraction(1, 1, 3, 8)
    assert only(view("MatMul", [(4, 8), (8,)], [(4,)])).shape == Contraction(1, 4, 1, 8)


@pytest.mark.parametrize(
    ("dtype", "precision", "compute"),
    [
        (DType.FLOAT32, Precision.FP32, Compute.FP32),
        (DType.FLOAT32, Precision.TF32, Compute.TF32),
        (DType.FLOAT16, Precision.AMP, Compute.FP16),
        (DType.BFLOAT16, Precision.BF16, Compute.BF16),
        (DType.FLOAT64, Precision.TF32, Compute.FP64),
        (DType.INT8, Precision.FP32, Compute.INT8),
    ],
)
def test_compute_follows_tensors_and_policy(dtype: DType, precision: Precision, compute: Compute) -> None:
    op = view("MatMul", [(4, 8), (8, 3)], [(4, 3)], dtype=dtype, precision=precision)
    assert only(op).compute is compute


def test_pointwise_work_never_runs_as_tf32() -> None:
    assert only(view("Add", [(4,), (4,)], [(4,)], precision=Precision.TF32)).compute is Compute.FP32


def test_gemm_with_transposed_weight_and_bias() -> None:
    op = view("Gemm", [(6, 8), (16, 8), (16,)], [(6, 16)], attributes={"transB": 1}, weights=[1, 2])
    check(
        only(op),
        shape=Contraction(1, 6, 16, 8),
        matrix_flops=2 * 6 * 16 * 8,
        vector_flops=96,
        parameter_bytes=4 * (128 + 16),
    )


@pytest.mark.parametrize("transposed", [0, 1])
def test_fused_linear(transposed: int) -> None:
    weight = (16, 8) if transposed else (8, 16)
    op = view(
        "Linear",
        [(2, 3, 8), weight, (16,)],
        [(2, 3, 16)],
        domain="perfcast",
        attributes={"transposed_weight": transposed},
        weights=[1, 2],
    )
    check(only(op), shape=Contraction(1, 6, 16, 8), vector_flops=96, launch_count=1)


@pytest.mark.parametrize(
    ("equation", "shapes", "out", "expected"),
    [
        ("bij,bjk->bik", [(3, 4, 5), (3, 5, 6)], (3, 4, 6), Contraction(3, 4, 6, 5)),
        ("bhid,bhjd->bhij", [(2, 3, 4, 8), (2, 3, 5, 8)], (2, 3, 4, 5), Contraction(6, 4, 5, 8)),
        ("...i,ij->...j", [(2, 3, 8), (8, 5)], (2, 3, 5), Contraction(1, 6, 5, 8)),
        ("ij,jk", [(4, 8), (8, 5)], (4, 5), Contraction(1, 4, 5, 8)),
        ("i,i->", [(7,), (7,)], (), Contraction(1, 1, 1, 7)),
    ],
)
def test_einsum(equation: str, shapes: list[Any], out: Any, expected: Contraction) -> None:
    work = only(view("Einsum", shapes, [out], attributes={"equation": equation}))
    assert work.shape == expected
    assert work.matrix_flops == 2 * expected.batch * expected.m * expected.n * expected.k


def test_einsum_of_three_operands_contracts_from_the_left() -> None:
    op = view("Einsum", [(4, 8), (8, 5), (5, 6)], [(4, 6)], attributes={"equation": "ij,jk,kl->il"})
    assert [work.shape for work in work_of(op)] == [Contraction(1, 4, 5, 8), Contraction(1, 4, 6, 5)]


def test_convolution() -> None:
    op = view(
        "Conv",
        [(2, 3, 8, 8), (16, 3, 3, 3)],
        [(2, 16, 4, 4)],
        attributes={"strides": (2, 2), "pads": (1, 1, 1, 1), "kernel_shape": (3, 3)},
        weights=[1],
    )
    check(
        only(op),
        family=Family.CONVOLUTION,
        kind="conv",
        matrix_flops=2 * 2 * 16 * 16 * 3 * 9,
        read_bytes=4 * (2 * 3 * 64 + 16 * 27),
        write_bytes=4 * 2 * 16 * 16,
        parameter_bytes=4 * 16 * 27,
        shape=Convolution(2, 3, 16, 1, (8, 8), (4, 4), (3, 3), (2, 2), (1, 1)),
    )


@pytest.mark.parametrize(
    ("groups", "kind", "flops"),
    [
        (1, "conv", 2 * 16 * 8 * 8 * 9),
        (2, "grouped_conv", 2 * 16 * 32 * 9),
        (8, "depthwise_conv", 2 * 16 * 8 * 9),
    ],
)
def test_grouped_convolutions(groups: int, kind: str, flops: int) -> None:
    op = view(
        "Conv",
        [(1, 8, 4, 4), (8, 8 // groups, 3, 3)],
        [(1, 8, 4, 4)],
        attributes={"group": groups, "auto_pad": "SAME_UPPER"},
    )
    check(only(op), kind=kind, matrix_flops=flops)


def test_convolution_in_one_and_three_dimensions() -> None:
    one = only(view("Conv", [(2, 4, 10), (6, 4, 3)], [(2, 6, 8)]))
    three = only(view("Conv", [(1, 2, 4, 4, 4), (5, 2, 3, 3, 3)], [(1, 5, 2, 2, 2)]))
    assert one.matrix_flops == 2 * 2 * 6 * 8 * 4 * 3
    assert three.matrix_flops == 2 * 5 * 8 * 2 * 27
    assert one.shape.strides == (1,)  # type: ignore[union-attr]


def test_convolution_bias_is_a_second_kernel_unless_fused() -> None:
    shapes: list[Any] = [(1, 3, 4, 4), (8, 3, 1, 1), (8,)]
    main, bias = work_of(view("Conv", shapes, [(1, 8, 4, 4)], weights=[1, 2]))
    check(main, matrix_flops=2 * 8 * 16 * 3, vector_flops=0)
    check(bias, family=Family.ELEMENTWISE, kind="bias", read_bytes=4 * (128 + 8), write_bytes=4 * 128)
    assert len(work_of(view("Conv", shapes, [(1, 8, 4, 4)], attributes={"perfcast_fused_bias": 1}))) == 1


@pytest.mark.parametrize(
    ("window", "dtype", "attributes", "kernels"),
    [
        (7, DType.FLOAT16, {}, 1),
        (3, DType.FLOAT16, {}, 2),
        (3, DType.FLOAT16, {"dilations": (2, 2), "pads": (2, 2, 2, 2)}, 1),
        (3, DType.FLOAT32, {}, 1),
        (7, DType.FLOAT16, {"perfcast_channels_last": 1}, 2),
        (7, DType.FLOAT32, {"group": 32}, 2),
    ],
)
def test_torchs_own_depthwise_kernel_adds_the_bias(
    window: int, dtype: DType, attributes: dict[str, Any], kernels: int
) -> None:
    channels = 64
    groups = attributes.get("group", channels)
    shapes: list[Any] = [(1, channels, 8, 8), (channels, channels // groups, window, window), (channels,)]
    pads = (window // 2,) * 4
    op = view(
        "Conv", shapes, [shapes[0]], dtype=dtype, attributes={"group": groups, "pads": pads} | attributes
    )
    assert len(work_of(op)) == kernels


def test_transposed_convolution_counts_input_positions() -> None:
    op = view("ConvTranspose", [(2, 8, 4, 4), (8, 6, 2, 2)], [(2, 6, 8, 8)], attributes={"strides": (2, 2)})
    check(only(op), kind="conv_transpose", matrix_flops=2 * 2 * 16 * 8 * 6 * 4)


def test_quantised_convolution_and_product_run_as_int8() -> None:
    conv = view(
        "QLinearConv",
        [(1, 3, 4, 4), (), (), (8, 3, 1, 1), (), (), (), ()],
        [(1, 8, 4, 4)],
        dtype=DType.INT8,
        input_dtypes={1: DType.FLOAT32, 4: DType.FLOAT32, 6: DType.FLOAT32},
    )
    check(only(conv), compute=Compute.INT8, matrix_flops=2 * 8 * 16 * 3, read_bytes=48 + 24, write_bytes=128)
    product = view(
        "QLinearMatMul",
        [(2, 5, 8), (), (), (8, 6), (), (), (), ()],
        [(2, 5, 6)],
        dtype=DType.INT8,
        input_dtypes={1: DType.FLOAT32, 4: DType.FLOAT32, 6: DType.FLOAT32},
    )
    check(only(product), compute=Compute.INT8, shape=Contraction(1, 10, 6, 8))


def test_attention_keeps_its_scores_on_the_chip() -> None:
    op = view(
        "Attention",
        [(2, 4, 16, 8), (2, 4, 32, 8), (2, 4, 32, 6)],
        [(2, 4, 16, 6)],
        domain="perfcast",
        attributes={"causal": 0, "heads": 4, "kv_heads": 4},
    )
    check(
        only(op),
        family=Family.ATTENTION,
        shape=AttentionShape(2, 4, 4, 16, 32, 8, 6, False),
        matrix_flops=2 * 8 * 16 * 32 * (8 + 6),
        read_bytes=4 * 8 * (16 * 8 + 32 * 8 + 32 * 6),
        write_bytes=4 * 8 * 16 * 6,
    )


def test_causal_attention_computes_the_lower_triangle() -> None:
    shapes: list[Any] = [(1, 2, 16, 8)] * 3
    op = view("Attention", shapes, [(1, 2, 16, 8)], domain="perfcast", attributes={"causal": 1})
    assert only(op).matrix_flops == 2 * 2 * (16 * 17 // 2) * 16


def test_attention_with_folded_heads_and_grouped_keys() -> None:
    op = view(
        "Attention",
        [(2, 16, 32), (2, 16, 8), (2, 16, 8)],
        [(2, 16, 32)],
        opset=23,
        attributes={"q_num_heads": 8, "kv_num_heads": 2},
    )
    assert only(op).shape == AttentionShape(2, 8, 2, 16, 16, 4, 4, False)


def test_joint_projection_and_attention() -> None:
    op = view(
        "Attention",
        [(2, 16, 32), (32, 96), (96,)],
        [(2, 16, 32)],
        domain="com.microsoft",
        opset=1,
        attributes={"num_heads": 4},
        weights=[1, 2],
    )
    product, attention = work_of(op)
    assert product.shape == Contraction(1, 32, 96, 32)
    assert attention.shape == AttentionShape(2, 4, 4, 16, 16, 8, 8, False)


def test_a_sum_of_thousands_of_operands_is_priced_by_their_few_types() -> None:
    works = nary(view("Sum", [(8, 16), (16,)] * 2000, [(8, 16)]))
    assert len(works) == 4000 - 1
    # Of two operands, and of the sum so far with either type.
    assert len({id(work) for work in works}) == 3
    assert [work.read_bytes for work in works[:3]] == [512 + 64, 512 + 512, 512 + 64]


def conv_of(dtype: DType, **attributes: Any) -> tuple[OpWork, ...]:
    groups = attributes.get("group", 1)
    shapes: list[Any] = [(2, 64, 8, 8), (64, 64 // groups, 3, 3)]
    attributes |= {"pads": (1, 1, 1, 1)}
    return work_of(view("Conv", shapes, [(2, 64, 8, 8)], dtype=dtype, attributes=attributes, weights=[1]))


def test_images_one_after_another_are_converted_for_tensor_cores() -> None:
    conversion, main = conv_of(DType.FLOAT16)
    moved = 2 * (2 * 64 * 64 + 64 * 64 * 9 + 2 * 64 * 64)
    check(conversion, family=Family.COPY, kind="image_conversion", read_bytes=moved, write_bytes=moved)
    check(conversion, launch_count=3, host_launches=0, flops=0, parameter_bytes=0)
    assert main.family is Family.CONVOLUTION


@pytest.mark.parametrize(
    ("dtype", "attributes"),
    [
        (DType.FLOAT32, {}),
        (DType.FLOAT16, {"perfcast_channels_last": 1}),
        (DType.FLOAT16, {"perfcast_images_in_place": 1}),
        (DType.FLOAT16, {"group": 64}),
    ],
)
def test_what_no_tensor_core_reads_or_lies_right_is_not_converted(
    dtype: DType, attributes: dict[str, Any]
) -> None:
    assert [work.family for work in conv_of(dtype, **attributes)] == [Family.CONVOLUTION]


def test_images_of_one_point_lie_right_in_either_order() -> None:
    shapes: list[Any] = [(2, 64, 1, 1), (16, 64, 1, 1)]
    assert len(work_of(view("Conv", shapes, [(2, 16, 1, 1)], dtype=DType.FLOAT16))) == 1

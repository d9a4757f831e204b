"""Hand-derived golden cases of the backward rules: kernels, what is saved, what passes through."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.features.dtype import DType
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, Backward, load_rules
from predictor.features.programs.work import Contraction, Family, Phase
from tests.unit.features.graphs import view

load_rules()


def backward_of(op: OpView) -> Backward:
    rule = BACKWARD_RULES.get(op.domain, op.op_type, op.opset)
    assert rule is not None
    found = rule(op)
    assert all(work.phase is Phase.BACKWARD for work in found.works)
    return found


def kinds(found: Backward) -> list[str]:
    return [work.kind for work in found.works]


def test_linear_gradients() -> None:
    op = view(
        "Linear",
        [(6, 8), (16, 8), (16,)],
        [(6, 16)],
        domain="perfcast",
        attributes={"transposed_weight": 1},
        weights=[1, 2],
        gradients=[0, 1, 2],
    )
    found = backward_of(op)
    data, weight, bias = found.works
    assert data.shape == Contraction(1, 6, 8, 16)
    assert weight.shape == Contraction(1, 16, 8, 6)
    assert data.matrix_flops == weight.matrix_flops == 2 * 6 * 8 * 16
    assert (bias.family, bias.kind, bias.read_bytes, bias.write_bytes) == (
        Family.REDUCTION,
        "sum",
        4 * 96,
        64,
    )
    assert set(found.saves) == {"in0", "in1"}


def test_each_gradient_of_a_narrow_convolution_converts_its_operands() -> None:
    shapes = [(2, 32, 8, 8), (16, 32, 3, 3)]
    op = view("Conv", shapes, [(2, 16, 6, 6)], dtype=DType.FLOAT16, weights=[1], gradients=[0, 1])
    found = backward_of(op)
    assert kinds(found) == ["image_conversion", "conv"] * 2
    conversions, gradients = found.works[::2], found.works[1::2]
    assert [work.moved_bytes for work in conversions] == [2 * work.moved_bytes for work in gradients]


def test_first_layer_needs_no_data_gradient_and_keeps_no_weight() -> None:
    op = view("Conv", [(2, 3, 8, 8), (16, 3, 3, 3)], [(2, 16, 6, 6)], weights=[1], gradients=[1])
    found = backward_of(op)
    assert [work.shape.pass_name for work in found.works] == ["weight_gradient"]  # type: ignore[union-attr]
    assert found.saves == ("in0",)


def test_frozen_weight_needs_no_weight_gradient() -> None:
    op = view("MatMul", [(6, 8), (8, 16)], [(6, 16)], gradients=[0])
    found = backward_of(op)
    assert kinds(found) == ["linear_data_gradient"]
    assert found.saves == ("in1",)


def test_convolution_gradients_ask_for_the_forward_flops_each() -> None:
    op = view("Conv", [(2, 4, 8, 8), (16, 4, 3, 3), (16,)], [(2, 16, 6, 6)], gradients=[0, 1, 2])
    found = backward_of(op)
    flops = 2 * 2 * 16 * 36 * 4 * 9
    assert [work.matrix_flops for work in found.works] == [flops, flops, 0]
    assert [work.write_bytes for work in found.works] == [4 * 2 * 4 * 64, 4 * 16 * 36, 64]


def test_batched_product_gradients() -> None:
    op = view("MatMul", [(3, 5, 8), (3, 8, 7)], [(3, 5, 7)], gradients=[0, 1])
    found = backward_of(op)
    assert [work.shape for work in found.works] == [Contraction(3, 5, 8, 7), Contraction(3, 8, 7, 5)]
    assert found.saves == ("in1", "in0")


def test_operand_broadcast_over_the_batch_is_summed() -> None:
    op = view("MatMul", [(3, 5, 8), (1, 8, 7)], [(3, 5, 7)], gradients=[1])
    product, total = backward_of(op).works
    assert product.write_bytes == 4 * 3 * 56
    assert (total.kind, total.read_bytes, total.write_bytes) == ("sum", 4 * 3 * 56, 4 * 56)


def test_einsum_gradients() -> None:
    op = view(
        "Einsum",
        [(2, 3, 4, 8), (2, 3, 5, 8)],
        [(2, 3, 4, 5)],
        attributes={"equation": "bhid,bhjd->bhij"},
        gradients=[0, 1],
    )
    assert [work.shape for work in backward_of(op).works] == [
        Contraction(6, 4, 8, 5),
        Contraction(6, 5, 8, 4),
    ]


def test_attention_gradient_recomputes_the_scores() -> None:
    shapes: list[Any] = [(2, 4, 16, 8)] * 3
    op = view("Attention", shapes, [(2, 4, 16, 8)], domain="perfcast", gradients=[0, 1, 2])
    found = backward_of(op)
    assert found.works[0].matrix_flops == 2 * 8 * 16 * 16 * 5 * 8
    assert set(found.saves) == {"in0", "in1", "in2", "out0"}
    assert found.saved_extra_bytes == 2 * 4 * 16 * 4


@pytest.mark.parametrize(
    ("op_type", "domain", "saved"),
    [
        ("Relu", "", "out0"),
        ("Sigmoid", "", "out0"),
        ("Tanh", "", "out0"),
        ("Exp", "", "out0"),
        ("Gelu", "perfcast", "in0"),
        ("Silu", "perfcast", "in0"),
        ("HardSwish", "", "in0"),
        ("LeakyRelu", "", "out0"),
        ("Clip", "", "in0"),
        ("Erf", "", "in0"),
    ],
)
def test_what_activations_keep(op_type: str, domain: str, saved: str) -> None:
    found = backward_of(view(op_type, [(8,)], [(8,)], domain=domain, gradients=[0]))
    assert found.saves == (saved,)
    (work,) = found.works
    assert (work.read_bytes, work.write_bytes) == (64, 32)


def test_neg_keeps_nothing_and_steps_have_zero_gradients() -> None:
    assert backward_of(view("Neg", [(8,)], [(8,)], gradients=[0])).saves == ()
    assert kinds(backward_of(view("Floor", [(8,)], [(8,)], gradients=[0]))) == ["fill"]


def test_residual_addition_costs_nothing_backward() -> None:
    found = backward_of(view("Add", [(4, 8), (4, 8)], [(4, 8)], gradients=[0, 1]))
    assert found == Backward(passes=("in0", "in1"))


def test_broadcast_bias_is_summed() -> None:
    found = backward_of(view("Add", [(4, 8), (8,)], [(4, 8)], gradients=[0, 1]))
    assert kinds(found) == ["sum"]
    assert found.passes == ("in0",)


def test_subtrahend_is_negated() -> None:
    found = backward_of(view("Sub", [(4, 8), (4, 8)], [(4, 8)], gradients=[0, 1]))
    assert kinds(found) == ["neg"]
    assert found.passes == ("in0",)


def test_mul_keeps_the_operand_of_the_other_gradient() -> None:
    both = backward_of(view("Mul", [(8,), (8,)], [(8,)], gradients=[0, 1]))
    one = backward_of(view("Mul", [(8,), (8,)], [(8,)], gradients=[0]))
    assert kinds(both) == ["mul", "mul"]
    assert set(both.saves) == {"in0", "in1"}
    assert one.saves == ("in1",)


def test_gate_that_was_broadcast_is_summed() -> None:
    found = backward_of(view("Mul", [(2, 8, 4, 4), (2, 8, 1, 1)], [(2, 8, 4, 4)], gradients=[0, 1]))
    assert kinds(found) == ["mul", "mul", "sum"]
    assert found.works[2].read_bytes == 4 * 256


def test_division_and_power() -> None:
    assert kinds(backward_of(view("Div", [(8,), (8,)], [(8,)], gradients=[0]))) == ["div"]
    assert len(backward_of(view("Div", [(8,), (8,)], [(8,)], gradients=[0, 1])).works) == 4
    square = backward_of(view("Pow", [(8,), ()], [(8,)], gradients=[0]))
    assert kinds(square) == ["pow", "mul"]
    assert square.saves == ("in0",)


def test_where_and_max() -> None:
    where = view("Where", [(8,), (8,), (8,)], [(8,)], input_dtypes={0: DType.BOOL}, gradients=[1, 2])
    assert kinds(backward_of(where)) == ["where", "where"]
    assert backward_of(where).saves == ("in0",)
    assert len(backward_of(view("Max", [(8,), (8,)], [(8,)], gradients=[0, 1])).works) == 2


def test_norms_keep_their_input_and_statistics() -> None:
    layer = backward_of(view("LayerNormalization", [(6, 8), (8,), (8,)], [(6, 8)], gradients=[0, 1, 2]))
    sums, data = layer.works
    assert (sums.read_bytes, sums.write_bytes) == (4 * (48 + 48) + 4 * 2 * 6, 4 * 16)
    assert (data.read_bytes, data.write_bytes) == (4 * (48 + 48 + 8) + 4 * 2 * 6, 4 * 48)
    assert layer.saved_extra_bytes == 4 * 2 * 6
    assert layer.saves == ("in0", "in1")
    shapes: list[Any] = [(4, 8, 5, 5), (8,), (8,), (8,), (8,)]
    batch = backward_of(view("BatchNormalization", shapes, [(4, 8, 5, 5)], gradients=[0, 1, 2]))
    assert batch.saved_extra_bytes == 4 * 2 * 8
    frozen = backward_of(view("BatchNormalization", shapes, [(4, 8, 5, 5)], gradients=[0]))
    assert kinds(batch) == kinds(frozen) == ["batch_norm_sums", "batch_norm"]
    assert kinds(backward_of(view("LayerNormalization", [(6, 8), (8,)], [(6, 8)], gradients=[0]))) == [
        "layer_norm"
    ]
    rms = backward_of(view("RMSNormalization", [(6, 8), (8,)], [(6, 8)], opset=23, gradients=[0, 1]))
    assert rms.saved_extra_bytes == 4 * 6


def test_softmax_keeps_its_output() -> None:
    found = backward_of(view("Softmax", [(6, 8)], [(6, 8)], gradients=[0]))
    assert found.saves == ("out0",)
    assert found.works[0].read_bytes == 2 * 4 * 48


def test_dropout_keeps_a_byte_an_element() -> None:
    found = backward_of(view("Dropout", [(8,)], [(8,)], gradients=[0], training=True))
    assert (found.saves, found.saved_extra_bytes) == ((), 8)


def test_max_pool_keeps_indices() -> None:
    op = view("MaxPool", [(1, 2, 8, 8)], [(1, 2, 4, 4)], attributes={"kernel_shape": (2, 2)}, gradients=[0])
    found = backward_of(op)
    assert found.saved_extra_bytes == 8 * 32
    assert found.works[0].write_bytes == 4 * 128


def test_views_pass_their_gradient() -> None:
    for op_type in ("Reshape", "Flatten", "Squeeze"):
        assert backward_of(view(op_type, [(4, 8), None], [(32,)], gradients=[0])) == Backward(passes=("in0",))
    assert backward_of(view("Concat", [(2, 3), (2, 5)], [(2, 8)], gradients=[0, 1])).works == ()


def test_parts_of_a_tensor_cost_the_whole_backward() -> None:
    cut = backward_of(view("Slice", [(4, 8)], [(4, 2)], gradients=[0]))
    assert kinds(cut) == ["fill", "slice"]
    assert cut.works[0].write_bytes == 128
    split = backward_of(view("Split", [(4, 9)], [(4, 3)] * 3, gradients=[0]))
    assert kinds(split) == ["concat"]
    assert (split.works[0].read_bytes, split.works[0].write_bytes) == (144, 144)
    select = view(
        "Gather", [(2, 5, 8), ()], [(2, 8)], constants={1: (0,)}, gradients=[0], attributes={"axis": 1}
    )
    assert kinds(backward_of(select)) == ["fill", "slice"]


def test_expanded_dimensions_are_summed() -> None:
    assert kinds(backward_of(view("Expand", [(1, 8), (2,)], [(4, 8)], gradients=[0]))) == ["sum"]
    assert kinds(backward_of(view("Tile", [(1, 8), (2,)], [(4, 8)], gradients=[0]))) == ["sum"]


def test_embedding_gradient_is_dense() -> None:
    op = view(
        "Gather",
        [(1000, 16), (2, 5)],
        [(2, 5, 16)],
        input_dtypes={1: DType.INT64},
        weights=[0],
        gradients=[0],
    )
    found = backward_of(op)
    assert kinds(found) == ["fill", "sort", "scatter_add"]
    assert found.works[0].write_bytes == 4 * 16000
    assert found.saves == ("in1",)


def test_reductions_spread_the_gradient() -> None:
    assert backward_of(view("ReduceSum", [(4, 8)], [(4, 1)], gradients=[0])).works == ()
    mean = backward_of(view("ReduceMean", [(4, 8)], [(4, 1)], gradients=[0]))
    assert (mean.works[0].read_bytes, mean.works[0].write_bytes) == (16, 128)
    assert backward_of(view("ReduceMax", [(4, 8)], [(4, 1)], gradients=[0])).saves == ("in0", "out0")


def test_recurrent_gradient_is_twice_the_work() -> None:
    op = view("LSTM", [(10, 2, 6), (1, 32, 6), (1, 32, 8)], [(10, 1, 2, 8)], gradients=[0, 1, 2])
    found = backward_of(op)
    assert found.works[0].matrix_flops == 2 * 2 * 10 * 2 * 32 * 14
    assert found.saved_extra_bytes == 10 * 2 * 32 * 4


def test_linear_fused_group_keeps_nothing_and_others_keep_their_inputs() -> None:
    def group(names: str) -> Backward:
        return backward_of(
            view(
                "FusedPointwise",
                [(8,), (8,)],
                [(8,)],
                domain="perfcast",
                attributes={"kinds": names, "flops": 16},
                gradients=[0, 1],
            )
        )

    assert group("Add,Neg").saves == ()
    assert group("Add,Relu").saves == ("out0",)
    assert group("Mul,Sigmoid").saves == ("in0", "in1")
    assert group("Mul,Sigmoid").works[0].vector_flops == 32

"""Attention as exporters and authors spell it: marked call sites, masks, groups of heads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from predictor.features.builder import Tensor
from predictor.features.dtype import DType
from predictor.features.graph import Graph
from predictor.features.lowering.fusion import fuse, recognise
from predictor.features.lowering.lower import release_of_lowering
from predictor.features.reading.reader import read_graph
from predictor.types import Runtime
from tests.unit.features.spelling import Spelling, kinds, only

B, H, L, D = 2, 4, 6, 8
ROOT = 0.59460


def product(s: Spelling, scores: Tensor, v: Tensor) -> Tensor:
    return s("MatMul", s("Softmax", scores, axis=-1), v)


def marked_scores(s: Spelling, q: Tensor, k: Tensor) -> Tensor:
    return s("MatMul", s("Mul", q, ROOT), s("Mul", s("Transpose", k, perm=[0, 1, 3, 2]), ROOT))


def heads(s: Spelling, kv_heads: int = H, kv_length: int = L) -> tuple[Tensor, Tensor, Tensor]:
    kv = (B, kv_heads, kv_length, D)
    return s.input("q", (B, H, L, D)), s.input("k", kv), s.input("v", kv)


def graph_of(build: Callable[[Spelling], Tensor]) -> Graph:
    s = Spelling(opset=18)
    return read_graph(s.build([build(s)]))


def test_the_root_of_the_scale_on_both_operands_marks_the_fused_kernel() -> None:
    def build(s: Spelling) -> Tensor:
        q, k, v = heads(s)
        return product(s, marked_scores(s, q, k), v)

    fused = fuse(graph_of(build))
    node = only(fused, "Attention")
    assert kinds(fused, views=True) == ["Attention"]
    assert node.inputs == ("q", "k", "v")
    assert (node.attributes["causal"], node.attributes["heads"], node.attributes["kv_heads"]) == (0, H, H)


def test_script_exporter_computes_the_scale_in_the_graph() -> None:
    def build(s: Spelling) -> Tensor:
        q, k, v = heads(s)
        width = s("Cast", s("Slice", s("Shape", q), [-1], [2**63 - 1]), to=1)
        scale = s("Div", s.constant([1.0]), s("Sqrt", width))
        keys = s("Mul", s("Transpose", k, perm=[0, 1, 3, 2]), s("Sqrt", scale))
        return product(s, s("MatMul", s("Mul", q, s("Sqrt", scale)), keys), v)

    assert kinds(fuse(graph_of(build)), views=True) == ["Attention"]


def test_dynamo_folds_batch_and_heads_around_the_transposition() -> None:
    def build(s: Spelling) -> Tensor:
        q, k, v = heads(s)
        folded = s("Transpose", s("Reshape", k, [B * H, L, D]), perm=[0, 2, 1])
        keys = s("Mul", s("Reshape", folded, [B, H, D, L]), ROOT)
        return product(s, s("MatMul", s("Mul", q, ROOT), keys), v)

    fused = fuse(graph_of(build))
    assert kinds(fused, views=True) == ["Attention"]
    assert only(fused, "Attention").inputs == ("q", "k", "v")


def test_additive_mask_is_an_operand() -> None:
    def build(s: Spelling) -> Tensor:
        q, k, v = heads(s)
        return product(s, s("Add", marked_scores(s, q, k), s.input("mask", (B, 1, 1, L))), v)

    assert only(fuse(graph_of(build)), "Attention").inputs == ("q", "k", "v", "mask")


def test_boolean_mask_with_its_guard_against_empty_rows() -> None:
    def build(s: Spelling) -> Tensor:
        q, k, v = heads(s)
        allowed = s.input("allowed", (B, 1, L, L), DType.BOOL)
        bias = s("Where", allowed, 0.0, -1e9)
        weights = s("Softmax", s("Add", marked_scores(s, q, k), bias), axis=-1)
        return s("MatMul", s("Where", s("IsNaN", weights), 0.0, weights), v)

    assert kinds(fuse(graph_of(build))) == ["Where", "Attention"]


def causal_bias(s: Spelling, rows: int, columns: int) -> Tensor:
    """The script exporter's spelling of is_causal: a lower triangle of ones, turned into 0 and -inf."""
    ones = s("Expand", s.constant(1.0), [rows, columns])
    return s("Where", s("Equal", s("Trilu", ones, upper=0), 0.0), -1e9, 0.0)


def test_a_square_constant_mask_is_causal_and_its_construction_disappears() -> None:
    def build(s: Spelling) -> Tensor:
        q, k, v = heads(s)
        return product(s, s("Add", marked_scores(s, q, k), causal_bias(s, L, L)), v)

    fused = fuse(graph_of(build))
    assert kinds(fused, views=True) == ["Attention"]
    assert fused.nodes[0].attributes["causal"] == 1
    assert len(fused.nodes[0].inputs) == 3


def test_a_bias_per_head_is_not_causal() -> None:
    def build(s: Spelling) -> Tensor:
        q, k, v = heads(s)
        return product(s, s("Add", marked_scores(s, q, k), s.parameter((1, H, L, L), "bias")), v)

    node = only(fuse(graph_of(build)), "Attention")
    assert node.attributes["causal"] == 0
    assert node.inputs[3] == "bias"


def test_repeated_keys_and_values_are_read_before_the_repetition() -> None:
    def build(s: Spelling) -> Tensor:
        q, k, v = heads(s, kv_heads=2)

        def repeat(x: Tensor) -> Tensor:
            wide = s("Expand", s("Unsqueeze", x, [2]), [B, 2, H // 2, L, D])
            return s("Reshape", wide, [B, H, L, D])

        return product(s, marked_scores(s, q, repeat(k)), repeat(v))

    fused = fuse(graph_of(build))
    assert kinds(fused, views=True) == ["Attention"]
    assert fused.nodes[0].inputs == ("q", "k", "v")
    assert fused.nodes[0].attributes["kv_heads"] == 2


def test_native_operator_of_opset_23() -> None:
    s = Spelling(opset=23)
    q, k, v = heads(s, kv_heads=2)
    graph = read_graph(s.build([s.op("Attention", [q, k, v], is_causal=1)]))
    node = only(fuse(graph), "Attention")
    assert (node.domain, node.attributes["causal"], node.attributes["kv_heads"]) == ("perfcast", 1, 2)


def test_three_dimensions_take_the_decomposed_path() -> None:
    def build(s: Spelling) -> Tensor:
        q, k, v = (s.input(name, (B, L, D)) for name in "qkv")
        keys = s("Mul", s("Transpose", k, perm=[0, 2, 1]), ROOT)
        return product(s, s("MatMul", s("Mul", q, ROOT), keys), v)

    assert kinds(fuse(graph_of(build))) == ["Mul", "Mul", "MatMul", "Softmax", "MatMul"]


def scaled_scores(s: Spelling, q: Tensor, k: Tensor) -> Tensor:
    return s("Div", s("MatMul", q, s("Transpose", k, perm=[0, 1, 3, 2])), 2.8284)


def by_hand(s: Spelling) -> Tensor:
    q, k, v = heads(s)
    return product(s, scaled_scores(s, q, k), v)


def by_hand_with_mask(s: Spelling) -> Tensor:
    """BERT's code."""
    q, k, v = heads(s)
    return product(s, s("Add", scaled_scores(s, q, k), s.input("mask", (B, 1, 1, L))), v)


def by_hand_causal(s: Spelling) -> Tensor:
    """GPT-2's code: a slice of a constant triangle selects."""
    q, k, v = heads(s)
    table = s("Cast", s("Trilu", s("Expand", s.constant(1.0), [1, 1, 16, 16]), upper=0), to=9)
    triangle = s("Slice", s("Slice", table, [0], [L], [2], [1]), [0], [L], [3], [1])
    return product(s, s("Where", triangle, scaled_scores(s, q, k), -1e9), v)


@pytest.mark.parametrize("build", [by_hand, by_hand_with_mask, by_hand_causal])
def test_attention_by_hand_runs_op_by_op_in_eager_mode(build: Callable[[Spelling], Tensor]) -> None:
    eager = kinds(fuse(graph_of(build)))
    assert "Attention" not in eager
    assert eager.count("MatMul") == 2
    assert "Softmax" in eager


def test_a_compiler_makes_one_kernel_of_it() -> None:
    assert kinds(fuse(graph_of(by_hand), Runtime.COMPILED)) == ["Attention"]
    masked = only(fuse(graph_of(by_hand_with_mask), Runtime.COMPILED), "Attention")
    assert masked.inputs == ("q", "k", "v", "mask")
    causal = only(fuse(graph_of(by_hand_causal), Runtime.COMPILED), "Attention")
    assert causal.attributes["causal"] == 1
    assert len(causal.inputs) == 3


@pytest.mark.parametrize(("release", "fused"), [(2.01, False), (2.03, True), (0.0, True)])
def test_compilers_before_torch_2_3_leave_scores_that_a_mask_chooses(release: float, fused: bool) -> None:
    chosen = recognise(graph_of(by_hand_causal), Runtime.COMPILED, release=release)
    added = recognise(graph_of(by_hand_with_mask), Runtime.COMPILED, release=release)
    assert ("Attention" in kinds(chosen)) is fused
    assert "Attention" in kinds(added)


def test_a_compiler_leaves_a_query_that_was_scaled_before_the_product() -> None:
    def build(s: Spelling) -> Tensor:
        """Swin's code."""
        q, k, v = heads(s)
        return product(s, s("MatMul", s("Mul", q, 0.35355), s("Transpose", k, perm=[0, 1, 3, 2])), v)

    assert "Attention" not in kinds(fuse(graph_of(build), Runtime.COMPILED))


def marked(s: Spelling) -> Tensor:
    q, k, v = heads(s)
    return product(s, marked_scores(s, q, k), v)


def test_before_torch_2_the_fused_kernel_was_written_out_with_one_scale() -> None:
    old = recognise(graph_of(marked), Runtime.EAGER, release=1.13)
    assert kinds(old) == ["MatMul", "Mul", "Softmax", "MatMul"]
    scores, scaled = old.nodes[-4:-2]
    assert scores.inputs[0] == "q"
    assert scaled.inputs[0] == scores.outputs[0]
    assert old.values[scaled.outputs[0]].shape == (B, H, L, L)
    assert kinds(recognise(graph_of(marked), Runtime.EAGER, release=2.0)) == ["Attention"]


@pytest.mark.parametrize(
    ("runtime", "release", "told"),
    [
        (Runtime.EAGER, 1.13, 1.0),
        (Runtime.EAGER, 2.04, 0.0),
        (Runtime.COMPILED, 2.04, 2.04),
        (Runtime.ONNXRUNTIME, 1.17, 0.0),
    ],
)
def test_lowering_asks_for_a_release_only_where_it_decides(
    runtime: Runtime, release: float, told: float
) -> None:
    assert release_of_lowering(runtime, release) == told

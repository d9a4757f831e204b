"""Strides: which reshapes are free, and where a framework copies behind the scenes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.features.builder import Tensor
from predictor.features.graph import Graph
from predictor.features.lowering.fusion import recognise
from predictor.features.lowering.strides import axes_by_stride, in_order, is_row_major, reshaped, row_major
from predictor.features.programs.program import build_program
from predictor.features.programs.work import Family
from predictor.features.reading.reader import read_graph
from predictor.types import Layout, Mode, Optimizer, Precision, Runtime
from tests.unit.features.spelling import Spelling, kinds, spelled

B, L, H, D = 2, 6, 4, 8


def copies(graph: Graph) -> list[tuple[int, ...]]:
    return [graph.values[n.outputs[0]].shape for n in graph.nodes if n.op_type == "Contiguous"]


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """A strided array (permuted, sliced) and a new shape of as many elements."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
    array = np.zeros(shape, dtype=np.int8).transpose(draw(st.permutations(range(len(shape)))))
    axis = draw(st.integers(0, len(shape) - 1))
    if array.shape[axis] > 1 and draw(st.booleans()):
        array = np.moveaxis(np.moveaxis(array, axis, 0)[1:], 0, axis)
    rest, new = prod(array.shape), []
    while rest > 1:
        factor = draw(st.sampled_from([n for n in range(2, rest + 1) if rest % n == 0]))
        new.append(factor)
        rest //= factor
    return array.shape, array.strides, tuple(new)


@given(reshapes())
def test_a_reshape_is_a_view_exactly_where_numpy_needs_no_copy(
    case: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    shape, strides, new_shape = case
    base = np.zeros(4096, dtype=np.int8)
    array = np.lib.stride_tricks.as_strided(base, shape, strides)
    view = array.view()
    try:
        view.shape = new_shape
    except AttributeError:
        assert reshaped(shape, strides, new_shape) is None
        return
    found = reshaped(shape, strides, new_shape)
    assert found is not None
    assert all(n == 1 or a == b for n, a, b in zip(new_shape, found, view.strides, strict=True))


def test_order_of_axes() -> None:
    assert row_major((2, 3, 4)) == (12, 4, 1)
    assert in_order((2, 3, 4), (0, 2, 1)) == (12, 1, 3)
    assert axes_by_stride((2, 3, 4), (12, 1, 3)) == (0, 2, 1)
    assert is_row_major((2, 1, 4), (4, 99, 1))


def split_heads(s: Spelling, x: Tensor) -> Tensor:
    return s("Transpose", s("Reshape", x, [0, 0, H, D]), perm=[0, 2, 1, 3])


def merge_heads(s: Spelling, x: Tensor) -> Tensor:
    return s("Reshape", s("Transpose", x, perm=[0, 2, 1, 3]), [0, 0, H * D])


def test_a_product_of_split_heads_copies_both_operands_and_merging_copies_the_result() -> None:
    """What torch.matmul does on [B, H, L, D] views of [B, L, H, D]: batch and heads do not fold."""

    def build(s: Spelling, x: Tensor) -> Tensor:
        q, k = split_heads(s, x), split_heads(s, s("Relu", x))
        scores = s("MatMul", q, s("Transpose", k, perm=[0, 1, 3, 2]))
        return merge_heads(s, s("MatMul", scores, q))

    found = copies(recognise(spelled(build, (B, L, H * D))))
    assert sorted(found) == sorted([(B, H, L, D), (B, H, D, L), (B, H, L, D), (B, L, H, D)])


def test_with_one_sample_heads_need_no_copy() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        q = split_heads(s, x)
        return s("MatMul", q, s("Transpose", q, perm=[0, 1, 3, 2]))

    assert copies(recognise(spelled(build, (1, L, H * D)))) == []


def test_fused_attention_reads_views_and_writes_so_that_merging_is_free() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        q, k, v = (split_heads(s, s(op, x)) for op in ("Relu", "Abs", "Neg"))
        keys = s("Mul", s("Transpose", k, perm=[0, 1, 3, 2]), 0.6)
        weights = s("Softmax", s("MatMul", s("Mul", q, 0.6), keys), axis=-1)
        return merge_heads(s, s("MatMul", weights, v))

    graph = recognise(spelled(build, (B, L, H * D)))
    assert kinds(graph) == ["Relu", "Abs", "Neg", "Attention"]
    assert all(n.attributes["perfcast_view"] == 1 for n in graph.nodes if n.op_type == "Transpose")


@pytest.mark.parametrize(
    ("op_type", "copied"),
    [("Relu", False), ("Softmax", True), ("LayerNormalization", True), ("ReduceMax", False)],
)
def test_which_kernels_take_a_transposed_tensor(op_type: str, copied: bool) -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        turned = s("Transpose", x, perm=[0, 2, 1])
        weights = [s.parameter((L,), "w")] if op_type == "LayerNormalization" else []
        return s(op_type, turned, *weights)

    assert copies(recognise(spelled(build, (B, L, D)))) == ([(B, D, L)] if copied else [])


def test_pointwise_results_keep_the_order_of_the_first_full_operand() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        turned = s("Transpose", x, perm=[0, 2, 1])
        kept = s("Add", s("Relu", turned), s.parameter((L,), "w"))
        return s("Reshape", s("Transpose", kept, perm=[0, 2, 1]), [B, L * D])

    assert copies(recognise(spelled(build, (B, L, D)))) == []


def test_channels_last_flows_through_convolutions() -> None:
    """ConvNeXt: permute, LayerNorm, permute back; the next convolution then runs, and answers, in NHWC."""

    def build(s: Spelling, x: Tensor) -> Tensor:
        for name in ("a", "b"):
            y = s("Transpose", s.conv(x, 16, kernel=3), perm=[0, 2, 3, 1])
            y = s("LayerNormalization", y, s.parameter((16,), name))
            x = s("Add", s("Transpose", y, perm=[0, 3, 1, 2]), x)
        return x

    assert copies(recognise(spelled(build, (B, 16, L, L)))) == [(B, L, L, 16)]


def test_a_slice_of_channels_is_copied_for_a_convolution_only() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        first, second = s.split(x, 2, axis=1)
        return s("Concat", s.conv(first, 8, kernel=3), s("Relu", second), axis=1)

    assert copies(recognise(spelled(build, (B, 16, L, L)))) == [(B, 8, L, L)]


def test_windows_are_copied_once_in_and_once_out() -> None:
    """Swin's window partition and its reverse around a Linear."""

    def build(s: Spelling, x: Tensor) -> Tensor:
        windows = s("Transpose", s("Reshape", x, [B, 2, 4, 2, 4, 16]), perm=[0, 1, 3, 2, 4, 5])
        y = s.linear(s("Reshape", windows, [B * 4, 16, 16]), 16)
        back = s("Transpose", s("Reshape", y, [B, 2, 2, 4, 4, 16]), perm=[0, 1, 3, 2, 4, 5])
        return s("Add", s("Reshape", back, [B, 8, 8, 16]), x)

    assert copies(recognise(spelled(build, (B, 8, 8, 16)))) == [(B, 2, 2, 4, 4, 16), (B, 2, 4, 2, 4, 16)]


def test_a_channels_last_job_copies_tokens_for_a_convolution_and_nothing_for_a_norm_over_channels() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        y = s("Transpose", s.conv(x, 16, kernel=3), perm=[0, 2, 3, 1])
        y = s("LayerNormalization", y, s.parameter((16,), "scale"))
        tokens = s.reshape(s.reshape(y, (B, L * L, 16)), (B, 16, L, L))
        return s.conv(tokens, 8, kernel=3)

    graph = spelled(build, (B, 16, L, L))
    assert copies(recognise(graph, layout=Layout.NHWC)) == [(B, 16, L, L)]
    assert copies(recognise(graph)) == [(B, L, L, 16)]


def test_convolutions_say_when_their_images_lie_channels_last() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        y = s("Transpose", s.conv(x, 16, kernel=3), perm=[0, 2, 3, 1])
        y = s("LayerNormalization", y, s.parameter((16,), "scale"))
        return s.conv(s("Transpose", y, perm=[0, 3, 1, 2]), 8, kernel=3)

    def marks(layout: Layout) -> list[object]:
        nodes = recognise(spelled(build, (B, 16, L, L)), layout=layout).nodes
        return [node.attributes.get("perfcast_channels_last") for node in nodes if node.op_type == "Conv"]

    assert marks(Layout.NCHW) == [None, 1]
    assert marks(Layout.NHWC) == [1, 1]


# [left, right]: over no batch dimension, over the outer one, over the inner one, over both, a plain matrix.
BROADCASTS = [
    ((3, 4, 5, 6), (3, 4, 6, 7)),
    ((3, 4, 5, 6), (1, 4, 6, 7)),
    ((3, 4, 5, 6), (3, 1, 6, 7)),
    ((3, 4, 5, 6), (1, 1, 6, 7)),
    ((3, 4, 5, 6), (4, 6, 7)),
    ((3, 1, 5, 6), (1, 4, 6, 7)),
    ((5, 6), (3, 4, 6, 7)),
    ((3, 5, 6), (1, 6, 7)),
    ((2, 3, 4, 1, 6), (2, 1, 4, 6, 7)),
]


@pytest.mark.parametrize(("left", "right"), BROADCASTS)
@pytest.mark.parametrize("turned", [False, True])
def test_an_operand_broadcast_over_one_of_two_batch_dimensions_is_written_out_as_torch_does(
    left: tuple[int, ...], right: tuple[int, ...], turned: bool
) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Clones(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.shapes: list[tuple[int, ...]] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func.overloadpacket is torch.ops.aten.clone:
                self.shapes.append(tuple(result.shape))
            return result

    swap = [*range(len(right) - 2), len(right) - 1, len(right) - 2]
    stored = tuple(right[axis] for axis in swap) if turned else right
    a, b = torch.empty(left, device="meta"), torch.empty(stored, device="meta")
    with Clones() as clones:
        torch.matmul(a, b.permute(swap) if turned else b)

    s = Spelling()
    y = s.input("y", stored)
    y = s("Transpose", y, perm=swap) if turned else y
    graph = recognise(read_graph(s.build([s("MatMul", s.input("x", left), y)])))
    assert sorted(copies(graph)) == sorted(clones.shapes)


def test_a_copied_operand_is_kept_for_the_backward_pass_and_its_gradient_is_summed() -> None:
    """Lambda layers: [B, H, M, 1, K] queries on [B, 1, M, K, V] lambdas that all heads share."""

    def build(s: Spelling, x: Tensor) -> Tensor:
        shared = s("Add", x, s.parameter((2, 1, 8, 16, 4), "lambdas"))
        return s("MatMul", s.parameter((2, 3, 8, 1, 16), "queries"), shared)

    program = build_program(
        spelled(build, (2, 1, 8, 16, 4)),
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=Optimizer.SGD,
        runtime=Runtime.EAGER,
    )
    work = [
        (op.work.kind, op.work.read_bytes, op.work.write_bytes)
        for op in program.ops
        if op.work.family in (Family.COPY, Family.REDUCTION)
    ]
    small, large = 2 * 8 * 16 * 4 * 4, 3 * 2 * 8 * 16 * 4 * 4
    assert ("transpose", large, large) in work
    assert any((read, write) == (large, small) for _, read, write in work)


def test_operands_adjacent_along_different_axes_are_read_across_memory() -> None:
    """A token mixer: its product runs over the transposed tokens, and the residual is not transposed."""

    def build(s: Spelling, x: Tensor) -> Tensor:
        turned = s("Transpose", x, perm=[0, 2, 1])
        mixed = s("Transpose", s("Relu", turned), perm=[0, 2, 1])
        back = s("Add", turned, s("Relu", turned))
        return s("Add", s("Add", x, mixed), s("Transpose", back, perm=[0, 2, 1]))

    plain = recognise(spelled(build, (B, L, D)))
    assert not [node for node in plain.nodes if node.attributes.get("perfcast_mixed_order")]

    square = recognise(spelled(lambda s, x: s("Add", x, s("Transpose", x, perm=[0, 2, 1])), (B, L, L)))
    (add,) = (node for node in square.nodes if node.op_type == "Add")
    assert add.attributes["perfcast_mixed_order"] == 1
    program = build_program(
        square, mode=Mode.INFER, precision=Precision.FP32, optimizer=Optimizer.NONE, runtime=Runtime.EAGER
    )
    assert [op.work.kind for op in program.ops] == ["mixed_order"]

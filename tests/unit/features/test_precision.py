"""The numeric policy: torch's autocast rules, op by op, and uniform 16-bit types."""

from __future__ import annotations

import pytest

from predictor.features.builder import Tensor
from predictor.features.dtype import Compute, DType
from predictor.features.graph import Graph
from predictor.features.lowering.fusion import recognise
from predictor.features.lowering.lower import lower
from predictor.features.lowering.precision import apply_precision
from predictor.features.programs.program import build_program
from predictor.types import Mode, Optimizer, Precision, Runtime
from tests.unit.features.spelling import Spelling, kinds, only, spelled
from tests.unit.features.test_fusion_blocks import check_order, gelu_tanh_dynamo

F16, F32 = DType.FLOAT16, DType.FLOAT32
SHAPE = (2, 6, 16)


def amp(graph: Graph) -> Graph:
    result = lower(graph, precision=Precision.AMP)
    check_order(result)
    return result


def type_of(graph: Graph, op_type: str) -> DType:
    return graph.values[only(graph, op_type).outputs[0]].dtype


def casts(graph: Graph) -> list[tuple[str, DType]]:
    return [(n.inputs[0], graph.values[n.outputs[0]].dtype) for n in graph.nodes if n.op_type == "Cast"]


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.TF32])
def test_fp32_and_tf32_change_nothing(precision: Precision) -> None:
    graph = spelled(lambda s, x: s.linear(x, 8), SHAPE)
    assert apply_precision(graph, precision) is graph


@pytest.mark.parametrize(("precision", "dtype"), [(Precision.FP16, F16), (Precision.BF16, DType.BFLOAT16)])
def test_16_bit_converts_every_float_and_nothing_else(precision: Precision, dtype: DType) -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        table = s.parameter((50, 16), "table")
        rows = s("Gather", table, s.input("ids", (2, 6), DType.INT64), axis=0)
        return s("Softmax", s("Add", s("Cast", x, to=11), s("Cast", rows, to=11)), axis=-1)

    graph = lower(spelled(build, SHAPE), precision=precision)
    assert {value.dtype for value in graph.values.values() if value.dtype.is_float} == {dtype}
    assert graph.values["ids"].dtype is DType.INT64
    assert kinds(graph) == ["Gather", "Add", "Softmax"], "casts between what are now equal types disappear"


def test_autocast_runs_linear_in_16_bits_and_casts_what_it_reads() -> None:
    graph = amp(spelled(lambda s, x: s.linear(x, 8), SHAPE))
    assert type_of(graph, "Linear") is F16
    assert kinds(graph) == ["Cast", "Cast", "Cast", "Linear"]
    assert graph.values["x"].dtype is F32
    assert all(dtype is F16 for _, dtype in casts(graph))


def test_a_parameter_is_cast_once_an_activation_at_every_use() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        weight = s.parameter((16, 16), "w")
        norm = s("LayerNormalization", x, s.parameter((16,), "scale"))
        return s("Add", s("MatMul", norm, weight), s("MatMul", s("Neg", norm), weight))

    graph = amp(spelled(build, SHAPE))
    sources = [name for name, _ in casts(graph)]
    assert sources.count("w") == 1
    assert len(sources) == 3

    def shared(s: Spelling, x: Tensor) -> Tensor:
        norm = s("LayerNormalization", x, s.parameter((16,), "scale"))
        return s("Add", s.linear(norm, 8, bias=False), s.linear(norm, 8, bias=False))

    sources = [name for name, _ in casts(amp(spelled(shared, SHAPE)))]
    assert len(sources) == 4
    assert len(set(sources)) == 3


def test_norms_run_in_fp32_and_softmax_reads_16_bits_but_writes_32() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        y = s("LayerNormalization", s.linear(x, 16, bias=False), s.parameter((16,), "scale"))
        return s("Softmax", s.linear(y, 8, bias=False), axis=-1)

    graph = amp(spelled(build, SHAPE))
    assert type_of(graph, "LayerNormalization") is F32
    softmax = only(graph, "Softmax")
    assert graph.values[softmax.inputs[0]].dtype is F16
    assert type_of(graph, "Softmax") is F32
    # x and both weights to 16 bits, the first product back to 32 for the norm, the norm to 16 for the next.
    assert [dtype for _, dtype in casts(graph)] == [F16, F16, F32, F16, F16]


def test_other_ops_follow_their_widest_operand_without_a_cast() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        y = s("Relu", s.linear(x, 16, bias=False))
        return s("Add", s("Mul", y, 0.5), s("Abs", x))

    graph = amp(spelled(build, SHAPE))
    assert type_of(graph, "Relu") is F16
    assert type_of(graph, "Mul") is F16, "a number does not widen a tensor"
    assert type_of(graph, "Add") is F32
    assert len(casts(graph)) == 2


def test_batch_norm_keeps_16_bits_beside_fp32_statistics() -> None:
    graph = amp(spelled(lambda s, x: s.relu(s.batch_norm(s.conv(x, 8, kernel=3))), (2, 4, 8, 8)))
    assert type_of(graph, "BatchNormalization") is F16
    assert type_of(graph, "Relu") is F16


def test_a_gelu_spelled_with_pow_is_no_pow() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        return gelu_tanh_dynamo(s, s.linear(x, 16, bias=False))

    assert type_of(amp(spelled(build, SHAPE)), "Gelu") is F16
    by_power = amp(spelled(lambda s, x: s("Pow", s.linear(x, 16, bias=False), 3.0), SHAPE))
    assert type_of(by_power, "Pow") is F32


def test_compiled_autocast_hides_the_casts_in_its_groups() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        y = s("LayerNormalization", s("Relu", x), s.parameter((16,), "scale"))
        return s.linear(y, 8, bias=False)

    graph = lower(spelled(build, SHAPE), precision=Precision.AMP, runtime=Runtime.COMPILED)
    check_order(graph)
    group = only(graph, "FusedPointwise")
    assert group.attributes["kinds"] == "Relu,LayerNormalization,Cast"
    assert graph.values[group.outputs[0]].dtype is F16


def test_passes_do_not_touch_what_they_are_given() -> None:
    graph = spelled(lambda s, x: s.linear(s("LayerNormalization", x, s.parameter((16,), "g")), 8), SHAPE)
    before = (graph.nodes, dict(graph.values))
    lower(graph, precision=Precision.AMP, runtime=Runtime.COMPILED)
    lower(graph, precision=Precision.FP16)
    assert (graph.nodes, dict(graph.values)) == before
    assert recognise(graph).fingerprint == graph.fingerprint


def test_fp64_stores_and_computes_in_double_precision() -> None:
    graph = spelled(lambda s, x: s.linear(x, 8), SHAPE)
    wide = lower(graph, precision=Precision.FP64)
    assert type_of(wide, "Linear") is DType.FLOAT64
    program = build_program(
        graph, mode=Mode.INFER, precision=Precision.FP64, optimizer=Optimizer.NONE, runtime=Runtime.EAGER
    )
    assert [op.work.compute for op in program.ops] == [Compute.FP64]


def test_a_copy_for_a_kernel_comes_after_the_cast_for_it() -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        y = s("Transpose", s.conv(x, 8, kernel=3), perm=[0, 2, 3, 1])
        return s("LayerNormalization", y, s.parameter((8,), "scale"))

    graph = amp(spelled(build, (2, 4, 8, 8)))
    kernels = [node for node in graph.nodes if node.op_type in ("Cast", "Contiguous", "LayerNormalization")]
    assert [node.op_type for node in kernels][-3:] == ["Cast", "Contiguous", "LayerNormalization"]
    assert graph.values[kernels[-2].outputs[0]].dtype is F32


@pytest.mark.parametrize("op_type", ["LayerNormalization", "GroupNormalization"])
def test_norms_leave_autocast_where_a_library_says_so(op_type: str) -> None:
    def build(s: Spelling, x: Tensor) -> Tensor:
        y = s.linear(x, 16)
        facts = {"axis": -1} if op_type == "LayerNormalization" else {"num_groups": 2}
        size = (16,) if op_type == "LayerNormalization" else (6,)
        return s(op_type, y, s.parameter(size, "scale"), s.parameter(size, "bias"), **facts)

    graph = spelled(build, SHAPE, opset=21)
    assert type_of(lower(graph, precision=Precision.AMP), op_type) is F32
    narrow = lower(graph, precision=Precision.AMP, narrow_norms=True)
    assert type_of(narrow, op_type) is F16
    # Scale, bias and the linear layer's operands; not what the norm reads.
    assert len(casts(narrow)) == len(casts(lower(graph, precision=Precision.AMP))) + 1

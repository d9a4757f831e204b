"""Matrix FLOPs, forward and backward, against torch's own counter on the same shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from predictor.features.dtype import DType
from predictor.features.graph import Attribute
from predictor.features.programs.program import program_of
from predictor.features.programs.work import Phase, Program
from predictor.types import Mode
from tests.unit.features.graphs import Sketch

torch = pytest.importorskip("torch")
functional = torch.nn.functional
flop_counter = pytest.importorskip("torch.utils.flop_counter")


@dataclass(frozen=True)
class Case:
    """One op: its data operands (the first is the batch), its parameters, and the same call in torch."""

    op_type: str
    data: tuple[tuple[int, ...], ...]
    parameters: tuple[tuple[int, ...], ...]
    call: Callable[..., Any]
    attributes: dict[str, Attribute] = field(default_factory=dict)
    domain: str = ""
    ungrouped: Callable[..., Any] | None = None


def conv(
    stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1, rank: int = 2
) -> dict[str, Any]:
    call = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[rank]
    return {
        "op_type": "Conv",
        "call": lambda x, *w: call(x, *w, stride=stride, padding=padding, dilation=dilation, groups=groups),
        "ungrouped": lambda x, *w: call(x, *w, stride=stride, padding=padding, dilation=dilation),
        "attributes": {
            "strides": (stride,) * rank,
            "pads": (padding,) * 2 * rank,
            "dilations": (dilation,) * rank,
            "group": groups,
        },
    }


def transposed(stride: int, groups: int = 1) -> dict[str, Any]:
    return {
        "op_type": "ConvTranspose",
        "call": lambda x, *w: functional.conv_transpose2d(x, *w, stride=stride, groups=groups),
        "ungrouped": lambda x, *w: functional.conv_transpose2d(x, *w, stride=stride),
        "attributes": {"strides": (stride, stride), "group": groups},
    }


CASES = {
    "conv": Case(data=((2, 3, 16, 16),), parameters=((8, 3, 3, 3),), **conv(padding=1)),
    "conv with bias": Case(data=((2, 3, 16, 16),), parameters=((8, 3, 3, 3), (8,)), **conv(padding=1)),
    "strided conv": Case(data=((2, 3, 16, 16),), parameters=((8, 3, 7, 7),), **conv(stride=2, padding=3)),
    "dilated conv": Case(data=((2, 4, 16, 16),), parameters=((8, 4, 3, 3),), **conv(dilation=2)),
    "grouped conv": Case(data=((2, 8, 8, 8),), parameters=((16, 2, 3, 3),), **conv(padding=1, groups=4)),
    "depthwise conv": Case(data=((2, 8, 8, 8),), parameters=((8, 1, 3, 3),), **conv(padding=1, groups=8)),
    "depthwise multiplier": Case(
        data=((2, 8, 8, 8),), parameters=((16, 1, 5, 5),), **conv(padding=2, groups=8)
    ),
    "pointwise conv": Case(data=((2, 8, 8, 8),), parameters=((24, 8, 1, 1),), **conv()),
    "conv 1-D": Case(data=((2, 8, 32),), parameters=((16, 8, 3),), **conv(rank=1, stride=2)),
    "conv 3-D": Case(data=((1, 2, 6, 8, 8),), parameters=((4, 2, 3, 3, 3),), **conv(rank=3)),
    "transposed conv": Case(data=((2, 8, 8, 8),), parameters=((8, 4, 2, 2),), **transposed(2)),
    "grouped transposed conv": Case(
        data=((2, 8, 8, 8),), parameters=((8, 3, 3, 3),), **transposed(2, groups=2)
    ),
    "linear": Case(
        "Linear",
        ((4, 7, 16),),
        ((24, 16), (24,)),
        functional.linear,
        {"transposed_weight": 1},
        "perfcast",
    ),
    "gemm": Case("Gemm", ((6, 16),), ((16, 24), (24,)), lambda x, w, b: torch.addmm(b, x, w)),
    "product with a weight": Case("MatMul", ((2, 5, 16),), ((16, 9),), torch.matmul),
    "vector product": Case("MatMul", ((5, 16),), ((16, 1),), torch.matmul),
    "batched product": Case("MatMul", ((3, 5, 16), (3, 16, 7)), (), torch.bmm),
    "4-D product": Case("MatMul", ((2, 3, 5, 16), (2, 3, 16, 7)), (), torch.matmul),
    "einsum": Case(
        "Einsum",
        ((2, 3, 4, 8), (2, 3, 5, 8)),
        (),
        lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b),
        {"equation": "bhid,bhjd->bhij"},
    ),
    "einsum with a weight": Case(
        "Einsum",
        ((2, 6, 8),),
        ((8, 5),),
        lambda a, b: torch.einsum("bic,cd->bid", a, b),
        {"equation": "bic,cd->bid"},
    ),
}


def matrix_flops(program: Program, phase: Phase) -> int:
    return sum(op.work.matrix_flops for op in program.ops if op.work.phase is phase)


def counted(case: Case, needs_data_gradient: bool) -> tuple[tuple[int, ...], int, int]:
    """Shape of the result, and the counter's forward and backward FLOPs.

    The counter takes a grouped convolution's weight gradient for that of an ungrouped one, so backward is
    counted on one group and multiplied.
    """
    groups = case.attributes.get("group", 1)
    assert isinstance(groups, int)
    data = [torch.ones(shape, requires_grad=needs_data_gradient) for shape in case.data]
    weights = [torch.ones(shape, requires_grad=True) for shape in case.parameters]
    with flop_counter.FlopCounterMode(display=False) as forward:
        out = case.call(*data, *weights)
    if groups > 1:
        data = [x[:, : x.shape[1] // groups].detach().requires_grad_(needs_data_gradient) for x in data]
        weights = [w[: w.shape[0] // groups].detach().requires_grad_() for w in weights]
    part = case.ungrouped(*data, *weights) if case.ungrouped and groups > 1 else out
    with flop_counter.FlopCounterMode(display=False) as backward:
        part.sum().backward()
    return tuple(out.shape), forward.get_total_flops(), groups * backward.get_total_flops()


@pytest.mark.parametrize(
    ("name", "needs_data_gradient"),
    [(name, True) for name in CASES] + [(name, False) for name, case in CASES.items() if case.parameters],
)
def test_agrees_with_torch(name: str, needs_data_gradient: bool) -> None:
    case = CASES[name]
    shape, forward_flops, backward_flops = counted(case, needs_data_gradient)
    sketch = Sketch()
    # A parameter stands for a value whose gradient is wanted.
    add = sketch.parameter if needs_data_gradient else sketch.input
    names = [add(f"x{i}", *shape) for i, shape in enumerate(case.data)]
    names += [sketch.parameter(f"w{i}", *shape) for i, shape in enumerate(case.parameters)]
    result = sketch.node(case.op_type, names, shape, domain=case.domain, **case.attributes)
    program = program_of(sketch.graph(result), mode=Mode.TRAIN)
    assert matrix_flops(program, Phase.FORWARD) == pytest.approx(forward_flops, rel=0.01)
    assert matrix_flops(program, Phase.BACKWARD) == pytest.approx(backward_flops, rel=0.01)


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [((2, 4, 16, 8), (2, 4, 16, 8), (2, 4, 16, 8)), ((1, 2, 8, 16), (1, 2, 24, 16), (1, 2, 24, 4))],
)
def test_attention_agrees_with_torch(q: Any, k: Any, v: Any) -> None:
    out = (*q[:3], v[3])
    sketch = Sketch()
    names = [sketch.parameter(name, *shape) for name, shape in (("q", q), ("k", k), ("v", v))]
    result = sketch.node("Attention", names, out, domain="perfcast", causal=0)
    program = program_of(sketch.graph(result), mode=Mode.TRAIN)
    assert matrix_flops(program, Phase.FORWARD) == flop_counter.sdpa_flop_count(q, k, v)
    backward = flop_counter.sdpa_backward_flop_count(out, q, k, v)
    assert matrix_flops(program, Phase.BACKWARD) == backward


def test_embedding_has_no_matrix_flops() -> None:
    ids = torch.zeros((2, 5), dtype=torch.int64)
    table = torch.ones((100, 16), requires_grad=True)
    with flop_counter.FlopCounterMode(display=False) as counter:
        functional.embedding(ids, table).sum().backward()
    sketch = Sketch()
    names = [sketch.parameter("table", 100, 16), sketch.input("ids", 2, 5, dtype=DType.INT64)]
    program = program_of(sketch.graph(sketch.node("Gather", names, (2, 5, 16))), mode=Mode.TRAIN)
    assert counter.get_total_flops() == 0
    assert matrix_flops(program, Phase.FORWARD) == matrix_flops(program, Phase.BACKWARD) == 0
    assert {op.work.kind for op in program.ops} == {"embedding", "fill", "sort", "scatter_add"}

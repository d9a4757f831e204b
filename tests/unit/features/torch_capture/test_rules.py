"""Work of single operators by hand, and that every rule's operator exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from predictor.errors import UnsupportedOp
from predictor.features.dtype import Compute
from predictor.features.programs.work import Contraction, Family, OpWork, Phase, Rows
from predictor.features.torch_capture import TorchModel
from predictor.features.torch_capture.call_view import ATEN_RULES
from predictor.types import Mode, Optimizer, Precision

torch = pytest.importorskip("torch")
nn = torch.nn
functional = nn.functional


class Calls(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
        self._function = function

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs, *self.weights)


def works(
    function: Callable[..., Any],
    *inputs: Any,
    shapes: tuple[tuple[int, ...], ...] = (),
    phase: Phase = Phase.FORWARD,
    precision: Precision = Precision.FP32,
) -> list[OpWork]:
    mode = Mode.INFER if phase is Phase.FORWARD else Mode.TRAIN
    program = TorchModel(Calls(function, *shapes), inputs).program(mode=mode, precision=precision)
    assert all(op.covered for op in program.ops)
    found = [op.work for op in program.ops if op.work.phase is phase]
    return found[1:] if phase is Phase.BACKWARD else found


def only(found: list[OpWork]) -> OpWork:
    assert len(found) == 1, [work.kind for work in found]
    return found[0]


def ones(*shape: int, dtype: Any = None) -> Any:
    return torch.ones(shape, dtype=dtype)


def test_every_rule_names_an_operator_of_torch() -> None:
    import predictor.features.torch_capture.rules  # noqa: F401
    from predictor.features.torch_capture.device_ops import operators

    spaces = {"aten": torch.ops.aten, "perfcast": operators()}
    missing = [
        f"{domain}::{name}"
        for domain, name, _ in ATEN_RULES
        if domain in spaces and not any(hasattr(spaces[domain], f"{name}{end}") for end in ("", "_"))
    ]
    assert missing == []


def test_linear() -> None:
    work = only(works(functional.linear, ones(6, 8), shapes=((4, 8), (4,))))
    assert work.family is Family.MATMUL
    assert work.kind == "linear"
    assert work.shape == Contraction(1, 6, 4, 8)
    assert (work.matrix_flops, work.vector_flops) == (2 * 6 * 4 * 8, 6 * 4)
    assert work.read_bytes == 4 * (6 * 8 + 4 * 8 + 4)
    assert work.parameter_bytes == 4 * (4 * 8 + 4)
    assert work.write_bytes == 4 * 6 * 4


def test_gradients_of_linear_are_told_apart() -> None:
    def twice(x: Any, a: Any, b: Any) -> Any:
        return functional.linear(functional.linear(x, a), b)

    found = works(twice, ones(6, 8), shapes=((4, 8), (3, 4)), phase=Phase.BACKWARD)
    assert {(work.kind, work.shape) for work in found} == {
        ("linear_data_gradient", Contraction(1, 6, 4, 3)),
        ("linear_weight_gradient", Contraction(1, 3, 4, 6)),
        ("linear_weight_gradient", Contraction(1, 4, 8, 6)),
    }


def test_tf32_is_the_rate_of_products_only() -> None:
    found = works(
        lambda x, w: functional.linear(x, w).relu(), ones(6, 8), shapes=((4, 8),), precision=Precision.TF32
    )
    assert [work.compute for work in found] == [Compute.TF32, Compute.FP32]


def test_an_operand_that_a_product_cannot_use_is_copied_first() -> None:
    strided = ones(2, 3, 8, 8).permute(0, 3, 1, 2)
    found = works(lambda x: x[:, ::2, :, 0] @ x[:, ::2, :, 1].transpose(1, 2), strided)
    assert [work.kind for work in found][-1] == "bmm"


def test_experts_multiply_their_own_rows() -> None:
    def experts(x: Any, w: Any) -> Any:
        offsets = torch.zeros(4, dtype=torch.int32)
        return torch.ops.aten._grouped_mm(x.to(torch.bfloat16), w.to(torch.bfloat16), offsets)

    found = works(experts, ones(32, 16), shapes=((4, 16, 24),))
    work = found[-1]
    assert work.shape == Contraction(4, 8, 24, 16)
    assert work.matrix_flops == 2 * 32 * 16 * 24
    assert work.kind == "grouped_matmul"
    # Four rows are expected to meet three of four matrices: 4 * (1 - (3/4)^4) = 2.7.
    few = works(experts, ones(4, 16), shapes=((4, 16, 24),))[-1]
    assert few.shape == Contraction(3, 2, 24, 16)
    assert few.read_bytes == 2 * (4 * 16 + 3 * 16 * 24)


def test_repeated_elements_are_read_once() -> None:
    work = only(works(lambda x, y: x + y.expand(64, 32), ones(64, 32), ones(1, 32)))
    assert work.read_bytes == 4 * (64 * 32 + 32)
    assert work.write_bytes == 4 * 64 * 32


def test_in_place_reads_and_writes_its_operand() -> None:
    work = only(works(lambda x: x.mul_(2), ones(64, 32)))
    assert (work.read_bytes, work.write_bytes) == (4 * 64 * 32, 4 * 64 * 32)


@pytest.mark.parametrize(
    "view",
    [
        "transpose",
        "reshape",
        "chunk",
        "select",
        "expand",
        "unsqueeze",
        "unfold",
        "unsqueeze_",
        "as_strided_",
    ],
)
def test_views_cost_nothing(view: str) -> None:
    calls: dict[str, Callable[[Any], Any]] = {
        "transpose": lambda x: x.transpose(0, 1),
        "reshape": lambda x: x.reshape(8, 4),
        "chunk": lambda x: x.chunk(2, 1),
        "select": lambda x: x[:, 0],
        "expand": lambda x: x[None].expand(3, -1, -1),
        "unsqueeze": lambda x: x[None],
        "unfold": lambda x: x.unfold(1, 2, 1),
        "unsqueeze_": lambda x: x[:].unsqueeze_(0),
        "as_strided_": lambda x: x[:].as_strided_((2, 2), (1, 2)),
    }
    assert works(calls[view], ones(4, 8)) == []


def test_a_part_of_a_tensor_gets_zeros_and_a_copy_in_backward() -> None:
    found = works(lambda x, w: (x * w)[:, :2], ones(4, 8), shapes=((4, 8),), phase=Phase.BACKWARD)
    assert [(work.kind, work.moved_bytes) for work in found] == [
        ("fill", 4 * 32),
        ("slice", 2 * 4 * 8),
        ("mul", 3 * 4 * 32),
    ]


def test_copies_are_told_by_what_changes() -> None:
    def three(x: Any) -> Any:
        return x.clone(), x.half(), x.transpose(0, 1).contiguous()

    assert [work.kind for work in works(three, ones(4, 8))] == ["copy", "cast", "transpose"]


def test_reductions_have_a_row_per_result() -> None:
    found = works(lambda x: (x.sum(1), x.mean(), x.argmax(0)), ones(6, 10))
    assert [(work.kind, work.shape) for work in found] == [
        ("sum", Rows(6, 10)),
        ("mean", Rows(1, 60)),
        ("arg_max", Rows(10, 6)),
    ]


def test_softmax_and_its_gradient() -> None:
    forward = only(works(lambda x: x.softmax(-1), ones(6, 10)))
    assert (forward.kind, forward.shape, forward.vector_flops) == ("softmax", Rows(6, 10), 300)
    found = works(lambda x, w: (x * w).softmax(-1), ones(6, 10), shapes=((6, 10),), phase=Phase.BACKWARD)
    assert (found[0].kind, found[0].vector_flops, found[0].moved_bytes) == ("softmax", 240, 3 * 240)


def test_cross_entropy() -> None:
    labels = ones(6, dtype=torch.int64)
    found = works(lambda x, y: functional.cross_entropy(x, y), ones(6, 10), labels)
    assert [work.kind for work in found] == ["log_softmax", "nll"]


def test_embedding_reads_rows_and_its_gradient_fills_the_table() -> None:
    tokens = ones(2, 5, dtype=torch.int64)
    work = only(works(functional.embedding, tokens, shapes=((1000, 16),)))
    assert work.kind == "embedding"
    assert work.read_bytes == 4 * 10 * 16 + 8 * 10
    assert work.parameter_bytes == 4 * 10 * 16
    found = works(functional.embedding, tokens, shapes=((1000, 16),), phase=Phase.BACKWARD)
    assert [(item.kind, item.write_bytes) for item in found] == [
        ("fill", 4 * 1000 * 16),
        ("sort", 8 * 10),
        ("scatter_add", 4 * 10 * 16),
    ]


def test_scatters_in_place_touch_only_what_they_write() -> None:
    index = ones(3, dtype=torch.int64)
    inside = only(works(lambda x, i, u: x.index_add_(0, i, u), ones(100, 8), index, ones(3, 8)))
    assert inside.kind == "scatter_add"
    assert inside.write_bytes == 4 * 3 * 8
    outside = works(lambda x, i, u: x.index_add(0, i, u), ones(100, 8), index, ones(3, 8))
    assert [work.kind for work in outside] == ["copy", "scatter_add"]


def test_the_step_reads_and_writes_lists() -> None:
    module = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    program = TorchModel(module, ones(3, 8)).program(mode=Mode.TRAIN, optimizer=Optimizer.SGD)
    step = [op.work for op in program.ops if op.work.phase is Phase.OPTIMIZER]
    size = 4 * program.parameter_count
    work = only(step)
    assert (work.kind, work.read_bytes, work.write_bytes) == ("sgd", 2 * size, size)
    assert work.vector_flops == 2 * program.parameter_count


def test_an_operator_without_a_rule_is_priced_by_its_bytes() -> None:
    model = TorchModel(Calls(lambda x: torch.linalg.inv(x)), ones(4, 4))
    program = model.program(mode=Mode.INFER)
    unknown = [op for op in program.ops if not op.covered]
    assert [op.work.family for op in unknown] == [Family.UNKNOWN]
    assert unknown[0].work.read_bytes == 4 * 16
    with pytest.raises(UnsupportedOp, match=r"aten::linalg_inv_ex \(1x\)"):
        model.program(mode=Mode.INFER, strict=True)


PLAIN = {
    "elu": lambda x: functional.elu(x),
    "clamp": lambda x: x.clamp(0, 1),
    "pow": lambda x: x**3,
    "where": lambda x: torch.where(x > 0, x, x * 2),
    "cat": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x, x]),
    "pad": lambda x: functional.pad(x, (1, 1)),
    "reflect": lambda x: functional.pad(x, (1, 1, 1, 1), mode="reflect"),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "cumsum": lambda x: x.cumsum(1),
    "topk": lambda x: x.topk(2, -1)[0],
    "sort": lambda x: x.sort(-1)[0],
    "var": lambda x: x.var(1),
    "norm": lambda x: x.norm(dim=1),
    "logsumexp": lambda x: x.logsumexp(1),
    "max": lambda x: x.max(1)[0],
    "amax": lambda x: x.amax(1),
    "gather": lambda x: x.gather(1, torch.zeros_like(x, dtype=torch.int64)),
    "index": lambda x: x[torch.zeros(3, dtype=torch.int64)],
    "tril": lambda x: x.tril(),
    "masked fill": lambda x: x.masked_fill(x > 0, 0.0),
    "glu": lambda x: functional.glu(x),
    "unfold": lambda x: functional.unfold(x, 2),
    "fold": lambda x: functional.fold(functional.unfold(x, 2), (8, 8), 2),
    "bilinear": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "nearest": lambda x: functional.interpolate(x, scale_factor=2),
    "bicubic": lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"),
    "grid sample": lambda x: functional.grid_sample(x, torch.zeros(2, 5, 5, 2), align_corners=False),
    "max pool": lambda x: functional.max_pool2d(x, 2),
    "average pool": lambda x: functional.avg_pool2d(x, 2),
    "adaptive average": lambda x: functional.adaptive_avg_pool2d(x, 3),
    "adaptive max": lambda x: functional.adaptive_max_pool2d(x, 3),
    "shuffle": lambda x: functional.pixel_shuffle(x, 2),
    "mse": lambda x: functional.mse_loss(x, torch.zeros_like(x)),
    "smooth l1": lambda x: functional.smooth_l1_loss(x, torch.zeros_like(x)),
    "bce": lambda x: functional.binary_cross_entropy_with_logits(x, torch.zeros_like(x)),
    "kl": lambda x: functional.kl_div(x, torch.zeros_like(x), reduction="sum"),
    "cdist": lambda x: torch.cdist(x[0], x[1]),
    "einsum": lambda x: torch.einsum("bchw,bcwv->bchv", x, x),
    "local response": lambda x: functional.local_response_norm(x, 3),
    "weight-free norms": lambda x: functional.layer_norm(functional.group_norm(x, 2), (8, 8)),
    "instance norm": lambda x: functional.instance_norm(x),
    "one hot": lambda x: functional.one_hot(x.argmax(-1), 8).float() * x,
    "scatter": lambda x: x.scatter(1, torch.zeros_like(x, dtype=torch.int64), x),
    "prelu": lambda x: functional.prelu(x, torch.ones(4)),
    "dropout": lambda x: functional.dropout(x, 0.3),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(2, 4, 8, 4, 2)) * 2j),
    "addcmul": lambda x: torch.addcmul(x, x, x) + torch.lerp(x, x, 0.5),
}


@pytest.mark.parametrize("name", PLAIN)
def test_everyday_operators_have_rules_in_both_directions(name: str) -> None:
    model = TorchModel(Calls(lambda x, w: PLAIN[name](x * w), (2, 4, 8, 8)), ones(2, 4, 8, 8))
    program = model.program(mode=Mode.TRAIN, strict=True)
    assert {op.work.phase for op in program.ops} == {Phase.FORWARD, Phase.BACKWARD}
    assert all(op.work.moved_bytes > 0 for op in program.ops)
    assert program.gradients[0].size_bytes == 4 * 2 * 4 * 64

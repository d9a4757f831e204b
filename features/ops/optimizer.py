"""The optimizer step as data.

torch's default (`foreach`) step makes several passes over all parameters, each a multi-tensor kernel per
parameter type; compiled steps make one. The tensors that each pass reads and writes are counted in
torch/optim/{sgd,adam}.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from predictor.features.dtype import DType
from predictor.features.graph import Value
from predictor.features.programs.liveness import OptimizerMemory
from predictor.features.programs.op_view import vector_compute
from predictor.features.programs.work import Elements, Family, OpWork, Phase
from predictor.types import Optimizer, Precision, Runtime


@dataclass(frozen=True, slots=True)
class Pass:
    """One multi-tensor kernel: parameter-sized tensors read and written, and FLOPs per element."""

    kind: str
    reads: int
    writes: int
    flops: int


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """Passes, the fused pass, tensors of state per parameter, parameter-sized temporaries."""

    foreach: tuple[Pass, ...]
    fused: Pass
    state_count: int
    temporary_count: int = 0


_ADAM_PASSES = (
    Pass("lerp", 2, 1, 3),
    Pass("mul", 1, 1, 1),
    Pass("addcmul", 2, 1, 3),
    Pass("sqrt", 1, 1, 1),
    Pass("div", 1, 1, 1),
    Pass("add", 1, 1, 1),
    Pass("addcdiv", 3, 1, 3),
)

RULES: dict[Optimizer, UpdateRule] = {
    Optimizer.NONE: UpdateRule((), Pass("none", 0, 0, 0), 0),
    Optimizer.SGD: UpdateRule((Pass("add", 2, 1, 2),), Pass("sgd", 2, 1, 2), 0),
    # Weight decay, which momentum is hardly ever used without, makes a new list of gradients.
    Optimizer.MOMENTUM: UpdateRule(
        (Pass("mul", 1, 1, 1), Pass("add", 2, 1, 1), Pass("add", 2, 1, 2)), Pass("momentum", 3, 2, 4), 1, 1
    ),
    # The square root of the second moment is the temporary.
    Optimizer.ADAM: UpdateRule(_ADAM_PASSES, Pass("adam", 4, 3, 13), 2, 1),
    Optimizer.ADAMW: UpdateRule((Pass("mul", 1, 1, 1), *_ADAM_PASSES), Pass("adamw", 4, 3, 14), 2, 1),
}

_WIDE_BYTES = 4
_HALVES = frozenset({DType.FLOAT16, DType.BFLOAT16})
# FP32 master weights are read; what is written is half as wide.
_TO_WEIGHTS = Pass("copy", 1, 0, 0)

# Gradients are divided by the loss scale and checked for infinities.
_UNSCALE = Pass("unscale", 1, 1, 1)

# aten/src/ATen/native/cuda/MultiTensorApply.cuh: tensors and blocks per launch, elements per block. The
# tensor limit depends on how many lists a kernel takes (1 to 5).
_TENSORS_PER_LAUNCH = (110, 64, 48, 36, 30)
_BLOCKS_PER_LAUNCH = 320
_ELEMENTS_PER_BLOCK = 65536


def launch_count(sizes: Sequence[int], lists: int) -> int:
    """Kernels that one pass over tensors of these sizes launches."""
    limit = _TENSORS_PER_LAUNCH[min(lists, len(_TENSORS_PER_LAUNCH)) - 1]
    blocks = sum(-(-size // _ELEMENTS_PER_BLOCK) for size in sizes)
    return max(-(-len(sizes) // limit), -(-blocks // _BLOCKS_PER_LAUNCH))


def optimizer_work(
    parameters: Iterable[Value],
    optimizer: Optimizer,
    *,
    precision: Precision,
    runtime: Runtime,
    master_weights: bool = False,
) -> tuple[OpWork, ...]:
    """The step over all parameters, one OpWork per pass and parameter type, in order.

    With AMP the parameters are the FP32 master weights, and a pass unscales the gradients first.

    Args:
        master_weights: 16-bit weights have FP32 copies, which one fused pass updates; a copy follows.
    """
    rule = RULES[optimizer]
    if optimizer is Optimizer.NONE:
        return ()
    sizes_by_type: dict[DType, list[int]] = {}
    for value in parameters:
        wide = master_weights and value.dtype in _HALVES
        sizes_by_type.setdefault(DType.FLOAT32 if wide else value.dtype, []).append(value.elements)
    passes = (rule.fused,) if runtime is Runtime.COMPILED or master_weights else rule.foreach
    if master_weights:
        passes = (*passes, _TO_WEIGHTS)
    if precision is Precision.AMP:
        passes = (_UNSCALE, *passes)
    return tuple(
        _pass_work(item, optimizer, dtype, sizes)
        for dtype, sizes in sorted(sizes_by_type.items(), key=lambda pair: pair[0].value)
        for item in passes
    )


def _pass_work(item: Pass, optimizer: Optimizer, dtype: DType, sizes: Sequence[int]) -> OpWork:
    total = sum(sizes)
    size_bytes = total * dtype.bits // 8
    return OpWork(
        family=Family.OPTIMIZER,
        kind=optimizer.value,
        phase=Phase.OPTIMIZER,
        compute=vector_compute((Value("parameter", (total,), dtype),)),
        shape=Elements(total),
        element_bits=dtype.bits,
        matrix_flops=0,
        vector_flops=item.flops * total,
        read_bytes=item.reads * size_bytes,
        write_bytes=item.writes * size_bytes,
        parameter_bytes=size_bytes,
        launch_count=launch_count(sizes, max(item.reads, item.writes)),
    )


def optimizer_memory(
    parameters: Iterable[Value], optimizer: Optimizer, runtime: Runtime, *, master_weights: bool = False
) -> OptimizerMemory:
    """State: tensors of each parameter's own type. Temporaries live for one step.

    With `master_weights` state is FP32, the copy of the weights is part of it, and the step is fused.
    """
    rule = RULES[optimizer]
    if optimizer is Optimizer.NONE:
        return OptimizerMemory()
    if master_weights:
        return OptimizerMemory(
            tuple(
                _WIDE_BYTES * value.elements
                for value in parameters
                for _ in range(rule.state_count + (value.dtype in _HALVES))
            )
        )
    sizes = [value.size_bytes for value in parameters]
    temporary_count = 0 if runtime is Runtime.COMPILED else rule.temporary_count
    return OptimizerMemory(
        tuple(size for size in sizes for _ in range(rule.state_count)),
        tuple(size for size in sizes for _ in range(temporary_count)),
    )

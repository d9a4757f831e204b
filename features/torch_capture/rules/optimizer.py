"""Kernels of the optimizer's step: one pass over lists of tensors."""

from __future__ import annotations

from predictor.features.ops.optimizer import launch_count
from predictor.features.programs.op_view import element_bits, vector_compute
from predictor.features.programs.work import Elements, Family, OpWork, Phase
from predictor.features.torch_capture.call_view import ATEN_RULES, CallView, stored_bytes
from predictor.features.torch_capture.calls import Tensor, tensors_in
from predictor.types import Optimizer

# FLOPs per element. A sum with a factor is a multiply-add.
_FOREACH = {
    "_foreach_add": 1,
    "_foreach_sub": 1,
    "_foreach_mul": 1,
    "_foreach_div": 1,
    "_foreach_neg": 1,
    "_foreach_sqrt": 1,
    "_foreach_reciprocal": 1,
    "_foreach_pow": 1,
    "_foreach_exp": 1,
    "_foreach_abs": 1,
    "_foreach_sign": 1,
    "_foreach_maximum": 1,
    "_foreach_minimum": 1,
    "_foreach_clamp_min": 1,
    "_foreach_clamp_max": 1,
    "_foreach_norm": 2,
    "_foreach_lerp": 3,
    "_foreach_addcmul": 3,
    "_foreach_addcdiv": 3,
    "_foreach_zero": 0,
    "_amp_foreach_non_finite_check_and_unscale": 1,
    "_fused_sgd": 4,
    "_fused_adam": 13,
    "_fused_adamw": 14,
}
_FACTOR = 1


@ATEN_RULES.register("aten", *_FOREACH)
def multi_tensor(view: CallView) -> tuple[OpWork, ...]:
    """Lists read and written once each, in as many launches as a multi-tensor kernel needs."""
    lists = [
        tuple(tensors_in(argument)) for _, argument in view.call.arguments if isinstance(argument, tuple)
    ]
    lists = [item for item in lists if item and any(tensor.shape for tensor in item)]
    if not lists:
        # Step counters live on the host.
        return ()
    flops = _FOREACH[view.call.op]
    alpha = view.argument("alpha")
    if flops == 1 and isinstance(alpha, int | float) and alpha != 1:
        flops += _FACTOR
    reads = [tensor for item in lists for tensor in item]
    if view.call.op == "_foreach_zero":
        reads = []
    writes = list(view.call.outputs)
    sizes = [tensor.elements for tensor in lists[0]]
    total = sum(sizes)
    count = max(len(lists), 1)
    values = [tensor.value for tensor in lists[0]]
    in_step = view.call.phase is Phase.OPTIMIZER and view.optimizer is not Optimizer.NONE
    return (
        OpWork(
            family=Family.OPTIMIZER,
            kind=view.optimizer.value if in_step else "foreach",
            phase=view.call.phase,
            compute=vector_compute(values),
            shape=Elements(total),
            element_bits=element_bits(values),
            matrix_flops=0,
            vector_flops=flops * total,
            read_bytes=stored_bytes(reads),
            write_bytes=_distinct_bytes(writes),
            parameter_bytes=stored_bytes(lists[0]),
            launch_count=launch_count(sizes, count),
        ),
    )


def _distinct_bytes(tensors: list[Tensor]) -> int:
    return stored_bytes([item for item in tensors if item.shape])

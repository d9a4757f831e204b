"""Products with weights in FP8 or FP4, as Transformer Engine runs them in a job of 16-bit tensors.

All three products of a linear layer (forward, gradient of the input, gradient of the weight) and those of
experts read operands of 8 or 4 bits and write 16; attention, norms and the optimizer stay as they are. Each
product's moving operand is cast before it: 16 bits are read once, and the narrow numbers written twice, by
rows and by columns, as forward and backward read them. Weights are cast once a step and not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from predictor.features.dtype import Compute
from predictor.features.programs.work import Contraction, Elements, Family, OpInstance, OpWork, Phase, Program

NARROW: Mapping[str, tuple[Compute, int]] = {"fp8": (Compute.FP8, 8), "fp4": (Compute.FP4, 4)}
"""Name -> arithmetic, bits of an operand."""
_PRODUCTS = (Family.MATMUL, Family.BATCHED_MATMUL)


def with_narrow_products(program: Program, narrow: str) -> Program:
    """`program` with its products of weights in `narrow`, a key of NARROW; "" changes nothing.

    Raises KeyError for another name.
    """
    if not narrow:
        return program
    compute, bits = NARROW[narrow]
    nodes = {op.node for op in program.ops if op.work.family in _PRODUCTS and op.work.parameter_bytes}
    known: dict[OpWork, tuple[OpWork, OpWork | None]] = {}
    ops: list[OpInstance] = []
    place: list[int] = []
    for op in program.ops:
        work = op.work
        if op.node in nodes and work.family in _PRODUCTS and work.phase is not Phase.OPTIMIZER:
            if work not in known:
                known[work] = (_narrowed(work, compute, bits), _cast(work, bits))
            work, cast = known[work]
            if cast is not None:
                ops.append(OpInstance(cast, op.node, "Cast"))
        place.append(len(ops))
        ops.append(replace(op, work=work))
    gradients = tuple(replace(g, op_index=place[g.op_index]) for g in program.gradients)
    return replace(program, ops=tuple(ops), gradients=gradients, timeline=None)


def _narrowed(work: OpWork, compute: Compute, bits: int) -> OpWork:
    wide = max(bits, work.element_bits)
    return replace(
        work,
        compute=compute,
        read_bytes=work.read_bytes * bits // wide,
        parameter_bytes=work.parameter_bytes * bits // wide,
    )


def _cast(work: OpWork, bits: int) -> OpWork | None:
    """The cast of the operand that moves: the input forward, the gradient before the input's gradient."""
    shape = work.shape
    if not isinstance(shape, Contraction) or not work.parameter_bytes:
        return None
    elements = shape.batch * shape.m * shape.k
    return OpWork(
        family=Family.COPY,
        kind="cast",
        phase=work.phase,
        compute=work.compute,
        shape=Elements(elements),
        element_bits=work.element_bits,
        matrix_flops=0,
        vector_flops=0,
        read_bytes=elements * work.element_bits // 8,
        write_bytes=2 * elements * bits // 8,
        parameter_bytes=0,
        launch_count=1,
    )

"""LSTM, GRU and RNN over a whole sequence in one library call.

FLOPs 2 * T * B * directions * gates * H * (I + H) for the products; the gradient asks for twice as many. The
shape is the chain of steps, which cannot run together: `batch` = T * directions products of (B x (I + H)) by
((I + H) x gates * H).
"""

from __future__ import annotations

from predictor.features.graph import Value
from predictor.features.ops.parts import size_of, weight_bytes
from predictor.features.programs.op_view import OpView, element_bits
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Contraction, Family, OpWork, Phase

# Gates, and vector FLOPs per cell element.
_CELLS = {"LSTM": (4, 24), "GRU": (3, 18), "RNN": (1, 3)}


def _shape(op: OpView) -> Contraction:
    data, weight, recurrence = op.input(0), op.input(1), op.input(2)
    gates, _ = _CELLS[op.op_type]
    steps, batch = data.shape[0], data.shape[1]
    if op.integer("layout"):
        steps, batch = batch, steps
    directions, hidden = weight.shape[0], recurrence.shape[2]
    return Contraction(steps * directions, batch, gates * hidden, data.shape[2] + hidden)


def _work(op: OpView, shape: Contraction, phase: Phase, times: int, writes: tuple[Value, ...]) -> OpWork:
    gates, vector = _CELLS[op.op_type]
    return OpWork(
        family=Family.RECURRENT,
        kind=op.op_type.lower(),
        phase=phase,
        compute=op.matrix_compute(0, 1),
        shape=shape,
        element_bits=element_bits(list(op.present_inputs)),
        matrix_flops=times * 2 * shape.batch * shape.m * shape.n * shape.k,
        vector_flops=times * vector * shape.batch * shape.m * shape.n // gates,
        read_bytes=size_of(op.present_inputs) + (size_of(op.present_outputs) if times > 1 else 0),
        write_bytes=size_of(writes),
        parameter_bytes=weight_bytes(op, op.present_inputs),
        # Persistent library kernels: about one launch per step and direction.
        launch_count=times * shape.batch,
    )


@WORK_RULES.register("", *_CELLS)
def recurrent(op: OpView) -> tuple[OpWork, ...]:
    """All steps and directions of one layer."""
    return (_work(op, _shape(op), Phase.FORWARD, 1, op.present_outputs),)


@BACKWARD_RULES.register("", *_CELLS)
def recurrent_backward(op: OpView) -> Backward:
    """Keeps input and output, and the gates of every step."""
    shape = _shape(op)
    writes = tuple(
        value for index, value in enumerate(op.inputs) if value is not None and op.wants_gradient(index)
    )
    kept = [op.input(0).name, op.input(1).name, op.input(2).name]
    if op.has_output(0):
        kept.append(op.output().name)
    gates_bytes = shape.batch * shape.m * shape.n * op.input(0).dtype.bits // 8
    return Backward((_work(op, shape, Phase.BACKWARD, 2, writes),), tuple(kept), gates_bytes)

"""The two registries that know ops: what running one forward asks of a device, and what its gradient asks.

Adding an op: one decorated function per registry in `features/ops/` and one golden case. Packages add their
own through the entry-point group `predictor.work_rules`: each entry names a function `register(work_rules,
backward_rules)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from predictor.features.programs.op_view import OpView, element_bits, vector_compute
from predictor.features.programs.work import Elements, Family, OpWork, Phase
from predictor.registry import Registry


@dataclass(frozen=True, slots=True)
class Backward:
    """What one op adds to the backward pass.

    Attributes:
        works: kernels that turn the outputs' gradients into those of the inputs that need one.
        saves: names (of the view's inputs and outputs) that must stay alive until then.
        saved_extra_bytes: further bytes kept, e.g. statistics, masks, indices.
        passes: names of inputs whose gradient is the output's gradient itself or a view of it: no kernel, no
            memory.
        temporary_bytes: what its kernels hand to one another, beside the gradients; None: what they
            write beyond those.
        copies_inside: a strided operand is copied into order inside the kernel: the operand is kept, not the
            copy.
    """

    works: tuple[OpWork, ...] = ()
    saves: tuple[str, ...] = ()
    saved_extra_bytes: int = 0
    passes: tuple[str, ...] = ()
    copies_inside: bool = False
    temporary_bytes: int | None = None


WorkRule: TypeAlias = Callable[[OpView], tuple[OpWork, ...]]
BackwardRule: TypeAlias = Callable[[OpView], Backward]

WORK_RULES: Registry[WorkRule] = Registry("work rule")
"""Forward work. An empty tuple means that nothing runs: a view, or known before the iteration."""
BACKWARD_RULES: Registry[BackwardRule] = Registry("backward rule")
"""Gradient work, asked only for ops with at least one input that needs a gradient."""


def unknown_work(op: OpView) -> tuple[OpWork, ...]:
    """The fallback: every operand crosses the memory bus once."""
    values = op.present_inputs + op.present_outputs
    return (
        OpWork(
            family=Family.UNKNOWN,
            kind=op.op_type.lower(),
            phase=Phase.FORWARD,
            compute=vector_compute(values),
            shape=Elements(max((value.elements for value in op.present_outputs), default=0)),
            element_bits=element_bits(values),
            matrix_flops=0,
            vector_flops=0,
            read_bytes=sum(value.size_bytes for value in op.present_inputs),
            write_bytes=sum(value.size_bytes for value in op.present_outputs),
        ),
    )


def unknown_backward(op: OpView) -> Backward:
    """The fallback gradient: twice the forward bytes, everything that is a float is kept."""
    forward = unknown_work(op)[0].in_phase(Phase.BACKWARD)
    kept = tuple(value.name for value in op.present_inputs + op.present_outputs if value.dtype.is_float)
    return Backward((forward, forward), kept)


def has_rule(domain: str, op_type: str, version: int) -> bool:
    """True when a work rule knows the op."""
    load_rules()
    return WORK_RULES.get(domain, op_type, version) is not None


@cache
def load_rules() -> None:
    """Registers the built-in rules and those of installed packages, once per process."""
    from importlib.metadata import entry_points

    import predictor.features.ops  # noqa: F401

    for entry in sorted(entry_points(group="predictor.work_rules"), key=lambda item: item.name):
        entry.load()(WORK_RULES, BACKWARD_RULES)

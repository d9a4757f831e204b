"""Exchanges between ranks as ops of the graph of one rank, forward and backward.

All stand in domain perfcast and name their plan's `group` and its number of `ranks`. What one does forward,
its conjugate does backward (Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053: f and g; Korthikanti et al.
2022, arXiv:2205.05198, for sequence parallelism):

    forward                         backward
    AllReduce                       nothing: the gradient is whole on every rank
    GradientAllReduce: nothing      all-reduce
    AllGather                       reduce-scatter; a slice where `backward` = "slice"
    ReduceScatter                   all-gather
    Scatter: a slice                all-gather
    AllToAll                        all-to-all
    SendRecv                        send_recv

No FLOPs and no time of the device: links carry them (predictor.parallel). `write_bytes` is the result where
it takes new memory; all-reduces work in place.
"""

from __future__ import annotations

from predictor.features.dtype import Compute
from predictor.features.graph import Value
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Collective, Family, OpWork, Phase, Transfer

COLLECTIVE_OPS = frozenset(
    {
        *("AllReduce", "GradientAllReduce", "AllGather", "ReduceScatter", "Scatter", "AllToAll", "SendRecv"),
        "RingAttention",
    }
)
"""No compiler fuses across these."""
GATHERS_AGAIN = "gathers_again"
"""Attribute of an AllGather whose result backward gathers once more instead of keeping it."""


def transfer_work(
    kind: Collective,
    *,
    group: str,
    ranks: int,
    size_bytes: int,
    write_bytes: int = 0,
    element_bits: int = 32,
    phase: Phase = Phase.FORWARD,
) -> OpWork:
    """The work of one exchange.

    Args:
        size_bytes: as in Transfer. write_bytes: memory that the result takes.
    """
    return OpWork(
        family=Family.COMMUNICATION,
        kind=kind.value,
        phase=phase,
        compute=Compute.FP32,
        shape=Transfer(kind, group, ranks, size_bytes),
        element_bits=element_bits,
        matrix_flops=0,
        vector_flops=0,
        read_bytes=0,
        write_bytes=write_bytes,
    )


def exchange(
    op: OpView, kind: Collective, source: Value, result: Value | None, phase: Phase = Phase.FORWARD
) -> OpWork:
    """`source` becomes `result` within the op's group; None leaves it in place."""
    return transfer_work(
        kind,
        group=op.text("group"),
        ranks=op.integer("ranks", 1),
        size_bytes=max(source.size_bytes, result.size_bytes if result else 0),
        write_bytes=result.size_bytes if result else 0,
        element_bits=source.dtype.bits,
        phase=phase,
    )


@WORK_RULES.register("perfcast", "AllReduce")
def all_reduce(op: OpView) -> tuple[OpWork, ...]:
    """Sums in place."""
    return (exchange(op, Collective.ALL_REDUCE, op.input(0), None),)


@WORK_RULES.register("perfcast", "GradientAllReduce", "Scatter")
def local_view(op: OpView) -> tuple[OpWork, ...]:
    """Nothing runs forward."""
    return ()


@WORK_RULES.register("perfcast", "AllGather")
def all_gather(op: OpView) -> tuple[OpWork, ...]:
    """The shards of all ranks, joined."""
    return (exchange(op, Collective.ALL_GATHER, op.input(0), op.output()),)


@WORK_RULES.register("perfcast", "ReduceScatter")
def reduce_scatter(op: OpView) -> tuple[OpWork, ...]:
    """One shard of the sum."""
    return (exchange(op, Collective.REDUCE_SCATTER, op.input(0), op.output()),)


@WORK_RULES.register("perfcast", "AllToAll")
def all_to_all(op: OpView) -> tuple[OpWork, ...]:
    """A part of each rank's tensor to each other rank."""
    return (exchange(op, Collective.ALL_TO_ALL, op.input(0), op.output()),)


@WORK_RULES.register("perfcast", "SendRecv")
def send_recv(op: OpView) -> tuple[OpWork, ...]:
    """The tensor to the next rank, another one from the rank before."""
    return (exchange(op, Collective.SEND_RECV, op.input(0), op.output()),)


@BACKWARD_RULES.register("perfcast", "AllReduce")
def all_reduce_backward(op: OpView) -> Backward:
    """The gradient is the same on every rank."""
    return Backward(passes=(op.input(0).name,))


@BACKWARD_RULES.register("perfcast", "GradientAllReduce")
def gradient_all_reduce_backward(op: OpView) -> Backward:
    """Each rank made a part of the sum."""
    work = exchange(op, Collective.ALL_REDUCE, op.output(), None, Phase.BACKWARD)
    return Backward((work,), passes=(op.input(0).name,))


@BACKWARD_RULES.register("perfcast", "AllGather")
def all_gather_backward(op: OpView) -> Backward:
    """Reduce-scatter of partial gradients, a slice of whole ones.

    `gathers_again` = 1: the shard is kept instead of the whole, which backward gathers once more.
    """
    if op.text("backward") == "slice":
        return Backward(passes=(op.input(0).name,))
    works = [exchange(op, Collective.REDUCE_SCATTER, op.output(), op.input(0), Phase.BACKWARD)]
    if op.integer(GATHERS_AGAIN):
        works.insert(0, exchange(op, Collective.ALL_GATHER, op.input(0), op.output(), Phase.BACKWARD))
    return Backward(tuple(works))


@BACKWARD_RULES.register("perfcast", "ReduceScatter", "Scatter")
def reduce_scatter_backward(op: OpView) -> Backward:
    """The gradient's shards, joined."""
    return Backward((exchange(op, Collective.ALL_GATHER, op.output(), op.input(0), Phase.BACKWARD),))


@BACKWARD_RULES.register("perfcast", "AllToAll")
def all_to_all_backward(op: OpView) -> Backward:
    """The way back."""
    return Backward((exchange(op, Collective.ALL_TO_ALL, op.output(), op.input(0), Phase.BACKWARD),))


@BACKWARD_RULES.register("perfcast", "SendRecv")
def send_recv_backward(op: OpView) -> Backward:
    """The gradient goes to the rank before."""
    return Backward((exchange(op, Collective.SEND_RECV, op.output(), op.input(0), Phase.BACKWARD),))

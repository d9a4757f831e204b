"""Exchanges between ranks as ops: what crosses the links forward, and what its conjugate does backward."""

from __future__ import annotations

from math import prod

import pytest

from predictor.features.dtype import DType
from predictor.features.graph import Graph, Node, Value
from predictor.features.programs.program import program_of
from predictor.features.programs.work import Collective, Family, Phase, Program, Transfer
from predictor.features.programs.work_json import work_from_json, work_to_json
from predictor.types import Mode, Optimizer

RANKS = 4
WHOLE, PART = (8, 64), (8, 16)


def graph_with(op_type: str, before: tuple[int, ...], after: tuple[int, ...], **attributes: object) -> Graph:
    """x W -> op -> relu: a parameter in front, so that a gradient passes through the op."""
    values = {
        "x": Value("x", (before[0], 32), DType.FLOAT32),
        "w": Value("w", (32, before[1]), DType.FLOAT32),
        "y": Value("y", before, DType.FLOAT32),
        "z": Value("z", after, DType.FLOAT32),
        "r": Value("r", after, DType.FLOAT32),
    }
    nodes = (
        Node("product", "MatMul", ("x", "w"), ("y",)),
        Node("exchange", op_type, ("y",), ("z",), "perfcast", {"group": "tp", "ranks": RANKS, **attributes}),  # type: ignore[dict-item]
        Node("relu", "Relu", ("z",), ("r",)),
    )
    return Graph(
        nodes,
        values,
        ("x",),
        ("r",),
        frozenset({"w"}),
        frozenset(),
        {},
        {"": 17, "perfcast": 1},
        8,
        "sha256:0",
    )


def transfers(program: Program, phase: Phase) -> list[Transfer]:
    works = [op.work for op in program.ops if op.work.phase is phase]
    found = [work.shape for work in works if work.family is Family.COMMUNICATION]
    return [shape for shape in found if isinstance(shape, Transfer)]


CASES = [
    ("AllReduce", WHOLE, WHOLE, {}, [Collective.ALL_REDUCE], []),
    ("GradientAllReduce", WHOLE, WHOLE, {}, [], [Collective.ALL_REDUCE]),
    ("AllGather", PART, WHOLE, {}, [Collective.ALL_GATHER], [Collective.REDUCE_SCATTER]),
    ("AllGather", PART, WHOLE, {"backward": "slice"}, [Collective.ALL_GATHER], []),
    (
        "AllGather",
        PART,
        WHOLE,
        {"gathers_again": 1},
        [Collective.ALL_GATHER],
        [Collective.ALL_GATHER, Collective.REDUCE_SCATTER],
    ),
    ("ReduceScatter", WHOLE, PART, {}, [Collective.REDUCE_SCATTER], [Collective.ALL_GATHER]),
    ("Scatter", WHOLE, PART, {}, [], [Collective.ALL_GATHER]),
    ("AllToAll", (8, 64), (32, 16), {}, [Collective.ALL_TO_ALL], [Collective.ALL_TO_ALL]),
    ("SendRecv", WHOLE, WHOLE, {}, [Collective.SEND_RECV], [Collective.SEND_RECV]),
]


@pytest.mark.parametrize(("op_type", "before", "after", "attributes", "forward", "backward"), CASES)
def test_what_is_exchanged(
    op_type: str,
    before: tuple[int, ...],
    after: tuple[int, ...],
    attributes: dict[str, object],
    forward: list[Collective],
    backward: list[Collective],
) -> None:
    graph = graph_with(op_type, before, after, **attributes)
    program = program_of(graph, mode=Mode.TRAIN, optimizer=Optimizer.SGD, strict=True)
    size_bytes = 4 * max(prod(before), prod(after))
    for phase, kinds in ((Phase.FORWARD, forward), (Phase.BACKWARD, backward)):
        assert transfers(program, phase) == [Transfer(kind, "tp", RANKS, size_bytes) for kind in kinds]
    # The gradient still reaches the weight in front of the exchange.
    assert [gradient.parameter for gradient in program.gradients] == ["w"]
    inference = program_of(graph, mode=Mode.INFER, strict=True)
    assert [shape.kind for shape in transfers(inference, Phase.FORWARD)] == forward
    assert not transfers(inference, Phase.BACKWARD)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    sent = {kind: Transfer(kind, "tp", RANKS, 1000).sent_bytes for kind in Collective}
    assert sent[Collective.ALL_REDUCE] == 1500.0
    assert sent[Collective.REDUCE_SCATTER] + sent[Collective.ALL_GATHER] == sent[Collective.ALL_REDUCE]
    assert sent[Collective.SEND_RECV] == 1000.0
    assert all(Transfer(kind, "tp", 1, 1000).sent_bytes == 0.0 for kind in Collective)


def test_transfers_survive_json() -> None:
    program = program_of(graph_with("AllReduce", WHOLE, WHOLE), mode=Mode.INFER)
    (work,) = [op.work for op in program.ops if op.work.family is Family.COMMUNICATION]
    assert work_from_json(work_to_json(work)) == work


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_computes_what_the_whole_sequence_asks(causal: int, ranks: int) -> None:
    def program(length: int, op_type: str) -> Program:
        shape = (2, 4, length, 16)
        values = {name: Value(name, shape, DType.FLOAT16) for name in ("x", "q", "k", "v", "out")}
        values["scale"] = Value("scale", (1,), DType.FLOAT16)
        nodes = (
            *(Node(name, "Mul", ("x", "scale"), (name,)) for name in ("q", "k", "v")),
            Node(
                "attention",
                op_type,
                ("q", "k", "v"),
                ("out",),
                "perfcast",
                {"causal": causal, "heads": 4, "kv_heads": 4, "group": "cp", "ranks": ranks},
            ),
        )
        graph = Graph(
            nodes,
            values,
            ("x",),
            ("out",),
            frozenset({"scale"}),
            frozenset(),
            {},
            {"": 17, "perfcast": 1},
            2,
            "sha256:0",
        )
        return program_of(graph, mode=Mode.TRAIN, strict=True)

    whole, part = program(256, "Attention"), program(256 // ranks, "RingAttention")
    flops = [sum(op.work.matrix_flops for op in found.ops) for found in (whole, part)]
    assert flops[0] == ranks * flops[1] > 0
    shard_bytes = 2 * (2 * 4 * 256 // ranks * 16) * 2
    forward, backward = transfers(part, Phase.FORWARD), transfers(part, Phase.BACKWARD)
    assert {shape.size_bytes for shape in forward + backward} == {shard_bytes}
    assert (len(forward), len(backward)) == (ranks - 1, 2 * (ranks - 1) + 1)

"""Losses over a vocabulary that tensor ranks share, and over rows that sequence ranks share."""

from __future__ import annotations

from predictor.features.graph import Graph
from predictor.features.programs.program import program_of
from predictor.features.programs.work import Collective, Family, Rows, Transfer
from predictor.parallel.plan import Plan
from predictor.parallel.sharding import sharding
from predictor.types import Mode
from tests.unit.features.graphs import Sketch

TOKENS, WIDTH, WORDS = 32, 64, 512


def model() -> Graph:
    sketch = Sketch()
    x = sketch.input("x", TOKENS, WIDTH)
    labels = sketch.input("labels", TOKENS)
    hidden = sketch.node(
        "Linear", [x, sketch.parameter("w", WIDTH, WIDTH)], (TOKENS, WIDTH), domain="perfcast"
    )
    head = sketch.parameter("head", WIDTH, WORDS)
    scores = sketch.node("Linear", [hidden, head], (TOKENS, WORDS), domain="perfcast")
    loss = sketch.node("SoftmaxCrossEntropyLoss", [scores, labels], (), reduction="mean")
    return sketch.graph(loss, batch=TOKENS)


def test_scores_of_a_split_vocabulary_are_not_gathered() -> None:
    for tp in (1, 2, 4):
        local = sharding(model(), Plan(tp=tp), training=True).graph
        program = program_of(local, mode=Mode.TRAIN)
        rows = [op.work.shape for op in program.ops if op.work.family is Family.SOFTMAX]
        assert rows == [Rows(TOKENS, WORDS // tp)] * 2
        exchanges = [op.work.shape for op in program.ops if isinstance(op.work.shape, Transfer)]
        gathered = [x for x in exchanges if x.kind is Collective.ALL_GATHER]
        assert not any(x.size_bytes >= TOKENS * WORDS * 4 for x in gathered)

"""Works as columns give the works back, and two batch sizes of a program give a third."""

from __future__ import annotations

import pytest

from predictor.features.architectures import architecture
from predictor.features.programs.program import build_program
from predictor.features.programs.work import OpWork
from predictor.features.programs.work_table import between, joined, work_table
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime


def works(name: str, batch: int) -> list[OpWork]:
    program = build_program(
        read_graph(architecture(name, batch=batch), batch=batch),
        mode=Mode.TRAIN,
        precision=Precision.AMP,
        optimizer=Optimizer.MOMENTUM,
        runtime=Runtime.EAGER,
    )
    return [op.work for op in program.ops]


def test_works_survive() -> None:
    given = works("resnet50", 4) + works("bert_large", 2)
    table = work_table(given)
    assert table.works() == given
    assert joined([table.take(slice(0, 5)), table.take(slice(5, None))]).works() == given


@pytest.mark.parametrize("name", ["resnet50", "bert_large"])
def test_a_third_batch_size_lies_on_the_line_through_two(name: str) -> None:
    first, second = (work_table(works(name, batch)) for batch in (8, 16))
    assert between(first, second, at=3.0).works() == works(name, 32)


def test_different_ops_have_no_line() -> None:
    table = work_table(works("bert_large", 2))
    with pytest.raises(ValueError, match="different ops"):
        between(table, table.take(slice(1, None)), at=2.0)

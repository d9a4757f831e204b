"""The guide runs as it stands, top to bottom, and says what is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from predictor.features.graph import Graph
from predictor.features.programs.program import build_program
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime

GUIDE = (Path(__file__).parents[3] / "docs" / "how-to" / "build-a-graph.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """All names that the guide's blocks define."""
    found: dict[str, Any] = {"__name__": "guide"}
    for block in BLOCKS:
        exec(compile(block, "build-a-graph.md", "exec"), found)
    return found


def matrix_flops(graph: Graph) -> int:
    program = build_program(
        graph, mode=Mode.INFER, precision=Precision.FP32, optimizer=Optimizer.NONE, runtime=Runtime.EAGER
    )
    return sum(op.work.matrix_flops for op in program.ops)


def test_the_guide_has_its_blocks() -> None:
    assert len(BLOCKS) == 8


def test_every_candidate_is_answered(names: dict[str, Any]) -> None:
    assert len(names["times_s"]) == 8
    assert all(time_s > 0 for time_s in names["times_s"])
    # The smallest network is the fastest one.
    assert names["fastest"] == names["candidate"](2, 32, 3)


def test_one_matrix_applied_to_three_thirds(names: dict[str, Any]) -> None:
    assert names["shared"].parameter_count == 10_000
    assert matrix_flops(names["shared"]) == 60_000


def test_one_block_applied_six_times(names: dict[str, Any]) -> None:
    block = 32 * 9 + 32 * 32 + 2 * 2 * 32
    assert names["recurrent"].parameter_count == block
    assert matrix_flops(names["recurrent"]) == 6 * 8 * 16 * 16 * 2 * (32 * 9 + 32 * 32)


def test_any_operator_of_onnx(names: dict[str, Any]) -> None:
    graph = read_graph(names["attention"], batch=3)
    assert graph.values[graph.outputs[0]].shape == (3, 8, 128, 4)


def test_published_models(names: dict[str, Any]) -> None:
    assert read_graph(names["gpt2"]).parameter_count == 774_030_080
    # Llama 3.2 1B.
    assert read_graph(names["llama"], batch=1).parameter_count == 1_235_814_400

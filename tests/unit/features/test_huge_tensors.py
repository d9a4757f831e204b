"""Tensors that no memory holds are one clear error."""

from __future__ import annotations

import pytest

from predictor.errors import InvalidGraph
from predictor.features.builder import GraphBuilder
from predictor.features.programs.program import build_program
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime


def test_more_bytes_than_64_bits_add_up() -> None:
    b = GraphBuilder()
    x = b.input("x", (2**31, 2**29))
    graph = read_graph(b.build([b.relu(b.add(x, x))]))
    with pytest.raises(InvalidGraph, match="more than 2\\^60 bytes"):
        build_program(
            graph,
            mode=Mode.INFER,
            precision=Precision.FP32,
            optimizer=Optimizer.NONE,
            runtime=Runtime.EAGER,
        )

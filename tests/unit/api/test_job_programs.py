"""A rank of a plan runs what one device would: every option of a request reaches both programs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from predictor.api.job_programs import device_program, job_key, request_rank_program
from predictor.features.builder import GraphBuilder
from predictor.features.graph import Graph
from predictor.features.reading.reader import read_graph
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest


def images() -> Graph:
    b = GraphBuilder()
    x = b.input("image", (8, 16, 32, 32))
    for _ in range(2):
        x = b.relu(b.batch_norm(b.conv(x, 32, kernel=3)))
    x = b.relu(b.linear(b.flatten(b.global_pool(x)), 256))
    return read_graph(b.build([b.linear(b.relu(b.linear(x, 256)), 10)]))


GRAPH = images()
OPTIONS: dict[str, dict[str, Any]] = {
    "layout": {"layout": "nhwc"},
    "precision": {"precision": "bf16"},
    "training": {"mode": "train", "optimizer": "adamw"},
    "kept gradients": {"mode": "train", "framework_version": "1.13"},
    "weights": {"weights": "int4"},
    "compiled": {"runtime": "compiled"},
    "engine": {"runtime": "tensorrt", "precision": "fp16"},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_one_replica_of_two_runs_the_same_kernels(case: str) -> None:
    alone = PredictionRequest(GRAPH, "a100-pcie-40gb", **OPTIONS[case])
    replica = PredictionRequest(GRAPH, "a100-pcie-40gb", plan=Plan(dp=2), **OPTIONS[case])
    plain = PredictionRequest(GRAPH, "a100-pcie-40gb")
    program, rank = device_program(GRAPH, alone), request_rank_program(GRAPH, replica).program
    assert Counter(op.work for op in rank.ops) == Counter(op.work for op in program.ops)
    assert rank.timeline is not None
    assert program.timeline is not None
    assert (rank.timeline.size_bytes == program.timeline.size_bytes).all()
    assert job_key(alone) == job_key(replica) != job_key(plain)


def test_the_layout_of_images_changes_what_runs() -> None:
    """Guards the case above: the copies of one layout are not those of the other."""
    requests = (PredictionRequest(GRAPH, "a100-pcie-40gb", layout=layout) for layout in ("nchw", "nhwc"))
    first, second = (Counter(op.work for op in device_program(GRAPH, request).ops) for request in requests)
    assert first != second

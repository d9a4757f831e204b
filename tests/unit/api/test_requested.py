"""What a request means, before anything is priced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.api.requested import check_bound
from predictor.errors import InvalidRequest
from predictor.features.reading.reader import read_graph
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest

RESNET = Path(__file__).parents[3] / "examples" / "resnet50.onnx"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, ""),
        ({"batch": 8}, ""),
        ({"batch": 32, "plan": Plan(dp=2, microbatches=2)}, ""),
        ({"plan": Plan(dp=4)}, ""),
        ({"batch": 32}, "read for 8 samples"),
        ({"batch": 8, "plan": Plan(dp=2)}, "makes 16 with dp=2"),
        ({"dims": {"batch": 8}}, "give dims and input_shapes to read_graph"),
        ({"input_shapes": {"image": (8, 3, 64, 64)}}, "give dims and input_shapes to read_graph"),
    ],
)
def test_a_graph_that_was_read_has_its_sizes(options: dict[str, Any], problem: str) -> None:
    request = PredictionRequest(read_graph(RESNET, batch=8), "a100", **options)
    if not problem:
        check_bound(request)
        return
    with pytest.raises(InvalidRequest, match=problem):
        check_bound(request)

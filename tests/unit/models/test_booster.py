"""Processes forked from one that predicts can load and predict too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
# A fresh process: the test runner's own threads must not decide the outcome.
SCRIPT = """
import multiprocessing, sys
from predictor import PredictionRequest, Predictor

def answer(predictor):
    return predictor.predict(PredictionRequest(sys.argv[1], "t4", batch=2)).iteration_time_s

if __name__ == "__main__":
    predictor = Predictor.load()
    expected = answer(predictor)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        # The predictor travels as a pickle: each child loads the bundle again.
        assert pool.map_async(answer, [predictor] * 4).get(timeout=60) == [expected] * 4
"""


def test_a_fork_of_a_predicting_process_predicts() -> None:
    model = str(ROOT / "examples" / "resnet50.onnx")
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, model], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr

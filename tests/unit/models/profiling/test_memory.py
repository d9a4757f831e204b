"""Peaks on a GPU: everything but the GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from predictor.errors import InvalidInput
from predictor.models.corpus.schema import conform
from predictor.models.profiling.memory import (
    SOURCE,
    Peaks,
    measure_peaks,
    memory_rows,
    parse_monitor,
    require_gpu,
    train_steps,
)
from predictor.types import Optimizer, Precision

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[4]
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


class Job(torch.nn.Module):  # type: ignore[name-defined,misc]
    def __init__(self, device: str) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(11, 8, device=device)
        self.out = torch.nn.Linear(8, 11, device=device)

    def forward(self, tokens: Any, target: Any) -> Any:
        return torch.nn.functional.cross_entropy(self.out(self.words(tokens)).flatten(0, 1), target.flatten())


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_steps_train_on_real_tensors(device: str, precision: Precision) -> None:
    tokens = torch.empty(4, 6, dtype=torch.int64, device="meta")
    steps: list[int] = []
    losses = train_steps(
        Job(device),
        (tokens, tokens),
        Optimizer.ADAM,
        precision,
        device="cpu",
        steps=20,
        after_step=lambda: steps.append(1),
    )
    assert len(losses) == len(steps) == 20
    assert losses[-1] < losses[0]


def test_the_monitors_lines() -> None:
    text = "12, 300\n77, 1024\n99, [N/A]\n"
    assert parse_monitor(text, 77) == 1024 * 2**20
    assert parse_monitor(text, 99) is None
    assert parse_monitor(text, 1) is None
    assert parse_monitor("", 1) is None


def test_rows_are_of_the_schema() -> None:
    rows = memory_rows(
        "MLP", "h100-sxm-80gb", {"optimizer": "adam", "precision": "amp"}, Peaks(10, 20, 30, "2.6")
    )
    table = conform(pl.DataFrame(rows), SOURCE)
    assert table.height == 3
    assert sorted(table["value"].to_list()) == [10.0, 20.0, 30.0]
    assert table.filter(pl.col("scope") == "device_monitor")["quantity"].to_list() == ["device_peak_memory"]
    assert len(memory_rows("MLP", "h100-sxm-80gb", {}, Peaks(10, 20, None, "2.6"))) == 2


@without_gpu
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(InvalidInput, match="no CUDA device"):
        require_gpu()
    with pytest.raises(InvalidInput, match="no CUDA device"):
        measure_peaks(Job("meta"), (), Optimizer.SGD)


@without_gpu
def test_the_script_refuses_without_a_gpu() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "memory_gpu.py"), "--device", "h100-sxm-80gb"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "no CUDA device" in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout

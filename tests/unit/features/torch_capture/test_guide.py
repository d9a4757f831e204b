"""What docs/how-to/price-a-torch-module.md shows, run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

GUIDE = Path(__file__).parents[4] / "docs" / "how-to" / "price-a-torch-module.md"


def test_the_block_prices_a_training_step(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(
        r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    found: dict[str, Any] = {}
    exec(compile(block, GUIDE.name, "exec"), found)
    answer, predictor, request = found["answer"], found["predictor"], found["request"]
    assert 0 < answer.iteration_time_s.low < answer.iteration_time_s.value
    assert sum(answer.time_breakdown_s.values()) == pytest.approx(answer.iteration_time_s.value)
    # Adam's two states and the gradient stand beside each parameter.
    memory = answer.memory_breakdown_bytes
    assert memory["optimizer_state"] >= 2 * memory["parameters"] * 0.9
    larger = predictor.predict(type(request)(found["model"], device="a100-pcie-40gb", mode="train", batch=64))
    assert larger.iteration_time_s.value > answer.iteration_time_s.value
    assert capsys.readouterr().out.startswith("Interval(")

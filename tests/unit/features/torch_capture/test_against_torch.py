"""G3 in small: captures against torch's counter, and the exported graph's backward pass against captures."""

from __future__ import annotations

import pytest

from predictor.evaluation.torch_capture import (
    COUNTER_GOAL,
    ONNX_BYTES_GOAL,
    ONNX_FLOPS_GOAL,
    Compared,
    compare_modules,
    torch_rows,
)

pytest.importorskip("torch")
pytest.importorskip("torch.utils.flop_counter")

FAST = (
    "conv 2-D, grouped",
    "transposed conv 2-D, grouped, dilated",
    "linear, 3-D, no bias",
    "attention, causal, 1 of 4 heads",
    "attention by hand",
    "embedding",
    "GRU, 2 layers",
    "MobileNet",
    "Llama",
)


def check(item: Compared) -> None:
    assert item.forward_flops > 0
    assert item.backward_flops > 0
    assert item.counter_error <= COUNTER_GOAL
    assert not item.onnx_error
    assert item.onnx_flops_error is not None
    assert item.onnx_bytes_error is not None
    assert item.onnx_flops_error <= ONNX_FLOPS_GOAL
    assert item.onnx_bytes_error <= ONNX_BYTES_GOAL


@pytest.mark.parametrize("name", FAST)
def test_flops_and_bytes_agree(name: str) -> None:
    (item,) = compare_modules([name])
    check(item)


@pytest.mark.slow
def test_all_modules_agree() -> None:
    found = compare_modules()
    assert len(found) >= 40
    for item in found:
        check(item)


def test_rows_hold_the_largest_deviation() -> None:
    def compared(counted: int, onnx_flops: int | None) -> Compared:
        return Compared("x", 100, 200, 100, counted, 300, 400, onnx_flops, None)

    rows = torch_rows([compared(200, 300), compared(250, None)])
    found = {(row.group, row.metric): (row.value, row.n) for row in rows}
    assert found["capture vs torch's counter", "max_ape"] == (pytest.approx(0.2), 2)
    assert found["capture vs torch's counter", "outside"] == (0.5, 2)
    assert found["ONNX vs capture, backward FLOPs", "max_ape"] == (0.0, 1)
    assert not [row for row in rows if "bytes" in row.group]
    assert {row.id for row in rows} == {"G3"}

"""What backward keeps, against what torch's autograd really saves for the example models."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from predictor.features.programs.program import build_program
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[3] / "examples"
BATCH = 2


def image(size: int) -> Any:
    return torch.zeros(BATCH, 3, size, size)


def tokens(length: int) -> Any:
    return torch.ones(BATCH, length, dtype=torch.int64)


def saved_by_torch(module: Any, inputs: list[Any]) -> int:
    """Bytes of the distinct storages that autograd holds after forward, parameters and the batch left out."""
    owned = [*module.parameters(), *module.buffers(), *inputs]
    known = {tensor.untyped_storage().data_ptr() for tensor in owned}
    held: dict[int, int] = {}
    # Kept alive until the end, so that no address is used twice.
    tensors = []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            held[storage.data_ptr()] = storage.nbytes()
        tensors.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module.train()(*inputs)
    return sum(held.values())


@pytest.mark.parametrize(
    ("name", "home", "module", "dims"),
    [
        ("resnet50", "convolutional", "ResNet50", {}),
        ("mobilenet_v2", "convolutional", "MobileNetV2", {}),
        ("vit_b16", "attention", "ViTB16", {}),
        ("bert_base", "attention", "BertBase", {"sequence": 64}),
    ],
)
def test_saved_bytes_are_those_of_autograd(
    name: str, home: str, module: str, dims: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    built = getattr(importlib.import_module(f"zoo.{home}"), module)()
    inputs = [tokens(64)] * 3 if dims else [image(224)]
    expected = saved_by_torch(built, inputs)
    graph = read_graph(EXAMPLES / f"{name}.onnx", batch=BATCH, dims=dims)
    program = build_program(
        graph,
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=Optimizer.NONE,
        runtime=Runtime.EAGER,
        strict=True,
    )
    assert program.memory.saved_bytes == pytest.approx(expected, rel=1e-3)

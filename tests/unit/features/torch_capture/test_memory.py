"""Memory of captures: what autograd keeps, when it frees, and what stands at the peak."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.features.torch_capture import TorchModel
from predictor.types import Mode, Optimizer

torch = pytest.importorskip("torch")
nn = torch.nn

ROWS, WIDTH = 64, 256
TENSOR = 4 * ROWS * WIDTH


def test_saved_bytes_by_hand() -> None:
    # Each GELU keeps its input, each linear layer but the first its own (the first keeps the batch).
    module = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)
    )
    memory = TorchModel(module, torch.empty(ROWS, WIDTH)).program(mode=Mode.TRAIN).memory
    # Inputs of two GELUs, inputs of two layers, and the result.
    assert memory.saved_bytes == 5 * TENSOR
    assert memory.input_bytes == TENSOR
    weights = 3 * 4 * (WIDTH * WIDTH + WIDTH)
    assert memory.parameter_bytes == memory.gradient_bytes == weights
    assert memory.optimizer_state_bytes == memory.buffer_bytes == 0


def test_relu_keeps_its_result_once() -> None:
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))
    memory = TorchModel(module, torch.empty(ROWS, WIDTH)).program(mode=Mode.TRAIN).memory
    assert memory.saved_bytes == 2 * TENSOR


def test_inference_frees_as_it_goes() -> None:
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8)))
    memory = TorchModel(module, torch.empty(ROWS, WIDTH)).program(mode=Mode.INFER).memory
    assert memory.saved_bytes == memory.gradient_bytes == 0
    # A layer's input and its result.
    assert memory.activation_bytes == 2 * TENSOR
    assert memory.live_peak_bytes == memory.parameter_bytes + memory.input_bytes + 2 * TENSOR


def test_the_peak_of_adam_is_in_the_step() -> None:
    module = nn.Linear(1024, 1024, bias=False)
    memory = (
        TorchModel(module, torch.empty(2, 1024)).program(mode=Mode.TRAIN, optimizer=Optimizer.ADAM).memory
    )
    weight = 4 * 1024 * 1024
    assert memory.optimizer_state_bytes == 2 * weight
    # Weight, gradient, two moments, and the square root of the second one.
    assert memory.live_peak_bytes == pytest.approx(5 * weight, rel=0.01)


def saved_by_torch(module: Any, *inputs: Any) -> int:
    """Distinct storages that autograd packs and that are neither weights nor inputs, in a real run."""
    known = {item.untyped_storage().data_ptr() for item in (*module.parameters(), *module.buffers(), *inputs)}
    found: dict[int, int] = {}

    def pack(item: Any) -> Any:
        storage = item.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return item

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda item: item):
        out = module(*inputs)
    found.setdefault(out.untyped_storage().data_ptr(), out.untyped_storage().nbytes())
    return sum(found.values())


@pytest.mark.parametrize("name", ["ResNeXt", "DenseNet", "ViT", "GPT, tied head", "WaveNet", "U-Net"])
def test_saved_bytes_are_those_of_a_real_run(name: str) -> None:
    from predictor.evaluation.torch_networks import NETWORKS

    module, inputs = next(case for case in NETWORKS if case.name == name).make()
    memory = TorchModel(module, inputs).program(mode=Mode.TRAIN).memory
    real = saved_by_torch(module.train(), *inputs)
    # Fused attention keeps other row statistics on a CPU, and pooling other indices.
    assert memory.saved_bytes == pytest.approx(real, rel=0.02)


def test_reserved_memory_covers_the_peak() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3)
    )
    memory = TorchModel(module, torch.empty(8, 3, 64, 64)).program(mode=Mode.TRAIN).memory
    assert memory.live_peak_bytes <= memory.reserved_bytes <= memory.large_workspace_reserved_bytes
    assert memory.buffer_bytes == 2 * 64 * 4 + 8

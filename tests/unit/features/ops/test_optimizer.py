from __future__ import annotations

import pytest

from predictor.features.dtype import DType
from predictor.features.graph import Value
from predictor.features.ops.optimizer import launch_count, optimizer_memory, optimizer_work
from predictor.features.programs.work import Phase
from predictor.types import Optimizer, Precision, Runtime

PARAMETERS = [Value("w", (1000, 100), DType.FLOAT32), Value("b", (1000,), DType.FLOAT32)]
COUNT = 101_000


def moved_per_parameter(optimizer: Optimizer, runtime: Runtime) -> float:
    works = optimizer_work(PARAMETERS, optimizer, precision=Precision.FP32, runtime=runtime)
    assert all(work.phase is Phase.OPTIMIZER for work in works)
    return sum(work.moved_bytes for work in works) / COUNT


# FP32 bytes per parameter. Foreach passes of torch, e.g. SGD with momentum: buf *= m (8), buf += g (12),
# p -= lr * buf (12). Adam: lerp 12, mul 8, addcmul 12, sqrt 8, div 8, add 8, addcdiv 16.
@pytest.mark.parametrize(
    ("optimizer", "eager", "compiled"),
    [
        (Optimizer.NONE, 0, 0),
        (Optimizer.SGD, 12, 12),
        (Optimizer.MOMENTUM, 32, 20),
        (Optimizer.ADAM, 72, 28),
        (Optimizer.ADAMW, 80, 28),
    ],
)
def test_bytes_per_parameter(optimizer: Optimizer, eager: int, compiled: int) -> None:
    assert moved_per_parameter(optimizer, Runtime.EAGER) == eager
    assert moved_per_parameter(optimizer, Runtime.COMPILED) == compiled


def test_loss_scaling_adds_a_pass_over_the_gradients() -> None:
    plain = optimizer_work(PARAMETERS, Optimizer.SGD, precision=Precision.FP32, runtime=Runtime.EAGER)
    scaled = optimizer_work(PARAMETERS, Optimizer.SGD, precision=Precision.AMP, runtime=Runtime.EAGER)
    assert len(scaled) == len(plain) + 1
    assert scaled[0].moved_bytes == 8 * COUNT


def test_parameter_types_are_stepped_apart() -> None:
    mixed = [*PARAMETERS, Value("h", (10,), DType.FLOAT16)]
    works = optimizer_work(mixed, Optimizer.SGD, precision=Precision.FP32, runtime=Runtime.EAGER)
    assert sorted(work.element_bits for work in works) == [16, 32]


def test_many_tensors_share_a_launch() -> None:
    assert launch_count([10] * 48, 3) == 1
    assert launch_count([10] * 49, 3) == 2
    # 65536 elements a block, 320 blocks a launch.
    assert launch_count([65536 * 320], 2) == 1
    assert launch_count([65536 * 320 + 1], 2) == 2


@pytest.mark.parametrize(
    ("optimizer", "tensors"),
    [(Optimizer.SGD, 0), (Optimizer.MOMENTUM, 1), (Optimizer.ADAM, 2), (Optimizer.ADAMW, 2)],
)
def test_state(optimizer: Optimizer, tensors: int) -> None:
    memory = optimizer_memory(PARAMETERS, optimizer, Runtime.EAGER)
    assert sum(memory.state_bytes) == 4 * COUNT * tensors


def test_foreach_adam_needs_a_temporary_copy() -> None:
    assert optimizer_memory(PARAMETERS, Optimizer.ADAM, Runtime.EAGER).temporary_bytes == tuple(
        v.size_bytes for v in PARAMETERS
    )
    assert optimizer_memory(PARAMETERS, Optimizer.ADAM, Runtime.COMPILED).temporary_bytes == ()


def test_half_precision_state_has_the_parameters_type() -> None:
    half = [Value("w", (100,), DType.BFLOAT16)]
    assert sum(optimizer_memory(half, Optimizer.ADAMW, Runtime.EAGER).state_bytes) == 400

"""Memory by hand on small graphs: peaks, what is saved, what views share."""

from __future__ import annotations

import pytest

from predictor.features.dtype import DType
from predictor.features.graph import Graph
from predictor.features.programs.memory_timeline import NEEDED_WITHIN, Held, Lifetime, Line, MemoryTimeline
from predictor.features.programs.program import program_of
from predictor.features.programs.work import MemoryWork
from predictor.types import Mode, Optimizer, Precision
from predictor.units import MIB
from tests.unit.features.graphs import Sketch

# One activation of the chain below.
UNIT = 4 * 1000


def chain(*op_types: str) -> Graph:
    """A parameter-dependent tensor of UNIT bytes, then unary ops."""
    s = Sketch()
    name = s.node("Add", [s.input("x", 1000), s.parameter("w", 1000)], (1000,), name="a")
    for index, op_type in enumerate(op_types):
        name = s.node(op_type, [name], (1000,), name=f"v{index}")
    return s.graph(name)


def infer(graph: Graph) -> MemoryWork:
    return program_of(graph, mode=Mode.INFER).memory


def train(graph: Graph, optimizer: Optimizer = Optimizer.NONE) -> MemoryWork:
    return program_of(graph, mode=Mode.TRAIN, optimizer=optimizer).memory


def test_inference_holds_an_input_and_an_output() -> None:
    memory = infer(chain("Relu", "Relu", "Relu", "Relu"))
    assert memory.activation_bytes == 2 * UNIT
    assert memory.transient_bytes == 0
    assert (memory.parameter_bytes, memory.input_bytes) == (UNIT, UNIT)
    assert (memory.gradient_bytes, memory.optimizer_state_bytes) == (0, 0)
    assert memory.live_peak_bytes == 4 * UNIT


def test_views_take_no_memory() -> None:
    memory = infer(chain("Relu", "Identity", "Identity", "Relu"))
    assert memory.activation_bytes == 2 * UNIT


def test_long_lived_branch_adds_to_the_peak() -> None:
    s = Sketch()
    a = s.node("Relu", [s.input("x", 1000)], (1000,), name="a")
    b = s.node("Relu", [a], (1000,), name="b")
    c = s.node("Relu", [b], (1000,), name="c")
    d = s.node("Relu", [c], (1000,), name="d")
    memory = infer(s.graph(s.node("Add", [a, d], (1000,), name="y")))
    assert memory.activation_bytes == 3 * UNIT


def test_training_saves_what_gradients_read() -> None:
    # Each tanh keeps its output; the sum keeps nothing, and its result dies after the first tanh.
    memory = train(chain("Tanh", "Tanh", "Tanh"))
    assert memory.activation_bytes == 3 * UNIT
    assert memory.gradient_bytes == UNIT
    # At the peak, the start of backward, the last gradient arrives and makes the one before it.
    assert memory.transient_bytes == 2 * UNIT
    assert memory.live_peak_bytes == (1 + 1 + 3 + 2) * UNIT


def test_input_saved_by_two_layers_counts_once() -> None:
    s = Sketch()
    x, w = s.input("x", 100, 10), s.parameter("w", 10, 10)
    h = s.node("Tanh", [s.node("MatMul", [x, w], (100, 10), name="a")], (100, 10), name="h")
    q = s.node("MatMul", [h, s.parameter("wq", 10, 10)], (100, 10), name="q")
    k = s.node("MatMul", [h, s.parameter("wk", 10, 10)], (100, 10), name="k")
    y = s.node("Add", [q, k], (100, 10), name="y")
    memory = train(s.graph(y))
    # Only `h` is kept (x is the batch); y is held as the result.
    assert memory.activation_bytes == UNIT


def test_saved_slice_keeps_its_whole_base() -> None:
    s = Sketch()
    base = s.node("MatMul", [s.input("x", 300, 10), s.parameter("w", 10, 10)], (300, 10), name="base")
    part = s.node("Slice", [base, s.constant("starts", 0)], (100, 10), name="part")
    y = s.node("Erf", [part], (100, 10), name="y")
    assert train(s.graph(y)).activation_bytes == 3 * UNIT


def test_extra_bytes_are_kept() -> None:
    s = Sketch()
    a = s.node("Add", [s.input("x", 1000), s.parameter("w", 1000)], (1000,), name="a")
    y = s.node("Dropout", [a], (1000,), name="y")
    assert train(s.graph(y)).activation_bytes == 1000


def test_optimizer_state_and_its_temporary() -> None:
    graph = chain("Neg")
    assert train(graph, Optimizer.MOMENTUM).optimizer_state_bytes == UNIT
    adam = train(graph, Optimizer.ADAM)
    assert adam.optimizer_state_bytes == 2 * UNIT
    # Nothing is saved: the peak is one where the result and two gradients, or the square root, are alive.
    assert adam.activation_bytes == 0
    assert adam.live_peak_bytes >= adam.parameter_bytes + adam.input_bytes + 2 * UNIT + 2 * UNIT


def test_unused_parameters_have_no_gradient_but_take_memory() -> None:
    s = Sketch()
    x, w = s.input("x", 4, 8), s.parameter("w", 8, 8)
    s.parameter("idle", 100)
    s.buffer("table", 50)
    memory = train(s.graph(s.node("MatMul", [x, w], (4, 8))), Optimizer.MOMENTUM)
    assert memory.parameter_bytes == 4 * 164
    assert memory.buffer_bytes == 200
    assert memory.gradient_bytes == memory.optimizer_state_bytes == 256


def test_autocast_keeps_its_weight_copies_to_the_end_of_forward() -> None:
    def peak(precision: Precision) -> int:
        s = Sketch()
        name = s.input("x", 1, 10, dtype=DType.FLOAT16)
        for index in range(4):
            w = s.parameter(f"w{index}", 10, 10)
            half = s.node("Cast", [w], (10, 10), dtype=DType.FLOAT16, name=f"h{index}")
            name = s.node("MatMul", [name, half], (1, 10), dtype=DType.FLOAT16, name=f"y{index}")
        return program_of(s.graph(name), mode=Mode.INFER, precision=precision).memory.activation_bytes

    # One copy of 200 B and two activations of 20 B, against four copies.
    assert peak(Precision.FP16) == 200 + 40
    assert peak(Precision.AMP) == 800 + 40


def test_reserved_memory_covers_the_live_peak_and_workspace_adds_to_it() -> None:
    s = Sketch()
    x, w = s.input("x", 64, 16, 64, 64), s.parameter("w", 16, 16, 3, 3)
    y = s.node("Conv", [x, w], (64, 16, 64, 64), pads=(1, 1, 1, 1))
    memory = train(s.graph(s.node("Relu", [y], (64, 16, 64, 64))), Optimizer.SGD)
    assert memory.live_peak_bytes <= memory.reserved_bytes
    assert memory.reserved_bytes < memory.workspace_reserved_bytes < memory.large_workspace_reserved_bytes


def test_doubling_the_batch_doubles_activations_only() -> None:
    def memory(batch: int) -> MemoryWork:
        s = Sketch()
        h = s.node("MatMul", [s.input("x", batch, 64), s.parameter("w", 64, 64)], (batch, 64), name="h")
        return train(s.graph(s.node("Tanh", [h], (batch, 64), name="y")), Optimizer.ADAM)

    small, large = memory(256), memory(512)
    assert large.activation_bytes == 2 * small.activation_bytes
    assert large.parameter_bytes == small.parameter_bytes
    assert large.optimizer_state_bytes == small.optimizer_state_bytes


def steps_of(*tensors: tuple[int, int, int]) -> MemoryTimeline:
    """An iteration of three steps and tensors of so many MiB, from one step to another."""
    lifetimes = [
        Lifetime(Line.TRANSIENT, size * MIB, begin, end, f"t{index}", begin)
        for index, (size, begin, end) in enumerate(tensors)
    ]
    return MemoryTimeline.of(
        lifetimes,
        length=3,
        forward_length=3,
        training=False,
        held=Held(0, 0, (), (), (), 0),
        workspaces={},
    )


def test_a_full_device_needs_less_than_an_allocator_keeps() -> None:
    # Each tensor is too large for the segments before it, which a device with room to spare keeps.
    timeline = steps_of((100, 0, 0), (200, 1, 1), (300, 2, 2))
    assert timeline.work().reserved_bytes == 600 * MIB
    assert timeline.needed_bytes() == pytest.approx(300 * MIB, rel=NEEDED_WITHIN)


def test_what_is_in_use_keeps_its_segment() -> None:
    # 60 of the first 100 MiB are taken again, and the 40 beside them do not hold 50.
    timeline = steps_of((100, 0, 0), (60, 1, 2), (50, 2, 2))
    assert timeline.total_bytes.max() == 110 * MIB
    assert timeline.needed_bytes() == 150 * MIB


def test_gradients_that_are_only_set_to_zero_stand_beside_the_next_forward_pass() -> None:
    graph = chain("Tanh", "Tanh", "Tanh")
    plain, kept = (
        program_of(graph, mode=Mode.TRAIN, keeps_gradients=keeps).memory for keeps in (False, True)
    )
    # At the peak, the start of backward, the weight's gradient of the iteration before is still there.
    assert kept.live_peak_bytes == plain.live_peak_bytes + UNIT
    assert kept.gradient_bytes == plain.gradient_bytes == UNIT

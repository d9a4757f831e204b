"""Programs: order, gradient paths, accumulation, when gradients are ready, strictness."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.errors import InvalidGraph, UnsupportedOp
from predictor.features.dtype import DType
from predictor.features.graph import Graph, Node
from predictor.features.programs.op_view import OpView
from predictor.features.programs.program import build_program, program_of
from predictor.features.programs.rules import (
    BACKWARD_RULES,
    WORK_RULES,
    Backward,
    BackwardRule,
    WorkRule,
    load_rules,
)
from predictor.features.programs.work import Family, OpWork, Phase, Program
from predictor.registry import Registry
from predictor.types import Mode, Optimizer, Precision, Runtime
from tests.unit.features.graphs import Sketch

load_rules()


def mlp(batch: int = 4, dtype: DType = DType.FLOAT32) -> Graph:
    s = Sketch(dtype=dtype)
    x = s.input("x", batch, 8)
    w1, b1 = s.parameter("w1", 16, 8), s.parameter("b1", 16)
    w2, b2 = s.parameter("w2", 3, 16), s.parameter("b2", 3)
    h = s.node("Linear", [x, w1, b1], (batch, 16), domain="perfcast", transposed_weight=1, name="h")
    r = s.node("Relu", [h], (batch, 16), name="r")
    y = s.node("Linear", [r, w2, b2], (batch, 3), domain="perfcast", transposed_weight=1, name="y")
    return s.graph(y, batch=batch)


def residual() -> Graph:
    s = Sketch()
    x, w = s.input("x", 4, 8), s.parameter("w", 8, 8)
    a = s.node("MatMul", [x, w], (4, 8), name="a")
    b = s.node("Tanh", [a], (4, 8), name="b")
    return s.graph(s.node("Add", [a, b], (4, 8), name="y"))


def kinds(program: Program, phase: Phase) -> list[str]:
    return [op.work.kind for op in program.ops if op.work.phase is phase]


def test_inference_is_the_forward_pass_alone() -> None:
    program = program_of(mlp(), mode=Mode.INFER)
    assert [op.work.kind for op in program.ops] == ["linear", "relu", "linear"]
    assert program.gradients == ()
    assert program.parameter_count == 16 * 8 + 16 + 3 * 16 + 3
    assert program.batch == 4


def test_training_runs_backward_in_reverse_without_the_batchs_gradient() -> None:
    program = program_of(mlp(), mode=Mode.TRAIN, optimizer=Optimizer.SGD)
    assert kinds(program, Phase.BACKWARD) == [
        "fill",
        *("linear_data_gradient", "linear_weight_gradient", "sum"),
        "relu",
        *("linear_weight_gradient", "sum"),
    ]
    assert kinds(program, Phase.OPTIMIZER) == ["sgd"]
    phases = [op.work.phase for op in program.ops]
    assert phases == sorted(phases, key=[Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER].index)


def test_gradients_become_ready_from_the_last_layer_to_the_first() -> None:
    program = program_of(mlp(), mode=Mode.TRAIN)
    order = [item.parameter for item in program.gradients]
    assert sorted(order[:2]) == ["b2", "w2"]
    assert sorted(order[2:]) == ["b1", "w1"]
    indices = [item.op_index for item in program.gradients]
    assert indices == sorted(indices)
    assert {program.ops[index].work.phase for index in indices} == {Phase.BACKWARD}
    assert {item.parameter: item.size_bytes for item in program.gradients}["w1"] == 4 * 128


def test_value_with_two_readers_costs_one_addition() -> None:
    program = program_of(residual(), mode=Mode.TRAIN)
    assert kinds(program, Phase.BACKWARD) == ["fill", "tanh", "add", "linear_weight_gradient"]


def test_shared_parameter_is_complete_after_its_last_use() -> None:
    s = Sketch()
    x, w = s.input("x", 4, 8), s.parameter("w", 8, 8)
    a = s.node("MatMul", [x, w], (4, 8), name="a")
    y = s.node("MatMul", [a, w], (4, 8), name="y")
    program = program_of(s.graph(y), mode=Mode.TRAIN)
    (gradient,) = program.gradients
    assert kinds(program, Phase.BACKWARD)[-2:] == ["linear_weight_gradient", "add"]
    assert gradient.op_index == len(program.ops) - 1


def test_operand_used_twice_by_one_node_accumulates() -> None:
    s = Sketch()
    w = s.parameter("w", 8)
    program = program_of(s.graph(s.node("Mul", [w, w], (8,))), mode=Mode.TRAIN)
    assert kinds(program, Phase.BACKWARD) == ["fill", "mul", "mul", "add"]


def test_branch_that_reaches_no_output_has_no_backward() -> None:
    s = Sketch()
    x, w, v = s.input("x", 4, 8), s.parameter("w", 8, 8), s.parameter("v", 8, 8)
    y = s.node("MatMul", [x, w], (4, 8))
    s.node("MatMul", [x, v], (4, 8))
    program = program_of(s.graph(y), mode=Mode.TRAIN)
    assert [item.parameter for item in program.gradients] == ["w"]


def test_integer_results_carry_no_gradient() -> None:
    s = Sketch()
    x, w = s.input("x", 4, 8), s.parameter("w", 8, 8)
    a = s.node("MatMul", [x, w], (4, 8))
    top = s.node("ArgMax", [a], (4, 1), dtype=DType.INT64, axis=1)
    program = program_of(s.graph(a, top), mode=Mode.TRAIN)
    assert "arg_max" not in kinds(program, Phase.BACKWARD)


def test_weight_only_nodes_run_just_before_their_reader() -> None:
    s = Sketch()
    x = s.input("x", 4, 8)
    w1, w2 = s.parameter("w1", 8, 8), s.parameter("w2", 8, 8)
    h1 = s.node("Cast", [w1], (8, 8), dtype=DType.FLOAT16, name="h1")
    h2 = s.node("Cast", [w2], (8, 8), dtype=DType.FLOAT16, name="h2")
    a = s.node("MatMul", [x, h1], (4, 8), dtype=DType.FLOAT16, name="a")
    y = s.node("MatMul", [a, h2], (4, 8), dtype=DType.FLOAT16, name="y")
    program = program_of(s.graph(y), mode=Mode.TRAIN)
    forward = [op.op_type for op in program.ops if op.work.phase is Phase.FORWARD]
    assert forward == ["Cast", "MatMul", "Cast", "MatMul"]
    # The last layer's gradient is ready before the first layer's backward starts.
    assert [item.parameter for item in program.gradients] == ["w2", "w1"]
    first = next(op for op in program.ops if op.op_type == "MatMul")
    assert first.work.parameter_bytes == 2 * 64


def test_batch_norm_and_dropout_follow_the_mode() -> None:
    s = Sketch()
    x = s.input("x", 4, 8, 5, 5)
    names = [s.parameter("scale", 8), s.parameter("shift", 8), s.buffer("mean", 8), s.buffer("variance", 8)]
    n = s.node("BatchNormalization", [x, *names], (4, 8, 5, 5))
    graph = s.graph(s.node("Dropout", [n], (4, 8, 5, 5)))
    assert kinds(program_of(graph, mode=Mode.INFER), Phase.FORWARD) == ["batch_norm_inference"]
    assert kinds(program_of(graph, mode=Mode.TRAIN), Phase.FORWARD) == [
        *("batch_norm_statistics", "batch_norm", "dropout")
    ]


def unknown_ops() -> Graph:
    s = Sketch()
    x, w = s.input("x", 4, 8), s.parameter("w", 4, 8)
    a = s.node("Frobnicate", [x, w], (4, 8), domain="acme")
    b = s.node("Whirl", [a], (4, 8), domain="acme")
    return s.graph(s.node("Whirl", [b], (4, 8), domain="acme"))


def test_unknown_op_is_priced_by_its_bytes() -> None:
    program = program_of(unknown_ops(), mode=Mode.TRAIN)
    first = program.ops[0]
    assert (first.covered, first.work.family, first.work.moved_bytes) == (False, Family.UNKNOWN, 4 * 96)
    backward = [
        op for op in program.ops if op.work.family is Family.UNKNOWN and op.work.phase is Phase.BACKWARD
    ]
    assert len(backward) == 2 * 3
    assert not any(op.covered for op in backward)


def test_strict_lists_all_unknown_ops_at_once() -> None:
    with pytest.raises(UnsupportedOp) as caught:
        program_of(unknown_ops(), mode=Mode.INFER, strict=True)
    assert "acme::Frobnicate (1x)" in caught.value.message
    assert "acme::Whirl (2x)" in caught.value.message


def test_strict_lists_missing_gradients() -> None:
    rules = BACKWARD_RULES.copy()
    rules._rules.pop(("", "Tanh"))
    with pytest.raises(UnsupportedOp, match=r"gradient of ai\.onnx::Tanh"):
        program_of(residual(), mode=Mode.TRAIN, strict=True, backward_rules=rules)
    program_of(residual(), mode=Mode.INFER, strict=True, backward_rules=rules)


def test_own_rules_in_an_overlay() -> None:
    rules = WORK_RULES.copy()

    @rules.register("acme", "Frobnicate", "Whirl")
    def whirl(op: OpView) -> tuple[OpWork, ...]:
        add = rules.get("", "Add", 21)
        assert add is not None
        return add(OpView("", "Add", {}, op.inputs, op.outputs))

    program = program_of(unknown_ops(), mode=Mode.INFER, work_rules=rules, strict=True)
    assert all(op.covered for op in program.ops)
    assert WORK_RULES.get("acme", "Whirl", 1) is None


def test_operands_that_make_no_sense_name_the_node() -> None:
    s = Sketch()
    x = s.input("x", 4)
    graph = s.graph(s.node("Conv", [x, s.parameter("w", 4)], (4,), name="odd"))
    with pytest.raises(InvalidGraph, match="/odd"):
        program_of(graph, mode=Mode.INFER)
    missing = Graph(**{**vars(mlp()), "nodes": (Node("n", "Softmax", (), ("y",)),)})
    with pytest.raises(InvalidGraph, match="input 0 is missing"):
        program_of(missing, mode=Mode.INFER)


def test_bodies_are_told_apart() -> None:
    s = Sketch()
    x = s.input("x", 4)
    names = [s.node("Scan", [x], (4,), name=f"y{width}", body=mlp(width)) for width in (1, 2)]
    rules = WORK_RULES.copy()

    @rules.register("", "Scan")
    def scan(op: OpView) -> tuple[OpWork, ...]:
        body = op.attributes["body"]
        assert isinstance(body, Graph)
        return tuple(item.work for item in program_of(body, mode=Mode.INFER).ops)

    program = program_of(s.graph(*names), mode=Mode.INFER, work_rules=rules)
    products = [op.work.matrix_flops for op in program.ops if op.work.kind == "linear"]
    assert products[2:] == [2 * flops for flops in products[:2]]


def test_installed_packages_add_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "acme"

        @staticmethod
        def load() -> object:
            def register(work_rules: Registry[WorkRule], backward_rules: Registry[BackwardRule]) -> None:
                work_rules.register("acme.plugin", "Whirl")(lambda op: ())
                backward_rules.register("acme.plugin", "Whirl")(lambda op: Backward())

            return register

    def entry_points(group: str) -> list[type[Entry]]:
        return [Entry] if group == "predictor.work_rules" else []

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    try:
        load_rules.__wrapped__()
        assert WORK_RULES.get("acme.plugin", "Whirl", 1) is not None
    finally:
        WORK_RULES._rules.pop(("acme.plugin", "Whirl"), None)
        BACKWARD_RULES._rules.pop(("acme.plugin", "Whirl"), None)


def test_names_do_not_matter() -> None:
    def renamed(graph: Graph) -> Graph:
        def new(name: str) -> str:
            return f"other_{name}" if name else ""

        values = {new(n): type(v)(new(n), v.shape, v.dtype) for n, v in graph.values.items()}
        nodes = tuple(
            Node(
                f"n{i}",
                n.op_type,
                tuple(map(new, n.inputs)),
                tuple(map(new, n.outputs)),
                n.domain,
                n.attributes,
            )
            for i, n in enumerate(graph.nodes)
        )
        return Graph(
            nodes,
            values,
            tuple(map(new, graph.inputs)),
            tuple(map(new, graph.outputs)),
            frozenset(map(new, graph.parameters)),
            frozenset(map(new, graph.buffers)),
            {new(n): c for n, c in graph.constants.items()},
            graph.opsets,
            graph.batch,
            graph.fingerprint,
        )

    for graph in (mlp(), residual()):
        first = program_of(graph, mode=Mode.TRAIN, optimizer=Optimizer.ADAM)
        second = program_of(renamed(graph), mode=Mode.TRAIN, optimizer=Optimizer.ADAM)
        assert [op.work for op in first.ops] == [op.work for op in second.ops]
        assert first.memory == second.memory


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("runtime", list(Runtime))
@pytest.mark.parametrize("mode", list(Mode))
def test_the_whole_path(mode: Mode, runtime: Runtime, precision: Precision) -> None:
    is_engine = runtime in (Runtime.ONNXRUNTIME, Runtime.TENSORRT)
    if is_engine and mode is Mode.TRAIN:
        return
    program = build_program(
        mlp(), mode=mode, precision=precision, optimizer=Optimizer.ADAMW, runtime=runtime, strict=True
    )
    flops = sum(op.work.matrix_flops for op in program.ops if op.work.phase is Phase.FORWARD)
    assert flops == 2 * 4 * (16 * 8 + 3 * 16)
    width = {Precision.FP16: 2, Precision.BF16: 2, Precision.FP64: 8}.get(precision, 4)
    if is_engine and precision is Precision.AMP:
        # Weights are cast once, before anything runs.
        width = 2
    assert program.memory.parameter_bytes == width * program.parameter_count
    state = program.memory.optimizer_state_bytes
    assert state == (2 * width * program.parameter_count if mode is Mode.TRAIN else 0)


def total_work(program: Program) -> tuple[int, int, int]:
    works = [op.work for op in program.ops]
    return (
        sum(work.flops for work in works),
        sum(work.read_bytes for work in works),
        sum(work.write_bytes for work in works),
    )


@given(st.integers(1, 64), st.sampled_from(list(Mode)))
def test_doubling_the_batch_never_lowers_work(batch: int, mode: Mode) -> None:
    small = total_work(program_of(mlp(batch), mode=mode))
    large = total_work(program_of(mlp(2 * batch), mode=mode))
    assert all(a <= b for a, b in zip(small, large, strict=True))


@given(
    st.sampled_from(["Relu", "Add", "Mul", "Gelu", "Sigmoid", "Exp", "Where", "Concat"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_halving_the_width_halves_the_bytes(op_type: str, shape: list[int]) -> None:
    def moved(dtype: DType) -> int:
        s = Sketch(dtype=dtype)
        count = 2 if op_type in ("Add", "Mul", "Where", "Concat") else 1
        names = [s.input(f"x{i}", *shape) for i in range(count)]
        out = (shape[0] * (2 if op_type == "Concat" else 1), *shape[1:])
        if op_type == "Where":
            names = [s.input("mask", *shape, dtype=DType.BOOL), *names]
        program = program_of(s.graph(s.node(op_type, names, out)), mode=Mode.INFER)
        mask_bytes = s.values["mask"].size_bytes if op_type == "Where" else 0
        return sum(op.work.moved_bytes for op in program.ops) - mask_bytes

    assert moved(DType.FLOAT32) == 2 * moved(DType.FLOAT16)

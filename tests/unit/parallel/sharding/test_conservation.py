"""What the ranks hold and compute adds up to the whole, on graphs of every kind; experts on their ranks."""

from __future__ import annotations

from functools import cache
from math import prod
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor.features.architectures import architecture
from predictor.features.architectures.from_config import from_config
from predictor.features.builder import GraphBuilder
from predictor.features.graph import Graph
from predictor.features.lowering.lower import lower
from predictor.features.programs.program import program_of
from predictor.features.programs.work import Collective, Family, Phase, Program, Transfer
from predictor.features.reading.reader import read_graph
from predictor.parallel.plan import Plan
from predictor.parallel.sharding import sharding
from predictor.parallel.sharding.front import NOT_SPLIT
from predictor.types import Mode, Optimizer, Weights
from tests.unit.parallel.sharding.models import (
    BATCH,
    CONFIGS,
    HIDDEN,
    LAYERS,
    SEQUENCE,
    attention_in_pieces,
    config_graph,
    residual_cnn,
)

EXAMPLES = Path(__file__).parents[4] / "examples"


@cache
def graph_of(name: str) -> Graph:
    if name in CONFIGS:
        return config_graph(name)
    if name in ("pieces", "cnn"):
        return {"pieces": attention_in_pieces, "cnn": residual_cnn}[name]()
    if name.endswith(".onnx"):
        dims = {"sequence": 64} if "bert" in name else {}
        return lower(read_graph(str(EXAMPLES / name), batch=2, dims=dims), training=True)
    return lower(read_graph(architecture(name, batch=2)), training=True)


@cache
def whole_program(name: str, mode: Mode) -> Program:
    return program_of(graph_of(name), mode=mode, optimizer=Optimizer.ADAM)


def matrix_flops(program: Program) -> int:
    return sum(op.work.matrix_flops for op in program.ops)


# The share of FLOPs that may run more than once: first convolutions of 3 channels, pooled heads, padding.
REAL = {
    "unet.onnx": 0.01,
    "resnet50.onnx": 0.001,
    "mobilenet_v2.onnx": 0.001,
    "vit_b16.onnx": 0.03,
    "bert_base.onnx": 0.001,
    "gpt2.onnx": 0.001,
    "vgg16": 0.001,
    "deepspeech2": 3.0,
}


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("name", REAL)
def test_real_graphs_split_nearly_all_of_their_work(name: str, mode: Mode) -> None:
    graph = graph_of(name)
    found = sharding(graph, Plan(tp=2), training=mode is Mode.TRAIN)
    local = program_of(found.graph, mode=mode, optimizer=Optimizer.ADAM)
    whole = whole_program(name, mode)
    # Forward alone, exchange weighs more, and a few small convolutions are not worth it.
    repeated = REAL[name] + (0 if mode is Mode.TRAIN else 0.08)
    assert matrix_flops(whole) <= 2 * matrix_flops(local) <= (1.001 + repeated) * matrix_flops(whole)
    assert all(op.covered for op in local.ops) == all(op.covered for op in whole.ops)
    # All of the work, or it says what is missing.
    said = sum(note.code == NOT_SPLIT for note in found.notes)
    assert said or 2 * matrix_flops(local) <= 1.001 * matrix_flops(whole)
    if mode is Mode.TRAIN:
        assert {g.parameter for g in local.gradients} == {g.parameter for g in whole.gradients}


@pytest.mark.parametrize("name", REAL)
def test_parameters_of_all_ranks_are_the_whole_and_the_stated_replicas(name: str) -> None:
    graph, tp = graph_of(name), 4
    found = sharding(graph, Plan(tp=tp), training=True)
    sizes = {p: (prod(part.shape), prod(part.local_shape)) for p, part in found.parameters.items()}
    split = {p for p, part in found.parameters.items() if part.split_over}
    assert split == {p for p, (whole, local) in sizes.items() if local != whole}
    replicas = (tp - 1) * sum(whole for p, (whole, _) in sizes.items() if p not in split)
    held = tp * sum(local for _, local in sizes.values())
    padding = sum(tp * sizes[p][1] - sizes[p][0] for p in split)
    assert held == graph.parameter_count + replicas + padding
    assert (padding > 0) == any(note.code == "PADDED" for note in found.notes)
    assert found.graph.parameter_count == sum(local for _, local in sizes.values())


plans = st.builds(
    Plan,
    tp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2, 4]),
    sequence_parallel=st.booleans(),
    cp_kind=st.sampled_from(["ring", "all_to_all"]),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([*CONFIGS, "pieces", "cnn"]), plans, st.sampled_from(Mode))
def test_any_plan_on_any_graph(name: str, plan: Plan, mode: Mode) -> None:
    graph = graph_of(name)
    found = sharding(graph, plan, training=mode is Mode.TRAIN)
    again = sharding(graph, plan, training=mode is Mode.TRAIN)
    assert found == again
    local = program_of(found.graph, mode=mode, optimizer=Optimizer.ADAM, strict=True)
    whole = whole_program(name, mode)
    ranks = plan.tp * plan.cp
    assert matrix_flops(local) <= matrix_flops(whole) <= ranks * matrix_flops(local)
    assert local.memory.parameter_bytes <= whole.memory.parameter_bytes
    assert {g.parameter for g in local.gradients} == {g.parameter for g in whole.gradients}
    transfers = [op.work.shape for op in local.ops if op.work.family is Family.COMMUNICATION]
    groups = {shape.group for shape in transfers if isinstance(shape, Transfer)}
    assert groups <= {group for group in ("tp", "cp") if getattr(plan, group) > 1}
    for name_, part in found.parameters.items():
        assert found.graph.values[name_].shape == part.local_shape
    touched = {name for node in found.graph.nodes for name in (*node.inputs, *node.outputs) if name}
    assert touched <= set(found.graph.values)


def exchanged(program: Program, phase: Phase) -> list[Transfer]:
    shapes = [op.work.shape for op in program.ops if op.work.phase is phase]
    return [shape for shape in shapes if isinstance(shape, Transfer)]


@pytest.mark.parametrize("weights", Weights)
def test_experts_in_few_bits_are_split_as_full_ones(weights: Weights) -> None:
    whole = read_graph(from_config(CONFIGS["mixtral"], batch=BATCH, sequence=SEQUENCE))
    narrow = lower(whole, weights=weights, training=False)
    local = sharding(narrow, Plan(dp=2, ep=2), training=False).graph
    held = [
        (narrow.values[name].shape, local.values[name].shape)
        for name in narrow.parameters | narrow.buffers
        if len(narrow.values[name].shape) == 3 and narrow.values[name].shape[0] == 4
    ]
    # Two matrices a layer, with scales and zeros where blocks have them.
    each = {Weights.INT8: 2, Weights.INT4: 3}.get(weights, 1)
    assert len(held) == 2 * LAYERS * each
    assert all(mine == (all_[0] // 2, *all_[1:]) for all_, mine in held)


@pytest.mark.parametrize("group", [32, 128])
def test_scales_of_experts_are_cut_with_their_matrices_where_whole_blocks_are(group: int) -> None:
    stored = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": group}}
    whole = read_graph(from_config(CONFIGS["mixtral"] | stored, batch=BATCH, sequence=SEQUENCE))
    narrow = lower(whole, training=False)
    local = sharding(narrow, Plan(tp=2), training=False).graph
    products = [node for node in narrow.nodes if node.op_type == "GroupedMatMul"]
    assert len(products) == 2 * LAYERS
    for node in products:
        weight, scales = node.inputs[1], node.inputs[3]
        depth = narrow.values[weight].shape[1]
        mine = [local.values[name].elements for name in (weight, scales)]
        all_ = [narrow.values[name].elements for name in (weight, scales)]
        by_depth = local.values[weight].shape[1] < depth
        assert mine[0] * 2 == all_[0]
        assert mine[1] * (1 if by_depth and depth // group % 2 else 2) == all_[1]


def test_experts_on_buffers_read_their_scales_and_go_with_them() -> None:
    b = GraphBuilder()
    x = b.input("buffers", (4, 8, 256))
    for name, shape in (("up", (4, 256, 512)), ("down", (4, 512, 256))):
        x = b.relu(b.matmul(x, b.parameter(shape, name)))
    narrow = lower(read_graph(b.build([x])), weights=Weights.INT4, training=False)
    program = program_of(narrow, mode=Mode.INFER, optimizer=Optimizer.NONE)
    products = [op.work for op in program.ops if op.work.matrix_flops]
    numbers = 4 * 256 * 512
    # FP32 scales of 128 numbers with a zero of four bits.
    assert [work.parameter_bytes for work in products] == [numbers * (0.5 + 4 / 128 + 0.5 / 128)] * 2
    local = sharding(narrow, Plan(dp=2, ep=2), training=False).graph
    held = narrow.parameters | narrow.buffers
    assert sum(local.values[name].size_bytes for name in held) * 2 == sum(
        narrow.values[name].size_bytes for name in held
    )


def test_biases_of_experts_go_with_their_matrices() -> None:
    found = sharding(config_graph("gpt_oss"), Plan(dp=2, ep=2, tp=2), training=True)
    tables = [part for part in found.parameters.values() if part.split_over[:1] == ("ep",)]
    # Two matrices and the bias between them a layer.
    assert len(tables) == 3 * LAYERS
    assert all(part.local_shape[0] == 2 for part in tables)
    local = program_of(found.graph, mode=Mode.TRAIN, optimizer=Optimizer.ADAM, strict=True)
    travels = [shape for shape in exchanged(local, Phase.FORWARD) if shape.group == "ep"]
    assert len(travels) == 2 * LAYERS


@pytest.mark.parametrize("load_imbalance", [1.0, 1.5])
def test_tokens_travel_to_their_experts(load_imbalance: float) -> None:
    graph = config_graph("mixtral")
    plan = Plan(dp=4, ep=4, load_imbalance=load_imbalance)
    found = sharding(graph, plan, training=True)
    experts = {name for name, part in found.parameters.items() if part.split_over == ("ep",)}
    assert len(experts) == 2 * LAYERS
    assert all(4 * found.graph.values[name].elements == graph.values[name].elements for name in experts)
    local = program_of(found.graph, mode=Mode.TRAIN, optimizer=Optimizer.ADAM, strict=True)
    # Two experts a token: twice as many rows; there and back in every layer.
    rows = 2 * BATCH * SEQUENCE
    step = Transfer(Collective.ALL_TO_ALL, "ep", 4, int(rows * load_imbalance) * HIDDEN * 4)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert exchanged(local, phase) == [step] * 2 * LAYERS
    # Each rank computes as many rows as it sent, and the busiest more.
    whole = whole_program("mixtral", Mode.TRAIN)
    grouped = [
        sum(op.work.matrix_flops for op in program.ops if op.work.kind == "grouped_matmul")
        for program in (local, whole)
    ]
    assert grouped[0] == load_imbalance * grouped[1]


def test_experts_on_buffers() -> None:
    """[experts, capacity, width] by one matrix each: each rank gets its experts' buffers of all ranks."""
    experts, capacity, width = 4, 6, 32
    b = GraphBuilder("switch")
    x = b.input("buffers", (experts, capacity, width))
    y = b.gelu(b.matmul(x, b.parameter((experts, width, 64), "up")))
    graph = lower(read_graph(b.build([b.matmul(y, b.parameter((experts, 64, width), "down"))])))
    found = sharding(graph, Plan(dp=2, ep=2), training=True)
    local = program_of(found.graph, mode=Mode.TRAIN, optimizer=Optimizer.SGD, strict=True)
    assert {part.local_shape[0] for part in found.parameters.values()} == {2}
    buffer = Transfer(Collective.ALL_TO_ALL, "ep", 2, experts * capacity * width * 4)
    assert exchanged(local, Phase.FORWARD) == [buffer, buffer]
    assert matrix_flops(local) == matrix_flops(program_of(graph, mode=Mode.TRAIN))


@pytest.mark.parametrize(
    ("name", "ep", "said"),
    [("gpt2", 2, "no experts were found"), ("mixtral", 3, "4 experts do not divide over 3 ranks")],
)
def test_experts_that_cannot_be_split_are_said(name: str, ep: int, said: str) -> None:
    found = sharding(config_graph(name), Plan(dp=ep, ep=ep), training=True)
    (note,) = found.notes
    assert said in note.message
    assert found.graph.nodes == config_graph(name).nodes


def test_a_network_without_a_sequence_says_so() -> None:
    found = sharding(residual_cnn(), Plan(cp=2), training=True)
    assert all("no sequence that divides" in note.message for note in found.notes)
    assert found.notes

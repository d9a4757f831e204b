"""What the ranks of a transformer exchange: the counts of Megatron-LM, layer by layer.

Shoeybi et al. 2019 (arXiv:1909.08053): two all-reduces of batch x sequence x hidden a layer forward and two
backward. Korthikanti et al. 2022 (arXiv:2205.05198): each as a reduce-scatter and an all-gather with sequence
parallelism, and the gathered inputs once more backward.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path

import pytest

from predictor.errors import InvalidPlan
from predictor.features.architectures.from_config import from_config
from predictor.features.graph import Graph
from predictor.features.lowering.lower import lower
from predictor.features.programs.program import program_of
from predictor.features.programs.work import Collective, Family, Phase, Program, Transfer
from predictor.features.reading.reader import read_graph
from predictor.parallel.plan import Plan
from predictor.parallel.sharding import shard, sharding
from predictor.types import CpKind, Mode, Optimizer, Precision, Runtime
from tests.unit.parallel.sharding.models import (
    BATCH,
    CONFIGS,
    HEADS,
    HIDDEN,
    LAYERS,
    SEQUENCE,
    attention_in_pieces,
    config_graph,
)

ASSETS = Path(__file__).parents[3] / "assets" / "configs"
# One all-reduce: batch x sequence x hidden numbers of 4 bytes.
STEP_BYTES = BATCH * SEQUENCE * HIDDEN * 4


def local_program(graph: Graph, plan: Plan, mode: Mode = Mode.TRAIN) -> Program:
    local = shard(graph, plan, training=mode is Mode.TRAIN)
    return program_of(local, mode=mode, optimizer=Optimizer.ADAM, strict=True)


def exchanges(program: Program, phase: Phase) -> Counter[Transfer]:
    works = [op.work for op in program.ops if op.work.family is Family.COMMUNICATION]
    shapes = [work.shape for work in works if work.phase is phase]
    return Counter(shape for shape in shapes if isinstance(shape, Transfer))


def sent_bytes(program: Program, *kinds: Collective) -> float:
    return sum(
        count * transfer.sent_bytes
        for phase in (Phase.FORWARD, Phase.BACKWARD)
        for transfer, count in exchanges(program, phase).items()
        if not kinds or transfer.kind in kinds
    )


@pytest.mark.parametrize(("name", "tp"), [("gpt2", 2), ("gpt2", 4), ("llama", 2), ("bert", 2)])
def test_two_all_reduces_a_layer_and_direction(name: str, tp: int) -> None:
    program = local_program(config_graph(name), Plan(tp=tp))
    step = Transfer(Collective.ALL_REDUCE, "tp", tp, STEP_BYTES)
    # Forward one more for the split embedding, backward one more for the split vocabulary of the head.
    forward, backward = (exchanges(program, phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
    if name == "bert":
        # Its head has a layer more, whose norm needs rows whole.
        assert min(forward[step], backward[step]) >= 2 * LAYERS + 1
    else:
        assert forward == backward == {step: 2 * LAYERS + 1}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_sequence_parallelism_exchanges_as_much(name: str) -> None:
    graph, tp = config_graph(name), 2
    plain = local_program(graph, Plan(tp=tp))
    parted = local_program(graph, Plan(tp=tp, sequence_parallel=True))
    steps = 2 * LAYERS + 1
    gather, scatter = (
        Transfer(kind, "tp", tp, STEP_BYTES) for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    )
    forward, backward = (exchanges(parted, phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
    assert (forward[gather], forward[scatter]) == (steps, steps)
    # Backward the inputs of the layers are gathered once more: only shards were kept.
    assert (backward[gather], backward[scatter]) == (2 * steps, steps)
    again = steps * gather.sent_bytes
    small = sent_bytes(parted) - again - sent_bytes(plain)
    assert 0 <= small < 0.02 * sent_bytes(plain)


def test_shards_between_the_layers_are_kept_as_shards() -> None:
    graph = config_graph("gpt2")
    whole, plain, parted = (
        local_program(graph, plan).memory.saved_bytes
        for plan in (Plan(), Plan(tp=4), Plan(tp=4, sequence_parallel=True))
    )
    assert parted < plain < whole
    # Nearly everything that is kept is a quarter then.
    assert parted < 0.3 * whole


def test_inference_sends_nothing_for_gradients() -> None:
    program = local_program(config_graph("gpt2"), Plan(tp=2), Mode.INFER)
    assert exchanges(program, Phase.FORWARD) == {
        Transfer(Collective.ALL_REDUCE, "tp", 2, STEP_BYTES): 2 * LAYERS + 1
    }


def test_parallel_layers_meet_in_one_all_reduce() -> None:
    program = local_program(config_graph("gpt_neox"), Plan(tp=2))
    step = Transfer(Collective.ALL_REDUCE, "tp", 2, STEP_BYTES)
    assert exchanges(program, Phase.FORWARD)[step] == LAYERS + 1


def test_one_rank_is_the_graph_itself() -> None:
    graph = config_graph("gpt2")
    assert shard(graph, Plan(dp=8, pp=2, zero=1), training=True) is graph
    found = sharding(graph, Plan(), training=True)
    assert found.notes == ()
    assert all(part.shape == part.local_shape for part in found.parameters.values())


@pytest.mark.parametrize("tp", [2, 4])
def test_which_parameters_are_split(tp: int) -> None:
    graph = config_graph("gpt2")
    parts = sharding(graph, Plan(tp=tp, sequence_parallel=True), training=True).parameters
    for name, part in parts.items():
        whole = prod(part.shape)
        assert prod(part.local_shape) * (tp if part.split_over else 1) == whole
        is_norm = name.startswith("layer_norm")
        # Norms see a part of the sequence: their gradients are sums over the tensor ranks.
        assert part.partial_over == (("tp",) if is_norm or name == "positions" else ())
    matrices = {name for name, part in parts.items() if len(part.shape) > 1 and name != "positions"}
    assert all(parts[name].split_over == ("tp",) for name in matrices)
    # Tied to the head, so split by words.
    assert dict(parts["tokens"].splits)["tp"].dim == 0


def test_shared_keys_are_said_and_their_heads_taken() -> None:
    found = sharding(config_graph("llama"), Plan(tp=4), training=True)
    assert any("keys and values of 2 heads are on each of 4 ranks" in note.message for note in found.notes)
    attention = [node for node in found.graph.nodes if node.op_type == "Attention"]
    shapes = [[found.graph.values[name].shape[1] for name in node.inputs[:3]] for node in attention]
    assert shapes == [[1, 1, 1]] * LAYERS


def test_heads_that_do_not_divide_run_whole_and_say_why() -> None:
    found = sharding(config_graph("gpt2"), Plan(tp=3), training=True)
    (note,) = [note for note in found.notes if "Attention" in note.message]
    assert note.code == "NOT_SPLIT"
    assert "4 do not divide over 3 ranks" in note.message
    assert note in found.graph.notes


@pytest.mark.parametrize("cp", [2, 4])
def test_keys_and_values_go_round(cp: int) -> None:
    program = local_program(config_graph("llama"), Plan(cp=cp))
    # 2 heads of keys and of values.
    shard = BATCH * 2 * (SEQUENCE // cp) * (HIDDEN // HEADS)
    hop = Transfer(Collective.SEND_RECV, "cp", cp, 2 * shard * 4)
    assert exchanges(program, Phase.FORWARD) == {hop: LAYERS * (cp - 1)}
    assert exchanges(program, Phase.BACKWARD) == {hop: LAYERS * (2 * (cp - 1) + 1)}


def test_attention_in_pieces_gathers_its_keys_and_says_so() -> None:
    found = sharding(attention_in_pieces(), Plan(cp=2), training=True)
    assert any("keys and values are gathered" in note.message for note in found.notes)
    program = program_of(found.graph, mode=Mode.TRAIN, strict=True)
    # Keys and values; the result is split by positions again without exchange.
    gather = Transfer(Collective.ALL_GATHER, "cp", 2, STEP_BYTES)
    assert exchanges(program, Phase.FORWARD) == {gather: 2}


def test_heads_are_exchanged_all_to_all() -> None:
    program = local_program(config_graph("gpt2"), Plan(cp=4, cp_kind=CpKind.ALL_TO_ALL))
    one = Transfer(Collective.ALL_TO_ALL, "cp", 4, STEP_BYTES // 4)
    # Queries, keys, values and the result.
    assert exchanges(program, Phase.FORWARD) == {one: 4 * LAYERS}
    assert exchanges(program, Phase.BACKWARD) == {one: 4 * LAYERS}


def test_all_gradients_are_partial_where_sequences_are_split() -> None:
    graph = config_graph("gpt2")
    parts = sharding(graph, Plan(cp=2), training=True).parameters
    assert {part.partial_over for part in parts.values()} == {("cp",)}
    both = sharding(graph, Plan(cp=2, tp=2), training=True).parameters
    assert all("cp" in part.partial_over for part in both.values())


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP, Precision.BF16])
@pytest.mark.parametrize("runtime", Runtime)
def test_precision_and_compiler_change_no_count(precision: Precision, runtime: Runtime) -> None:
    if runtime not in (Runtime.EAGER, Runtime.COMPILED):
        pytest.skip("runs inference only")
    whole = read_graph(from_config(CONFIGS["llama"], batch=BATCH, sequence=SEQUENCE))
    plan = Plan(tp=2)
    local = lower(
        whole,
        precision=precision,
        runtime=runtime,
        training=True,
        split=lambda graph: shard(graph, plan, training=True),
    )
    program = program_of(
        local, mode=Mode.TRAIN, precision=precision, optimizer=Optimizer.ADAM, runtime=runtime, strict=True
    )
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert sum(exchanges(program, phase).values()) == 2 * LAYERS + 1


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi3"])
def test_a_step_of_a_decoder_keeps_the_cache_of_its_own_heads(name: str) -> None:
    whole = lower(read_graph(from_config(CONFIGS[name], batch=BATCH, past_length=16)), training=False)
    local = shard(whole, Plan(tp=2), training=False)
    caches = [value for value in whole.inputs if len(whole.values[value].shape) == 4]
    assert len(caches) == 2 * LAYERS
    for value in caches:
        batch, heads, length, width = whole.values[value].shape
        assert local.values[value].shape == (batch, heads // 2, length, width)
    made = [node.op_type for node in local.nodes if node.domain == "perfcast"]
    # Two all-reduces a layer and that of the vocabulary: new keys and values cross no link.
    assert made.count("AllReduce") == 2 * LAYERS + 1
    assert made.count("Scatter") == 0


@pytest.mark.parametrize("name", ["whisper-tiny", "t5-small", "bart-base"])
def test_what_an_encoder_left_in_the_cache_lies_by_heads(name: str) -> None:
    step = from_config(ASSETS / f"{name}.json", batch=BATCH, past_length=16, source_length=48)
    whole = lower(read_graph(step), training=False)
    local = shard(whole, Plan(tp=2), training=False)
    caches = [value for value in whole.inputs if ".encoder." in value]
    assert caches
    for value in caches:
        batch, heads, length, width = whole.values[value].shape
        assert local.values[value].shape == (batch, heads // 2, length, width)


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(InvalidPlan):
        Plan(tp=2).group_size("sp")

"""Steps of decoders with a cache of keys and values, and the bytes that such a cache takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from predictor.errors import InvalidRequest
from predictor.features.architectures.from_config import CACHES, from_config
from predictor.features.architectures.kv_cache import kv_cache_bytes, kv_cache_layers
from predictor.features.programs.program import build_program
from predictor.features.programs.work import AttentionShape, Program
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime

FOLDER = Path(__file__).parents[3] / "assets" / "configs"
DECODERS = sorted(
    path.stem
    for path in FOLDER.glob("*.json")
    if json.loads(path.read_text()).get("model_type") in CACHES and path.stem != "measured"
)


def config(name: str, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found | changes


def shallow(name: str) -> dict[str, Any]:
    """Two layers, or as many as a pattern of kinds needs to show itself."""
    values = config(name)
    layers = 6 if "gemma-3" in name else 2
    fields = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    fields += ("encoder_layers", "decoder_layers", "num_decoder_layers")
    return {key: min(layers, value) if key in fields else value for key, value in values.items()}


def step(values: dict[str, Any] | str, *, batch: int = 2, **sizes: Any) -> Program:
    values = config(values) if isinstance(values, str) else values
    graph = read_graph(from_config(values, **sizes), batch=batch)
    return build_program(
        graph,
        mode=Mode.INFER,
        precision=Precision.BF16,
        optimizer=Optimizer.NONE,
        runtime=Runtime.EAGER,
        strict=True,
    )


def shapes(program: Program) -> list[AttentionShape]:
    return [op.work.shape for op in program.ops if isinstance(op.work.shape, AttentionShape)]


def flops(program: Program) -> int:
    return sum(op.work.matrix_flops for op in program.ops)


# What the configurations' own fields give, written out by hand: heads of keys times head size, twice, or the
# latent and the rotated part of DeepSeek's keys (DeepSeek-V2, table 1: 9/2 d_h l elements a token).
@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("deepseek-v3", 61 * (512 + 64)),
        ("deepseek-v2-lite", 27 * (512 + 64)),
        ("llama-3-8b", 32 * 2 * 8 * 128),
        ("llama-2-70b", 80 * 2 * 8 * 128),
        ("falcon-7b", 32 * 2 * 1 * 64),
        ("falcon-40b", 60 * 2 * 8 * 64),
        ("santacoder", 24 * 2 * 1 * 128),
        # Heads of 128 and 256 elements, which the width shared among the heads would not give.
        ("mistral-nemo-12b", 40 * 2 * 8 * 128),
        ("gemma-7b", 28 * 2 * 16 * 256),
        ("gpt2", 12 * 2 * 12 * 64),
        ("t5-small", 6 * 2 * 8 * 64),
    ],
)
def test_elements_per_token(name: str, elements: int) -> None:
    assert kv_cache_bytes(config(name), 1, 1, 16) == 2 * elements
    assert kv_cache_bytes(FOLDER / f"{name}.json", 3, 100, 8) == 300 * elements


def test_a_window_bounds_the_layers_that_have_one() -> None:
    layers, per_token = 26, 2 * 256
    full = sum(layer.window is None for layer in kv_cache_layers(config("gemma-3-1b")))
    assert full == 4
    bounded = kv_cache_bytes(config("gemma-3-1b"), 1, 10_000, 16)
    assert bounded == 2 * per_token * (full * 10_000 + (layers - full) * 512)
    assert kv_cache_bytes(config("mistral-7b-v0.1"), 1, 9000, 16) == kv_cache_bytes(
        config("mistral-7b-v0.1"), 1, 4096, 16
    )


@pytest.mark.parametrize("name", DECODERS)
def test_the_graph_holds_the_cache_and_the_same_weights(name: str) -> None:
    values = shallow(name)
    decoding = read_graph(from_config(values, past_length=300, source_length=20), batch=2)
    names = [value for value in decoding.inputs if value.startswith("past_key_values.")]
    own = [value for value in names if ".encoder." not in value]
    elements = sum(decoding.values[value].elements for value in own)
    assert elements == kv_cache_bytes(values, 2, 301, 8)
    assert set(decoding.outputs) >= {value.replace("past_key_values", "present") for value in own}
    if len(names) == len(own):
        whole = read_graph(from_config(values, sequence=8), batch=2)
        assert decoding.parameter_count == whole.parameter_count


@pytest.mark.parametrize("name", ["llama-3-8b", "falcon-7b", "deepseek-v2-lite", "gemma-2-9b", "t5-small"])
def test_filling_an_empty_cache_asks_the_products_of_a_plain_pass(name: str) -> None:
    values = shallow(name)
    assert flops(step(values, sequence=16, past_length=0)) == flops(step(values, sequence=16))


def test_one_step_reads_all_weights_and_the_cache_once() -> None:
    program = step("llama-3-8b", past_length=2047)
    assert shapes(program) == [AttentionShape(2, 32, 8, 1, 2048, 128, 128, causal=False)] * 32
    table = 128256 * 4096
    weights, cache = 2 * (8_030_261_248 - table), kv_cache_bytes(config("llama-3-8b"), 2, 2048, 16)
    read = sum(op.work.read_bytes for op in program.ops)
    assert weights + cache < read < 1.002 * (weights + cache)
    # 2 FLOPs a weight and token, and the scores.
    scores = 2 * 2 * 32 * 32 * 2048 * (128 + 128)
    assert flops(program) == 2 * 2 * (8_030_261_248 - table - 65 * 4096) + scores


def test_the_cache_is_written_in_place() -> None:
    program = step("llama-3-8b", past_length=2047)
    cache = kv_cache_bytes(config("llama-3-8b"), 2, 2048, 16)
    ids_and_places = 2 * (8 + 8)
    assert program.memory.input_bytes == cache + ids_and_places
    assert program.memory.activation_bytes < 0.01 * cache
    written = [op.work for op in program.ops if op.op_type == "TensorScatter"]
    assert len(written) == 64
    assert all(work.write_bytes == 2 * 8 * 128 * 2 for work in written)


def test_training_copies_what_the_gradient_still_needs() -> None:
    values = shallow("llama-3-8b")
    graph = read_graph(from_config(values, past_length=63), batch=2)
    program = build_program(
        graph,
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=Optimizer.NONE,
        runtime=Runtime.EAGER,
        strict=True,
    )
    scatters = [op.work for op in program.ops if op.op_type == "TensorScatter"]
    assert max(work.write_bytes for work in scatters) == 2 * 8 * 64 * 128 * 4


def test_new_tokens_see_a_triangle_after_the_cached_rows() -> None:
    program = step(shallow("llama-3-8b"), sequence=4, past_length=12)
    assert shapes(program)[0] == AttentionShape(2, 32, 8, 4, 16, 128, 128, causal=True)
    (one, _) = (op.work for op in program.ops if isinstance(op.work.shape, AttentionShape))
    pairs = 13 + 14 + 15 + 16
    assert one.matrix_flops == 2 * 2 * 32 * pairs * (128 + 128)


def test_a_window_bounds_what_a_step_reads() -> None:
    values = {**shallow("mistral-7b-v0.1"), "sliding_window": 8}
    assert {shape.kv_length for shape in shapes(step(values, past_length=5))} == {6}
    assert {shape.kv_length for shape in shapes(step(values, past_length=500))} == {8}
    # Four tokens at once: the first still sees seven rows that the last ones push out of the ring.
    several = step(values, past_length=500, sequence=4)
    assert {shape.kv_length for shape in shapes(several)} == {7 + 4}
    assert several.memory.input_bytes == kv_cache_bytes(values, 2, 504, 16) + 2 * (4 + 1) * 8
    longer = step(values, past_length=0, sequence=20)
    assert {shape.kv_length for shape in shapes(longer)} == {20}


def test_latent_attention_meets_the_latents_themselves_when_it_decodes() -> None:
    values = config("deepseek-v2-lite", num_hidden_layers=1)
    (shape,) = shapes(step(values, past_length=999))
    assert shape == AttentionShape(2, 16, 1, 1, 1000, 576, 512, causal=False)
    attention = next(op.work for op in step(values, past_length=999).ops if op.op_type == "LatentAttention")
    # Rows are read once, though they are keys and values.
    assert attention.read_bytes == 2 * (2 * 1000 * 576 + 2 * 16 * 576)


def test_latent_attention_expands_the_cache_for_many_new_tokens() -> None:
    values = config("deepseek-v2-lite", num_hidden_layers=1)
    assert shapes(step(values, past_length=512, sequence=512)) == [
        AttentionShape(2, 16, 16, 512, 1024, 192, 128, causal=True)
    ]


def test_an_encoder_does_not_run_again() -> None:
    first = step("t5-small", sequence=1, past_length=0, source_length=30)
    later = step("t5-small", past_length=7, source_length=30)
    lengths = {(shape.q_length, shape.kv_length) for shape in shapes(later)}
    assert lengths == {(1, 8), (1, 30)}
    assert len(shapes(first)) == 18
    assert len(shapes(later)) == 12


def test_scores_of_the_last_token_alone() -> None:
    values = shallow("llama-3-8b")
    all_tokens, last = (step(values, sequence=16, last_only=only) for only in (False, True))
    assert flops(all_tokens) - flops(last) == 2 * 2 * 15 * 4096 * 128256


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("bert-base-uncased", {"past_length": 4}, "no decoder"),
        ("llama-3-8b", {"past_length": -1}, "past_length is -1"),
        ("t5-small", {"past_length": 3, "source_length": 0}, "source_length is 0"),
        ("gpt2", {"past_length": 1024}, "after 1024 cached tokens"),
    ],
)
def test_errors(name: str, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        from_config(config(name), **sizes)


def test_errors_of_the_bytes() -> None:
    with pytest.raises(InvalidRequest, match="keeps no cache"):
        kv_cache_bytes(config("bert-base-uncased"))
    with pytest.raises(InvalidRequest, match="length is 0"):
        kv_cache_bytes(config("gpt2"), length=0)

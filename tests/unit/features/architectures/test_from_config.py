"""Graphs from configurations against what transformers has and does; structure; errors.

The numbers of the other side are stored (tests/assets/configs/measured.json); test_against_transformers.py
measures them again.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from predictor.errors import InvalidRequest, UnknownName
from predictor.evaluation.configs import Reference, compare, read_references
from predictor.features.architectures.from_config import FAMILIES, from_config
from predictor.features.graph import Graph
from predictor.features.programs.program import build_program
from predictor.features.programs.work import AttentionShape, OpWork, Phase
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime

FOLDER = Path(__file__).parents[3] / "assets" / "configs"
REFERENCES = read_references(FOLDER)

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
VIT = {
    "model_type": "vit",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def works(graph: Graph, mode: Mode = Mode.INFER, precision: Precision = Precision.FP32) -> list[OpWork]:
    found = build_program(
        graph, mode=mode, precision=precision, optimizer=Optimizer.NONE, runtime=Runtime.EAGER
    )
    assert all(op.covered for op in found.ops)
    return [op.work for op in found.ops]


def attention_shapes(values: dict[str, Any], sequence: int) -> list[AttentionShape]:
    found = works(read_graph(from_config(values, batch=2, sequence=sequence)))
    return [work.shape for work in found if isinstance(work.shape, AttentionShape)]


def test_every_family_is_measured() -> None:
    measured = {config(reference.name)["model_type"] for reference in REFERENCES}
    unmeasured = set(FAMILIES) - measured
    # Names under which Falcon was first published.
    assert unmeasured == {"RefinedWeb", "RefinedWebModel"}
    assert len(REFERENCES) >= 30


@pytest.mark.parametrize("reference", REFERENCES, ids=[reference.name for reference in REFERENCES])
def test_parameters_and_flops_are_those_of_the_implementation(reference: Reference) -> None:
    found = compare(FOLDER, reference)
    assert found.parameter_difference == 0
    assert found.square_flops == reference.flops
    assert found.flops <= found.square_flops
    assert found.step_flops == reference.step_flops


@pytest.mark.parametrize("values", [LLAMA, MIXTRAL, VIT, "deberta-v3-base", "clip-vit-base-patch32"])
def test_a_symbolic_batch_is_the_same_graph(values: dict[str, Any] | str) -> None:
    values = config(values) if isinstance(values, str) else values
    fixed = works(read_graph(from_config(values, batch=6, sequence=16)))
    bound = works(read_graph(from_config(values, sequence=16), batch=6))
    assert bound == fixed


def test_a_path_is_as_good_as_its_contents() -> None:
    assert from_config(FOLDER / "gpt2.json", sequence=8) == from_config(config("gpt2"), sequence=8)


def test_causal_layers_count_the_lower_triangle_and_share_keys_in_the_kernel() -> None:
    shapes = attention_shapes(LLAMA, 16)
    assert shapes == [AttentionShape(2, 4, 2, 16, 16, 16, 16, causal=True)] * 2
    graph = read_graph(from_config(LLAMA, batch=2, sequence=16))
    one = next(work for work in works(graph) if isinstance(work.shape, AttentionShape))
    assert one.matrix_flops == 2 * 2 * 4 * (16 * 17 // 2) * (16 + 16)


def test_a_window_leaves_a_band_of_sequences_beyond_it() -> None:
    values = {**LLAMA, "model_type": "mistral", "sliding_window": 8}
    assert {shape.window for shape in attention_shapes(values, 8)} == {0}
    banded = attention_shapes(values, 16)
    assert {(shape.window, shape.kv_heads, shape.pairs) for shape in banded} == {(8, 2, 36 + 8 * 8)}


@pytest.mark.parametrize("model_type", ["mistral", "phi3", "gemma3_text", "gemma2", "starcoder2"])
def test_a_window_never_costs_more_than_none(model_type: str) -> None:
    values = {**LLAMA, "model_type": model_type, "num_hidden_layers": 6}

    def total(window: int) -> tuple[int, int, int]:
        asked = read_graph(from_config({**values, "sliding_window": window}, batch=2, sequence=64))
        found = works(asked)
        return (
            sum(work.matrix_flops for work in found),
            sum(work.read_bytes + work.write_bytes for work in found),
            len(found),
        )

    wide = total(4096)
    for window in (4, 32, 63, 64):
        assert all(a <= b for a, b in zip(total(window), wide, strict=True)), window


def test_a_window_that_is_switched_off_is_none() -> None:
    values = {**LLAMA, "model_type": "qwen2", "sliding_window": 8}
    assert {shape.window for shape in attention_shapes(values, 16)} == {0}
    used = {**values, "use_sliding_window": True, "max_window_layers": 1}
    assert [shape.window for shape in attention_shapes(used, 16)] == [0, 8]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 9}, "'num_experts_per_tok' is 9; expected a whole number from 1 to 8"),
        (
            {"model_type": "deepseek_v3", "n_routed_experts": 8, "n_group": 4, "topk_group": 5},
            "'topk_group' is 5; expected a whole number from 1 to 4",
        ),
        (
            {
                "model_type": "deepseek_v3",
                "n_routed_experts": 8,
                "n_group": 4,
                "topk_group": 2,
                "num_experts_per_tok": 5,
            },
            "'num_experts_per_tok' is 5; expected a whole number from 1 to 4",
        ),
    ],
)
def test_more_experts_than_a_token_can_reach_are_named_by_their_field(
    changes: dict[str, Any], message: str
) -> None:
    latent = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    with pytest.raises(InvalidRequest, match=message):
        from_config({**MIXTRAL, **latent, "moe_intermediate_size": 32, **changes}, sequence=8)


def test_gemma_alternates_windows_as_its_pattern_says() -> None:
    values = {
        **LLAMA,
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "sliding_window": 8,
        "sliding_window_pattern": 3,
    }
    windows = [shape.window for shape in attention_shapes(values, 16)]
    assert windows == [8, 8, 0, 8, 8, 0]
    listed = {**values, "layer_types": ["full_attention"] * 5 + ["sliding_attention"]}
    assert [shape.window for shape in attention_shapes(listed, 16)] == [0] * 5 + [8]


def test_latent_attention_has_heads_of_two_sizes() -> None:
    values = config("deepseek-v2-lite") | {"num_hidden_layers": 1}
    (shape,) = attention_shapes(values, 16)
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.value_dim) == (16, 16, 192, 128)


def test_shared_layers_are_counted_once_and_applied_as_often_as_used() -> None:
    def measured(layers: int) -> tuple[int, int]:
        values = config("albert-base-v2") | {"num_hidden_layers": layers, "architectures": ["AlbertModel"]}
        graph = read_graph(from_config(values, batch=1, sequence=32))
        return graph.parameter_count, sum(work.matrix_flops for work in works(graph))

    (one, single), (dozen, many) = measured(1), measured(12)
    assert one == dozen
    outside = 2 * 32 * 128 * 768 + 2 * 768 * 768
    assert many - outside == 12 * (single - outside)


def test_a_tied_head_is_the_word_table() -> None:
    tied = read_graph(from_config({**LLAMA, "tie_word_embeddings": True}, batch=1, sequence=8))
    free = read_graph(from_config({**LLAMA, "tie_word_embeddings": False}, batch=1, sequence=8))
    assert free.parameter_count - tied.parameter_count == 100 * 64
    assert [work.matrix_flops for work in works(tied)] == [work.matrix_flops for work in works(free)]


def test_every_token_visits_its_experts() -> None:
    dense = works(read_graph(from_config({**LLAMA, "model_type": "mixtral"} | MIXTRAL, batch=2, sequence=16)))
    grouped = [work for work in dense if work.kind == "grouped_matmul"]
    tokens = 2 * 16
    assert [work.matrix_flops for work in grouped[:2]] == [
        2 * (2 * tokens) * 64 * (2 * 96),
        2 * (2 * tokens) * 96 * 64,
    ]
    assert len(grouped) == 4


def test_experts_are_trained() -> None:
    found = works(read_graph(from_config(MIXTRAL, batch=2, sequence=16)), Mode.TRAIN, Precision.BF16)
    kinds = Counter((work.phase, work.kind) for work in found)
    assert kinds[Phase.FORWARD, "grouped_matmul"] == 4
    assert kinds[Phase.BACKWARD, "grouped_matmul"] == 8


def test_sizes_come_from_any_of_their_names() -> None:
    old = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 1, "n_positions": 32, "vocab_size": 50}
    new = {
        "model_type": "gpt2",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "max_position_embeddings": 32,
        "vocab_size": 50,
    }
    assert from_config(old, sequence=8) == from_config(new, sequence=8)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": None}, "field 'hidden_size' is missing; expected a whole number"),
        ({"hidden_size": "64"}, "field 'hidden_size' is '64'; expected a whole number from 1 up"),
        ({"hidden_size": True}, "field 'hidden_size' is True"),
        ({"num_hidden_layers": 10**6}, "field 'num_hidden_layers' is 1000000; expected at most 1024"),
        ({"num_attention_heads": 5}, "field 'num_attention_heads' is 5; expected a divisor of 64"),
        ({"num_key_value_heads": 3}, "field 'num_key_value_heads' is 3; expected a divisor of 4"),
        ({"attention_bias": "no"}, "field 'attention_bias' is 'no'; expected true or false"),
        ({"rms_norm_eps": "small"}, "field 'rms_norm_eps' is 'small'; expected a number above 0"),
        ({"rms_norm_eps": float("nan")}, "field 'rms_norm_eps' is nan"),
        ({"partial_rotary_factor": 0.45}, "7 elements of a head are to be rotated; expected an even number"),
        ({"rope_parameters": 3}, "field 'rope_parameters' is 3; expected an object"),
        ({"vocab_size": 0}, "field 'vocab_size' is 0"),
        ({"model_type": None}, "field 'model_type' is missing; expected a text"),
    ],
)
def test_a_bad_field_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        from_config({**LLAMA, **changed}, sequence=8)
    assert message in caught.value.message


def test_a_model_of_several_parts_says_which_of_them_is_known() -> None:
    both = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {}}
    with pytest.raises(UnknownName, match="give what text_config holds"):
        from_config(both)
    with pytest.raises(UnknownName, match="Price it as a torch module"):
        from_config({"model_type": "gemma9", "encoder": 3})


def test_a_window_that_is_not_used_may_be_nothing() -> None:
    unused = {**LLAMA, "model_type": "qwen2", "sliding_window": 0, "use_sliding_window": False}
    assert read_graph(from_config(unused), batch=1).parameter_count
    with pytest.raises(InvalidRequest, match="sliding_window"):
        from_config({**unused, "use_sliding_window": True})


def test_layers_without_a_window_do_not_rotate_where_windows_do() -> None:
    windowed = {**LLAMA, "model_type": "cohere2", "num_hidden_layers": 4, "sliding_window": 8}
    rotated = {
        kind: sum(node.op_type == "Neg" for node in read_graph(from_config(c), batch=1).nodes)
        for kind, c in (("cohere2", windowed), ("cohere", {**windowed, "model_type": "cohere"}))
    }
    # A query and a key each in four layers, of which the last has no window.
    assert rotated == {"cohere": 8, "cohere2": 6}


def test_unknown_names_are_answered_with_near_ones() -> None:
    with pytest.raises(UnknownName, match="unknown model_type 'mixtrall': did you mean mixtral"):
        from_config({**LLAMA, "model_type": "mixtrall"}, sequence=8)
    with pytest.raises(UnknownName, match="unknown activation 'gelu_neww': did you mean gelu_new"):
        from_config({**LLAMA, "hidden_act": "gelu_neww"}, sequence=8)
    with pytest.raises(UnknownName, match="unknown task 'tokenz': did you mean tokens"):
        from_config(LLAMA, sequence=8, task="tokenz")


def test_a_head_that_a_family_lacks_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no head for task 'spans'; expected one of language, base"):
        from_config(LLAMA, sequence=8, task="spans")


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="sequence is 1025; expected at most 1024"):
        from_config(config("gpt2"), sequence=1025)
    with pytest.raises(InvalidRequest, match="sequence is 513; expected at most 512"):
        from_config(config("roberta-base"), sequence=513)
    with pytest.raises(InvalidRequest, match="batch is 0"):
        from_config(LLAMA, batch=0, sequence=8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"model_type: llama", "not JSON"),
        (b"[1, 2]", "holds no JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a": "' + b"x" * 2**22 + b'"}', "larger than 4 MB"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=message):
        from_config(path)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"none\.json: No such file"):
        from_config(tmp_path / "none.json")

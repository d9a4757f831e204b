"""Configurations with a quantization_config: what is stored in few bits, and what the products do."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.errors import InvalidRequest
from predictor.features.architectures.from_config import from_config, left_out
from predictor.features.architectures.huggingface.fields import Fields
from predictor.features.architectures.huggingface.weight_methods import weight_format
from predictor.features.dtype import Compute
from predictor.features.programs.program import build_program
from predictor.features.programs.work import OpWork
from predictor.features.reading.reader import read_graph
from predictor.features.weight_format import WeightFormat
from predictor.types import Mode, Optimizer, Precision, Runtime

WIDTH, HIDDEN, WORDS, LAYERS = 256, 512, 1000, 2
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": WORDS,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
LAYER_WEIGHTS = 4 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN
RUNTIMES = (Runtime.EAGER, Runtime.COMPILED)


def asked(quantised: dict[str, Any], base: dict[str, Any] = LLAMA) -> dict[str, Any]:
    return {**base, "quantization_config": quantised}


def works(values: dict[str, Any], runtime: Runtime = Runtime.EAGER) -> list[OpWork]:
    graph = read_graph(from_config(values, batch=1, sequence=16))
    program = build_program(
        graph, mode=Mode.INFER, precision=Precision.BF16, optimizer=Optimizer.NONE, runtime=runtime
    )
    assert all(op.covered for op in program.ops)
    return [op.work for op in program.ops]


def products(values: dict[str, Any], runtime: Runtime = Runtime.EAGER) -> list[OpWork]:
    return [work for work in works(values, runtime) if work.matrix_flops and work.parameter_bytes]


@pytest.mark.parametrize(
    ("config", "stored"),
    [
        (GPTQ, WeightFormat(4, 64, has_zero_points=True)),
        ({**GPTQ, "group_size": -1}, WeightFormat(4, 0, has_zero_points=True)),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "zero_point": False}, WeightFormat(4, 128)),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, WeightFormat(4, 64)),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, WeightFormat(8)),
        (
            {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 8, "group_size": 32}}},
            WeightFormat(8, 32, has_zero_points=True),
        ),
        (FP8, WeightFormat(8, is_float=True)),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 128}
                    }
                },
            },
            WeightFormat(4, 128),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 8, "type": "float"},
                        "input_activations": {"num_bits": 8, "type": "float"},
                    }
                },
            },
            WeightFormat(8, is_float=True),
        ),
    ],
)
def test_formats(config: dict[str, Any], stored: WeightFormat) -> None:
    assert weight_format(Fields(asked(config))) == stored
    assert left_out(asked(config)) == ""


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "aqlm"},
        {"quant_method": "compressed-tensors", "config_groups": {"a": {}, "b": {}}},
        {"load_in_4bit": False, "load_in_8bit": False},
    ],
)
def test_other_formats_are_left_out_and_said_to_be(config: dict[str, Any]) -> None:
    assert "is left out" in left_out(asked(config))
    assert products(asked(config)) == products(LLAMA)


def test_a_field_of_another_kind_is_named() -> None:
    with pytest.raises(InvalidRequest, match="bits"):
        from_config(asked({"quant_method": "gptq", "bits": "four"}))


def test_blocks_of_four_bits_take_their_bytes() -> None:
    found = products(asked(GPTQ))
    narrow = [work for work in found if work.kind == "linear_weight_only"]
    # Four bits, a BF16 scale per 64 numbers, and a zero of four bits.
    per_weight = 0.5 + 2 / 64 + 0.5 / 64
    assert sum(work.parameter_bytes for work in narrow) == LAYERS * LAYER_WEIGHTS * per_weight
    (head,) = (work for work in found if work.kind != "linear_weight_only")
    assert head.parameter_bytes == 2 * WIDTH * WORDS
    assert sum(w.matrix_flops for w in found) == sum(w.matrix_flops for w in products(LLAMA))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_fp8_products_multiply_what_is_stored(runtime: Runtime) -> None:
    found = products(asked(FP8), runtime)
    assert [w.matrix_flops for w in found] == [w.matrix_flops for w in products(LLAMA, runtime)]
    assert [work.compute for work in found] == [Compute.FP8] * (7 * LAYERS) + [Compute.BF16]
    assert all(work.element_bits == 16 or work.compute is Compute.FP8 for work in found)


@pytest.mark.parametrize("config", [GPTQ, FP8])
def test_experts_are_narrow_and_routers_are_not(config: dict[str, Any]) -> None:
    plain, narrow = works(MIXTRAL), works(asked(config, MIXTRAL))
    experts = [work for work in narrow if work.kind == "grouped_matmul"]
    before = [work for work in plain if work.kind == "grouped_matmul"]
    # GPTQ: four bits, a BF16 scale per 64 numbers, and a zero of four bits; before: BF16.
    per_weight = 0.5 + 2 / 64 + 0.5 / 64 if config is GPTQ else 1
    assert [w.parameter_bytes for w in experts] == [w.parameter_bytes * per_weight / 2 for w in before]
    assert [w.write_bytes for w in experts] == [w.write_bytes for w in before]
    routers = [work for work in narrow if work.parameter_bytes == 2 * WIDTH * 8]
    assert len(routers) == LAYERS


def test_layers_that_are_spared_are_told() -> None:
    assert left_out(asked({**FP8, "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]})) == ""
    said = left_out(asked({**FP8, "ignore": ["model.layers.0.mlp.gate_proj", "lm_head"]}))
    assert "spares model.layers.0.mlp.gate_proj;" in said


GPT_OSS = {**LLAMA, "model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 2}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def test_mxfp4_stores_the_experts_of_gpt_oss_in_four_bits_and_nothing_else() -> None:
    full, narrow = (read_graph(from_config(c), batch=1) for c in (GPT_OSS, asked(MXFP4, GPT_OSS)))
    experts = LAYERS * 8 * 3 * WIDTH * HIDDEN
    sizes = [
        sum(graph.values[name].size_bytes for name in graph.parameters | graph.buffers)
        for graph in (full, narrow)
    ]
    # From 4 bytes to half of one, and an exponent of a byte for 32.
    assert sizes[0] - sizes[1] == experts * (7 / 2 - 1 / 32)
    read = [work for work in works(asked(MXFP4, GPT_OSS)) if work.kind == "grouped_matmul"]
    assert sum(work.parameter_bytes for work in read) == experts * (1 / 2 + 1 / 32)
    assert left_out(asked(MXFP4, GPT_OSS)) == ""

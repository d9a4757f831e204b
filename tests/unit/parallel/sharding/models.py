"""Small graphs of every kind that the sharding tests split."""

from __future__ import annotations

from functools import cache
from typing import Any

from predictor.features.architectures.from_config import from_config
from predictor.features.builder import GraphBuilder
from predictor.features.dtype import DType
from predictor.features.graph import Graph
from predictor.features.lowering.lower import lower
from predictor.features.reading.reader import read_graph

WORDS, HIDDEN, HEADS, LAYERS, INNER = 1024, 128, 4, 2, 384
_SHARED = {
    "vocab_size": WORDS,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}
_LLAMA = {**_SHARED, "intermediate_size": INNER, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": WORDS,
        "n_embd": HIDDEN,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_positions": 64,
    },
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **_LLAMA},
    "phi3": {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], **_LLAMA},
    "gpt_neox": {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        **_SHARED,
        "intermediate_size": INNER,
        "max_position_embeddings": 64,
        "rotary_pct": 0.5,
    },
    "bert": {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        **_SHARED,
        "intermediate_size": INNER,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
    },
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": WORDS,
        "d_model": HIDDEN,
        "d_kv": HIDDEN // HEADS,
        "d_ff": INNER,
        "num_layers": LAYERS,
        "num_heads": HEADS,
    },
    "mixtral": {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        **_LLAMA,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        **_LLAMA,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}
BATCH, SEQUENCE = 2, 16


@cache
def config_graph(name: str) -> Graph:
    """The lowered graph of a configuration."""
    return lower(read_graph(from_config(CONFIGS[name], batch=BATCH, sequence=SEQUENCE)))


@cache
def attention_in_pieces() -> Graph:
    """One block whose attention is products and a softmax, positions learned."""
    b = GraphBuilder("pieces")
    x = b.embedding(b.input("ids", (BATCH, SEQUENCE), DType.INT64), WORDS, HIDDEN)
    x = b.add(x, b.parameter((1, SEQUENCE, HIDDEN), "positions"))
    heads = []
    for _ in range(3):
        split = b.reshape(b.linear(b.layer_norm(x), HIDDEN), [0, 0, HEADS, HIDDEN // HEADS])
        heads.append(b.transpose(split, [0, 2, 1, 3]))
    mixed = b.reshape(b.transpose(b.attention(*heads), [0, 2, 1, 3]), [0, 0, HIDDEN])
    x = b.add(x, b.linear(mixed, HIDDEN))
    hidden = b.linear(b.gelu(b.linear(b.layer_norm(x), INNER)), HIDDEN)
    return lower(read_graph(b.build([b.add(x, hidden)])))


@cache
def residual_cnn() -> Graph:
    """Bottlenecks with a shortcut, a join of channels and a depthwise convolution."""
    b = GraphBuilder("cnn")
    x = b.relu(b.batch_norm(b.conv(b.input("image", (BATCH, 3, 4, 4)), 128, kernel=3)))
    for _ in range(2):
        y = b.relu(b.batch_norm(b.conv(x, 64, kernel=1)))
        y = b.relu(b.batch_norm(b.conv(y, 64, kernel=3)))
        x = b.relu(b.add(x, b.batch_norm(b.conv(y, 128, kernel=1))))
    y = b.relu(b.conv(b.conv(x, 128, kernel=3, groups=128), 192, kernel=1))
    x = b.conv(b.concat([x, y], axis=1), 128, kernel=1, bias=True)
    return lower(read_graph(b.build([b.linear(b.flatten(b.global_pool(x)), 100)])))

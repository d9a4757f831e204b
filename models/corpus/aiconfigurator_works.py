"""Rows of the aiconfigurator operator tables as works: products and attention.

Shapes are those of the tables' own columns. Bytes count every operand once in the width it is stored in:
quantised weights with their scales, activations in the width the product reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from predictor.features.dtype import Compute
from predictor.features.programs.work import AttentionShape, Contraction, Family, OpWork, Phase

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Storage:
    """How a product's operands are stored: arithmetic, bytes of an activation and of a weight, work kind."""

    compute: Compute
    activation_bytes: float
    weight_bytes: float
    kind: str


# A scale of 4 bytes for 128 x 128 weights or 128 activations; NVFP4: one of 1 byte for 16 elements.
STORAGE: Mapping[str, Storage] = {
    "bfloat16": Storage(Compute.BF16, 2, 2, "linear"),
    "fp8": Storage(Compute.FP8, 1, 1, "linear"),
    "fp8_block": Storage(Compute.FP8, 1 + 4 / 128, 1 + 4 / 128**2, "linear_block"),
    "nvfp4": Storage(Compute.FP4, 0.5 + 1 / 16, 0.5 + 1 / 16, "linear_block"),
    "int8_wo": Storage(Compute.BF16, 2, 1, "linear_weight_only"),
    "sq": Storage(Compute.INT8, 1, 1, "linear"),
}
_OUT_BYTES = 2

_ATTENTION_COMPUTE: Mapping[str, Compute] = {"bfloat16": Compute.BF16, "fp8": Compute.FP8}
_CACHE_BYTES: Mapping[str, int] = {"bfloat16": 2, "fp8": 1}
# Scale, maximum, subtract, exp, sum, divide: what features.ops.attention counts for a score.
_SCORE_FLOPS = 6

# DeepSeek's latent attention: widths of a head with and without rotation, and of the latent that is cached.
_MLA_NOPE, _MLA_ROPE, _MLA_VALUE, _MLA_LATENT = 128, 64, 128, 512


def linear_work(row: Row) -> OpWork:
    """y[m, n] = x[m, k] w[k, n] of the GEMM table."""
    m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
    stored = STORAGE[row["gemm_dtype"]]
    weights = round(n * k * stored.weight_bytes)
    return OpWork(
        family=Family.MATMUL,
        kind=stored.kind,
        phase=Phase.FORWARD,
        compute=stored.compute,
        shape=Contraction(1, m, n, k),
        element_bits=8 * _OUT_BYTES,
        matrix_flops=2 * m * n * k,
        vector_flops=0,
        read_bytes=round(m * k * stored.activation_bytes) + weights,
        write_bytes=m * n * _OUT_BYTES,
        parameter_bytes=weights,
    )


def attention_work(row: Row) -> OpWork:
    """Prefill, one decode step, or an encoder: queries of `isl` after `step` cached keys."""
    queries, cached = int(row["isl"]), int(row["step"])
    shape = AttentionShape(
        batch=int(row["batch_size"]),
        heads=int(row["num_heads"]),
        kv_heads=int(row["num_key_value_heads"]),
        q_length=queries,
        kv_length=queries + cached,
        head_dim=int(row["head_dim"]),
        value_dim=int(row["head_dim"]),
        causal=bool(row["causal"]),
        window=int(row["window_size"]),
    )
    return _attention(shape, row["attn_dtype"], row["kv_cache_dtype"])


def latent_prefill_work(row: Row) -> OpWork:
    """Prefill of latent attention: keys and values are expanded, a head of each for every query head."""
    heads, queries = int(row["num_heads"]), int(row["isl"])
    shape = AttentionShape(
        int(row["batch_size"]), heads, heads, queries, queries + int(row["step"]), _MLA_NOPE + _MLA_ROPE,
        _MLA_VALUE, True,
    )  # fmt: skip
    return _attention(shape, row["mla_dtype"], row["kv_cache_dtype"])


def latent_decode_work(row: Row) -> OpWork:
    """A decode step on the cached latent itself, which all query heads share."""
    shape = AttentionShape(
        int(row["batch_size"]), int(row["num_heads"]), 1, 1, 1 + int(row["step"]), _MLA_LATENT + _MLA_ROPE,
        _MLA_LATENT, True,
    )  # fmt: skip
    return _attention(shape, row["mla_dtype"], row["kv_cache_dtype"], value_is_key=True)


def _attention(shape: AttentionShape, computed: str, cached: str, *, value_is_key: bool = False) -> OpWork:
    compute, cache_bytes = _ATTENTION_COMPUTE[computed], _CACHE_BYTES[cached]
    scores = shape.batch * shape.heads * shape.pairs
    rows = shape.batch * shape.heads * shape.q_length
    wide = shape.head_dim + (0 if value_is_key else shape.value_dim)
    kept = shape.batch * shape.kv_heads * shape.keys_seen * wide
    return OpWork(
        family=Family.ATTENTION,
        kind="attention",
        phase=Phase.FORWARD,
        compute=compute,
        shape=shape,
        element_bits=16,
        matrix_flops=2 * scores * (shape.head_dim + shape.value_dim),
        vector_flops=_SCORE_FLOPS * scores,
        read_bytes=2 * rows * shape.head_dim + cache_bytes * kept,
        write_bytes=2 * rows * shape.value_dim,
    )


@dataclass(frozen=True, slots=True)
class Table:
    """One file: its key columns, how a row becomes a work, and of how many rows one is kept.

    `kernels`: about how many one call holds. `part`: what the names of its kernels contain, where a file
    holds several kinds.
    """

    name: str
    file: str
    keys: tuple[str, ...]
    work: Callable[[Row], OpWork]
    precision: str
    keep_one_of: int
    kernels: int = 1
    part: str = ""


TABLES: tuple[Table, ...] = (
    Table("gemm", "gemm_perf", ("m", "n", "k", "gemm_dtype"), linear_work, "gemm_dtype", 6),
    Table(
        "prefill", "context_attention_perf",
        ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size",
         "attn_dtype", "kv_cache_dtype", "causal"),
        attention_work, "attn_dtype", 14,
    ),
    Table(
        "decode", "generation_attention_perf",
        ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size",
         "attn_dtype", "kv_cache_dtype", "causal"),
        attention_work, "attn_dtype", 14,
    ),
    Table(
        "encoder", "encoder_attention_perf",
        ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size",
         "attn_dtype", "kv_cache_dtype", "causal"),
        attention_work, "attn_dtype", 4,
    ),
    Table(
        "latent_prefill", "context_mla_perf",
        ("batch_size", "isl", "step", "num_heads", "mla_dtype", "kv_cache_dtype"),
        latent_prefill_work, "mla_dtype", 2,
    ),
    Table(
        "latent_decode", "generation_mla_perf",
        ("batch_size", "isl", "step", "num_heads", "mla_dtype", "kv_cache_dtype"),
        latent_decode_work, "mla_dtype", 3,
    ),
)  # fmt: skip

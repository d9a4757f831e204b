"""Rows of the aiconfigurator tables of layers as works: experts of one rank, and layers that carry a state.

A row of experts is what one rank runs: tokens sorted, two products, the activation between, results added up.
Evenly spread tokens touch as many experts as there are choices. The publisher's uneven spreads give expert i
of E the load x_i ~ u^(1 / (1 - a)) between 1 and 0.8 of the tokens (between 0.01 and 2 where choices are
fewer than experts), and time the rank with the most. Here u are the E evenly spaced quantiles and the busiest
rank is the mean over a few orders of them, so that a corpus is the same everywhere.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from predictor.features.dtype import Compute
from predictor.features.programs.work import Contraction, Convolution, Family, OpWork, Phase
from predictor.models.corpus.aiconfigurator_works import STORAGE, Row, Table

_OUT_BYTES = 2
_ORDERS = 8
# Rounds in which what the fullest experts cannot take goes to the others.
_FILLINGS = 20
# SiLU and the product with the passed half; ReLU squared.
_GATED_FLOPS, _PLAIN_FLOPS = 6, 2
_DELTA_UPDATES = 2


def skew_of(distribution: str) -> float:
    """Exponent of a spread of tokens over experts; 0 for evenly."""
    return 0.0 if distribution == "balanced" else float(distribution.removeprefix("power_law_"))


@cache
def busiest_rank(tokens: int, chosen: int, experts: int, ranks: int, skew: float) -> tuple[int, int]:
    """(experts that see a token, rows) of the rank with the most rows."""
    rows, held = tokens * chosen, experts // ranks
    if not skew:
        own = max(1, -(-rows // ranks))
        return min(held, own), own
    loads = _loads(tokens, rows, experts, skew)
    random = np.random.default_rng(0)
    found = []
    for _ in range(_ORDERS if ranks > 1 else 1):
        parts = random.permutation(loads).reshape(ranks, held)
        part = parts[int(np.argmax(parts.sum(axis=1)))]
        found.append((np.count_nonzero(part), part.sum()))
    touched, own_rows = np.mean(found, axis=0)
    return max(1, round(float(touched))), max(1, round(float(own_rows)))


def _loads(tokens: int, rows: int, experts: int, skew: float) -> NDArray[np.intp]:
    """(experts,) rows of each, largest first, at most one a token; what rounding lost goes to the largest."""
    least, most = (1.0, 0.8 * tokens) if rows > experts else (0.01, 2.0)
    quantiles = (np.arange(experts) + 0.5) / experts
    power = 1.0 - skew
    law = ((most**power - least**power) * quantiles + least**power) ** (1.0 / power)
    law = np.sort(law * rows / law.sum())[::-1]
    for _ in range(_FILLINGS):
        law *= rows / np.minimum(law, tokens).sum()
    loads: NDArray[np.intp] = np.rint(np.minimum(law, tokens)).astype(np.intp)
    lost = rows - int(loads.sum())
    # An expert with all tokens can take no more.
    free = np.flatnonzero(loads < tokens) if lost > 0 else np.flatnonzero(loads > 1)
    loads[free[: abs(lost)]] += np.sign(lost)
    return loads


def experts_work(row: Row) -> OpWork:
    """The routed experts of one rank of `moe_tp_size` x `moe_ep_size`."""
    tokens, chosen, experts = int(row["num_tokens"]), int(row["topk"]), int(row["num_experts"])
    hidden, inner = int(row["hidden_size"]), int(row["inter_size"]) // int(row["moe_tp_size"])
    touched, rows = busiest_rank(
        tokens, chosen, experts, int(row["moe_ep_size"]), skew_of(row["distribution"])
    )
    stored, gated = STORAGE[row["moe_dtype"]], bool(row["gated"])
    matrices = 3 if gated else 2
    wide = (matrices - 1) * inner
    weights = round(touched * hidden * inner * matrices * stored.weight_bytes)
    activations = rows * (hidden + inner) * stored.activation_bytes
    return OpWork(
        family=Family.BATCHED_MATMUL,
        kind="gated_experts" if gated else "plain_experts",
        phase=Phase.FORWARD,
        compute=stored.compute,
        shape=Contraction(touched, -(-rows // touched), wide, hidden),
        element_bits=8 * _OUT_BYTES,
        matrix_flops=2 * rows * hidden * inner * matrices,
        vector_flops=rows * inner * (_GATED_FLOPS if gated else _PLAIN_FLOPS),
        read_bytes=round(activations) + weights,
        write_bytes=rows * (wide + hidden) * _OUT_BYTES,
        parameter_bytes=weights,
    )


def convolution_work(row: Row) -> OpWork:
    """A causal convolution of each channel and its activation; a step also moves its last inputs."""
    samples, length = int(row["batch_size"]), int(row["seq_len"])
    channels, taps = int(row["channels"]), int(row["d_conv"])
    kept = samples * channels * (taps - 1) if length == 1 else 0
    numbers = samples * length * channels
    return OpWork(
        family=Family.CONVOLUTION,
        kind="causal_conv",
        phase=Phase.FORWARD,
        compute=Compute.BF16,
        shape=Convolution(
            samples, channels, channels, channels, (length + taps - 1,), (length,), (taps,), (1,), (1,)
        ),
        element_bits=16,
        matrix_flops=2 * numbers * taps,
        vector_flops=5 * numbers,
        read_bytes=2 * (numbers + channels * taps + kept),
        write_bytes=2 * (numbers + kept),
        parameter_bytes=2 * channels * taps,
    )


def delta_work(row: Row) -> OpWork:
    """A gated delta rule: keys ask the state and update it, queries ask it; it is read and written once."""
    samples, length = int(row["batch_size"]), int(row["seq_len"])
    key_heads, heads = int(row["num_k_heads"]), int(row["num_v_heads"])
    key, value = int(row["head_k_dim"]), int(row["head_v_dim"])
    tokens, state = samples * length, key * value
    kept = samples * heads * state * int(row["state_bytes"])
    return OpWork(
        family=Family.ATTENTION,
        kind="linear_attention",
        phase=Phase.FORWARD,
        compute=Compute.BF16,
        shape=Contraction(samples * heads, length, value, key),
        element_bits=16,
        matrix_flops=tokens * 2 * state * heads * (1 + _DELTA_UPDATES),
        vector_flops=tokens * heads * (2 * state + value),
        read_bytes=2 * tokens * (2 * key_heads * key + heads * value + 2 * heads) + kept,
        write_bytes=2 * tokens * heads * value + kept,
    )


_CONVOLUTION = ("batch_size", "seq_len", "channels", "d_conv", "precision")
LAYER_TABLES: tuple[Table, ...] = (
    Table(
        "experts", "moe_perf",
        ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size",
         "distribution", "gated", "moe_dtype"),
        experts_work, "moe_dtype", 10, kernels=8,
    ),
    Table("causal_conv", "mamba2_perf", _CONVOLUTION, convolution_work, "precision", 1, part="causal_conv1d"),
    Table("causal_conv", "gdn_perf", _CONVOLUTION, convolution_work, "precision", 2, part="causal_conv1d"),
    Table(
        "delta_rule", "gdn_perf",
        ("batch_size", "seq_len", "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "state_bytes",
         "precision"),
        delta_work, "precision", 2, kernels=6, part="gated_delta_rule",
    ),
)  # fmt: skip

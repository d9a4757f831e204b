"""Rows of layers that carry a state along: causal convolutions of a few taps, and linear attention.

Both come in two forms. Prefill takes whole sequences: a convolution streams them once; linear attention works
through chunks of tokens, whose products are independent but for the state, which passes from chunk to chunk.
A decode step takes one token: the state of each sequence is read and written, whatever else it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.features.programs.work import Contraction, Convolution, OpWork
from predictor.features.tables.kernel_facts import Facts, fill, start_time_s
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec

CONVOLUTION_KIND, ATTENTION_KIND = "causal_conv", "linear_attention"

NAMES = (
    "attends", "log2_parallel", "log2_length", "log2_width", "log2_depth", "log_blocks", "fill",
    "log_memory", "log_chain", "log_compute", "log_memory_over_base", "log_chain_over_base", "log_base",
    "log_bytes_over_cache", "log2_bytes", "stack", "kernel",
)  # fmt: skip

_CHUNK = 64
# Of a value's width, what one block keeps of the state.
_BLOCK_WIDTH = 64
# Of the rate of products: those of a chunk are small.
_CHUNK_SHARE = 0.4
# Cycles from one chunk's state to the next: loads, two products, a store, each after the one before.
_CHUNK_CYCLES = 6000.0
# Results of a convolution a core and cycle: four taps, an activation and their addresses are some 60
# instructions of 128 lanes. H100, H200 and B200 give 2.0 to 2.4, whatever their memory.
_RESULTS_PER_CYCLE = 2.2
# Kernels of the chunked form: decay, products within chunks, their inverse, states, results.
_CHUNKED_STARTS = 5.0


def state_columns(
    works: Sequence[OpWork], facts: Facts, device: DeviceSpec
) -> tuple[dict[str, FloatArray], FloatArray]:
    """Columns by name and base_s, each (n,). Raises TypeError for the shape of another."""
    attends, parallel, length, width, depth = np.array([_sizes(work) for work in works]).reshape(-1, 5).T
    start_s, cores = start_time_s(device), device.core_count
    memory_s = facts.memory_s(device, (facts.read, facts.write))
    chunked = (attends > 0) & (length > 1)
    chunks = np.where(chunked, np.ceil(length / _CHUNK), 1.0)
    blocks = parallel * np.where(attends > 0, np.ceil(width / _BLOCK_WIDTH), 1.0) / cores
    chunk_flops = 4 * _CHUNK * depth * _BLOCK_WIDTH
    chunk_s = chunk_flops / (facts.rate / cores) + _CHUNK_CYCLES / device.clock_hz
    chain_s = np.where(chunked, np.ceil(blocks) * chunks * chunk_s, start_s)
    results_s = parallel * length * width / (_RESULTS_PER_CYCLE * cores * device.clock_hz)
    compute_s = np.where(chunked, facts.flops / (facts.rate * _CHUNK_SHARE), start_s)
    compute_s = np.where(attends > 0, compute_s, results_s)
    starts = np.where(chunked, 1 + _CHUNKED_STARTS, 1.0)
    bound_s = np.where(chunked | (attends == 0), np.maximum(memory_s, compute_s), memory_s)
    base_s = np.where(chunked, np.maximum(bound_s, chain_s), bound_s) + starts * start_s
    columns = {
        "attends": attends,
        "log2_parallel": np.log2(parallel),
        "log2_length": np.log2(length),
        "log2_width": np.log2(width),
        "log2_depth": np.log2(depth),
        "log_blocks": np.log(blocks),
        "fill": fill(blocks),
        "log_memory": np.log(memory_s / start_s),
        "log_chain": np.log(chain_s / start_s),
        "log_compute": np.log(compute_s / start_s),
        "log_memory_over_base": np.log(memory_s / base_s),
        "log_chain_over_base": np.log(chain_s / base_s),
        "log_base": np.log(base_s / start_s),
        "log_bytes_over_cache": np.log((facts.read + facts.write) / facts.cache),
        "log2_bytes": np.log2((facts.read + facts.write) / (parallel * length * width)),
        "stack": facts.stack,
        "kernel": facts.kernel,
    }
    return columns, base_s


def _sizes(work: OpWork) -> tuple[float, float, float, float, float]:
    """Whether it attends, sequences (times heads), length, width (of values, or channels), depth."""
    s = work.shape
    if isinstance(s, Contraction):
        return 1.0, max(1, s.batch), max(1, s.m), max(1, s.n), max(1, s.k)
    if isinstance(s, Convolution):
        return 0.0, max(1, s.samples), max(1, s.out_spatial[0]), max(1, s.out_channels), s.kernel[0]
    raise TypeError(f"{type(s).__name__} carries no state")

"""Recurrent layers: a chain of small products that waits for its own result, and large ones beside it.

What enters from below is one product over all steps; so are the gradients of inputs and weights. Only the
recurrent product runs step after step, and each step reads its (gates * H) x H matrix again where the cache
cannot hold it: on DeepSpeech2 (H = 1024, 16.8 MB in FP32) that is what small batches wait for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictor.features.programs.work import Contraction, Family, OpWork
from predictor.features.tables.rows import cache_bytes
from predictor.features.tables.tiles import FloatArray, Products, tile_efficiencies
from predictor.hardware.spec import DeviceSpec
from predictor.hardware.sustained import sustained_matrix_rate

_GATES: Mapping[str, int] = {"lstm": 4, "gru": 3, "rnn": 1}
# Rows that a skinny product computes at least, wanted or not.
_LEAST_ROWS = 16


def is_chain(work: OpWork) -> bool:
    """Whether a work is a recurrent layer whose steps are known."""
    return work.family is Family.RECURRENT and isinstance(work.shape, Contraction) and work.kind in _GATES


def streamed_bytes(work: OpWork, device: DeviceSpec) -> float:
    """Bytes of recurrent weights read again at every step; 0 where the cache holds them."""
    if not is_chain(work):
        return 0.0
    shape = _shape(work)
    step_bytes = shape.n * _hidden(work) * work.element_bits / 8
    return shape.batch * step_bytes if step_bytes > cache_bytes(device) else 0.0


def chain_s(works: Sequence[OpWork], device: DeviceSpec) -> FloatArray:
    """(n,) seconds of each chain and the products beside it, without start-up. All must be `is_chain`."""
    times = []
    for work in works:
        shape, hidden = _shape(work), _hidden(work)
        rate = sustained_matrix_rate(device, work.compute)
        product = 2.0 * max(shape.m, _LEAST_ROWS) * shape.n * hidden / rate
        steps_s = max(shape.batch * product, streamed_bytes(work, device) / device.memory_bytes_per_s)
        beside = max(0.0, work.matrix_flops - 2.0 * shape.batch * shape.m * shape.n * hidden)
        columns = [1.0, shape.batch * shape.m, shape.n, max(1, shape.k - hidden)]
        one = Products(*(np.array([column], dtype=np.float64) for column in columns))
        times.append(steps_s + beside / rate / float(tile_efficiencies(one, device.core_count).max()))
    return np.array(times, dtype=np.float64)


def _shape(work: OpWork) -> Contraction:
    assert isinstance(work.shape, Contraction)
    return work.shape


def _hidden(work: OpWork) -> int:
    return _shape(work).n // _GATES[work.kind]

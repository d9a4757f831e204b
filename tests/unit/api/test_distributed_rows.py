"""Published iterations are composed from what their frameworks run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from predictor.api import Predictor
from predictor.api.distributed_rows import _with_attention
from predictor.features.lowering.narrow_products import with_narrow_products
from predictor.features.programs.work import Family, Program
from predictor.hardware.catalog import find_device
from predictor.models.corpus.distributed_graphs import Recipe, build
from predictor.request import PredictionRequest
from predictor.types import Mode, Precision


def attention(program: Program) -> NDArray[np.bool_]:
    return np.array([op.work.family is Family.ATTENTION for op in program.ops])


def test_attention_of_an_eager_job_with_narrow_products_takes_what_it_takes_in_16_bits() -> None:
    predictor, device = Predictor.load(), find_device("h100-sxm-80gb")
    recipe = Recipe("gpt", 2, 1024, 4096, 8, 8, 0, 50368, sequence=4096, flash=True)
    request = PredictionRequest(build(recipe), device.id, batch=2, mode=Mode.TRAIN, precision=Precision.BF16)
    wide, wide_costs = predictor.priced(request)
    narrow = with_narrow_products(wide, "fp8")
    costs = predictor._priced(narrow, device, request)
    found = _with_attention(narrow, costs, wide, wide_costs)
    assert attention(narrow).any()
    assert np.allclose(found.time_s[attention(narrow)], wide_costs.time_s[attention(wide)])
    assert not np.allclose(costs.time_s[attention(narrow)], wide_costs.time_s[attention(wide)])
    assert np.array_equal(found.time_s[~attention(narrow)], costs.time_s[~attention(narrow)])

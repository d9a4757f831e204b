"""Attention with a wider window never costs less, whatever the boosters say of single windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from predictor.features.architectures.from_config import from_config
from predictor.features.dtype import Compute
from predictor.features.programs.work import AttentionShape, Family, OpWork, Phase
from predictor.features.tables.tiles import FloatArray
from predictor.models.ops.windows import window_times_s, without_window
from predictor.types import Mode, Optimizer, Precision

LENGTH = 4096


def attention(window: int, length: int = LENGTH) -> OpWork:
    shape = AttentionShape(1, 8, 8, length, length, 64, 64, causal=True, window=window)
    return OpWork(
        family=Family.ATTENTION,
        kind="attention",
        phase=Phase.FORWARD,
        compute=Compute.BF16,
        shape=shape,
        element_bits=16,
        matrix_flops=4 * 8 * shape.pairs * 64,
        vector_flops=6 * 8 * shape.pairs,
        read_bytes=3 * 8 * length * 128,
        write_bytes=8 * length * 128,
    )


def noisy(works: Sequence[OpWork]) -> FloatArray:
    """A booster's answer: FLOPs, and a fifth more for every other window."""
    factors = [1.2 if work.shape.window.bit_length() % 2 else 1.0 for work in works]  # type: ignore[union-attr]
    return np.array([work.matrix_flops for work in works]) * np.array(factors)


def test_times_rise_with_the_window_up_to_that_without_one() -> None:
    windows = [1, 64, 100, 128, 129, 700, 1024, 1500, 2048, 3000, 4000, 4095, 4096, 9000]
    found = window_times_s([attention(window) for window in windows], noisy)
    assert (np.diff(found) >= 0).all()
    whole = noisy([attention(0)])[0]
    assert found[-2] == found[-1] == pytest.approx(whole)
    # A length that is priced itself keeps its price, where no narrower one costs more.
    assert found[3] == pytest.approx(noisy([attention(128)])[0])
    assert found[0] == found[1]


@pytest.mark.parametrize("length", [1, 63, 64, 65])
def test_short_sequences_have_no_windows_to_price(length: int) -> None:
    (found,) = window_times_s([attention(8, length)], noisy)
    assert 0 < found <= noisy([attention(0, length)])[0]


def test_without_a_window_all_scores_are_computed() -> None:
    assert without_window(attention(128)) == attention(0)
    assert without_window(attention(0)) == attention(0)


@pytest.mark.parametrize("mode", [Mode.INFER, Mode.TRAIN])
def test_a_decoder_takes_no_less_with_a_wider_window(mode: Mode) -> None:
    from predictor import PredictionRequest, Predictor

    predictor = Predictor.load()
    optimizer = Optimizer.ADAM if mode is Mode.TRAIN else Optimizer.NONE
    config = {
        "model_type": "mistral",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
    }
    # On an L4, a window of 256 once took longer than one of 1,500.
    found = [
        predictor.predict(
            PredictionRequest(
                from_config({**config, "sliding_window": window}, batch=1, sequence=LENGTH),
                "l4-pcie-24gb",
                mode=mode,
                precision=Precision.BF16,
                optimizer=optimizer,
            )
        ).iteration_time_s.value
        for window in (128, 256, 1500, 2048, 4095, None)
    ]
    assert (np.diff(found) >= 0).all()
    assert found[-1] > 1.1 * found[0]

"""Diffusion transformers as graphs: tokens, parameters, and the factor of the other denoisers."""

from __future__ import annotations

import pytest

from predictor.evaluation.energy_drawn import DENOISERS, Denoiser, DrawnCell, denoiser_graph, drawn_rows
from predictor.features.reading.reader import read_graph

VIDEO = DENOISERS["zai-org/CogVideoX-2b"]


def test_tokens_of_pictures_and_videos() -> None:
    assert DENOISERS["stabilityai/stable-diffusion-3.5-large"].tokens(1024, 1024, 1) == 64 * 64 + 333
    # 49 frames are 13 of the latents, each of 30 x 45 patches (CogVideoX).
    assert VIDEO.tokens(720, 480, 49) == 226 + 13 * 30 * 45


def test_a_graph_attends_in_one_kernel_a_block() -> None:
    graph = read_graph(denoiser_graph(Denoiser(64, 3, 4, 0), 16), batch=2)
    assert sum(node.op_type == "Attention" for node in graph.nodes) == 3
    assert sum(node.op_type in ("MatMul", "Gemm", "Linear") for node in graph.nodes) == 12


def _cell(subject: str, over: float) -> DrawnCell:
    return DrawnCell(subject, "h100-sxm-80gb", over, over, 1.0, 1.0)


def test_the_factor_is_that_of_the_others() -> None:
    rows = drawn_rows([_cell("a", 2.0), _cell("b", 2.0), _cell("c", 4.0)])
    errors = {row.group.rpartition(", ")[2]: row.value for row in rows if row.metric == "mape"}
    assert errors["the denoiser's graph alone"] == pytest.approx((0.5 + 0.5 + 0.75) / 3)
    # a and b are told by the mean of 2 and 4 in logs, c by 2.
    assert errors["and a factor of the others"] == pytest.approx((2 * (2**0.5 - 1) + 0.5) / 3)

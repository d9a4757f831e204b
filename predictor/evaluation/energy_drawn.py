"""Images and videos drawn by diffusion transformers (E2): joules of one, from a graph of the denoiser.

A denoiser is priced as a plain transformer of its published width, depth and tokens, in BF16, once a step, or
twice where its guidance is not distilled. What else a pipeline runs (modulation, attention to the text, text
encoders, decoding of latents, an eager host) is one factor, fitted on the other denoisers. Jobs on several
boards are not read; linear attention (SANA) has no graph here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.api import Predictor
from predictor.evaluation.energy_jobs import SUITE
from predictor.evaluation.rows import EvaluationRow, absolute_errors, error_rows
from predictor.features.architectures.from_config import OPSET
from predictor.features.builder import GraphBuilder
from predictor.request import PredictionRequest
from predictor.types import Mode, Precision, Runtime

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Denoiser:
    """Sizes of a diffusion transformer.

    Attributes:
        width, depth, heads: of its blocks. cell, frames: pixels of a token's side, frames of a token.
        text: tokens beside the picture's. passes: forwards a step.
    """

    width: int
    depth: int
    heads: int
    text: int
    cell: int = 16
    frames: int = 4
    passes: int = 2

    def tokens(self, width: int, height: int, frames: int) -> int:
        """Of one picture with its text."""
        return self.text + (width // self.cell) * (height // self.cell) * (1 + (frames - 1) // self.frames)


DENOISERS: Mapping[str, Denoiser] = {
    "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS": Denoiser(1152, 28, 16, 0),
    "Tencent-Hunyuan/HunyuanDiT-v1.2-Diffusers": Denoiser(1408, 40, 16, 0),
    "black-forest-labs/FLUX.1-dev": Denoiser(3072, 57, 24, 512, passes=1),
    "stabilityai/stable-diffusion-3.5-large": Denoiser(2432, 38, 38, 333),
    "stabilityai/stable-diffusion-3.5-medium": Denoiser(1536, 24, 24, 333),
    "tencent/HunyuanVideo": Denoiser(3072, 60, 24, 256, passes=1),
    "zai-org/CogVideoX-2b": Denoiser(1920, 30, 30, 226),
    "zai-org/CogVideoX1.5-5B": Denoiser(3072, 42, 48, 226, frames=8),
}
"""Sizes of the published configurations."""


@dataclass(frozen=True, slots=True)
class DrawnCell:
    """One run on one board: J per item and s per batch, measured and ours."""

    subject: str
    device: str
    measured_j: float
    measured_s: float
    energy_j: float
    time_s: float


def denoiser_graph(denoiser: Denoiser, tokens: int) -> bytes:
    """One forward of the blocks over a symbolic batch."""
    b = GraphBuilder("denoiser", opset=OPSET)
    x = b.input("tokens", ("batch", tokens, denoiser.width))
    split = [0, tokens, 3 * denoiser.heads, denoiser.width // denoiser.heads]
    for _ in range(denoiser.depth):
        joint = b.reshape(b.linear(b.layer_norm(x), 3 * denoiser.width), split)
        parts = b.split(b.transpose(joint, [0, 2, 1, 3]), 3, axis=1)
        mixed = b.transpose(b.op("Attention", list(parts)), [0, 2, 1, 3])
        x = b.add(x, b.linear(b.reshape(mixed, [0, tokens, denoiser.width]), denoiser.width))
        hidden = b.gelu(b.linear(b.layer_norm(x), 4 * denoiser.width), approximate="tanh")
        x = b.add(x, b.linear(hidden, denoiser.width))
    return b.build([x])


def drawn_cells(rows: pl.DataFrame, predictor: Predictor) -> Iterator[DrawnCell]:
    """Runs on one board of the denoisers that are known here."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    columns = ("subject", "device", "configuration", "quantity", "value")
    for subject, device, text, quantity, value in rows.select(columns).sort(columns).iter_rows():
        found.setdefault((subject, device, text), {})[quantity] = value
    for (subject, device, text), measured in found.items():
        facts, denoiser = json.loads(text), DENOISERS.get(subject)
        if denoiser is None or facts["devices"] > 1:
            continue
        tokens = denoiser.tokens(facts["width"], facts["height"], facts["frames"])
        answer = predictor.predict(
            PredictionRequest(
                graph=denoiser_graph(denoiser, tokens),
                device=device,
                batch=facts["batch"] * denoiser.passes,
                mode=Mode.INFER,
                precision=Precision.BF16,
                runtime=Runtime.EAGER,
            )
        )
        steps = float(facts["denoising_steps"])
        joules = answer.energy_j.value * steps / facts["batch"]
        yield DrawnCell(
            subject,
            device,
            measured["energy"],
            measured["latency"],
            joules,
            steps * answer.iteration_time_s.value,
        )


def drawn_rows(cells: Sequence[DrawnCell]) -> list[EvaluationRow]:
    """Errors of joules and seconds by the graph alone, and with the factor of the other denoisers."""
    rows: list[EvaluationRow] = []
    for quantity, ours, measured in (
        ("J per image or video", [c.energy_j for c in cells], [c.measured_j for c in cells]),
        ("seconds", [c.time_s for c in cells], [c.measured_s for c in cells]),
    ):
        left = np.log(np.array(measured) / np.array(ours))
        factor = np.exp(_of_others(left, np.array([cell.subject for cell in cells])))
        for how, errors in (
            ("the denoiser's graph alone", absolute_errors(ours, measured)),
            ("and a factor of the others", absolute_errors(list(factor * ours), measured)),
        ):
            group = f"drawn, denoiser left out: {quantity}, {how}"
            rows += error_rows(errors, id="E2", suite=SUITE, hold="model", group=group)
    return rows


def _of_others(left: NDArray[np.float64], subjects: NDArray[np.str_]) -> NDArray[np.float64]:
    """(n,) mean of what is left (n,) of all other subjects, each counting alike."""
    names = np.unique(subjects)
    means = np.array([left[subjects == name].mean() for name in names])
    own = np.searchsorted(names, subjects)
    return np.asarray((means.sum() - means[own]) / max(1, len(names) - 1), dtype=np.float64)

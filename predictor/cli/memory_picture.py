"""Memory over one iteration as stacked areas: SVG, PNG, or a page with the tensors of the peak."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from predictor.api.memory_view import MemorySeries
from predictor.cli import text as txt
from predictor.cli.drawing import COLOURS, FAINT, INK, Area, Label, Rule, Shape, page, png, svg
from predictor.features.programs.liveness import Part

FloatArray = NDArray[np.float64]

_WIDTH, _HEIGHT = 960.0, 540.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 84.0, 190.0, 84.0, 60.0
# Steps beyond as many share a column, which shows the largest of them.
_COLUMNS = 1500
_MOST_ROWS = 40
_PARTS = {
    Part.FORWARD: "forward",
    Part.REPLAY: "backward",
    Part.BACKWARD: "backward",
    Part.OPTIMIZER: "step",
}


def memory_shapes(series: MemorySeries, title: str) -> list[Shape]:
    """The picture."""
    steps = _shown(series)
    total = series.total_bytes
    top = float(total.max())
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    count = max(1, len(steps))
    xs = [_LEFT + (right - _LEFT) * index / count for index in range(count + 1)]

    def y(size: float) -> float:
        return bottom - (bottom - _TOP) * size / (1.04 * top)

    shapes: list[Shape] = [
        Label(_LEFT, 34, title, 18, bold=True),
        Label(_LEFT, 56, _subtitle(series), 12.5, FAINT),
    ]
    for tick in _ticks(top):
        shapes.append(Rule(_LEFT, y(tick), right, y(tick)))
        shapes.append(Label(_LEFT - 10, y(tick) + 4, txt.size(tick), 12, FAINT, "end"))
    below = np.zeros(len(steps))
    colours = dict(zip(series.lines, COLOURS, strict=False))
    for name, values in series.lines.items():
        above = below + values[steps]
        # A step of the iteration is a step of the picture: levels, not slopes.
        upper = [point for i, v in enumerate(above) for point in ((xs[i], y(v)), (xs[i + 1], y(v)))]
        lower = [point for i, v in enumerate(below) for point in ((xs[i], y(v)), (xs[i + 1], y(v)))]
        note = f"{txt.words(name)}: at most {txt.size(float(values.max()))}"
        shapes.append(Area((*upper, *reversed(lower)), colours[name], note))
        below = above
    shapes += _parts(series, steps, xs, bottom)
    shapes += _peak(series, steps, xs, y(top))
    shapes += _legend(series, colours)
    shapes.append(
        Label((_LEFT + right) / 2, _HEIGHT - 14, "kernels of one microbatch in order", 13, anchor="middle")
    )
    return shapes


def _shown(series: MemorySeries) -> NDArray[np.intp]:
    """Steps that have a column: all, or the largest of each of _COLUMNS bins, the peak among them."""
    total = series.total_bytes
    if len(total) <= _COLUMNS:
        return np.arange(len(total))
    edges = np.linspace(0, len(total), _COLUMNS + 1).astype(int)
    return np.array([begin + int(total[begin:end].argmax()) for begin, end in pairwise(edges) if end > begin])


def _ticks(top: float) -> list[float]:
    """About five sizes that are round in binary units."""
    step = 2.0 ** ceil(log2(max(top, 1.0) / 6))
    return [step * number for number in range(int(1.04 * top / step) + 1)]


def _subtitle(series: MemorySeries) -> str:
    peak = float(series.total_bytes[series.peak_step])
    part = _PARTS[Part(series.parts[series.peak_step])]
    where = series.nodes[series.peak_step]
    stage = f", stage {series.stage}" if series.stage else ""
    return f"tensors peak at {txt.size(peak)} in {part}{stage}, while {txt.shortened(where, 48)} runs"


def _parts(series: MemorySeries, steps: NDArray[np.intp], xs: Sequence[float], bottom: float) -> list[Shape]:
    """Where forward ends and the step begins."""
    names = [_PARTS[Part(series.parts[step])] for step in steps]
    starts = [0, *(i for i in range(1, len(names)) if names[i] != names[i - 1]), len(names)]
    shapes: list[Shape] = []
    for begin, end in pairwise(starts):
        if begin:
            shapes.append(Rule(xs[begin], _TOP, xs[begin], bottom, FAINT, 1.0, dashed=True))
        if xs[end] - xs[begin] > 40:
            shapes.append(Label((xs[begin] + xs[end]) / 2, bottom + 20, names[begin], 12, FAINT, "middle"))
    return shapes


def _peak(series: MemorySeries, steps: NDArray[np.intp], xs: Sequence[float], height: float) -> list[Shape]:
    column = int(np.abs(steps - series.peak_step).argmin())
    x = (xs[column] + xs[column + 1]) / 2
    text = f"peak {txt.size(float(series.total_bytes.max()))}"
    anchor = "start" if x < (_LEFT + _WIDTH - _RIGHT) / 2 else "end"
    return [
        Rule(x, height - 8, x, height, INK, 2.0),
        Label(x + (6 if anchor == "start" else -6), height - 8, text, 12, INK, anchor),
    ]


def _legend(series: MemorySeries, colours: Mapping[str, str]) -> list[Shape]:
    left, y = _WIDTH - _RIGHT + 24, _TOP + 6
    shapes: list[Shape] = []
    for name in reversed(tuple(series.lines)):
        size = txt.size(float(series.lines[name][series.peak_step]))
        shapes.append(Area(((left, y), (left + 14, y), (left + 14, y + 14), (left, y + 14)), colours[name]))
        shapes.append(Label(left + 22, y + 12, txt.words(name), 13))
        shapes.append(Label(left + 22, y + 28, f"{size} at the peak", 11, FAINT))
        y += 42
    return shapes


def memory_svg(series: MemorySeries, title: str) -> bytes:
    """The picture as SVG."""
    return svg(memory_shapes(series, title), _WIDTH, _HEIGHT, title).encode()


def memory_png(series: MemorySeries, title: str) -> bytes:
    """The picture in pixels. Needs Pillow."""
    return png(memory_shapes(series, title), _WIDTH, _HEIGHT)


def memory_html(series: MemorySeries, title: str) -> bytes:
    """A page with the picture and the largest tensors of the peak."""
    rows = "\n".join(
        f"<tr><td>{escape(tensor.name)}<td>{escape(tensor.node)}<td>{tensor.held_for}<td>{txt.size(tensor.size_bytes)}"
        for tensor in series.alive[:_MOST_ROWS]
    )
    rest = series.alive[_MOST_ROWS:]
    more = sum(tensor.size_bytes for tensor in rest)
    tail = f"<p>{len(rest):,} more hold {txt.size(more)}.</p>" if rest else ""
    style = "td,th{text-align:left}td:last-child,th:last-child{text-align:right}"
    content = (
        "<h2>Alive at the peak, beside weights and optimizer state</h2>"
        "<table><thead><tr><th>tensor<th>made by<th>held as<th>size</thead><tbody>\n"
        f"{rows}\n</tbody></table>{tail}"
    )
    picture = svg(memory_shapes(series, title), _WIDTH, _HEIGHT, title)
    return page(title, picture, content, style).encode()


Writer = Callable[[MemorySeries, str], bytes]
WRITERS: dict[str, Writer] = {
    ".svg": memory_svg,
    ".png": memory_png,
    ".html": memory_html,
    ".htm": memory_html,
}
"""File ending -> what writes it."""

"""A sweep as a picture: joules against seconds per sample, one line a batch, the Pareto front marked.

SVG, PNG, or an HTML page that holds it above its table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10
from typing import TypeAlias

from predictor.api.power_sweep import SweepPoint
from predictor.cli import text as txt
from predictor.cli.drawing import (
    FAINT,
    INK,
    LINE_COLOURS,
    PAPER,
    Dot,
    Label,
    Path,
    Rule,
    Shape,
    page,
    png,
    svg,
)

_WIDTH, _HEIGHT = 860.0, 540.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 86.0, 178.0, 102.0, 66.0
_MARKER, _MARKER_OPACITY = "#ffd24a", 0.55


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear axis: values to pixels, and where its ticks stand."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Pixels of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """About six round values inside."""
        step = _round_step((self.high - self.low) / 6)
        first = ceil(self.low / step - 1e-9)
        last = floor(self.high / step + 1e-9)
        return [step * number for number in range(first, last + 1)]


def _round_step(raw: float) -> float:
    power = 10.0 ** floor(log10(raw))
    return next(power * unit for unit in (1, 2, 2.5, 5, 10) if power * unit >= raw * 0.999)


def _axis(values: Sequence[float], start: float, end: float) -> Scale:
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.1 * high
    return Scale(max(0.0, low - room), high + room, start, end)


def sweep_shapes(points: Sequence[SweepPoint], title: str) -> list[Shape]:
    """The picture. `points` must not be empty."""
    x = _axis([p.time_per_sample_s for p in points], _LEFT, _WIDTH - _RIGHT)
    y = _axis([p.energy_per_sample_j for p in points], _HEIGHT - _BOTTOM, _TOP)
    batches = sorted({point.batch for point in points})
    colour = {batch: LINE_COLOURS[i % len(LINE_COLOURS)] for i, batch in enumerate(batches)}
    return [
        Label(_LEFT, 34, title, 18, bold=True),
        Label(_LEFT, 56, _subtitle(points), 12.5, FAINT),
        *_frame(x, y),
        *_front(points, x, y),
        *(_line([p for p in points if p.batch == batch], x, y, colour[batch]) for batch in batches),
        *(_dot(point, x, y, colour[point.batch]) for point in points),
        *_labels(points, x, y),
        *_legend(points, batches, colour),
    ]


def sweep_svg(points: Sequence[SweepPoint], title: str) -> bytes:
    """The picture as SVG."""
    return svg(sweep_shapes(points, title), _WIDTH, _HEIGHT, title).encode()


def sweep_png(points: Sequence[SweepPoint], title: str) -> bytes:
    """The picture in pixels. Needs Pillow."""
    return png(sweep_shapes(points, title), _WIDTH, _HEIGHT)


def sweep_html(points: Sequence[SweepPoint], title: str) -> bytes:
    """A page with the picture and its numbers."""
    rows = "\n".join(
        f"<tr{' class=front' if p.on_front else ''}><td>{_batch(p.batch)}<td>{p.power_limit_w:g} W"
        f"<td>{txt.seconds(p.iteration_time_s.value)}<td>{txt.span(p.iteration_time_s, txt.seconds)}"
        f"<td>{txt.watts(p.average_power_w.value)}<td>{txt.joules(p.energy_per_sample_j)}"
        f"<td>{'front' if p.on_front else ('' if p.fits else 'does not fit')}"
        for p in points
    )
    content = (
        "<table><thead><tr><th>batch<th>cap<th>iteration<th>90 % interval<th>mean power<th>energy / sample"
        f"<th></thead><tbody>\n{rows}\n</tbody></table>"
    )
    picture = svg(sweep_shapes(points, title), _WIDTH, _HEIGHT, title)
    return page(title, picture, content, "td,th{text-align:right}tr.front td{font-weight:600}").encode()


def _subtitle(points: Sequence[SweepPoint]) -> str:
    fit = [point for point in points if point.fits] or list(points)
    best, fast = min(fit, key=lambda p: p.energy_per_sample_j), min(fit, key=lambda p: p.time_per_sample_s)
    if best == fast:
        return f"fastest and least energy at {_named(best)}"
    saved = 1 - best.energy_per_sample_j / fast.energy_per_sample_j
    slower = best.time_per_sample_s / fast.time_per_sample_s - 1
    less = f"{100 * saved:.0f} % less energy than {_named(fast)}"
    return f"{_named(best)} needs {less} and {100 * slower:.0f} % more time"


def _named(point: SweepPoint) -> str:
    return f"{point.power_limit_w:g} W" + (f", batch {point.batch}" if point.batch else "")


def _frame(x: Scale, y: Scale) -> list[Shape]:
    shapes: list[Shape] = []
    for tick, label in _labelled(y, "J"):
        shapes.append(Rule(x.start, y(tick), x.end, y(tick)))
        shapes.append(Label(x.start - 10, y(tick) + 4, label, 12, FAINT, "end"))
    for tick, label in _labelled(x, "s"):
        shapes.append(Rule(x(tick), y.start, x(tick), y.end))
        shapes.append(Label(x(tick), y.start + 20, label, 12, FAINT, "middle"))
    shapes.append(Label((x.start + x.end) / 2, _HEIGHT - 16, "time per sample", 13, anchor="middle"))
    shapes.append(Label(16.0, y.end - 14, "energy per sample", 13))
    return shapes


def _labelled(scale: Scale, unit: str) -> list[tuple[float, str]]:
    """Ticks with their labels, all in the unit of the largest."""
    ticks = scale.ticks()
    top = max(ticks, default=scale.high)
    size, prefix = next(
        (s, p) for s, p in ((1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (0.0, "n")) if top >= s
    )
    if unit == "s" and prefix == "k":
        size, prefix = 1.0, ""
    return [(tick, f"{tick / (size or 1e-9):.4g} {prefix}{unit}") for tick in ticks]


def _front(points: Sequence[SweepPoint], x: Scale, y: Scale) -> list[Shape]:
    front = sorted((p for p in points if p.on_front), key=lambda p: p.time_per_sample_s)
    if len(front) < 2:
        return []
    dots = tuple((x(p.time_per_sample_s), y(p.energy_per_sample_j)) for p in front)
    return [Path(dots, _MARKER, 13, _MARKER_OPACITY)]


def _line(points: Sequence[SweepPoint], x: Scale, y: Scale, colour: str) -> Path:
    ordered = sorted(points, key=lambda p: p.power_limit_w)
    return Path(tuple((x(p.time_per_sample_s), y(p.energy_per_sample_j)) for p in ordered), colour)


def _dot(point: SweepPoint, x: Scale, y: Scale, colour: str) -> Dot:
    note = (
        f"{_named(point)}: {txt.seconds(point.time_per_sample_s)}, "
        f"{txt.joules(point.energy_per_sample_j)} a sample, "
        f"{txt.watts(point.average_power_w.value)}" + ("" if point.fits else ", does not fit")
    )
    place = x(point.time_per_sample_s), y(point.energy_per_sample_j)
    return Dot(*place, 5, colour if point.on_front else PAPER, colour, not point.fits, note)


_CLEAR = 17.0
_Place: TypeAlias = tuple[float, float]
# Around a dot, the likeliest first: lines fall from the upper left, and run on level at the lowest caps.
_AROUND = ((26.0, -5.0), (0.0, 21.0), (0.0, -12.0), (-28.0, 14.0), (-32.0, 4.0), (32.0, 14.0))
_STEPS_OF_A_LINE = 24


def _labels(points: Sequence[SweepPoint], x: Scale, y: Scale) -> list[Shape]:
    """Caps beside their dots, off other labels and dots, and off lines where that can be; the front first."""
    taken: list[_Place] = []
    place_of = {id(p): (x(p.time_per_sample_s), y(p.energy_per_sample_j)) for p in points}
    lines = _along_lines(points, place_of)
    labels: list[Shape] = []
    for point in sorted(points, key=lambda p: not p.on_front):
        at = place_of[id(point)]
        dots = [place for place in place_of.values() if place != at]
        free = [
            (at[0] + dx, at[1] + dy) for dx, dy in _AROUND if _is_free((at[0] + dx, at[1] + dy), taken, dots)
        ]
        if free:
            place = min(free, key=lambda place: _covers(place, lines))
            taken.append(place)
            fill = INK if point.on_front else FAINT
            labels.append(Label(*place, f"{point.power_limit_w:g} W", 11, fill, "middle", halo=True))
    return labels


def _along_lines(points: Sequence[SweepPoint], place_of: Mapping[int, _Place]) -> list[_Place]:
    """Places on the lines between neighbouring caps of a batch."""
    found: list[_Place] = []
    ordered = sorted(points, key=lambda p: (p.batch, p.power_limit_w))
    for first, second in pairwise(ordered):
        if first.batch == second.batch:
            (x1, y1), (x2, y2) = place_of[id(first)], place_of[id(second)]
            shares = [step / _STEPS_OF_A_LINE for step in range(_STEPS_OF_A_LINE + 1)]
            found += [(x1 + share * (x2 - x1), y1 + share * (y2 - y1)) for share in shares]
    return found


def _covers(place: _Place, lines: Sequence[_Place]) -> int:
    """How many places of lines lie under a label."""
    return sum(abs(place[0] - x) < 19 and abs(place[1] - 4 - y) < 7 for x, y in lines)


def _is_free(place: _Place, taken: Sequence[_Place], dots: Sequence[_Place]) -> bool:
    clear = all(abs(place[0] - t[0]) > 2.2 * _CLEAR or abs(place[1] - t[1]) > 0.8 * _CLEAR for t in taken)
    middle = (place[0], place[1] - 4)
    return clear and all(abs(middle[0] - d[0]) > 22 or abs(middle[1] - d[1]) > 8 for d in dots)


def _legend(points: Sequence[SweepPoint], batches: Sequence[int], colour: dict[int, str]) -> list[Shape]:
    left, y = _WIDTH - _RIGHT + 28, _TOP + 8
    shapes: list[Shape] = []
    for batch in batches:
        shapes.append(Path(((left, y), (left + 22, y)), colour[batch]))
        shapes.append(Dot(left + 11, y, 4.5, colour[batch], colour[batch]))
        shapes.append(Label(left + 32, y + 4.5, _batch(batch), 13))
        y += 24
    if any(point.on_front for point in points):
        y += 8
        shapes.append(Path(((left + 4, y), (left + 18, y)), _MARKER, 11, _MARKER_OPACITY))
        shapes.append(Label(left + 32, y + 4.5, "Pareto front", 13))
    if not all(point.fits for point in points):
        y += 24
        shapes.append(Dot(left + 11, y, 4.5, PAPER, FAINT, dashed=True))
        shapes.append(Label(left + 32, y + 4.5, "does not fit", 13))
    note = "anchored on readings" if any(point.anchored for point in points) else "predicted"
    shapes.append(Label(left, y + 36, note, 12, FAINT))
    return shapes


def _batch(batch: int) -> str:
    return f"batch {batch}" if batch else "the file's batch"


Writer = Callable[[Sequence[SweepPoint], str], bytes]
WRITERS: dict[str, Writer] = {
    ".svg": sweep_svg,
    ".png": sweep_png,
    ".html": sweep_html,
    ".htm": sweep_html,
}
"""File ending -> what writes it."""

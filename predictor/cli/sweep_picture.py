"""A sweep as a picture: joules against seconds per sample, one line a batch, the Pareto front marked.

One self-contained SVG, or an HTML page that holds it above its table; no script, no font, no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from predictor.api.power_sweep import SweepPoint
from predictor.cli import text as txt

_WIDTH, _HEIGHT = 860.0, 540.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 86.0, 178.0, 102.0, 66.0
# Okabe and Ito's colours: told apart by colour-blind readers as well.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6b6b6b")
_INK, _FAINT, _GRID, _PAPER = "#1d2329", "#67727e", "#e6e9ec", "#ffffff"
_MARKER = "stroke='#ffd24a' stroke-linejoin='round' stroke-linecap='round' opacity='.55'"
_FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


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


def sweep_svg(points: Sequence[SweepPoint], title: str) -> str:
    """The picture as SVG text. `points` must not be empty."""
    x = _axis([p.time_per_sample_s for p in points], _LEFT, _WIDTH - _RIGHT)
    y = _axis([p.energy_per_sample_j for p in points], _HEIGHT - _BOTTOM, _TOP)
    batches = sorted({point.batch for point in points})
    colour = {batch: _COLOURS[i % len(_COLOURS)] for i, batch in enumerate(batches)}
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH:g} {_HEIGHT:g}' "
        f"width='{_WIDTH:g}' height='{_HEIGHT:g}' role='img' {_FONT}>",
        f"<title>{escape(title)}</title>",
        f"<rect width='{_WIDTH:g}' height='{_HEIGHT:g}' fill='{_PAPER}'/>",
        _text(_LEFT, 34, title, size=18, weight=600),
        _text(_LEFT, 56, _subtitle(points), size=12.5, fill=_FAINT),
        *_frame(x, y),
        _front(points, x, y),
        *(_line([p for p in points if p.batch == batch], x, y, colour[batch]) for batch in batches),
        *(_dot(point, x, y, colour[point.batch]) for point in points),
        *_labels(points, x, y),
        *_legend(points, batches, colour),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def sweep_html(points: Sequence[SweepPoint], title: str) -> str:
    """A page with the picture and its numbers."""
    rows = "\n".join(
        f"<tr{' class=front' if p.on_front else ''}><td>{_batch(p.batch)}<td>{p.power_limit_w:g} W"
        f"<td>{txt.seconds(p.iteration_time_s.value)}<td>{txt.span(p.iteration_time_s, txt.seconds)}"
        f"<td>{txt.watts(p.average_power_w.value)}<td>{txt.joules(p.energy_per_sample_j)}"
        f"<td>{'front' if p.on_front else ('' if p.fits else 'does not fit')}"
        for p in points
    )
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;color:#1d2329;margin:2rem auto;max-width:900px;"
        "padding:0 1rem}"
        "svg{max-width:100%;height:auto}table{border-collapse:collapse;width:100%;font-size:14px}"
        "td,th{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #e6e9ec}"
        "th{color:#67727e;font-weight:500}tr.front td{font-weight:600}"
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        f"<meta name=viewport content='width=device-width'><style>{style}</style>\n"
        f"{sweep_svg(points, title)}<table><thead><tr><th>batch<th>cap<th>iteration<th>90 % interval"
        f"<th>mean power<th>energy / sample<th></thead><tbody>\n{rows}\n</tbody></table></html>\n"
    )


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


def _frame(x: Scale, y: Scale) -> list[str]:
    lines = []
    for tick, label in _labelled(y, "J"):
        lines.append(_rule(x.start, y(tick), x.end, y(tick)))
        lines.append(_text(x.start - 10, y(tick) + 4, label, size=12, fill=_FAINT, anchor="end"))
    for tick, label in _labelled(x, "s"):
        lines.append(_rule(x(tick), y.start, x(tick), y.end))
        lines.append(_text(x(tick), y.start + 20, label, size=12, fill=_FAINT, anchor="middle"))
    lines.append(_text((x.start + x.end) / 2, _HEIGHT - 16, "time per sample", size=13, anchor="middle"))
    lines.append(_text(16.0, y.end - 14, "energy per sample", size=13))
    return lines


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


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{_GRID}'/>"


def _front(points: Sequence[SweepPoint], x: Scale, y: Scale) -> str:
    front = sorted((p for p in points if p.on_front), key=lambda p: p.time_per_sample_s)
    if len(front) < 2:
        return ""
    path = _path([(x(p.time_per_sample_s), y(p.energy_per_sample_j)) for p in front])
    return f"<path d='{path}' fill='none' stroke-width='13' {_MARKER}/>"


def _line(points: Sequence[SweepPoint], x: Scale, y: Scale, colour: str) -> str:
    ordered = sorted(points, key=lambda p: p.power_limit_w)
    path = _path([(x(p.time_per_sample_s), y(p.energy_per_sample_j)) for p in ordered])
    return f"<path d='{path}' fill='none' stroke='{colour}' stroke-width='2' stroke-linejoin='round'/>"


def _path(dots: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in dots)


def _dot(point: SweepPoint, x: Scale, y: Scale, colour: str) -> str:
    fill = colour if point.on_front else _PAPER
    dash = "" if point.fits else " stroke-dasharray='2 2'"
    note = (
        f"{_named(point)}: {txt.seconds(point.time_per_sample_s)}, "
        f"{txt.joules(point.energy_per_sample_j)} a sample, "
        f"{txt.watts(point.average_power_w.value)}" + ("" if point.fits else ", does not fit")
    )
    return (
        f"<circle cx='{x(point.time_per_sample_s):.1f}' cy='{y(point.energy_per_sample_j):.1f}' r='5' "
        f"fill='{fill}' stroke='{colour}' stroke-width='2'{dash}><title>{escape(note)}</title></circle>"
    )


_CLEAR = 17.0


def _labels(points: Sequence[SweepPoint], x: Scale, y: Scale) -> list[str]:
    """Caps beside their dots, where no other label stands: the front first, then the rest."""
    taken: list[tuple[float, float]] = []
    dots = [(x(p.time_per_sample_s), y(p.energy_per_sample_j)) for p in points]
    labels = []
    for point in sorted(points, key=lambda p: not p.on_front):
        at = (x(point.time_per_sample_s), y(point.energy_per_sample_j))
        place = _free_place(at, taken, dots)
        if place is not None:
            taken.append(place)
            fill = _INK if point.on_front else _FAINT
            label = f"{point.power_limit_w:g} W"
            labels.append(_text(place[0], place[1], label, size=11, fill=fill, anchor="middle", halo=True))
    return labels


def _free_place(
    at: tuple[float, float], taken: Sequence[tuple[float, float]], dots: Sequence[tuple[float, float]]
) -> tuple[float, float] | None:
    # Lines fall from the upper left to the lower right, and at the lowest caps run on level.
    for dx, dy in ((26.0, -5.0), (0.0, 21.0), (0.0, -12.0), (-26.0, 14.0)):
        place = (at[0] + dx, at[1] + dy)
        clear = all(abs(place[0] - t[0]) > 2.2 * _CLEAR or abs(place[1] - t[1]) > 0.8 * _CLEAR for t in taken)
        middle = (place[0], place[1] - 4)
        open_ = all(abs(middle[0] - d[0]) > 22 or abs(middle[1] - d[1]) > 8 for d in dots if d != at)
        if clear and open_:
            return place
    return None


def _legend(points: Sequence[SweepPoint], batches: Sequence[int], colour: dict[int, str]) -> list[str]:
    left, y = _WIDTH - _RIGHT + 28, _TOP + 8
    lines = []
    for batch in batches:
        stroke = f"stroke='{colour[batch]}' stroke-width='2'"
        lines.append(f"<line x1='{left}' y1='{y}' x2='{left + 22}' y2='{y}' {stroke}/>")
        lines.append(f"<circle cx='{left + 11}' cy='{y}' r='4.5' fill='{colour[batch]}'/>")
        lines.append(_text(left + 32, y + 4.5, _batch(batch), size=13))
        y += 24
    if any(point.on_front for point in points):
        y += 8
        lines.append(f"<path d='M{left + 4},{y} H{left + 18}' stroke-width='11' {_MARKER}/>")
        lines.append(_text(left + 32, y + 4.5, "Pareto front", size=13))
    if not all(point.fits for point in points):
        y += 24
        stroke = f"fill='{_PAPER}' stroke='{_FAINT}' stroke-width='2' stroke-dasharray='2 2'"
        lines.append(f"<circle cx='{left + 11}' cy='{y}' r='4.5' {stroke}/>")
        lines.append(_text(left + 32, y + 4.5, "does not fit", size=13))
    note = "anchored on readings" if any(point.anchored for point in points) else "predicted"
    lines.append(_text(left, y + 36, note, size=12, fill=_FAINT))
    return lines


def _batch(batch: int) -> str:
    return f"batch {batch}" if batch else "the file's batch"


def _text(
    x: float,
    y: float,
    content: str,
    *,
    size: float,
    fill: str = _INK,
    anchor: str = "start",
    weight: int = 400,
    halo: bool = False,
) -> str:
    outline = f" stroke='{_PAPER}' stroke-width='3' paint-order='stroke'" if halo else ""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size:g}' fill='{fill}' text-anchor='{anchor}' "
        f"font-weight='{weight}'{outline}>{escape(content)}</text>"
    )


Writer = Callable[[Sequence[SweepPoint], str], str]
WRITERS: dict[str, Writer] = {".svg": sweep_svg, ".html": sweep_html, ".htm": sweep_html}
"""File ending -> what writes it."""

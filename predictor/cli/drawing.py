"""Shapes of a picture and the two ways to write them: SVG text, and PNG where Pillow is installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import Any, TypeAlias

INK, FAINT, GRID, PAPER = "#1d2329", "#67727e", "#e6e9ec", "#ffffff"
COLOURS = ("#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#6b6b6b")
"""Of areas side by side. Okabe and Ito's: told apart by colour-blind readers as well."""
LINE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6b6b6b")
"""Of lines that cross: the same, strong contrasts first."""
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
_PNG_SCALE = 2
# Drawn larger and shrunk, so that edges are smooth.
_SMOOTHING = 2


@dataclass(frozen=True, slots=True)
class Area:
    """A filled polygon; `note` is what a browser shows over it."""

    points: tuple[tuple[float, float], ...]
    fill: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A straight line; `dashed` in SVG alone."""

    x1: float
    y1: float
    x2: float
    y2: float
    stroke: str = GRID
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Path:
    """Lines from point to point with round joins."""

    points: tuple[tuple[float, float], ...]
    stroke: str
    width: float = 2.0
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Dot:
    """A circle; `dashed` in SVG alone; `note` is what a browser shows over it."""

    x: float
    y: float
    radius: float
    fill: str
    stroke: str
    dashed: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """Text whose baseline starts, ends or is centred at (x, y): `anchor` is start, end or middle.

    `halo`: paper around the letters, for text over lines.
    """

    x: float
    y: float
    text: str
    size: float = 12.0
    fill: str = INK
    anchor: str = "start"
    bold: bool = False
    halo: bool = False


Shape: TypeAlias = Area | Rule | Path | Dot | Label


def svg(shapes: Sequence[Shape], width: float, height: float, title: str) -> str:
    """One self-contained SVG."""
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' width='{width:g}' "
        f"height='{height:g}' role='img' font-family='{FONT}'>",
        f"<title>{escape(title)}</title>",
        f"<rect width='{width:g}' height='{height:g}' fill='{PAPER}'/>",
        *(_svg(shape) for shape in shapes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _svg(shape: Shape) -> str:
    if isinstance(shape, Area):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        note = f"<title>{escape(shape.note)}</title>" if shape.note else ""
        return f"<polygon points='{points}' fill='{shape.fill}'>{note}</polygon>"
    if isinstance(shape, Rule):
        dash = " stroke-dasharray='4 3'" if shape.dashed else ""
        return (
            f"<line x1='{shape.x1:.1f}' y1='{shape.y1:.1f}' x2='{shape.x2:.1f}' y2='{shape.y2:.1f}' "
            f"stroke='{shape.stroke}' stroke-width='{shape.width:g}'{dash}/>"
        )
    if isinstance(shape, Path):
        points = " L".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        opacity = f" opacity='{shape.opacity:g}'" if shape.opacity < 1 else ""
        return (
            f"<path d='M{points}' fill='none' stroke='{shape.stroke}' stroke-width='{shape.width:g}' "
            f"stroke-linejoin='round' stroke-linecap='round'{opacity}/>"
        )
    if isinstance(shape, Dot):
        dash = " stroke-dasharray='2 2'" if shape.dashed else ""
        note = f"<title>{escape(shape.note)}</title>" if shape.note else ""
        return (
            f"<circle cx='{shape.x:.1f}' cy='{shape.y:.1f}' r='{shape.radius:g}' fill='{shape.fill}' "
            f"stroke='{shape.stroke}' stroke-width='2'{dash}>{note}</circle>"
        )
    weight = " font-weight='600'" if shape.bold else ""
    weight += f" stroke='{PAPER}' stroke-width='3' paint-order='stroke'" if shape.halo else ""
    return (
        f"<text x='{shape.x:.1f}' y='{shape.y:.1f}' font-size='{shape.size:g}' fill='{shape.fill}' "
        f"text-anchor='{shape.anchor}'{weight}>{escape(shape.text)}</text>"
    )


def png(shapes: Sequence[Shape], width: float, height: float) -> bytes:
    """The same picture in pixels, two to a unit. Needs Pillow (ModuleNotFoundError without)."""
    from PIL import Image, ImageDraw

    scale = _PNG_SCALE * _SMOOTHING
    image = Image.new("RGB", (round(width * scale), round(height * scale)), PAPER)
    draw = ImageDraw.Draw(image)
    for shape in shapes:
        _paint(draw, shape, scale)
    written = BytesIO()
    image.reduce(_SMOOTHING).save(written, format="PNG", optimize=True)
    return written.getvalue()


def _paint(draw: Any, shape: Shape, scale: int) -> None:
    from PIL import ImageFont

    if isinstance(shape, Area):
        draw.polygon([(x * scale, y * scale) for x, y in shape.points], fill=shape.fill)
    elif isinstance(shape, Rule):
        ends = [(shape.x1 * scale, shape.y1 * scale), (shape.x2 * scale, shape.y2 * scale)]
        draw.line(ends, fill=shape.stroke, width=max(1, round(shape.width * scale)))
    elif isinstance(shape, Path):
        colour, points = (
            _on_paper(shape.stroke, shape.opacity),
            [(x * scale, y * scale) for x, y in shape.points],
        )
        draw.line(points, fill=colour, width=round(shape.width * scale), joint="curve")
        for x, y in (points[0], points[-1]):
            draw.circle((x, y), shape.width * scale / 2, fill=colour)
    elif isinstance(shape, Dot):
        centre = shape.x * scale, shape.y * scale
        # SVG strokes half of a line's width outside.
        draw.circle(
            centre, (shape.radius + 1) * scale, fill=shape.fill, outline=shape.stroke, width=2 * scale
        )
    else:
        font = ImageFont.load_default(size=shape.size * scale)
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
        halo = {"stroke_width": round(1.5 * scale), "stroke_fill": PAPER} if shape.halo else {}
        place = (shape.x * scale, shape.y * scale)
        draw.text(place, shape.text, fill=shape.fill, font=font, anchor=anchor, **halo)


def _on_paper(colour: str, opacity: float) -> str:
    """The colour that a see-through one has on paper."""
    pairs = zip(_channels(colour), _channels(PAPER), strict=True)
    return "#" + "".join(f"{round(a * opacity + b * (1 - opacity)):02x}" for a, b in pairs)


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[index : index + 2], 16) for index in (1, 3, 5))


def page(title: str, picture: str, content: str, style: str = "") -> str:
    """A self-contained HTML page: a picture above its numbers, no script, no network."""
    base = (
        "body{font:15px/1.5 system-ui,sans-serif;color:#1d2329;margin:2rem auto;max-width:1000px;"
        "padding:0 1rem}"
        "svg{max-width:100%;height:auto}table{border-collapse:collapse;width:100%;font-size:14px}"
        "td,th{padding:.3rem .6rem;border-bottom:1px solid #e6e9ec}th{color:#67727e;font-weight:500}"
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        f"<meta name=viewport content='width=device-width'><style>{base}{style}</style>\n"
        f"{picture}{content}</html>\n"
    )

"""Shapes of a picture and the two ways to write them: SVG text, and PNG where Pillow is installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import TypeAlias

INK, FAINT, GRID, PAPER = "#1d2329", "#67727e", "#e6e9ec", "#ffffff"
COLOURS = ("#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#6b6b6b")
"""Okabe and Ito's: told apart by colour-blind readers as well."""
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
_PNG_SCALE = 2


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
class Label:
    """Text whose baseline starts, ends or is centred at (x, y): `anchor` is start, end or middle."""

    x: float
    y: float
    text: str
    size: float = 12.0
    fill: str = INK
    anchor: str = "start"
    bold: bool = False


Shape: TypeAlias = Area | Rule | Label


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
    weight = " font-weight='600'" if shape.bold else ""
    return (
        f"<text x='{shape.x:.1f}' y='{shape.y:.1f}' font-size='{shape.size:g}' fill='{shape.fill}' "
        f"text-anchor='{shape.anchor}'{weight}>{escape(shape.text)}</text>"
    )


def png(shapes: Sequence[Shape], width: float, height: float) -> bytes:
    """The same picture in pixels, two to a unit. Needs Pillow (ModuleNotFoundError without)."""
    from PIL import Image, ImageDraw, ImageFont

    scale = _PNG_SCALE
    image = Image.new("RGB", (round(width * scale), round(height * scale)), PAPER)
    draw = ImageDraw.Draw(image)
    anchors = {"start": "ls", "middle": "ms", "end": "rs"}
    for shape in shapes:
        if isinstance(shape, Area):
            draw.polygon([(x * scale, y * scale) for x, y in shape.points], fill=shape.fill)
        elif isinstance(shape, Rule):
            ends = [(shape.x1 * scale, shape.y1 * scale), (shape.x2 * scale, shape.y2 * scale)]
            draw.line(ends, fill=shape.stroke, width=max(1, round(shape.width * scale)))
        else:
            font = ImageFont.load_default(size=shape.size * scale)
            place = (shape.x * scale, shape.y * scale)
            draw.text(place, shape.text, fill=shape.fill, font=font, anchor=anchors[shape.anchor])
    written = BytesIO()
    image.save(written, format="PNG", optimize=True)
    return written.getvalue()

"""A timeline as one HTML page: a drawing of every stage's streams that needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from predictor.compose.timeline import COMPUTE, REPLICAS, SENDS, Event, Timeline
from predictor.compose.trace import event_name

_WIDTH, _LEFT = 1200.0, 96.0
_HEIGHTS = {COMPUTE: 26.0, REPLICAS: 9.0, SENDS: 7.0}
_ROWS = (COMPUTE, REPLICAS, SENDS)
_GAP, _TOP = 12.0, 34.0
# Narrower than this many units of the drawing, neighbours of a kind become one rectangle.
_THIN = 0.35

COLOURS: Mapping[str, str] = {
    "forward": "#3b7dd8",
    "backward": "#1b9e77",
    "weight_gradient": "#7570b3",
    "optimizer": "#d98a00",
    "reduce": "#c8553d",
    "gather": "#8c6d31",
    "tied": "#a6417d",
    "send_forward": "#86b4ec",
    "send_backward": "#83cdb4",
}
_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "weight_gradient": "weight gradients",
    "optimizer": "optimizer step",
    "reduce": "gradients averaged",
    "gather": "weights gathered",
    "tied": "shared weights averaged",
    "send_forward": "activations sent",
    "send_backward": "gradients sent",
}


def timeline_page(timeline: Timeline, title: str, facts: Mapping[str, str]) -> str:
    """The page.

    Args:
        title: heading, e.g. the model's name. facts: label -> value of the figures above the drawing.
    """
    kinds = [kind for kind in COLOURS if any(event.kind == kind for event in timeline.events)]
    legend = "".join(
        f'<span><i style="background:{COLOURS[kind]}"></i>{escape(_NAMES[kind])}</span>' for kind in kinds
    )
    cards = "".join(
        f"<div><b>{escape(value)}</b><small>{escape(label)}</small></div>" for label, value in facts.items()
    )
    return _PAGE.format(
        title=escape(title),
        cards=cards,
        legend=legend + '<span><i class="idle"></i>waiting</span>',
        drawing="".join(_drawing(timeline)),
    )


def _drawing(timeline: Timeline) -> Iterator[str]:
    used = {stream for stream in _ROWS if any(event.stream == stream for event in timeline.events)}
    rows = [stream for stream in _ROWS if stream in used]
    band = sum(_HEIGHTS[stream] + 2 for stream in rows) + _GAP
    height = _TOP + band * timeline.stages
    scale = (_WIDTH - _LEFT - 8) / (timeline.total_s or 1.0)
    yield f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img" aria-label="timeline of one iteration">'
    yield from _axis(timeline.total_s, scale, height)
    by_place: dict[tuple[int, str], list[Event]] = {}
    for event in timeline.events:
        by_place.setdefault((event.stage, event.stream), []).append(event)
    for stage in range(timeline.stages):
        top = _TOP + band * stage
        yield f'<text class="stage" x="8" y="{top + 17:.1f}">stage {stage}</text>'
        for stream in rows:
            if stream == COMPUTE:
                width = timeline.total_s * scale
                yield (
                    f'<rect class="idle" x="{_LEFT}" y="{top:.1f}" width="{width:.2f}" '
                    f'height="{_HEIGHTS[stream]}"/>'
                )
            for event, names in _merged(by_place.get((stage, stream), []), scale):
                yield _rectangle(event, names, top, _HEIGHTS[stream], scale)
            top += _HEIGHTS[stream] + 2
    yield "</svg>"


def _merged(events: list[Event], scale: float) -> Iterator[tuple[Event, str]]:
    """Events with their names; thin neighbours of a kind are drawn as one."""
    held: list[Event] = []
    for event in events:
        thin = event.duration_s * scale < _THIN
        if held and (
            not thin or event.kind != held[0].kind or (event.start_s - held[-1].end_s) * scale > _THIN
        ):
            yield _joined(held)
            held = []
        if thin:
            held.append(event)
        else:
            yield event, event_name(event)
    if held:
        yield _joined(held)


def _joined(events: list[Event]) -> tuple[Event, str]:
    first, last = events[0], events[-1]
    joined = Event(first.stage, first.stream, first.kind, first.start_s, last.end_s)
    return joined, event_name(first) if len(events) == 1 else f"{len(events)} x {event_name(joined)}"


def _rectangle(event: Event, name: str, top: float, height: float, scale: float) -> str:
    x, width = _LEFT + event.start_s * scale, max(0.3, event.duration_s * scale)
    tip = escape(f"{name}: {_time(event.duration_s)} from {_time(event.start_s)}")
    label = ""
    if height > 20 and width > 14 and event.microbatch >= 0:
        label = f'<text x="{x + width / 2:.2f}" y="{top + height / 2 + 4:.1f}">{event.microbatch}</text>'
    return (
        f'<g><title>{tip}</title><rect x="{x:.2f}" y="{top:.1f}" width="{width:.2f}" height="{height}" '
        f'fill="{COLOURS[event.kind]}" rx="1"/>{label}</g>'
    )


def _axis(total_s: float, scale: float, height: float) -> Iterator[str]:
    step = _round_step(total_s / 8)
    tick = 0.0
    while tick <= total_s * 1.0001:
        x = _LEFT + tick * scale
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="22" y2="{height:.0f}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="15">{_time(tick)}</text>'
        tick += step


def _round_step(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    if step <= 0:
        return 1.0
    power = 10.0
    while power > step:
        power /= 10
    while power * 10 <= step:
        power *= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * 0.999)


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return "0"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
:root {{ --ink:#1c2430; --soft:#667085; --paper:#ffffff; --line:#e4e7ec; --idle:#eef1f5; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink:#e6eaf0; --soft:#98a2b3; --paper:#12161c; --line:#2a313b; --idle:#1f262f; }} }}
body {{ margin:0 auto; max-width:1320px; padding:28px; background:var(--paper); color:var(--ink);
  font:15px/1.45 system-ui, sans-serif; }}
h1 {{ font-size:21px; margin:0 0 14px; }}
.cards {{ display:flex; flex-wrap:wrap; gap:12px; margin-bottom:16px; }}
.cards div {{ border:1px solid var(--line); border-radius:8px; padding:9px 14px; min-width:110px; }}
.cards b {{ display:block; font-size:18px; }} small {{ color:var(--soft); }}
.legend {{ display:flex; flex-wrap:wrap; gap:4px 18px; color:var(--soft); font-size:13px;
  margin-bottom:8px; }}
.legend i {{ display:inline-block; width:11px; height:11px; border-radius:2px; margin-right:6px; }}
i.idle {{ background:var(--idle); outline:1px solid var(--line); }}
.frame {{ overflow-x:auto; border:1px solid var(--line); border-radius:8px; padding:6px; }}
svg {{ width:100%; min-width:900px; display:block; }}
svg text {{ font:11px system-ui, sans-serif; fill:#fff; text-anchor:middle; pointer-events:none; }}
svg text.tick {{ fill:var(--soft); }} svg text.stage {{ fill:var(--ink); font-size:12px; text-anchor:start; }}
.grid {{ stroke:var(--line); }} rect.idle {{ fill:var(--idle); }} 
g rect {{ stroke:var(--paper); stroke-width:.6; }} g:hover rect {{ filter:brightness(1.15); }}
p {{ color:var(--soft); font-size:13px; }}
</style></head><body>
<h1>{title}</h1><div class="cards">{cards}</div><div class="legend">{legend}</div>
<div class="frame">{drawing}</div>
<p>One row of streams stands for all ranks of a stage: kernels, then exchanges between replicas, then
messages to other stages. Numbers are microbatches; point at an event for its times. To zoom, write a trace
(<code>perfcast explain --trace FILE</code>) and open it in ui.perfetto.dev.</p>
</body></html>
"""

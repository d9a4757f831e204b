"""A timeline as a Chrome trace: a JSON object that chrome://tracing and ui.perfetto.dev open."""

from __future__ import annotations

from typing import Any

from predictor.compose.timeline import STREAMS, Event, Timeline

_MICROSECONDS = 1e6


def chrome_trace(timeline: Timeline, title: str = "perfcast") -> dict[str, Any]:
    """The trace: one process per pipeline stage, one thread per stream, complete events in microseconds."""
    events: list[dict[str, Any]] = []
    for stage in range(timeline.stages):
        ranks = f"{timeline.ranks} ranks" if timeline.ranks > 1 else "1 rank"
        events.append(_named("process_name", stage, 0, f"stage {stage} ({ranks})"))
        events.append({"ph": "M", "name": "process_sort_index", "pid": stage, "args": {"sort_index": stage}})
        events += [_named("thread_name", stage, index, stream) for index, stream in enumerate(STREAMS)]
    events += [_complete(event) for event in timeline.events]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"title": title, "iteration_time_s": timeline.total_s},
    }


def event_name(event: Event) -> str:
    """What people read on an event: `forward 3`, or `forward 3 of chunk 1`."""
    name = event.kind.replace("_", " ")
    if event.microbatch >= 0:
        name += f" {event.microbatch}"
    return f"{name} of chunk {event.chunk}" if event.chunk > 0 else name


def _named(what: str, stage: int, stream: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": stage, "tid": stream, "args": {"name": name}}


def _complete(event: Event) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": event_name(event),
        "cat": event.kind,
        "pid": event.stage,
        "tid": STREAMS.index(event.stream),
        "ts": event.start_s * _MICROSECONDS,
        "dur": event.duration_s * _MICROSECONDS,
        "args": {"microbatch": event.microbatch, "chunk": event.chunk},
    }

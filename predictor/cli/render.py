"""Predictions as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from predictor.cli import text as txt
from predictor.cli.fitted_table import FittedTable, SideBySide
from predictor.cli.render_footprint import footprint_view
from predictor.errors import PerfcastError
from predictor.features.programs.work import IMAGE_CONVERSION
from predictor.request import PredictionRequest
from predictor.types import (
    SURELY_FITS,
    Coverage,
    Explanation,
    Interval,
    Layout,
    Mode,
    Prediction,
    Trainer,
    Weights,
)
from predictor.units import format_quantity

_BAR_WIDTH = 18
_LABEL, _VALUE, _BOUNDS = "bold", "bold cyan", "dim"
_GOOD, _DOUBT, _BAD = "bold green", "bold yellow", "bold red"


def prediction_view(request: PredictionRequest, answer: Prediction, model: str) -> RenderableType:
    """Headline, breakdowns, warnings and where the knowledge came from."""
    return Group(
        _title(request, answer, model),
        Text(),
        indented(_headline(answer)),
        Text(),
        indented(_breakdowns(answer)),
        Text(),
        *_footprint(answer),
        *_notices(answer),
        _provenance(answer),
    )


def _footprint(answer: Prediction) -> Iterable[RenderableType]:
    return () if answer.footprint is None else (indented(footprint_view(answer.footprint)), Text())


def explanation_view(
    request: PredictionRequest, explanation: Explanation, model: str, top: int
) -> RenderableType:
    """The most expensive op groups under a prediction's headline."""
    answer = explanation.prediction
    return Group(
        _title(request, answer, model),
        Text(),
        indented(_headline(answer)),
        Text(),
        indented(_op_table(explanation, top)),
        *_exchange_lines(explanation),
        Text(),
        *_notices(answer),
        _provenance(answer),
    )


def comparison_view(
    requests: Sequence[PredictionRequest], answers: Sequence[Prediction | PerfcastError], model: str
) -> RenderableType:
    """One row per candidate; the fastest that fits is marked."""
    first = next((answer for answer in answers if isinstance(answer, Prediction)), None)
    table = FittedTable(
        "device",
        "precision??",
        "<batch",
        ">iteration",
        f">{_coverage(first)} interval?",
        ">samples/s",
        "",
        "<????",
        ">memory?",
        "",
        ">energy/sample??",
        ">power???",
    )
    best = _best(answers)
    fastest = max((_throughput(answer) for answer in answers), default=0.0)
    for index, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        name = request.device if isinstance(request.device, str) else request.device.id
        device = f"{_count(request.plan.device_count)}{name}"
        asked = (device, request.precision.value, "file's" if request.batch is None else str(request.batch))
        if isinstance(answer, PerfcastError):
            none = Text("—", "dim")
            table.add_row(*asked, none, "", none, "", "", none, Text(answer.reason, _BAD))
            continue
        rate = answer.throughput_samples_per_s.value
        # Per iteration over per iteration: samples = throughput x time.
        joules = answer.energy_j.value / (rate * answer.iteration_time_s.value)
        table.add_row(
            *asked,
            Text(txt.seconds(answer.iteration_time_s.value), _VALUE),
            Text(txt.span(answer.iteration_time_s, txt.seconds), _BOUNDS),
            txt.number(rate),
            "◀" if index == best else "",
            txt.bar(rate / fastest, 12),
            txt.size(answer.device_peak_bytes.value),
            _fits(answer),
            txt.joules(joules),
            txt.watts(answer.average_power_w.value),
        )
    legend = "◀ highest throughput that fits" if best is not None else "none fits"
    lines: list[RenderableType] = [
        Text.assemble((model, "bold"), f"   {job_words(requests[0], precision=False)}"),
        Text(),
        table,
    ]
    lines += [Text(), Text(legend, "dim")]
    if beyond := sum(isinstance(answer, Prediction) and answer.out_of_range for answer in answers):
        note = f"{beyond} of {len(answers)} go beyond what was measured; `perfcast predict` says in what"
        lines.append(Text(note, "yellow"))
    if first is not None:
        lines.append(Text(f"bundle {txt.short_id(first.bundle)}", "dim"))
    return Group(*lines)


def job_words(request: PredictionRequest, *, batch: int | None = None, precision: bool = True) -> str:
    """`train · batch 8 · bf16 · adamw · eager`, and whatever else of the job is not the default."""
    facts = [request.mode.value]
    facts += [f"batch {batch:,}"] if batch is not None else []
    facts += [request.precision.value] if precision else []
    facts += [request.optimizer.value] if request.mode is Mode.TRAIN else []
    facts.append(request.runtime.value)
    facts += [f"weights {request.weights.value}"] if request.weights is not Weights.FULL else []
    facts += [request.layout.value] if request.layout is not Layout.NCHW else []
    facts += [f"trainer {request.trainer.value}"] if request.trainer is not Trainer.AUTO else []
    facts += [f"torch {request.framework_version}"] if request.framework_version else []
    facts += [f"cap {request.power_limit_w:g} W"] if request.power_limit_w is not None else []
    facts += [f"jitter {request.rank_jitter:g}"] if request.rank_jitter else []
    return " · ".join(facts)


def _count(devices: int) -> str:
    return f"{devices:,} x " if devices > 1 else ""


def _title(request: PredictionRequest, answer: Prediction, model: str) -> Text:
    count = _count(answer.device_count)
    samples = round(answer.throughput_samples_per_s.value * answer.iteration_time_s.value)
    job = job_words(request, batch=samples)
    return Text.assemble((model, "bold"), " on ", (f"{count}{answer.device}", "bold"), f"   {job}")


def _headline(answer: Prediction) -> FittedTable:
    table = FittedTable("<", "<", "<", "")

    def line(label: str, interval: Interval, form: txt.Formatter, note: Text | str = "") -> None:
        bounds = f"{txt.span(interval, form)}"
        table.add_row(Text(label, _LABEL), Text(form(interval.value), _VALUE), Text(bounds, _BOUNDS), note)

    table.add_row("", "", Text(f"{_coverage(answer)} interval", _BOUNDS), "")
    line("iteration", answer.iteration_time_s, txt.seconds)
    line("throughput", answer.throughput_samples_per_s, txt.rate)
    capacity = Text.assemble(_fits(answer), f" in {txt.size(answer.capacity_bytes)} usable")
    line("peak memory", answer.device_peak_bytes, txt.size, capacity)
    line(
        "energy",
        answer.energy_j,
        txt.joules,
        "per iteration, all devices" if answer.device_count > 1 else "per iteration",
    )
    line("mean power", answer.average_power_w, txt.watts, "per device" if answer.device_count > 1 else "")
    return table


def _coverage(answer: Prediction | None) -> str:
    return txt.percent(answer.iteration_time_s.coverage) if answer is not None else ""


def _fits(answer: Prediction) -> Text:
    if not answer.fits:
        return Text("does not fit", _BAD)
    if answer.fit_probability < SURELY_FITS:
        return Text("may not fit", _DOUBT)
    return Text("fits", _GOOD)


def _breakdowns(answer: Prediction) -> SideBySide:
    return SideBySide(
        _breakdown("time", answer.time_breakdown_s, txt.seconds),
        _breakdown("memory", answer.memory_breakdown_bytes, txt.size),
    )


# Parts below are residues of smooth formulas, not something to act on.
_LEAST_SHARE = 1e-6


def _breakdown(title: str, parts: Mapping[str, float], form: txt.Formatter) -> RenderableType:
    table = FittedTable("<", "<?", ">", ">", gap=1)
    total = sum(parts.values()) or 1.0
    for name, value in parts.items():
        share = value / total
        if share >= _LEAST_SHARE:
            table.add_row(
                txt.words(name),
                Text(txt.bar(share, _BAR_WIDTH), "cyan"),
                form(value),
                Text(txt.percent(share), "dim"),
            )
    return Group(Text(title, _LABEL), table)


def _exchange_lines(explanation: Explanation) -> list[RenderableType]:
    """One line for each group of ranks: what it exchanges, and who timed that."""
    lines: list[RenderableType] = [Text()] if explanation.exchanges else []
    for row in explanation.exchanges:
        where = "in a node" if row.nodes == 1 else f"over {row.nodes} nodes"
        systems = row.systems[:2] + (("…",) if len(row.systems) > 2 else ())
        origin = f"timed on {', '.join(systems)}" if systems else "formulas, not timed"
        width = f"± {txt.percent(exp(row.log_spread) - 1)}"
        what = f"{row.group}: {row.collective} of {row.ranks} ranks {where}, {row.link}"
        lines.append(indented(Text(f"{what}; {origin}, {width}")))
    return lines


def _op_table(explanation: Explanation, top: int) -> FittedTable:
    headers = (
        "op",
        "phase",
        ">count",
        ">time",
        "<share?",
        "<",
        "bound by",
        ">of floor??",
        ">FLOP???",
        ">bytes????",
    )
    table = FittedTable(*headers, "source?", "for example??")
    for row in explanation.rows[:top]:
        table.add_row(
            # Beside the convolution that asks for it, and often dearer.
            row.kind if row.kind == IMAGE_CONVERSION else row.op_type,
            row.phase,
            str(row.count),
            txt.seconds(row.time_s),
            Text(txt.bar(row.share_fraction, 10), "cyan"),
            txt.percent(row.share_fraction),
            row.bound,
            f"{row.time_s / row.floor_s:.1f} x" if row.floor_s else "",
            format_quantity(row.flops, "") if row.flops else "",
            txt.size(row.moved_bytes),
            row.source,
            Text(txt.shortened(row.example_node, 24), "dim"),
        )
    rest = explanation.rows[top:]
    if rest:
        table.add_row(
            Text(f"{len(rest)} more", "dim"),
            "",
            str(sum(row.count for row in rest)),
            txt.seconds(sum(row.time_s for row in rest)),
            "",
            txt.percent(sum(row.share_fraction for row in rest)),
        )
    return table


def indented(content: RenderableType) -> Padding:
    """Two cells in, without blanks at the ends of lines."""
    return Padding(content, (0, 0, 0, 2), expand=False)


def _notices(answer: Prediction) -> Iterable[Text]:
    for notice in answer.warnings:
        yield Text.assemble(("! ", "bold yellow"), (notice.message, "yellow"))


def _provenance(answer: Prediction) -> Text:
    identities = f"graph {txt.short_id(answer.graph)} · bundle {txt.short_id(answer.bundle)}"
    return Text(f"{_knowledge(answer.coverage)} · {identities}", "dim")


def _knowledge(coverage: Coverage) -> str:
    shares = {name: getattr(coverage, name) for name in ("measured", "learned", "analytic", "fallback")}
    return "time " + ", ".join(f"{txt.percent(share)} {name}" for name, share in shares.items() if share > 0)


def _best(answers: Sequence[Prediction | PerfcastError]) -> int | None:
    feasible = [i for i, answer in enumerate(answers) if isinstance(answer, Prediction) and answer.fits]
    return max(feasible, key=lambda index: _throughput(answers[index]), default=None)


def _throughput(answer: Prediction | PerfcastError) -> float:
    return answer.throughput_samples_per_s.value if isinstance(answer, Prediction) else 0.0

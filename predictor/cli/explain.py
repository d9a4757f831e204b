"""`perfcast explain`: where the time goes, op group by op group."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictor.cli import options as opt
from predictor.cli.from_torch import ExampleShapes
from predictor.cli.option_groups import spread
from predictor.cli.options import Output

if TYPE_CHECKING:
    from predictor.protocol import Forecaster
    from predictor.request import PredictionRequest
    from predictor.types import Prediction


@spread
def explain(
    *,
    model: opt.Source,
    device: opt.Device,
    batch: opt.Batch = None,
    precision: opt.PrecisionOption = "fp32",
    example_shape: ExampleShapes = [],  # noqa: B006 - typer copies it
    job: opt.JobFlags,
    top: Annotated[int, typer.Option("--top", min=1, help="Rows of the table.")] = 15,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE.json", help="Write a Chrome trace of the iteration."),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option("--timeline", metavar="FILE.html", help="Write a drawing of the iteration."),
    ] = None,
    where: opt.PredictorFlags,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """List the ops that an iteration spends its time on; draw it with --timeline or --trace."""
    from predictor.cli.console import data_console
    from predictor.cli.json_out import explanation_to_json
    from predictor.cli.output import write_json

    request = job.request(opt.read_source(model, example_shape, (trace, timeline)), device, batch, precision)
    with where.open() as predictor:
        explanation = predictor.explain(request)
        if trace is not None or timeline is not None:
            _draw(predictor, request, explanation.prediction, opt.model_name(model), trace, timeline)
    if output is Output.JSON:
        write_json(explanation_to_json(explanation))
        return
    from predictor.cli.render import explanation_view

    data_console().print(explanation_view(request, explanation, opt.model_name(model), top))


def _draw(
    predictor: Forecaster,
    request: PredictionRequest,
    answer: Prediction,
    name: str,
    trace: Path | None,
    page: Path | None,
) -> None:
    """Writes the timeline as a trace and as a page."""
    from predictor.api import Predictor
    from predictor.cli import text
    from predictor.cli.output import write_json, write_text
    from predictor.compose.timeline_page import timeline_page
    from predictor.compose.trace import chrome_trace

    if not isinstance(predictor, Predictor):
        raise typer.BadParameter("--trace and --timeline are drawn in process: leave --server out")
    found = predictor.timeline(request)
    title = f"{name} on {answer.device_count} x {answer.device}"
    if trace is not None:
        write_json(chrome_trace(found, title), trace)
    if page is not None:
        waits = max(found.waiting_s(stage) for stage in range(found.stages))
        facts = {
            "iteration": text.span(answer.iteration_time_s, text.seconds),
            "predicted": text.seconds(answer.iteration_time_s.value),
            "samples per second": text.number(answer.throughput_samples_per_s.value),
            "longest wait of a stage": text.percent(waits / found.total_s if found.total_s else 0.0),
            "memory per device": text.size(answer.device_peak_bytes.value),
        }
        write_text(timeline_page(found, title, facts), page)

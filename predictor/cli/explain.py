"""`perfcast explain`: where the time goes, op group by op group."""

from __future__ import annotations

from typing import Annotated

import typer

from predictor.cli import options as opt
from predictor.cli.from_torch import ExampleShapes
from predictor.cli.option_groups import spread
from predictor.cli.options import Output


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
    where: opt.PredictorFlags,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """List the ops that an iteration spends its time on."""
    from predictor.cli.console import data_console
    from predictor.cli.json_out import explanation_to_json
    from predictor.cli.output import write_json

    request = job.request(opt.read_source(model, example_shape), device, batch, precision)
    with where.open() as predictor:
        explanation = predictor.explain(request)
    if output is Output.JSON:
        write_json(explanation_to_json(explanation))
        return
    from predictor.cli.render import explanation_view

    data_console().print(explanation_view(request, explanation, opt.model_name(model), top))

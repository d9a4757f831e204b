"""`perfcast compare`: every combination of the devices, batches and precisions given, in one table."""

from __future__ import annotations

from itertools import product
from typing import Annotated

import typer

from predictor.cli import options as opt
from predictor.cli.accounting_options import AccountingFlags
from predictor.cli.option_groups import spread
from predictor.cli.options import Output


@spread
def compare(
    *,
    model: opt.Model,
    device: Annotated[
        list[str], typer.Option("--device", "-d", metavar="NAME|FILE", help="Repeat for several devices.")
    ],
    batch: Annotated[
        list[int], typer.Option("--batch", "-b", metavar="N", help="Repeat for several batches.")
    ] = [],  # noqa: B006
    precision: Annotated[
        list[str], typer.Option("--precision", metavar="fp32|tf32|fp16|bf16|amp", help="Repeat for several.")
    ] = ["fp32"],  # noqa: B006 - typer copies it
    job: opt.JobFlags,
    accounting: AccountingFlags,
    require_feasible: opt.RequireFeasible = False,
    where: opt.PredictorFlags,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """Compare candidates side by side. A candidate that fails is a row of its own and fails no other."""
    from predictor.cli.console import data_console, warn
    from predictor.cli.json_out import comparison_to_json
    from predictor.cli.output import write_json
    from predictor.errors import DoesNotFit, PerfcastError
    from predictor.types import Prediction

    graph = opt.read_model(model)
    batches: list[int | None] = [*batch] or [None]
    requests = [
        accounting.added_to(job.request(graph, one_device, one_batch, one_precision))
        for one_device, one_precision, one_batch in product(device, precision, batches)
    ]
    with where.open() as predictor:
        answers = predictor.predict_many(requests)
    errors = [answer for answer in answers if isinstance(answer, PerfcastError)]
    if len(errors) == len(answers):
        raise errors[0]
    for message in dict.fromkeys(error.message for error in errors):
        warn(message)
    if output is Output.JSON:
        write_json(comparison_to_json(requests, answers))
    else:
        from predictor.cli.render import comparison_view

        data_console().print(comparison_view(requests, answers, opt.model_name(model)))
    if require_feasible and not any(isinstance(answer, Prediction) and answer.fits for answer in answers):
        raise DoesNotFit(
            f"no candidate of {opt.model_name(model)} fits: lower the batch, or use more devices"
        )

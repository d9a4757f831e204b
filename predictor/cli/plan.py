"""`perfcast plan`: the best way to split a model over a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from predictor.cli import options as opt
from predictor.cli.option_groups import spread
from predictor.cli.options import Output

if TYPE_CHECKING:
    from predictor.protocol import Forecaster
    from predictor.request import PredictionRequest


@spread
def plan(
    *,
    model: opt.Model,
    device: opt.Device,
    batch: opt.Batch = None,
    precision: opt.PrecisionOption = "fp32",
    objective: Annotated[
        str, typer.Option("--objective", metavar="time|cost|energy|carbon", help="What is made small.")
    ] = "time",
    max_devices: Annotated[
        int | None, typer.Option("--max-devices", min=1, help="No plan uses more; default: the cluster's.")
    ] = None,
    deadline: Annotated[
        float | None, typer.Option("--deadline", metavar="S", min=0.0, help="Longest iteration, seconds.")
    ] = None,
    price: Annotated[
        float, typer.Option("--price", metavar="X", min=0.0, help="Of one device for an hour.")
    ] = 1.0,
    carbon: Annotated[
        float, typer.Option("--carbon", metavar="G", min=0.0, help="Grams of CO2 per kWh of the grid.")
    ] = 400.0,
    pue: Annotated[
        float, typer.Option("--pue", metavar="X", min=1.0, help="Power of the facility over its devices'.")
    ] = 1.0,
    top: Annotated[int, typer.Option("--top", min=1, max=100, help="Plans to show.")] = 5,
    split_sequence: Annotated[
        str,
        typer.Option("--cp", metavar="N,N", help="Ways to split each sequence to look at: 1,2,4."),
    ] = "1",
    measure: Annotated[
        int | None,
        typer.Option(
            "--measure", metavar="N", min=1, help="List N plans to measure for `perfcast calibrate` instead."
        ),
    ] = None,
    job: opt.UnplannedJobFlags,
    where: opt.PredictorFlags,
    output: opt.OutputOption = Output.TABLE,
    out: opt.OutFile = None,
) -> None:
    """Find the plans that take the least time, money, energy or carbon."""
    from predictor.cli.console import data_console
    from predictor.cli.json_out import search_to_json
    from predictor.cli.output import write_json
    from predictor.errors import UnknownName
    from predictor.search.search import Goal, Objective

    if objective not in set(Objective):
        raise UnknownName.among("objective", objective, Objective)
    goal = Goal(Objective(objective), price, carbon, pue, deadline, top)
    request = job.request(opt.read_model(model, (out,)), device, batch, precision)
    with where.open() as predictor:
        if measure is not None:
            _list_plans(predictor, request, measure, max_devices, output)
            return
        found = predictor.search_plans(request, goal, max_devices=max_devices, cp=_ways(split_sequence))
    if out is not None:
        write_json(search_to_json(goal, found), out)
    if output is Output.JSON:
        write_json(search_to_json(goal, found))
        return
    from predictor.cli.render_plans import search_view

    data_console().print(search_view(request, goal, found, opt.model_name(model)))


def _ways(text: str) -> tuple[int, ...]:
    """`1,2,4` as numbers. Raises a usage error."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise typer.BadParameter(f"--cp {text!r}: expected whole numbers of at least 1 with commas: 1,2,4")
    return tuple(int(part) for part in parts)


def _list_plans(
    predictor: Forecaster, request: PredictionRequest, count: int, max_devices: int | None, output: Output
) -> None:
    """Plans as lines of text, the form in which `perfcast calibrate` reads them."""
    from predictor.api import Predictor
    from predictor.api.worth_measuring import worth_measuring
    from predictor.cli.output import write_json
    from predictor.parallel.plan_text import format_plan

    if not isinstance(predictor, Predictor):
        raise typer.BadParameter("plans to measure are chosen in process: leave --server out")
    lines = [
        format_plan(plan) for plan in worth_measuring(predictor, request, count, max_devices=max_devices)
    ]
    if output is Output.JSON:
        write_json({"schema": "perfcast.plans-to-measure/1", "plans": lines})
        return
    typer.echo("\n".join(lines))

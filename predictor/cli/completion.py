"""`perfcast study completion`: what a whole training run takes, by batch and cap, and when to start it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from predictor.cli import options as opt
from predictor.cli.accounting_options import AccountingFlags
from predictor.cli.from_torch import ExampleShapes
from predictor.cli.option_groups import spread
from predictor.cli.options import Output
from predictor.cli.sweep import Batches, SweepJobFlags, swept

if TYPE_CHECKING:
    from rich.console import RenderableType

    from predictor.compose.completion import Completion, RunLength

SCHEMA = "perfcast.completion/1"


@dataclass(frozen=True, slots=True)
class LengthFlags:
    """How long the run is."""

    samples: Annotated[int, typer.Option("--samples", metavar="N", help="Of the data set.")] = 0
    epochs: Annotated[float | None, typer.Option("--epochs", metavar="X", help="Passes over it.")] = None
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help="Instead of epochs.")] = None
    curve: Annotated[
        str | None,
        typer.Option(
            "--curve",
            metavar="FILE.csv|LEAST:CRITICAL",
            help="Epochs to the target by batch: columns batch, epochs; or epochs of a small batch and the "
            "batch that needs twice as many.",
        ),
    ] = None
    target: Annotated[
        float | None, typer.Option("--target", metavar="X", help="Value of the curve's target_metric.")
    ] = None
    workload: Annotated[
        str | None,
        typer.Option("--workload", metavar="NAME", help="Dataset or network of the curve's file."),
    ] = None
    validation: Annotated[
        int, typer.Option("--validation", metavar="N", help="Samples read forward after each epoch.")
    ] = 0

    def length(self) -> RunLength:
        """What they spell. Raises InvalidRequest, InvalidInput."""
        from predictor.compose.completion import RunLength
        from predictor.errors import InvalidRequest
        from predictor.search.epoch_file import read_epochs

        if sum(part is not None for part in (self.epochs, self.steps, self.curve)) != 1:
            raise InvalidRequest("give one of --steps, --epochs and --curve", field="epochs")
        curve = None if self.curve is None else read_epochs(self.curve, self.target, self.workload)
        epochs = self.epochs if curve is None else curve
        return RunLength(self.samples, 1.0 if epochs is None else epochs, self.steps, self.validation)


@spread
def completion(
    *,
    model: opt.Source,
    device: opt.Device,
    batch: Batches = [],  # noqa: B006 - typer copies it
    precision: opt.PrecisionOption = "fp32",
    example_shape: ExampleShapes = [],  # noqa: B006
    run: LengthFlags,
    job: SweepJobFlags,
    place: AccountingFlags,
    choose_start: Annotated[
        int | None,
        typer.Option("--choose-start", metavar="HOURS", help="Start of least carbon within these hours."),
    ] = None,
    bundle: opt.BundleOption = None,
    output: opt.OutputOption = Output.TABLE,
    out: opt.OutFile = None,
) -> None:
    """Time, energy, carbon and money of a training run to its end."""
    from dataclasses import replace

    from predictor.api import Predictor
    from predictor.api.completion import completions
    from predictor.cli.output import write_json

    batches, caps = swept(batch, job)
    source = opt.read_source(model, example_shape, (out,))
    request = replace(job.uncapped(), mode="train").request(source, device, None, precision)
    found = completions(
        Predictor.load(bundle),
        place.added_to(request),
        run.length(),
        batches,
        caps,
        horizon_hours=choose_start,
    )
    limits = [cap for _ in batches or (None,) for cap in caps or (None,)]
    content = completions_to_json(found, limits)
    if out is not None:
        write_json(content, out)
    if output is Output.JSON:
        write_json(content)
    else:
        from predictor.cli.console import data_console

        data_console().print(_view(found, limits, f"{opt.model_name(model)} on {device}, {precision}"))


def completions_to_json(found: tuple[Completion, ...], limits: list[float | None]) -> dict[str, Any]:
    """Runs in order; unknown is null."""
    from dataclasses import asdict

    return {
        "schema": SCHEMA,
        "energy_scope": "device",
        "runs": [
            {
                **asdict(one),
                "power_limit_w": limit,
                "energy_kwh": one.energy_j.value / 3.6e6,
                "carbon_kind": one.start.kind if one.start else None,
            }
            for one, limit in zip(found, limits, strict=True)
        ],
    }


def _view(found: tuple[Completion, ...], limits: list[float | None], name: str) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from predictor.cli import text as txt
    from predictor.cli.fitted_table import FittedTable
    from predictor.cli.render_footprint import dollars, grams, kilowatt_hours

    table = FittedTable(
        "batch",
        ">cap",
        ">epochs",
        ">steps",
        ">time",
        ">90 % interval?",
        ">boards",
        ">all",
        ">carbon",
        ">cost",
        "",
    )
    best = min(found, key=lambda one: one.energy_j.value)
    for one, limit in zip(found, limits, strict=True):
        foot = one.footprint
        carbon, cost = (foot.carbon_g, foot.cost_usd) if foot else (None, None)
        mark = Text("◀ least energy", "bold green") if one is best and len(found) > 1 else Text("")
        table.add_row(
            f"{one.batch:g}",
            "" if limit is None else f"{limit:g} W",
            "" if one.epochs is None else txt.number(one.epochs),
            f"{one.steps + one.validation_steps:,.0f}",
            Text(txt.seconds(one.time_s.value), "bold cyan"),
            Text(txt.span(one.time_s, txt.seconds), "dim"),
            kilowatt_hours(one.energy_j.value / 3.6e6),
            kilowatt_hours(foot.energy_kwh.value) if foot else "unknown",
            grams(carbon.value) if carbon else "unknown",
            dollars(cost.value) if cost else "unknown",
            mark if one.fits else Text("does not fit", "bold red"),
        )
    lines: list[RenderableType] = [Text(name, "bold"), Text(), table, Text()]
    first = found[0].footprint
    scope = (
        f"all: scope {first.scope}, {first.carbon_note}; {first.cost_note}" if first else "no site or price"
    )
    lines.append(Text(f"boards: scope device · {scope}", "dim"))
    for one, limit in zip(found, limits, strict=True):
        if one.start is not None:
            choice, cap = one.start, "" if limit is None else f" at {limit:g} W"
            lines.append(
                Text(
                    f"batch {one.batch:g}{cap}: start at hour {choice.hour}: {grams(choice.carbon_g.value)}, "
                    f"{txt.percent(choice.saved_share)} less than at hour {choice.asked_hour:g} "
                    f"({choice.kind} intensity, {choice.source})"
                )
            )
    return Group(*lines)

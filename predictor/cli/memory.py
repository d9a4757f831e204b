"""`perfcast memory`: memory over one iteration, what is alive at the peak, and a picture of both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from predictor.cli import options as opt
from predictor.cli.from_torch import ExampleShapes
from predictor.cli.option_groups import spread
from predictor.cli.options import Output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from predictor.api.memory_view import MemorySeries
    from predictor.compose.memory import MemoryCost

MEMORY_SCHEMA = "perfcast.memory/1"


@spread
def memory(
    *,
    model: opt.Source,
    device: opt.Device,
    batch: opt.Batch = None,
    precision: opt.PrecisionOption = "fp32",
    example_shape: ExampleShapes = [],  # noqa: B006 - typer copies it
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE.png|.svg|.html", help="Draw memory over the iteration."),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Tensors of the peak to show.")] = 15,
    job: opt.JobFlags,
    where: opt.PredictorFlags,
    output: opt.OutputOption = Output.TABLE,
    out: opt.OutFile = None,
) -> None:
    """Show memory over one iteration and which tensors are alive at its peak."""
    from predictor.api import Predictor
    from predictor.cli.console import data_console
    from predictor.cli.memory_picture import WRITERS
    from predictor.cli.output import write_bytes, write_json

    if picture is not None and picture.suffix.lower() not in WRITERS:
        raise typer.BadParameter(f"--picture {picture}: expected a name that ends in {', '.join(WRITERS)}")
    request = job.request(opt.read_source(model, example_shape, (out, picture)), device, batch, precision)
    with where.open() as predictor:
        if not isinstance(predictor, Predictor):
            raise typer.BadParameter("timelines are made in process: leave --server out")
        cost, series = predictor.memory(request), predictor.memory_series(request)
    if picture is not None:
        title = f"{opt.model_name(model)}: memory over one iteration"
        write_bytes(WRITERS[picture.suffix.lower()](series, title), picture)
    if out is not None:
        write_json(_to_json(cost, series, top), out)
    if output is Output.JSON:
        write_json(_to_json(cost, series, top))
    else:
        data_console().print(_view(opt.model_name(model), cost, series, top))


def _view(model: str, cost: MemoryCost, series: MemorySeries, top: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from predictor.cli import text as txt
    from predictor.cli.fitted_table import FittedTable

    peak = cost.device_peak
    fits = f"{txt.size(cost.capacity_bytes)} usable, fits with {txt.percent(cost.fit_probability)}"
    heading = Text.assemble((model, "bold"), f"   device peak {txt.size(peak.value)} · {fits}")
    lines = FittedTable("on the device", ">at the peak", ">share")
    for name, size in sorted(cost.breakdown_bytes.items(), key=lambda item: -item[1]):
        if size:
            lines.add_row(txt.words(name), txt.size(size), txt.percent(size / peak.value))
    alive = FittedTable("<tensor", "made by??", "held as?", ">size")
    for tensor in series.alive[:top]:
        alive.add_row(
            txt.shortened(tensor.name, 44),
            txt.shortened(tensor.node, 44),
            tensor.held_for,
            txt.size(tensor.size_bytes),
        )
    total = float(series.total_bytes[series.peak_step])
    rest = sum(tensor.size_bytes for tensor in series.alive[top:])
    held = total - sum(tensor.size_bytes for tensor in series.alive)
    step = f"step {series.peak_step + 1:,} of {len(series.parts):,}, {series.nodes[series.peak_step]}"
    parts: list[RenderableType] = [heading, Text(""), lines, Text("")]
    parts.append(Text(f"alive when tensors peak at {txt.size(total)} ({step})", "bold"))
    parts.append(alive)
    if len(series.alive) > top:
        parts.append(Text(f"{len(series.alive) - top:,} more hold {txt.size(rest)}", "dim"))
    if held > 0:
        parts.append(
            Text(f"beside them weights, optimizer state, other microbatches: {txt.size(held)}", "dim")
        )
    return Group(*parts)


def _to_json(cost: MemoryCost, series: MemorySeries, top: int) -> dict[str, Any]:
    return {
        "schema": MEMORY_SCHEMA,
        "device_peak_bytes": {
            "value": cost.device_peak.value,
            "low": cost.device_peak.low,
            "high": cost.device_peak.high,
        },
        "capacity_bytes": cost.capacity_bytes,
        "fit_probability": cost.fit_probability,
        "breakdown_bytes": {name: float(size) for name, size in cost.breakdown_bytes.items()},
        "stage": series.stage,
        "peak_step": series.peak_step,
        "peak_node": series.nodes[series.peak_step],
        "steps": len(series.parts),
        "lines_bytes": {name: [float(value) for value in values] for name, values in series.lines.items()},
        "alive": [
            {
                "tensor": tensor.name,
                "node": tensor.node,
                "bytes": tensor.size_bytes,
                "held_for": tensor.held_for,
            }
            for tensor in series.alive[:top]
        ],
        "alive_count": len(series.alive),
    }

"""`perfcast sweep`: time, power and energy over power caps and batches, and the Pareto front between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictor.cli import options as opt
from predictor.cli.from_torch import ExampleShapes
from predictor.cli.option_groups import spread
from predictor.cli.options import Output

if TYPE_CHECKING:
    from predictor.models.power.board_power import Reading

Caps = Annotated[
    list[str],
    typer.Option(
        "--power-limit", metavar="W[,W...]", help="Caps; default: seven up to the device's own limit."
    ),
]
Batches = Annotated[
    list[str], typer.Option("--batch", "-b", metavar="N[,N...]", help="Samples per iteration, all devices.")
]
Measured = Annotated[
    list[str],
    typer.Option(
        "--measured",
        metavar="W:SECONDS:WATTS[:BATCH]",
        help="A measured run: cap, seconds per iteration, mean watts. Moves the curve to it; repeatable.",
    ),
]
Picture = Annotated[
    Path | None, typer.Option("--picture", metavar="FILE.png|.svg|.html", help="Draw the sweep.")
]


@dataclass(frozen=True, slots=True)
class SweepJobFlags(opt.JobFlags):
    """The job without its own cap: the sweep has the caps."""

    power_limit: Caps = ()  # type: ignore[assignment]

    def uncapped(self) -> SweepJobFlags:
        """The job that one request asks about."""
        return replace(self, power_limit=None)  # type: ignore[arg-type]


@spread
def sweep(
    *,
    model: opt.Source,
    device: opt.Device,
    batch: Batches = [],  # noqa: B006 - typer copies it
    precision: opt.PrecisionOption = "fp32",
    example_shape: ExampleShapes = [],  # noqa: B006
    job: SweepJobFlags,
    measured: Measured = [],  # noqa: B006
    picture: Picture = None,
    bundle: opt.BundleOption = None,
    output: opt.OutputOption = Output.TABLE,
    out: opt.OutFile = None,
) -> None:
    """Sweep power caps and batches: which choices nobody should take, and what the others trade."""
    from predictor.api import Predictor
    from predictor.api.power_sweep import power_sweep
    from predictor.cli.output import write_bytes, write_json

    batches, caps = swept(batch, job)
    source = opt.read_source(model, example_shape, (out, picture))
    request = job.uncapped().request(source, device, None, precision)
    readings = _readings(measured, batches)
    points = power_sweep(Predictor.load(bundle), request, caps, batches, readings)
    name = f"{opt.model_name(model)} on {device}, {request.mode.value}, {precision}"
    from predictor.cli.render_sweep import sweep_to_json, sweep_view

    if picture is not None:
        write_bytes(_writer(picture)(points, name), picture)
    if out is not None:
        write_json(sweep_to_json(points), out)
    if output is Output.JSON:
        write_json(sweep_to_json(points))
    else:
        from predictor.cli.console import data_console

        data_console().print(sweep_view(points, name))


def _writer(picture: Path):  # type: ignore[no-untyped-def]
    from predictor.cli.sweep_picture import WRITERS

    writer = WRITERS.get(picture.suffix.lower())
    if writer is None:
        raise typer.BadParameter(f"--picture {picture}: expected a name that ends in {', '.join(WRITERS)}")
    return writer


def swept(batch: Sequence[str], job: SweepJobFlags) -> tuple[list[int], tuple[float, ...]]:
    """Batches and caps that are swept. Raises InvalidRequest, BadParameter."""
    from predictor.api.power_sweep import check_limits

    caps = check_limits(numbers(job.power_limit, "--power-limit", "watts, e.g. 150,200,250"))
    return [round(number) for number in numbers(batch, "--batch", "whole numbers, e.g. 32,64")], caps


def numbers(texts: Sequence[str], flag: str, expected: str) -> list[float]:
    """Numbers of a repeatable option, each of which may hold several with commas between."""
    found = []
    for part in ",".join(texts).split(","):
        if part.strip():
            try:
                found.append(float(part))
            except ValueError:
                raise typer.BadParameter(f"{flag} {part!r}: expected {expected}") from None
    return found


def _readings(texts: Sequence[str], batches: Sequence[int]) -> dict[int | None, list[Reading]]:
    from predictor.models.power.board_power import Reading

    found: dict[int | None, list[Reading]] = {}
    for text in texts:
        parts = text.split(":")
        try:
            cap, seconds, watts = (float(part) for part in parts[:3])
            batch = int(parts[3]) if len(parts) > 3 else (batches[0] if batches else None)
        except ValueError:
            raise typer.BadParameter(
                f"--measured {text!r}: expected W:SECONDS:WATTS[:BATCH], e.g. 250:0.360:222"
            ) from None
        if min(cap, seconds, watts) <= 0:
            raise typer.BadParameter(f"--measured {text!r}: expected numbers above 0")
        found.setdefault(batch, []).append(Reading(cap, seconds, watts))
    return found

"""`perfcast fit`: the largest batch, sequence or number of layers that fits in memory, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from predictor.cli import options as opt
from predictor.cli.from_torch import ExampleShapes
from predictor.cli.option_groups import spread
from predictor.cli.options import Output

if TYPE_CHECKING:
    from predictor.api.fit import Axis
    from predictor.request import PredictionRequest


@spread
def fit(
    *,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL.onnx|CONFIG.json|PKG.MOD:FACTORY",
            help="ONNX file (- reads standard input), a transformer's config.json, or a function that makes "
            "a torch module.",
        ),
    ],
    device: opt.Device,
    axis: Annotated[
        str,
        typer.Option(
            "--axis",
            metavar="batch|sequence|layers|NAME",
            help="What grows: the batch, a symbolic dimension, or layers (of a config.json).",
        ),
    ] = "batch",
    probability: Annotated[
        float, typer.Option("--probability", "-p", metavar="P", help="How sure the fit has to be, 0 to 1.")
    ] = 0.9,
    sequence: Annotated[
        int | None, typer.Option("--sequence", metavar="N", help="Tokens per sample, of a config.json.")
    ] = None,
    changes: Annotated[
        bool, typer.Option("--changes", help="Say what to change, whether or not the job fits as it is.")
    ] = False,
    batch: opt.Batch = None,
    precision: opt.PrecisionOption = "fp32",
    example_shape: ExampleShapes = [],  # noqa: B006 - typer copies it
    job: opt.JobFlags,
    where: opt.PredictorFlags,
    output: opt.OutputOption = Output.TABLE,
    out: opt.OutFile = None,
) -> None:
    """Find the largest batch, sequence or number of layers that fits, and what to change where none does."""
    from predictor.api import Predictor
    from predictor.cli.console import data_console
    from predictor.cli.output import keep_input, write_json
    from predictor.cli.render_fit import fit_to_json, fit_view

    keep_input(model, out)
    config = _read_config(model)
    if config is None:
        if sequence is not None:
            raise typer.BadParameter("--sequence is for a config.json; give an ONNX file's sizes by --dim")
        source = opt.read_source(model, example_shape)
    else:
        from predictor.features.architectures.from_config import from_config

        source = from_config(config, sequence=sequence)
    request = job.request(source, device, batch, precision)
    with where.open() as predictor:
        if config is None:
            found = predictor.fit(request, axis=_dimension(axis), probability=probability)
        elif isinstance(predictor, Predictor):
            grows = _axis(request, config, axis, sequence)
            found = predictor.fit(request, axis=grows, probability=probability)
        else:
            raise typer.BadParameter("sizes of a config.json are searched in process: leave --server out")
        asked = found.asked
        as_it_is = asked is not None and asked.probability >= probability
        ways = predictor.changes_to_fit(request, probability) if changes or not as_it_is else []
    if out is not None:
        write_json(fit_to_json(found, ways), out)
    if output is Output.JSON:
        write_json(fit_to_json(found, ways))
    else:
        data_console().print(fit_view(request, found, ways, opt.model_name(model)))


def _axis(request: PredictionRequest, config: dict[str, Any], axis: str, sequence: int | None) -> str | Axis:
    from predictor.api.fit import LAYERS, SEQUENCE, config_axis

    return config_axis(request, config, axis, sequence) if axis in (LAYERS, SEQUENCE) else axis


def _dimension(axis: str) -> str:
    """`batch` or a dimension of an ONNX file. Raises a usage error."""
    from predictor.api.fit import LAYERS

    if axis == LAYERS:
        raise typer.BadParameter("layers are counted in a config.json; give that instead of the ONNX file")
    return axis


def _read_config(model: str) -> dict[str, Any] | None:
    """The fields of a config.json; None for other models. Raises InvalidInput."""
    if not model.endswith(".json"):
        return None
    import json
    from pathlib import Path

    from predictor.errors import InvalidInput

    try:
        found = json.loads(Path(model).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"{model}: {reason}; expected a transformer's config.json", path=model) from None
    if not isinstance(found, dict):
        raise InvalidInput(f"{model}: no object; expected a transformer's config.json", path=model)
    return found

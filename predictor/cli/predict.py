"""`perfcast predict`: one model, one device, one answer."""

from __future__ import annotations

from predictor.cli import options as opt
from predictor.cli.accounting_options import AccountingFlags
from predictor.cli.from_torch import ExampleShapes
from predictor.cli.option_groups import spread
from predictor.cli.options import Output


@spread
def predict(
    *,
    model: opt.Source,
    device: opt.Device,
    batch: opt.Batch = None,
    precision: opt.PrecisionOption = "fp32",
    example_shape: ExampleShapes = [],  # noqa: B006 - typer copies it
    job: opt.JobFlags,
    accounting: AccountingFlags,
    require_feasible: opt.RequireFeasible = False,
    where: opt.PredictorFlags,
    output: opt.OutputOption = Output.TABLE,
    out: opt.OutFile = None,
) -> None:
    """Predict time, memory and energy of one iteration."""
    from predictor.cli.console import data_console, warn
    from predictor.cli.json_out import prediction_to_json
    from predictor.cli.output import write_json
    from predictor.errors import DoesNotFit
    from predictor.units import format_bytes

    request = job.request(opt.read_source(model, example_shape, (out,)), device, batch, precision)
    request = accounting.added_to(request)
    with where.open() as predictor:
        answer = predictor.predict(request)
    if out is not None:
        write_json(prediction_to_json(answer), out)
    if output is Output.JSON:
        for notice in answer.warnings:
            warn(notice.message)
        write_json(prediction_to_json(answer))
    else:
        from predictor.cli.render import prediction_view

        data_console().print(prediction_view(request, answer, opt.model_name(model)))
    if require_feasible and not answer.fits:
        raise DoesNotFit(
            f"{opt.model_name(model)} needs {format_bytes(answer.device_peak_bytes.value)}, and "
            f"{answer.device} has {format_bytes(answer.capacity_bytes)} usable: lower the batch"
        )

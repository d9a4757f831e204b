"""`perfcast predict`: one model, one device, one answer."""

from __future__ import annotations

from predictor.cli import options as opt
from predictor.cli.from_torch import ExampleShapes
from predictor.cli.options import Output


def predict(
    model: opt.Source,
    device: opt.Device,
    batch: opt.Batch = None,
    mode: opt.ModeOption = "infer",
    precision: opt.PrecisionOption = "fp32",
    optimizer: opt.OptimizerOption = "sgd",
    runtime: opt.RuntimeOption = "eager",
    dim: opt.Dims = [],  # noqa: B006 - typer copies it
    input_shape: opt.InputShapes = [],  # noqa: B006
    example_shape: ExampleShapes = [],  # noqa: B006
    cluster: opt.ClusterOption = None,
    dp: opt.DataParallel = 1,
    power_limit: opt.PowerLimit = None,
    strict: opt.Strict = False,
    require_feasible: opt.RequireFeasible = False,
    bundle: opt.BundleOption = None,
    server: opt.ServerOption = None,
    token: opt.TokenOption = None,
    tls_ca: opt.TlsOption = None,
    timeout: opt.TimeoutOption = 30.0,
    output: opt.OutputOption = Output.TABLE,
    out: opt.OutFile = None,
) -> None:
    """Predict time, memory and energy of one iteration."""
    from predictor.cli.console import data_console, warn
    from predictor.cli.json_out import prediction_to_json
    from predictor.cli.output import write_json
    from predictor.errors import DoesNotFit
    from predictor.units import format_bytes

    request = opt.build_request(
        opt.read_source(model, example_shape),
        device,
        batch=batch,
        mode=mode,
        precision=precision,
        optimizer=optimizer,
        runtime=runtime,
        dims=dim,
        input_shapes=input_shape,
        cluster=cluster,
        dp=dp,
        power_limit_w=power_limit,
        strict=strict,
    )
    with opt.open_predictor(bundle, server, token, tls_ca, timeout) as predictor:
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

"""`perfcast explain`: where the time goes, op group by op group."""

from __future__ import annotations

from typing import Annotated

import typer

from predictor.cli import options as opt
from predictor.cli.from_torch import ExampleShapes
from predictor.cli.options import Output


def explain(
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
    top: Annotated[int, typer.Option("--top", min=1, help="Rows of the table.")] = 15,
    bundle: opt.BundleOption = None,
    server: opt.ServerOption = None,
    token: opt.TokenOption = None,
    tls_ca: opt.TlsOption = None,
    timeout: opt.TimeoutOption = 30.0,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """List the ops that an iteration spends its time on."""
    from predictor.cli.console import data_console
    from predictor.cli.json_out import explanation_to_json
    from predictor.cli.output import write_json

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
        explanation = predictor.explain(request)
    if output is Output.JSON:
        write_json(explanation_to_json(explanation))
        return
    from predictor.cli.render import explanation_view

    data_console().print(explanation_view(request, explanation, opt.model_name(model), top))

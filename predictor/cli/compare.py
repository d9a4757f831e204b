"""`perfcast compare`: every combination of the devices, batches and precisions given, in one table."""

from __future__ import annotations

from itertools import product
from typing import Annotated

import typer

from predictor.cli import options as opt
from predictor.cli.options import Output


def compare(
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
    mode: opt.ModeOption = "infer",
    optimizer: opt.OptimizerOption = "sgd",
    runtime: opt.RuntimeOption = "eager",
    dim: opt.Dims = [],  # noqa: B006
    input_shape: opt.InputShapes = [],  # noqa: B006
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
        opt.build_request(
            graph,
            one_device,
            batch=one_batch,
            mode=mode,
            precision=one_precision,
            optimizer=optimizer,
            runtime=runtime,
            dims=dim,
            input_shapes=input_shape,
            cluster=cluster,
            dp=dp,
            power_limit_w=power_limit,
            strict=strict,
        )
        for one_device, one_precision, one_batch in product(device, precision, batches)
    ]
    with opt.open_predictor(bundle, server, token, tls_ca, timeout) as predictor:
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

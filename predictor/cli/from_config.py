"""`perfcast graph from-config`: an ONNX file from a transformer's Hugging Face `config.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def from_config(
    config: Annotated[str, typer.Argument(metavar="CONFIG.json", help="The model's config.json.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="ONNX file to write.")],
    batch: Annotated[
        int | None, typer.Option("--batch", "-b", help="Samples; left open for `predict` by default.")
    ] = None,
    sequence: Annotated[int, typer.Option("--sequence", "-s", metavar="N", help="Tokens per sample.")] = 512,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="base|language|classifier|...",
            help="Head of the model; default: what `architectures` in the file says.",
        ),
    ] = None,
) -> None:
    """Write the graph of a transformer from its configuration: sizes only, no weights, nothing downloaded."""
    from predictor.cli.output import write_bytes
    from predictor.features.architectures.from_config import from_config as build
    from predictor.units import format_bytes

    data = build(config, batch="batch" if batch is None else batch, sequence=sequence, task=task)
    write_bytes(data, out)
    typer.echo(f"{out}: {format_bytes(len(data))}; next: perfcast predict {out} --device ...", err=True)

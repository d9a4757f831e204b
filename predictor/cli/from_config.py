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
    sequence: Annotated[
        int | None,
        typer.Option(
            "--sequence", "-s", metavar="N", help="Tokens per sample; default 512, or 1 after cached tokens."
        ),
    ] = None,
    past_length: Annotated[
        int | None,
        typer.Option(
            "--past-length",
            metavar="N",
            help="One step of a decoder whose cache holds N tokens; 0 fills an empty cache.",
        ),
    ] = None,
    source_length: Annotated[
        int | None,
        typer.Option("--source-length", metavar="N", help="Tokens that the encoder of T5 or BART has read."),
    ] = None,
    last_only: Annotated[
        bool, typer.Option("--last-only", help="Scores of words for the last token alone.")
    ] = False,
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
    from predictor.cli.console import warn
    from predictor.cli.output import keep_input, write_bytes
    from predictor.features.architectures.from_config import from_config as build
    from predictor.features.architectures.from_config import left_out
    from predictor.units import format_bytes

    keep_input(config, out)
    data = build(
        config,
        batch="batch" if batch is None else batch,
        sequence=sequence,
        task=task,
        past_length=past_length,
        source_length=source_length,
        last_only=last_only,
    )
    write_bytes(data, out)
    if missing := left_out(config):
        warn(missing)
    typer.echo(f"{out}: {format_bytes(len(data))}; next: perfcast predict {out} --device ...", err=True)

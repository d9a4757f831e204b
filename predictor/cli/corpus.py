"""`perfcast corpus`: raw public measurements into one schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Build the corpus of measurements that models are trained on.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `build` a command of its own while it is the only one."""


@app.command("build")
def build(
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="DIR", help="Raw sources; default: the variable PERFCAST_DATA."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the Parquet files go.")] = Path(
        ".corpus"
    ),
    source: Annotated[list[str], typer.Option("--source", help="Only this source; repeatable.")] = [],  # noqa: B006
) -> None:
    """Check hashes, clean, and write Parquet in the measurement schema."""
    from predictor.cli.console import progress_bar
    from predictor.models.corpus.build import build_corpus

    with progress_bar() as progress:
        entries = build_corpus(root, out, only=source, progress=progress)
    width = max(len(entry.source) for entry in entries)
    for entry in entries:
        typer.echo(f"{entry.source:{width}}  {entry.rows:>8,} rows  {entry.sha256[:12]}")
    typer.echo(f"corpus: {out}", err=True)

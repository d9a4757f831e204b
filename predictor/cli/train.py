"""`perfcast train`: a corpus into a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    corpus: Annotated[
        Path, typer.Option("--corpus", metavar="DIR", help="What `perfcast corpus build` wrote.")
    ] = Path(".corpus"),
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The bundle to write; default: the one that ships."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Same corpus and seed: same bundle id.")] = None,
) -> None:
    """Train every model on a corpus and write one bundle."""
    from predictor.cli.console import progress_bar
    from predictor.models.train import SEED, train

    with progress_bar() as progress:
        identity = train(corpus, out, seed=SEED if seed is None else seed, progress=progress)
    typer.echo(identity)
    typer.echo(f"bundle: {out or 'the one that ships'}", err=True)

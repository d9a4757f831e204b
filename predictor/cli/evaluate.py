"""`perfcast evaluate`: accuracy on measurements that the models never saw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from predictor.cli import options as opt
from predictor.cli.options import Output


def evaluate(
    suite: Annotated[
        list[str],
        typer.Option(
            "--suite", metavar="neusight|memory|energy|graphs|distributed", help="Repeatable; default: all."
        ),
    ] = [],  # noqa: B006 - typer copies it
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="DIR", help="Raw sources; default: the variable PERFCAST_DATA."),
    ] = None,
    corpus: Annotated[
        Path, typer.Option("--corpus", metavar="DIR", help="Built corpus; built there when absent.")
    ] = Path(".corpus"),
    bundle: opt.BundleOption = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="DIR", help="Write one Markdown report per suite here.")
    ] = None,
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit 7 when a number is worse than its record by more than noise.")
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Make these numbers the record that --gate compares with.")
    ] = False,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """Score predictions against held-out measurements."""
    if gate and accept:
        raise typer.BadParameter("--accept would make the gate pass: give one of the two")
    from predictor.cli.console import data_console, progress_bar
    from predictor.cli.output import write_rows
    from predictor.evaluation import run

    names = suite or list(run.SUITES)
    # Suites take minutes: what can be known to fail, fails before the first.
    run.require_suites(names)
    if gate:
        run.require_record(names)
    options = run.Options(root=root, corpus=corpus, bundle=bundle, report=report)
    with progress_bar() as progress:
        found = {name: run.evaluate(name, options, progress=progress) for name in names}
    rows = [row for part in found.values() for row in part]
    if output is Output.JSON:
        write_rows([row.to_json() for row in rows])
    else:
        from predictor.cli.render_evaluation import evaluation_view

        data_console().print(evaluation_view(rows))
    if accept:
        run.accept(found)
    if gate:
        run.gate(found)

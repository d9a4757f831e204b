"""`perfcast graph`: what a file holds, which of its ops are known, and the file without its weights."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from predictor.cli import from_config, from_torch
from predictor.cli import options as opt
from predictor.cli.options import Output

if TYPE_CHECKING:
    from predictor.features.graph import Graph
    from predictor.features.programs.work import Program

app = typer.Typer(help="Check, show and strip ONNX files, or make them.", no_args_is_help=True)
app.command("from-config", short_help="Write a transformer's graph from its config.json.")(
    from_config.from_config
)
app.command("from-torch", short_help="Write a torch module's graph, without weights.")(from_torch.from_torch)

GRAPH_CHECK_SCHEMA = "perfcast.graph-check/1"


_Description: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL.onnx|PKG.MOD:FACTORY|config.json",
        help="ONNX file (- reads standard input), a function that makes a torch module, or a transformer's "
        "configuration.",
    ),
]
_Sequence: TypeAlias = Annotated[
    int | None, typer.Option("--sequence", "-s", metavar="N", help="Tokens per sample of a config.json.")
]
_PastLength: TypeAlias = Annotated[
    int | None, typer.Option("--past-length", metavar="N", help="Cached tokens of a config.json's decoder.")
]


@app.command("show", short_help="Show inputs, parameters and work by op family.")
def show(
    model: _Description,
    batch: opt.Batch = None,
    dim: opt.Dims = [],  # noqa: B006 - typer copies it
    input_shape: opt.InputShapes = [],  # noqa: B006
    example_shape: from_torch.ExampleShapes = [],  # noqa: B006
    sequence: _Sequence = None,
    past_length: _PastLength = None,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """Show inputs, outputs, parameters, and the work of one forward pass by op family."""
    from predictor.cli.console import data_console
    from predictor.cli.output import write_json
    from predictor.cli.render_graph import graph_to_json, graph_view

    source = _source(model, example_shape, sequence, past_length)
    graph, program = _read(source, batch, dim, input_shape)
    if output is Output.JSON:
        write_json(graph_to_json(graph, program))
        return
    data_console().print(graph_view(graph, program, opt.model_name(model)))


@app.command("check", short_help="List the ops of a file and which have a rule.")
def check(
    model: _Description,
    batch: opt.Batch = None,
    dim: opt.Dims = [],  # noqa: B006
    input_shape: opt.InputShapes = [],  # noqa: B006
    example_shape: from_torch.ExampleShapes = [],  # noqa: B006
    sequence: _Sequence = None,
    past_length: _PastLength = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 5 when an op has no rule.")] = False,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """Check that the file can be priced, and list its ops with and without a rule."""
    from predictor.cli.console import data_console, warn
    from predictor.cli.output import write_json
    from predictor.errors import UnsupportedOp

    source = _source(model, example_shape, sequence, past_length)
    graph, program = _read(source, batch, dim, input_shape)
    for note in program.notes:
        warn(note.message)
    unknown = Counter(op.op_type for op in program.ops if not op.covered)
    known = Counter(op.op_type for op in program.ops if op.covered)
    if output is Output.JSON:
        write_json(
            {
                "schema": GRAPH_CHECK_SCHEMA,
                "graph": graph.fingerprint,
                "ok": not unknown,
                "covered": dict(known.most_common()),
                "uncovered": dict(unknown.most_common()),
                "notes": [{"code": note.code, "message": note.message} for note in program.notes],
            }
        )
    else:
        from predictor.cli.render_graph import coverage_view

        data_console().print(coverage_view(known, unknown, opt.model_name(model)))
    if strict and unknown:
        raise UnsupportedOp(
            f"{opt.model_name(model)}: no work rule for {', '.join(sorted(unknown))}; register one through "
            "the entry-point group predictor.work_rules, or go on without --strict"
        )


@app.command("strip", short_help="Write the model without its weights.")
def strip(
    model: opt.Model,
    target: Annotated[
        str, typer.Argument(metavar="TARGET.onnx", help="File to write; - writes standard output.")
    ],
) -> None:
    """Write the model without its weights; predictions stay the same."""
    from predictor.features.reading.strip import strip_model, write_stripped
    from predictor.units import format_bytes

    if target == "-" and sys.stdout.isatty():
        raise typer.BadParameter("standard output is a terminal: give a file", param_hint="TARGET.onnx")
    source = opt.read_model(model, (target,))
    if target == "-":
        sys.stdout.buffer.write(strip_model(source))
        return
    before = len(source) if isinstance(source, bytes) else _size(source)
    after = write_stripped(source, target)
    typer.echo(f"{target}: {format_bytes(after)}, was {format_bytes(before)}", err=True)


def _source(
    model: str, example_shapes: list[str], sequence: int | None, past_length: int | None
) -> str | bytes:
    """Path or bytes of the file, of a module's export, or of the graph that a configuration describes."""
    if from_torch.is_module_name(model):
        from predictor.features.torch_capture.onnx_export import export_onnx

        return export_onnx(from_torch.named_module(model, example_shapes))
    if model.endswith(".json"):
        from predictor.features.architectures.from_config import from_config as build

        return build(model, sequence=sequence, past_length=past_length)
    if sequence is not None or past_length is not None:
        raise typer.BadParameter(
            f"{model} is no config.json: its sizes are given with --dim", param_hint="--sequence"
        )
    return opt.read_model(model)


def _read(
    source: str | bytes, batch: int | None, dims: list[str], shapes: list[str]
) -> tuple[Graph, Program]:
    from predictor.features.programs.program import build_program
    from predictor.features.reading.reader import read_graph
    from predictor.types import Mode, Optimizer, Precision, Runtime

    graph = read_graph(source, batch=batch, dims=opt.parse_dims(dims), input_shapes=opt.parse_shapes(shapes))
    program = build_program(
        graph, mode=Mode.INFER, precision=Precision.FP32, optimizer=Optimizer.NONE, runtime=Runtime.EAGER
    )
    return graph, program


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        # write_stripped reports what is wrong with the file.
        return 0

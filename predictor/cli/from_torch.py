"""`perfcast graph from-torch`: an ONNX file from a torch module; and modules named where a file may stand."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from predictor.features.torch_capture import TorchModel
    from predictor.features.torch_capture.factory import Example

ExampleShapes: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--example-shape",
        metavar="[NAME=]8x3x224x224[:DTYPE]",
        help="Input of a torch module; one for each argument.",
        rich_help_panel="Job",
    ),
]

_SPEC = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_SHAPE = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:x\d+)*|scalar)(?::(?P<dtype>\w+))?")


def from_torch(
    spec: Annotated[str, typer.Argument(metavar="PKG.MOD:FACTORY", help="Function that makes the module.")],
    example_shape: ExampleShapes = [],  # noqa: B006 - typer copies it
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE|-", help="Where to write; - is standard output.")
    ] = "-",
    fixed_batch: Annotated[
        bool, typer.Option("--fixed-batch", help="Keep the example's batch instead of a symbol.")
    ] = False,
) -> None:
    """Write a torch module's forward pass as ONNX without weights; the module is never run on real data."""
    from predictor.cli.output import write_bytes
    from predictor.features.torch_capture.onnx_export import export_onnx
    from predictor.units import format_bytes

    if out == "-" and sys.stdout.isatty():
        raise typer.BadParameter("standard output is a terminal: give --out FILE", param_hint="--out")
    data = export_onnx(named_module(spec, example_shape), dynamic_batch=not fixed_batch)
    if out == "-":
        sys.stdout.buffer.write(data)
    else:
        write_bytes(data, Path(out))
        typer.echo(f"{out}: {format_bytes(len(data))}", err=True)


def is_module_name(model: str) -> bool:
    """True for `pkg.mod:factory`, unless a file has that name."""
    return _SPEC.fullmatch(model) is not None and not Path(model).exists()


def named_module(spec: str, example_shapes: Sequence[str]) -> TorchModel:
    """The module with its example inputs. Raises InvalidInput, or a usage error on malformed shapes."""
    examples = parse_examples(example_shapes)
    if not examples:
        raise typer.BadParameter(
            f"{spec} is a torch module: give the shape of each input, e.g. --example-shape 8x3x224x224"
        )
    from predictor.features.torch_capture.factory import torch_model

    return torch_model(spec, examples)


def parse_examples(texts: Sequence[str]) -> list[Example]:
    """`8x128:int64` or `mask=8x128:bool`, one per input."""
    if not texts:
        return []
    from predictor.features.torch_capture.factory import DTYPE_NAMES, Example

    found = []
    for text in texts:
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise typer.BadParameter(
                f"--example-shape {text!r}: expected 8x3x224x224, 8x128:int64 or mask=8x128:bool"
            )
        dtype = match["dtype"] or "float32"
        if dtype not in DTYPE_NAMES:
            raise typer.BadParameter(
                f"--example-shape {text!r}: unknown type {dtype}; expected {', '.join(DTYPE_NAMES)}"
            )
        sizes = () if match["shape"] == "scalar" else tuple(int(size) for size in match["shape"].split("x"))
        if 0 in sizes:
            raise typer.BadParameter(f"--example-shape {text!r}: sizes must be at least 1")
        found.append(Example(sizes, dtype, match["name"] or ""))
    return found

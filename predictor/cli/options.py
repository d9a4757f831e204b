"""Flags that several commands share, and the request that they spell. Imports nothing heavy."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, TypeAlias

import typer

from predictor.cli.plan_options import PlanFlags

if TYPE_CHECKING:
    from predictor.hardware.spec import ClusterSpec, DeviceSpec
    from predictor.parallel.plan import Plan
    from predictor.protocol import Forecaster
    from predictor.request import GraphSource, PredictionRequest


class Output(StrEnum):
    """Form of what goes to standard output."""

    TABLE = "table"
    JSON = "json"


_JOB, _WHERE = "Job", "Predictor"

Model: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODEL.onnx", help="ONNX file; - reads standard input.")
]
Source: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL.onnx|PKG.MOD:FACTORY",
        help="ONNX file (- reads standard input), or a function that makes a torch module.",
    ),
]
Device: TypeAlias = Annotated[
    str, typer.Option("--device", "-d", metavar="NAME|FILE", help="Catalogue id or alias, or a TOML file.")
]
Batch: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--batch",
        "-b",
        metavar="N",
        help="Samples per iteration over all devices; default: the file's, or 1.",
        rich_help_panel=_JOB,
    ),
]
ModeOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--mode", metavar="train|infer", help="With or without backward and step.", rich_help_panel=_JOB
    ),
]
PrecisionOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="fp32|tf32|fp16|bf16|amp",
        help="Of the whole job; amp is torch's autocast to fp16.",
        rich_help_panel=_JOB,
    ),
]
OptimizerOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--optimizer",
        metavar="none|sgd|momentum|adam|adamw",
        help="Matters with --mode train.",
        rich_help_panel=_JOB,
    ),
]
RuntimeOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--runtime",
        metavar="eager|compiled|onnxruntime|tensorrt",
        help="Op by op; fused as torch.compile does; as an inference engine plans it (inference only).",
        rich_help_panel=_JOB,
    ),
]
LayoutOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--layout",
        metavar="nchw|nhwc",
        help="Of images; nhwc is torch's channels_last.",
        rich_help_panel=_JOB,
    ),
]
WeightsOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="full|int8|int4|fp8",
        help="How inference stores the weights of products; fp8 multiplies in it, too.",
        rich_help_panel=_JOB,
    ),
]
TrainerOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--trainer",
        metavar="auto|torch|megatron",
        help="Whose modules train eagerly; auto is a framework's where --tp, --cp or --ep split the model.",
        rich_help_panel=_JOB,
    ),
]
TorchOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--torch", metavar="VERSION", help="Release that runs the job, e.g. 2.4.", rich_help_panel=_JOB
    ),
]
Dims: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--dim", metavar="NAME=N", help="Number for a symbolic dimension; repeatable.", rich_help_panel=_JOB
    ),
]
InputShapes: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--input-shape",
        metavar="NAME=1x3x224x224",
        help="Full shape of an input; repeatable.",
        rich_help_panel=_JOB,
    ),
]
ClusterOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="FILE|NAME", help="Machines the devices stand in.", rich_help_panel=_JOB
    ),
]
Jitter: TypeAlias = Annotated[
    float,
    typer.Option(
        "--jitter",
        metavar="X",
        help="Spread of log time from rank to rank; all wait for the slowest.",
        rich_help_panel=_JOB,
    ),
]
PowerLimit: TypeAlias = Annotated[
    float | None,
    typer.Option("--power-limit", metavar="W", help="Power cap per device, watts.", rich_help_panel=_JOB),
]
Strict: TypeAlias = Annotated[
    bool, typer.Option("--strict", help="Exit 5 when an op has no rule.", rich_help_panel=_JOB)
]
RequireFeasible: TypeAlias = Annotated[
    bool, typer.Option("--require-feasible", help="Exit 4 when it does not fit in memory.")
]
BundleOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--bundle", metavar="PATH", help="Trained models; default: those that ship.", rich_help_panel=_WHERE
    ),
]
ServerOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="ADDR",
        envvar="PERFCAST_SERVER",
        help="Ask a running server.",
        rich_help_panel=_WHERE,
    ),
]
TokenOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TEXT",
        envvar="PERFCAST_TOKEN",
        help="The server's bearer token.",
        rich_help_panel=_WHERE,
    ),
]
TlsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="PEM",
        envvar="PERFCAST_TLS_CA",
        help="Authority of the server's certificate.",
        rich_help_panel=_WHERE,
    ),
]
TimeoutOption: TypeAlias = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="S", help="Deadline of a server's answer, seconds.", rich_help_panel=_WHERE
    ),
]
OutputOption: TypeAlias = Annotated[
    Output, typer.Option("--output", "-o", help="What standard output holds.")
]
OutFile: TypeAlias = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the JSON to a file as well.")
]


@dataclass(frozen=True, kw_only=True)
class UnplannedJobFlags:
    """What is asked of the model, besides batch, precision and plan."""

    mode: ModeOption = "infer"
    optimizer: OptimizerOption = "sgd"
    runtime: RuntimeOption = "eager"
    layout: LayoutOption = "nchw"
    weights: WeightsOption = "full"
    trainer: TrainerOption = "auto"
    torch: TorchOption = ""
    dim: Dims = field(default_factory=list)
    input_shape: InputShapes = field(default_factory=list)
    cluster: ClusterOption = None
    power_limit: PowerLimit = None
    jitter: Jitter = 0.0
    strict: Strict = False

    def plan(self) -> Plan:
        """One device."""
        from predictor.parallel.plan import Plan

        return Plan()

    def request(
        self, graph: GraphSource, device: str, batch: int | None, precision: str
    ) -> PredictionRequest:
        """The request they spell. Raises PerfcastError on values, a usage error on malformed pairs."""
        from predictor.request import PredictionRequest
        from predictor.types import Layout, Mode, Optimizer, Precision, Runtime, Trainer, Weights

        return PredictionRequest(
            graph=graph,
            device=read_device(device),
            batch=batch,
            mode=Mode.parse(self.mode),
            precision=Precision.parse(precision),
            optimizer=Optimizer.parse(self.optimizer),
            runtime=Runtime.parse(self.runtime),
            layout=Layout.parse(self.layout),
            weights=Weights.parse(self.weights),
            trainer=Trainer.parse(self.trainer),
            framework_version=self.torch,
            dims=parse_dims(self.dim),
            input_shapes=parse_shapes(self.input_shape),
            plan=self.plan(),
            cluster=read_cluster(self.cluster),
            power_limit_w=self.power_limit,
            rank_jitter=self.jitter,
            strict=self.strict,
        )


@dataclass(frozen=True, kw_only=True)
class JobFlags(PlanFlags, UnplannedJobFlags):
    """What is asked of the model, besides batch and precision."""


@dataclass(frozen=True, slots=True)
class PredictorFlags:
    """Who answers."""

    bundle: BundleOption = None
    server: ServerOption = None
    token: TokenOption = None
    tls_ca: TlsOption = None
    timeout: TimeoutOption = 30.0

    @contextmanager
    def open(self) -> Iterator[Forecaster]:
        """The predictor in process, or the server's. Raises InvalidBundle, or a usage error for both."""
        if self.server is None:
            from predictor.api import Predictor

            yield Predictor.load(self.bundle)
            return
        if self.bundle is not None:
            raise typer.BadParameter("a server has its own bundle: give --bundle or --server, not both")
        from predictor.client import RemotePredictor

        root = _read_pem(self.tls_ca) if self.tls_ca is not None else None
        with RemotePredictor(
            self.server, timeout_s=self.timeout, token=self.token, root_certificate=root
        ) as remote:
            yield remote


def _read_pem(path: Path) -> bytes:
    from predictor.errors import InvalidInput

    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}; expected a PEM certificate", path=path) from None


def read_model(model: str, writes: Sequence[str | Path | None] = ()) -> str | bytes:
    """The path as it is, or the bytes of standard input for `-`.

    Raises OutputNotWritable when one of the files that the command will write is the model itself.
    """
    from predictor.cli.output import keep_input

    for target in writes:
        keep_input(model, target)
    if model == "-":
        return _read_pipe(sys.stdin.buffer, "standard input")
    if model.startswith(_OPEN_PIPES) and Path(model).is_fifo():
        # A shell's <(zcat model.onnx.gz): readable once, so its bytes are the model.
        with open(model, "rb") as pipe:
            return _read_pipe(pipe, model)
    return model


# Paths of pipes that are open already; opening any other pipe may wait for ever.
_OPEN_PIPES = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
# No protobuf message is larger.
_PIPE_LIMIT_BYTES = 2**31


def _read_pipe(pipe: IO[bytes], name: str) -> bytes:
    from predictor.errors import InvalidGraph

    data = pipe.read(_PIPE_LIMIT_BYTES + 1)
    if len(data) > _PIPE_LIMIT_BYTES:
        raise InvalidGraph(f"{name} holds more than 2 GiB, which no ONNX model does; give the model's file")
    return data


def read_source(
    model: str, example_shapes: Sequence[str], writes: Sequence[str | Path | None] = ()
) -> GraphSource:
    """As `read_model`, or the torch module that `pkg.mod:factory` names."""
    from predictor.cli.from_torch import is_module_name, named_module

    return named_module(model, example_shapes) if is_module_name(model) else read_model(model, writes)


def parse_dims(pairs: Sequence[str]) -> dict[str, int]:
    """`NAME=N` pairs."""
    found: dict[str, int] = {}
    for pair in pairs:
        name, equals, number = pair.rpartition("=")
        if not equals or not name or not _is_integer(number):
            raise typer.BadParameter(f"--dim {pair!r}: expected NAME=N, e.g. sequence=128")
        found[name] = int(number)
    return found


def parse_shapes(pairs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`NAME=1x3x224x224` pairs."""
    found: dict[str, tuple[int, ...]] = {}
    for pair in pairs:
        name, equals, text = pair.rpartition("=")
        sizes = text.split("x")
        if not equals or not name or not all(_is_integer(size) for size in sizes):
            raise typer.BadParameter(f"--input-shape {pair!r}: expected NAME=1x3x224x224")
        found[name] = tuple(int(size) for size in sizes)
    return found


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def read_cluster(cluster: str | None) -> str | ClusterSpec | None:
    """A file becomes the cluster that it describes, so that a server gets the numbers and not a path."""
    if cluster is None or not _is_file_name(cluster):
        return cluster
    from predictor.hardware.catalog import load_cluster_file

    return load_cluster_file(cluster)


def read_device(device: str) -> str | DeviceSpec:
    """A file becomes the device that it describes."""
    if not _is_file_name(device):
        return device
    from predictor.hardware.catalog import load_device_file

    return load_device_file(device)


def _is_file_name(text: str) -> bool:
    return text.endswith(".toml") or "/" in text


def model_name(model: str) -> str:
    """How tables call the model."""
    return "standard input" if model == "-" else Path(model).name

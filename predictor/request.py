"""What a caller asks: a graph, a device and how the job runs. Light: nothing here reads a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from predictor.checks import positive_number, real_number, sendable_text, whole_number
from predictor.errors import InvalidPlan, InvalidRequest
from predictor.features.graph import Graph
from predictor.features.programs.program_source import ProgramSource
from predictor.hardware.accounting import Accounting
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.parallel.plan import Plan
from predictor.releases import release_number
from predictor.types import Layout, Mode, Optimizer, Precision, Runtime, Trainer, Weights

GraphSource: TypeAlias = str | os.PathLike[str] | bytes | Graph | ProgramSource
"""A path, ONNX bytes, a `sha256:...` id that the predictor has seen, a Graph, or a captured torch module
(`predictor.features.torch_capture.TorchModel`)."""


_CHOICES = {
    "mode": Mode,
    "precision": Precision,
    "optimizer": Optimizer,
    "runtime": Runtime,
    "layout": Layout,
    "weights": Weights,
    "trainer": Trainer,
}


@dataclass(frozen=True, slots=True)
class PredictionRequest:
    """One question.

    Attributes:
        graph: path, ONNX bytes, known fingerprint, Graph or TorchModel.
        device: catalogue id or alias, or a DeviceSpec.
        batch: samples per iteration over all devices (the global batch); None keeps the file's own, or 1
        where symbolic.
        dims: numbers for symbolic dimensions by name, and what depends on data (features/reading/hints.py):
        `NODE.out.0`, `NODE.trip_count`, `NODE.then_branch`, `INPUT.length`, `INPUT[0]`.
        input_shapes: full shapes by input name; `batch` and `dims` must agree with them.
        cluster: catalogue id or ClusterSpec; needed for more devices than one node holds.
        power_limit_w: software power cap per device; None is the device's default limit.
        accounting: where the job runs and at what price; adds a footprint (node, carbon, money).
        strict: raise instead of falling back when ops have no rule or no model covers them.
        layout: of images: NHWC for a job that keeps them channels-last (torch's memory format).
        weights: how an inference job stores the weights of its products: FULL, INT8, INT4 or FP8.
        framework_version: release of torch that runs the job, e.g. `2.4`; empty is the newest that was
        measured.
        rank_jitter: spread of log time from rank to rank, 0 to 2; an iteration waits for the slowest rank.
        trainer: whose modules run an eager training job; small models under a framework's wait for the host.
    """

    graph: GraphSource
    device: str | DeviceSpec
    batch: int | None = None
    mode: Mode = Mode.INFER
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.SGD
    runtime: Runtime = Runtime.EAGER
    dims: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)
    cluster: str | ClusterSpec | None = None
    power_limit_w: float | None = None
    accounting: Accounting | None = None
    strict: bool = False
    layout: Layout = Layout.NCHW
    weights: Weights = Weights.FULL
    framework_version: str = ""
    rank_jitter: float = 0.0
    trainer: Trainer = Trainer.AUTO

    def __post_init__(self) -> None:
        # Enumerations may arrive as text, and numbers as numpy's, from any face; parsed here once, so that
        # every face answers alike.
        for name, choice in _CHOICES.items():
            object.__setattr__(self, name, choice.parse(getattr(self, name)))
        object.__setattr__(self, "graph", _graph(self.graph))
        for name, kinds, expected in _KINDS:
            if not isinstance(value := getattr(self, name), kinds):
                raise InvalidRequest(f"{name} is a {type(value).__name__}; expected {expected}", field=name)
        for name in ("device", "cluster"):
            if isinstance(value := getattr(self, name), str):
                sendable_text(value, name, name)
        if self.batch is not None:
            batch = whole_number(self.batch, "batch", "batch", "a positive number of samples")
            object.__setattr__(self, "batch", batch)
        if self.power_limit_w is not None:
            positive_number(self.power_limit_w, "power_limit_w", "power_limit_w", "watts above 0")
        real_number(self.rank_jitter, "rank_jitter", "rank_jitter", "a number from 0 to 2", 0.0, 2.0)
        if self.framework_version and not release_number(self.framework_version):
            raise InvalidRequest(
                f"framework_version is {self.framework_version!r}; expected a release of torch, e.g. 2.4",
                field="framework_version",
            )
        if self.weights is not Weights.FULL and self.mode is Mode.TRAIN:
            raise InvalidRequest(
                f"weights: {self.weights.value} is for inference; a training job keeps full weights",
                field="weights",
            )
        if self.mode is Mode.INFER and (said := self.plan.training_only):
            raise InvalidPlan(
                f"plan: {' and '.join(said)} mean{'s' if len(said) == 1 else ''} something in training only; "
                "leave out what an inference job has not, or ask with mode train",
                field=f"plan.{said[0].partition('=')[0]}",
            )
        object.__setattr__(self, "dims", _dims(self.dims))
        object.__setattr__(self, "input_shapes", _input_shapes(self.input_shapes))

    @property
    def runs_framework(self) -> bool:
        """Whether a training framework's modules run the job, and not torch's own."""
        splits = self.trainer is Trainer.AUTO and self.plan.splits_graph
        return splits or self.trainer is Trainer.MEGATRON

    @property
    def precedes_torch_2(self) -> bool:
        """Whether a release before 2.0 is named: it has no compiler, and `zero_grad` keeps gradients."""
        return 0.0 < release_number(self.framework_version) < 2.0


def checked_request(request: object) -> PredictionRequest:
    """What was given as one. Raises InvalidRequest for anything else."""
    if isinstance(request, PredictionRequest):
        return request
    raise InvalidRequest(
        f"a {type(request).__name__} is no request; expected a PredictionRequest, e.g. "
        "PredictionRequest('model.onnx', 'a100-sxm-80gb', batch=8)",
        field="request",
    )


_KINDS: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("device", (str, DeviceSpec), "a name of the catalogue or a DeviceSpec"),
    ("cluster", (str, ClusterSpec, type(None)), "a name of the catalogue or a ClusterSpec"),
    ("accounting", (Accounting, type(None)), "an Accounting, e.g. Accounting(site='de')"),
    ("plan", (Plan,), "a Plan, e.g. Plan(dp=8)"),
    ("dims", (Mapping,), "numbers by name, e.g. {'sequence': 128}"),
    ("input_shapes", (Mapping,), "shapes by input name, e.g. {'image': (1, 3, 224, 224)}"),
    ("strict", (bool,), "True or False"),
    ("framework_version", (str,), "a release as text, e.g. '2.4'"),
)


def _graph(source: object) -> GraphSource:
    if isinstance(source, bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str) and not source.strip():
        raise InvalidRequest("graph is an empty text; expected a path or a sha256: id", field="graph")
    if isinstance(source, str | bytes | os.PathLike | Graph | ProgramSource):
        return source
    hint = "; give its SerializeToString()" if hasattr(source, "SerializeToString") else ""
    raise InvalidRequest(
        f"graph is a {type(source).__name__}; expected a path, ONNX bytes, a sha256: id, a Graph or a "
        f"TorchModel{hint}",
        field="graph",
    )


def _dims(dims: Mapping[Any, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for symbol, number in dims.items():
        if not isinstance(symbol, str):
            raise InvalidRequest(f"dims: {symbol!r} is no name of a dimension; expected text", field="dims")
        if symbol.endswith("]") and isinstance(number, int) and not isinstance(number, bool):
            # An element of an integer input (`axes[0]`) may be any number.
            found[symbol] = number
            continue
        sendable_text(symbol, "the name of a dim", "dims")
        found[symbol] = whole_number(number, f"dim {symbol}", f"dims.{symbol}", "a positive number")
    return found


def _input_shapes(shapes: Mapping[Any, Any]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        field = f"input_shapes.{name}"
        if not isinstance(name, str) or isinstance(shape, str | bytes) or not isinstance(shape, Iterable):
            raise InvalidRequest(
                f"input_shapes: {name!r}: {shape!r}; expected whole sizes, e.g. (1, 3, 224, 224)", field=field
            )
        sendable_text(name, "the name of an input", "input_shapes")
        sizes = tuple(shape)
        what = f"input shape {name}={'x'.join(map(str, sizes))}: a size"
        found[name] = tuple(whole_number(size, what, field, "positive sizes") for size in sizes)
    return found

"""What a caller asks: a graph, a device and how the job runs. Light: nothing here reads a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from predictor.errors import InvalidRequest
from predictor.features.graph import Graph
from predictor.features.program_source import ProgramSource
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.parallel.plan import Plan
from predictor.types import Mode, Optimizer, Precision, Runtime

GraphSource: TypeAlias = str | os.PathLike[str] | bytes | Graph | ProgramSource
"""A path, ONNX bytes, a `sha256:...` id that the predictor has seen, a Graph, or a captured torch module
(`predictor.features.torch_capture.TorchModel`)."""


_CHOICES = {"mode": Mode, "precision": Precision, "optimizer": Optimizer, "runtime": Runtime}


@dataclass(frozen=True, slots=True)
class PredictionRequest:
    """One question.

    Attributes:
        graph: path, ONNX bytes, known fingerprint, Graph or TorchModel.
        device: catalogue id or alias, or a DeviceSpec.
        batch: samples per iteration over all devices (the global batch); None keeps the file's own, or 1
        where symbolic.
        dims: numbers for symbolic dimensions by name.
        input_shapes: full shapes by input name; they override `batch` and `dims`.
        cluster: catalogue id or ClusterSpec; needed for more devices than one node holds.
        power_limit_w: software power cap per device; None is the device's default limit.
        strict: raise instead of falling back when ops have no rule or no model covers them.
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
    strict: bool = False

    def __post_init__(self) -> None:
        # Enumerations may arrive as text from any face; parsed here once, so that every face answers alike.
        for name, choice in _CHOICES.items():
            object.__setattr__(self, name, choice.parse(getattr(self, name)))
        if self.batch is not None and self.batch < 1:
            raise InvalidRequest(
                f"batch is {self.batch}; expected a positive number of samples", field="batch"
            )
        if self.power_limit_w is not None and not self.power_limit_w > 0:
            raise InvalidRequest(
                f"power_limit_w is {self.power_limit_w}; expected watts above 0", field="power_limit_w"
            )
        for symbol, number in self.dims.items():
            if number < 1:
                raise InvalidRequest(
                    f"dim {symbol}={number}; expected a positive number", field=f"dims.{symbol}"
                )
        for name, shape in self.input_shapes.items():
            if any(size < 1 for size in shape):
                raise InvalidRequest(
                    f"input shape {name}={'x'.join(map(str, shape))}; expected positive sizes",
                    field=f"input_shapes.{name}",
                )

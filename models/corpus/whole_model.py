"""Timed iterations of whole models on one device: the form that every reader of such a source delivers.

A source of whole-model timings is a module of this package with three functions:

    read_rows(folder: Path) -> ReadRows
        `folder` is root/<source id>. One `WholeModelRow` per measurement that is used, and for every one that
        is not the reason, counted. Drop what cannot be what it says (NaN, duplicates, extrapolated rows,
        ambiguous devices); keep everything else, slow rows too.
    read(folder: Path) -> pl.DataFrame
        `measurements(read_rows(folder).rows, "<source id>")`: what `perfcast corpus build` writes.
    graph(folder: Path, key: str, batch: int, mode: Mode) -> Graph
        The graph of `row.graph` with `batch` samples, as `read_graph` gives it (built in Python, or read from
        a file). Its program must be the job that was timed: same input size, same heads, no loss needed.

and is named in READERS and in manifest.toml. `build_programs` then keeps, per graph and job, the distinct
works of its program, at two batch sizes where that suffices, so that training reads no graph again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.errors import InvalidData
from predictor.features.graph import Graph
from predictor.features.lowering.lower import release_of_lowering
from predictor.models.corpus.build import read_source
from predictor.models.corpus.schema import canonical
from predictor.types import Layout, Mode, Optimizer, Precision, Runtime

if TYPE_CHECKING:
    import polars as pl

READERS: Mapping[str, str] = {
    "detectron2_pycls": "detectron2_pycls",
    "gavel": "gavel",
    "help-nas-latency": "help_nas_latency",
    "lambda_pytorch": "lambda_pytorch",
    "mlperf_training": "mlperf_training",
    "neusight-cells": "neusight_cells",
    "nvidia_dle_tables": "nvidia_dle_tables",
    "optimum_habana_baselines": "optimum_habana_baselines",
    "profiles": "own_profiles",
    "pytorch_gpu_benchmark": "pytorch_gpu_benchmark",
    "timm_benchmarks": "timm",
}
"""Source -> module of predictor.models.corpus with `read_rows`, `read` and `graph`."""

QUANTITY = "iteration_time"


@dataclass(frozen=True, slots=True)
class WholeModelRow:
    """One timed iteration on one device.

    Attributes:
        graph: key for the reader's `graph`; a file name without suffix or `name-size`.
        model: what the publisher calls it. family: what leave-one-family-out holds out, never a feature.
        device: catalogue id. device_group: the chip under every name, memory size and form factor.
        batch: samples on this device in one timed iteration.
        measured_s: time of the iteration; `optimizer` NONE where no step was in it.
        precision: TF32 where FP32 ran with TF32 on (most of torch before 1.12, all of Lambda's and NVIDIA's).
        framework: `torch`, `tensorflow`, `jax`, `onnxruntime`, `tensorrt`, `mxnet` ...
        framework_version: major + minor / 100, so that versions order (1.10 is 1.1, 2.4 is 2.04); 0 unknown.
        cuda: major + minor / 10, 0 unknown or none.
        launch: `host` where kernels are launched one by one, `graph` where one CUDA graph holds them all.
        parameters: published parameter count, 0 where none is: rows whose graph has another by more than 2 %
            are not trained on.
        devices: how many took part; rows of more than one are kept for reports and are not trained on.
        input_copy: the batch was copied from host to device within the timed iteration.
        weight: how much the row counts beside the others of its source, e.g. 1/n of n equal nodes.
        narrow_norms: layer and group norms ran in 16 bits under autocast.
        compiler_release: framework version that decides what a compiler fuses; 0 where the newest fuses the
            same.
    """

    graph: str
    model: str
    family: str
    device: str
    device_group: str
    batch: int
    measured_s: float
    mode: Mode
    precision: Precision
    runtime: Runtime = Runtime.EAGER
    layout: Layout = Layout.NCHW
    optimizer: Optimizer = Optimizer.NONE
    framework: str = "torch"
    framework_version: float = 0.0
    cuda: float = 0.0
    launch: str = "host"
    parameters: int = 0
    devices: int = 1
    input_copy: bool = False
    weight: float = 1.0
    compiler_release: float = 0.0
    narrow_norms: bool = False

    @property
    def job(self) -> Job:
        """What decides the program, the batch apart."""
        compiled = self.runtime is Runtime.COMPILED
        release = self.compiler_release if compiled else self.framework_version
        return Job(
            self.graph,
            self.mode,
            self.precision,
            self.optimizer,
            self.runtime,
            self.layout,
            release_of_lowering(self.runtime, release),
            self.narrow_norms,
        )


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """A graph and how it runs: one program per batch size."""

    graph: str
    mode: Mode
    precision: Precision
    optimizer: Optimizer
    runtime: Runtime
    layout: Layout
    release: float = 0.0
    """Of the framework, as `release_of_lowering` gives it."""
    narrow_norms: bool = False


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Rows of one source, and how many were left out by reason."""

    rows: tuple[WholeModelRow, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def available(self) -> int:
        """Rows of the source that are about one device's whole iteration, used or not."""
        return len(self.rows) + sum(self.dropped.values())


def gathered(found: Iterable[WholeModelRow | str]) -> ReadRows:
    """Rows, and the reasons that stand in the place of others."""
    rows: list[WholeModelRow] = []
    reasons: list[str] = []
    for item in found:
        if isinstance(item, str):
            reasons.append(item)
        else:
            rows.append(item)
    return ReadRows(tuple(rows), counted(reasons))


_IN_COLUMNS = ("graph", "device", "measured_s", "device_group", "family")


def measurements(rows: Iterable[WholeModelRow], source: str) -> pl.DataFrame:
    """Rows in the measurement schema: subject is the graph's key, everything else is configuration."""
    import polars as pl

    listed = list(rows)
    facts = [asdict(row) for row in listed]
    return pl.DataFrame(
        {
            "subject": [row.graph for row in listed],
            "subject_kind": "model",
            "device": [row.device for row in listed],
            "configuration": [
                canonical({key: value for key, value in fact.items() if key not in _IN_COLUMNS})
                for fact in facts
            ],
            "quantity": QUANTITY,
            "value": [row.measured_s for row in listed],
            "unit": "s",
            "scope": "host_wall",
            "source": source,
            "device_group": [row.device_group for row in listed],
            "model_group": [row.family for row in listed],
        }
    )


def whole_model_rows(corpus: Path, source: str) -> list[WholeModelRow]:
    """The rows of a built source. Raises InvalidData: absent."""
    frame = read_source(corpus, source)
    columns = ("subject", "device", "configuration", "value", "device_group", "model_group")
    return [_row(*cells) for cells in frame.select(columns).iter_rows()]


def _row(
    graph: str, device: str, configuration: str, value: float, device_group: str, family: str
) -> WholeModelRow:
    facts: dict[str, Any] = json.loads(configuration)
    choices = {name: kind(facts.pop(name)) for name, kind in _CHOICES.items()}
    return WholeModelRow(
        graph=graph,
        device=device,
        measured_s=value,
        device_group=device_group,
        family=family,
        **choices,
        **facts,
    )


_CHOICES: Mapping[str, Callable[[str], Any]] = {
    "mode": Mode,
    "precision": Precision,
    "runtime": Runtime,
    "layout": Layout,
    "optimizer": Optimizer,
}


def reader(source: str) -> Any:
    """The module that reads `source`. Raises InvalidData for a source without whole-model rows."""
    if source not in READERS:
        raise InvalidData(f"source {source}: holds no whole-model rows; those that do: {', '.join(READERS)}")
    return import_module(f"predictor.models.corpus.{READERS[source]}")


def counted(reasons: Sequence[str]) -> Mapping[str, int]:
    """Reasons and how often each, most frequent first."""
    return dict(Counter(reasons).most_common())


def source_graph(source: str, root: Path, key: str, batch: int, mode: Mode) -> Graph:
    """The graph of a row. Raises InvalidGraph."""
    graph: Graph = reader(source).graph(root / source, key, batch, mode)
    return graph

"""Peaks of our memory timelines against torch's own tracker of tensors (M4).

`torch.distributed._tools.mem_tracker.MemTracker` watches the storages of a module that runs on fake tensors:
forward, backward, the optimizer's step, twice, as a training loop writes them. Nothing of perfcast takes part
but the choice of CUDA's kernels, without which torch would take those of the CPU. Both of our ways are
compared: the captured module, and the graph of its export with the backward pass derived by rules.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from predictor.errors import PerfcastError
from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow
from predictor.types import Mode, Optimizer, Precision, Recompute, Runtime

GOAL = 0.01
GOAL_FRACTION = 0.10


@dataclass(frozen=True, slots=True)
class Tracked:
    """Peaks of one job in bytes; `exported_bytes` is None where there is no export, `reason` says why."""

    name: str
    job: str
    tracked_bytes: int
    captured_bytes: int
    exported_bytes: int | None
    reason: str = ""

    def error(self, found: int | None) -> float | None:
        """Signed deviation from the tracker."""
        return None if found is None else found / self.tracked_bytes - 1


def track_cases(names: Sequence[str] | None = None) -> list[Tracked]:
    """All cases, or those named. Needs torch."""
    from predictor.evaluation.memory_networks import CASES

    return [_track(case) for case in CASES if names is None or case.name in names]


def _track(case: Any) -> Tracked:
    from predictor.features.torch_capture import TorchModel

    module, inputs = case.make()
    model = TorchModel(module, inputs)
    captured = model.program(mode=Mode.TRAIN, optimizer=case.optimizer, precision=case.precision)
    exported, reason = _exported(TorchModel(*case.plain()) if case.plain else model, case)
    return Tracked(
        case.name,
        f"{case.optimizer.value}, {case.precision.value}",
        sum(tracked_peak(module, inputs, case.optimizer, case.precision).values()),
        captured.memory.live_peak_bytes,
        exported,
        reason,
    )


def _exported(model: Any, case: Any) -> tuple[int | None, str]:
    from predictor.features.programs.program import build_program
    from predictor.features.reading.reader import read_graph
    from predictor.features.torch_capture.fakes import batch_of
    from predictor.features.torch_capture.onnx_export import export_onnx

    try:
        graph = read_graph(export_onnx(model, training=True), batch=batch_of(model.call))
    except PerfcastError as error:
        return None, error.message
    program = build_program(
        graph,
        mode=Mode.TRAIN,
        precision=case.precision,
        optimizer=case.optimizer,
        runtime=Runtime.EAGER,
        recompute=Recompute.FULL if case.plain else Recompute.NONE,
    )
    return program.memory.live_peak_bytes, ""


def tracked_peak(
    module: Any, inputs: tuple[Any, ...], optimizer: Optimizer, precision: Precision = Precision.FP32
) -> Mapping[str, int]:
    """Bytes at the peak of two iterations by torch's own kinds (PARAM, ACT, GRAD, TEMP, OPT, BUFFER, OTH)."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from predictor.features.torch_capture.capture import make_optimizer
    from predictor.features.torch_capture.cuda_choices import CudaChoices
    from predictor.features.torch_capture.fakes import fake_inputs, fake_module

    autocast = precision is Precision.AMP
    with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy = fake_module(module, precision).train()
        args = fake_inputs(inputs, precision, None)
        step = make_optimizer(optimizer, [item for item in copy.parameters() if item.requires_grad])
        tracker = MemTracker()
        tracker.track_external(copy, step, *args)

        def iteration() -> None:
            step.zero_grad()
            with CudaChoices(autocast=autocast):
                with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
                    loss = copy(*args)
                loss.backward()
            step.step()

        with tracker:
            iteration()
            # The tracker knows one iteration at a time; what it has seen so far stays in the peak.
            tracker.reset_mod_stats()
            iteration()
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    return {getattr(kind, "name", str(kind)): size for kind, size in peak.items() if kind != "Total"}


def timeline_rows(tracked: Sequence[Tracked]) -> list[EvaluationRow]:
    """M4: the share of jobs outside 1 %, and the largest deviation, of each of our ways."""
    rows: list[EvaluationRow] = []
    parts = (
        ("capture vs torch's memory tracker", [item.error(item.captured_bytes) for item in tracked]),
        ("ONNX graph vs torch's memory tracker", [item.error(item.exported_bytes) for item in tracked]),
    )
    for group, signed in parts:
        errors = [abs(error) for error in signed if error is not None]
        if errors:
            outside = sum(error > GOAL for error in errors) / len(errors)
            count = len(errors)
            rows.append(
                EvaluationRow("M4", "memory", "none", group, "outside", outside, GOAL_FRACTION, count)
            )
            rows.append(EvaluationRow("M4", "memory", "none", group, "max_ape", max(errors), None, count))
    return rows


def timeline_table(tracked: Sequence[Tracked]) -> Table:
    """Every job: the tracker's peak and the deviations of both of our ways."""
    lines = []
    for item in tracked:
        exported = item.error(item.exported_bytes)
        lines.append(
            (
                item.name,
                item.job,
                f"{item.tracked_bytes / 2**20:.1f}",
                f"{100 * (item.error(item.captured_bytes) or 0.0):+.2f} %",
                item.reason if exported is None else f"{100 * exported:+.2f} %",
            )
        )
    header = ("module", "job", "torch's tracker, MiB", "captured module", "exported graph")
    return Table("Timelines against torch's memory tracker (M4)", header, tuple(lines))

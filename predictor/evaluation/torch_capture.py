"""Captures against torch's own FLOP counter, and against the backward pass derived from ONNX exports (G3).

The counter watches a real run on the CPU: nothing of perfcast takes part. Two of its formulas are corrected,
through its own `custom_mapping`: the weight gradient of a grouped convolution (it counts that of an ungrouped
one), and masked scores of causal attention (it counts them; fused kernels skip them). The CPU's fused
attention, which it does not know, is counted like that of CUDA. Recurrent layers run step by step for it.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow
from predictor.features.programs.work import Phase, Program
from predictor.types import Mode, Optimizer, Precision, Runtime

COUNTER_GOAL, ONNX_FLOPS_GOAL, ONNX_BYTES_GOAL = 0.01, 0.02, 0.10


@dataclass(frozen=True, slots=True)
class Compared:
    """FLOPs of products and convolutions by capture and counter; all FLOPs and bytes by both front ends.

    `onnx_*` are None where torch's exporter cannot write the module; `onnx_error` says why.
    """

    name: str
    forward_flops: int
    backward_flops: int
    counted_forward_flops: int
    counted_backward_flops: int
    captured_flops: int
    captured_bytes: int
    onnx_flops: int | None
    onnx_bytes: int | None
    onnx_error: str = ""

    @property
    def counter_error(self) -> float:
        """The larger deviation of both directions from the counter."""
        return max(
            _deviation(self.forward_flops, self.counted_forward_flops),
            _deviation(self.backward_flops, self.counted_backward_flops),
        )

    @property
    def onnx_flops_error(self) -> float | None:
        """Deviation of the exported graph's backward FLOPs."""
        return None if self.onnx_flops is None else _deviation(self.onnx_flops, self.captured_flops)

    @property
    def onnx_bytes_error(self) -> float | None:
        """Deviation of the exported graph's backward bytes."""
        return None if self.onnx_bytes is None else _deviation(self.onnx_bytes, self.captured_bytes)


def _deviation(value: int, reference: int) -> float:
    return abs(value - reference) / max(1, reference)


def compare_modules(names: Sequence[str] | None = None) -> list[Compared]:
    """All cases, or those named. Needs torch."""
    from predictor.evaluation.torch_layers import LAYERS
    from predictor.evaluation.torch_networks import NETWORKS

    cases = [case for case in (*LAYERS, *NETWORKS) if names is None or case.name in names]
    return [_compare(case.name, *case.make()) for case in cases]


def _compare(name: str, module: Any, inputs: tuple[Any, ...]) -> Compared:
    from predictor.features.torch_capture import TorchModel

    module.train()
    captured = TorchModel(module, inputs).program(mode=Mode.TRAIN)
    exported, error = _exported(module, inputs)
    forward, backward = _counted(module, inputs)
    return Compared(
        name=name,
        forward_flops=matrix_flops(captured, Phase.FORWARD),
        backward_flops=matrix_flops(captured, Phase.BACKWARD),
        counted_forward_flops=forward,
        counted_backward_flops=backward,
        captured_flops=_total(captured, "flops"),
        captured_bytes=_total(captured, "moved_bytes"),
        onnx_flops=None if exported is None else _total(exported, "flops"),
        onnx_bytes=None if exported is None else _total(exported, "moved_bytes"),
        onnx_error=error,
    )


def matrix_flops(program: Program, phase: Phase) -> int:
    """FLOPs of products and convolutions, which is what torch's counter counts."""
    return sum(op.work.matrix_flops for op in program.ops if op.work.phase is phase)


def _total(program: Program, field: str) -> int:
    return sum(getattr(op.work, field) for op in program.ops if op.work.phase is Phase.BACKWARD)


def _counted(module: Any, inputs: tuple[Any, ...]) -> tuple[int, int]:
    """FLOPs forward and backward of a real run on the CPU."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    formulas = _formulas()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The library's fused recurrent layers are unknown to the counter.
        with torch.backends.mkldnn.flags(enabled=False):
            with FlopCounterMode(display=False, custom_mapping=formulas) as forward:
                out = module(*inputs)
            with FlopCounterMode(display=False, custom_mapping=formulas) as backward:
                out.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


def _formulas() -> dict[Any, Callable[..., int]]:
    import torch
    from torch.utils import flop_counter

    aten = torch.ops.aten

    def convolution_backward(
        gradient: Any,
        data: Any,
        weight: Any,
        bias: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        transposed: bool,
        output_padding: Any,
        groups: int,
        mask: Any,
        out_shape: Any = None,
        **_: Any,
    ) -> int:
        def counted(wanted: list[bool]) -> int:
            return int(
                flop_counter.conv_backward_flop(
                    gradient,
                    data,
                    weight,
                    bias,
                    stride,
                    padding,
                    dilation,
                    transposed,
                    output_padding,
                    groups,
                    wanted,
                    out_val=out_shape,
                )
            )

        total = counted([True, False, False]) if mask[0] else 0
        return total + (counted([False, True, False]) // groups if mask[1] else 0)

    def attention(query: Any, key: Any, value: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
        causal = options.get("is_causal", len(rest) > 1 and rest[1])
        return _unmasked(int(flop_counter.sdpa_flop_count(query, key, value)), query, key, causal)

    def attention_backward(
        gradient: Any,
        query: Any,
        key: Any,
        value: Any,
        out: Any,
        log: Any,
        dropout: Any,
        causal: bool,
        out_shape: Any = None,
        **_: Any,
    ) -> int:
        counted = int(flop_counter.sdpa_backward_flop_count(gradient, query, key, value))
        return _unmasked(counted, query, key, causal)

    return {
        aten.convolution_backward: convolution_backward,
        aten._scaled_dot_product_flash_attention_for_cpu: attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
    }


def _unmasked(flops: int, query: Any, key: Any, causal: bool) -> int:
    """The part of the scores on and below the diagonal; torch aligns the mask at the first key."""
    if not causal:
        return flops
    rows, columns = query[-2], key[-2]
    seen = sum(min(row + 1, columns) for row in range(rows))
    return int(flops * seen // (rows * columns))


def _exported(module: Any, inputs: tuple[Any, ...]) -> tuple[Program | None, str]:
    """The program of the module's export, as files of training graphs are written."""
    import torch

    from predictor.features.programs.program import build_program
    from predictor.features.reading.reader import read_graph

    # Exports fold batch norm into convolutions unless told otherwise; other modules take the default.
    changes = (torch.nn.modules.batchnorm._NormBase, torch.nn.modules.dropout._DropoutNd)
    has_modes = any(isinstance(part, changes) for part in module.modules())
    modes = torch.onnx.TrainingMode
    target = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                inputs,
                target,
                dynamo=False,
                opset_version=17,
                training=modes.TRAINING if has_modes else modes.EVAL,
                do_constant_folding=not has_modes,
            )
    except Exception as error:
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        module.train()
    graph = read_graph(target.getvalue())
    program = build_program(
        graph,
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=Optimizer.NONE,
        runtime=Runtime.EAGER,
    )
    return program, ""


def torch_table(compared: Sequence[Compared]) -> Table:
    """One line per module."""
    lines = tuple(
        (
            item.name,
            f"{item.counted_forward_flops:,}",
            f"{item.counted_backward_flops:,}",
            _percent(item.counter_error),
            _percent(item.onnx_flops_error),
            _percent(item.onnx_bytes_error) if not item.onnx_error else item.onnx_error,
        )
        for item in compared
    )
    header = (
        "module",
        "counted forward FLOPs",
        "counted backward FLOPs",
        "capture",
        "ONNX, backward FLOPs",
        "ONNX, backward bytes",
    )
    return Table("Captures: deviation from torch's counter, and of exports from captures", header, lines)


def _percent(error: float | None) -> str:
    return "" if error is None else f"{100 * error:.2f} %"


def torch_suite() -> tuple[list[EvaluationRow], list[Table]]:
    """Rows and table of G3; none where torch is not installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return [], []
    compared = compare_modules()
    return torch_rows(compared), [torch_table(compared)]


def torch_rows(compared: Sequence[Compared]) -> list[EvaluationRow]:
    """G3: the largest deviation of each comparison, and the share of modules outside the goal."""
    rows: list[EvaluationRow] = []
    parts = (
        ("capture vs torch's counter", [item.counter_error for item in compared], COUNTER_GOAL),
        ("ONNX vs capture, backward FLOPs", [item.onnx_flops_error for item in compared], ONNX_FLOPS_GOAL),
        ("ONNX vs capture, backward bytes", [item.onnx_bytes_error for item in compared], ONNX_BYTES_GOAL),
    )
    for group, errors, goal in parts:
        known = [error for error in errors if error is not None]
        if known:
            outside = sum(error > goal for error in known) / len(known)
            rows.append(EvaluationRow("G3", "graphs", "none", group, "max_ape", max(known), goal, len(known)))
            rows.append(EvaluationRow("G3", "graphs", "none", group, "outside", outside, 0.0, len(known)))
    return rows

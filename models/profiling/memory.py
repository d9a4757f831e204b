"""Peaks of training steps on the local GPU: what torch handed out, what it reserved, what the monitor shows.

One case per process, since a runtime's context and an allocator's pools outlive what used them. The monitor's
figure is that of this process alone (`nvidia-smi --query-compute-apps`); where it names no process (in
containers) the device's used memory stands in, which holds other processes' as well.
"""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from predictor.errors import InvalidInput
from predictor.models.corpus.schema import canonical
from predictor.types import Optimizer, Precision
from predictor.units import MIB

STEPS = 20
SOURCE = "memory-profiles"
_QUERY = ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes over all steps; `device_bytes` is None where no monitor tells. `torch` is its release."""

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int | None
    torch: str


def require_gpu() -> str:
    """The name of the GPU that torch would use. Raises InvalidInput where there is none."""
    try:
        import torch
    except ModuleNotFoundError:
        raise InvalidInput("memory on a GPU: torch is not installed; pip install 'perfcast[torch]'") from None
    if not torch.cuda.is_available():
        raise InvalidInput(
            "memory on a GPU: torch sees no CUDA device here; run this on a machine with a GPU and a CUDA "
            "build of torch"
        )
    return str(torch.cuda.get_device_name())


def measure_peaks(
    module: Any,
    inputs: Sequence[Any],
    optimizer: Optimizer,
    precision: Precision = Precision.FP32,
    steps: int = STEPS,
) -> Peaks:
    """Peaks of `steps` training steps of a module that returns its loss. Raises InvalidInput: no GPU."""
    require_gpu()
    import torch

    torch.cuda.reset_peak_memory_stats()
    seen: list[int] = []

    def watch() -> None:
        used = monitored_bytes(os.getpid())
        seen.append(_used_bytes() if used is None else used)

    train_steps(module, inputs, optimizer, precision, device="cuda", steps=steps, after_step=watch)
    return Peaks(
        int(torch.cuda.max_memory_allocated()),
        int(torch.cuda.max_memory_reserved()),
        max(seen),
        str(torch.__version__),
    )


def train_steps(
    module: Any,
    inputs: Sequence[Any],
    optimizer: Optimizer,
    precision: Precision,
    *,
    device: str,
    steps: int,
    after_step: Any = None,
) -> list[float]:
    """Runs the steps on real tensors and returns the losses: zero_grad, forward, backward, step.

    Args:
        module: on any device, `meta` included: its weights are drawn anew. Returns its loss.
        inputs: shapes and types matter; integers become zeros, which every table of words and classes has.
        after_step: called after every step.
    """
    import torch

    from predictor.features.torch_capture.capture import make_optimizer

    narrow = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}.get(precision)
    model = _materialised(module, device, narrow).train()
    batch = [_real(tensor, device, narrow) for tensor in inputs]
    step = make_optimizer(optimizer, [item for item in model.parameters() if item.requires_grad])
    autocast = torch.autocast(device, dtype=torch.float16, enabled=precision is Precision.AMP)
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps):
            step.zero_grad()
            with autocast:
                loss = model(*batch)
            loss.backward()
            step.step()
            losses.append(float(loss.detach()))
            if after_step is not None:
                after_step()
    return losses


def _materialised(module: Any, device: str, narrow: Any) -> Any:
    """The module with weights on the device, small random ones where it had none."""
    import torch

    generator = torch.Generator(device=device).manual_seed(1)
    tensors = [*module.parameters(), *module.buffers()]
    if any(tensor.is_meta for tensor in tensors):
        module = module.to_empty(device=device)
        with torch.no_grad():
            for tensor in module.parameters():
                tensor.normal_(0.0, 0.02, generator=generator)
            for name, tensor in module.named_buffers():
                tensor.fill_(1 if name.endswith("running_var") else 0)
    module = module.to(device)
    return module if narrow is None else module.to(narrow)


def _real(tensor: Any, device: str, narrow: Any) -> Any:
    import torch

    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
    return torch.rand(tensor.shape, dtype=narrow or tensor.dtype, device=device)


def monitored_bytes(pid: int) -> int | None:
    """What nvidia-smi shows for a process; None where it shows none."""
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_monitor(done.stdout, pid)


def parse_monitor(text: str, pid: int) -> int | None:
    """Bytes of the process in lines of `pid, MiB`; None where no line names it with a number."""
    for line in text.splitlines():
        first, _, second = (part.strip() for part in line.partition(","))
        if first == str(pid) and second.isdecimal():
            return int(second) * MIB
    return None


def _used_bytes() -> int:
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def memory_rows(
    subject: str, device: str, configuration: Mapping[str, object], peaks: Peaks, *, group: str = ""
) -> list[dict[str, object]]:
    """The peaks as rows of the measurement schema (models.corpus.schema).

    Args:
        device: catalogue id. configuration: what was fixed: optimizer, precision, shapes, steps.
        group: family of networks that leaves an evaluation together; by default the subject.
    """
    kinds = (
        ("allocated", "allocator_peak_memory", "allocator", peaks.allocated_bytes),
        ("reserved", "allocator_peak_memory", "allocator", peaks.reserved_bytes),
        ("device", "device_peak_memory", "device_monitor", peaks.device_bytes),
    )
    fixed = {**configuration, "torch": peaks.torch, "mode": "train"}
    return [
        {
            "subject": subject,
            "subject_kind": "model",
            "device": device,
            "configuration": canonical({**fixed, "memory": kind}),
            "quantity": quantity,
            "value": float(value),
            "unit": "bytes",
            "scope": scope,
            "source": SOURCE,
            "device_group": device,
            "model_group": group or subject,
        }
        for kind, quantity, scope, value in kinds
        if value
    ]

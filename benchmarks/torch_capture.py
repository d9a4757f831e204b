"""Captured torch modules: against torch's FLOP counter, against their exports, and how long a capture takes.

    python benchmarks/torch_capture.py [--write]

CPU time, not wall time; every capture of the first table runs in a fresh process. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median

from record import ROOT, table, write

from predictor.evaluation.torch_capture import compare_modules, torch_rows, torch_table

REPEATS = 5

_CAPTURE = """
import json, time
clock = time.process_time
started = clock()
import torch
imported = clock() - started
# torch loads its compiler when the first fake-tensor mode or optimizer is made.
started = clock()
import torch._dynamo
compiler = clock() - started
from predictor.evaluation.torch_networks import resnet
from predictor.features.torch_capture import TorchModel
from predictor.types import Mode, Optimizer
with torch.device("meta"):
    module = resnet()
image = torch.empty(32, 3, 224, 224, device="meta")
found = {"import torch": imported, "import torch._dynamo": compiler}
for name, mode, optimizer in (
    ("inference, first capture", Mode.INFER, Optimizer.NONE),
    ("training with Adam, first capture", Mode.TRAIN, Optimizer.ADAM),
    ("training with Adam, again", Mode.TRAIN, Optimizer.ADAM),
):
    started = clock()
    capture = TorchModel(module, image).capture(mode=mode, optimizer=optimizer)
    found[name] = clock() - started
    found["calls"] = len(capture.calls)
model = TorchModel(module, image)
model.capture(mode=Mode.TRAIN, optimizer=Optimizer.ADAM)
started = clock()
program = model.program(mode=Mode.TRAIN, optimizer=Optimizer.ADAM)
found["pricing the calls"] = clock() - started
print(json.dumps(found))
"""


def timings() -> dict[str, float]:
    """Median CPU seconds of each part over fresh processes."""
    samples = []
    for _ in range(REPEATS):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _CAPTURE],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        samples.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return {name: median(sample[name] for sample in samples) for name in samples[0]}


def main() -> int:
    """Compares and times; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/torch-capture.md")
    options = parser.parse_args()
    found = timings()
    compared = compare_modules()
    rows = torch_rows(compared)
    for row in rows:
        print(f"{row.id} {row.group} {row.metric}: {row.value:.4g} (goal {row.goal}, n {row.n})")
    budgets = {name: "<= 1 s (G5)" for name in found if "capture" in name or "again" in name}
    lines = [
        (name, f"{1e3 * value:.0f} ms", budgets.get(name, ""))
        for name, value in found.items()
        if name != "calls"
    ]
    for name, value, _ in lines:
        print(f"G5 {name}: {value}")
    if options.write:
        import torch

        scores = table(
            ("comparison", "modules", "largest deviation", "outside the goal"),
            [
                (
                    worst.group,
                    str(worst.n),
                    f"{worst.value:.2%} (goal {worst.goal:.0%})",
                    f"{outside.value:.1%}",
                )
                for worst, outside in zip(rows[::2], rows[1::2], strict=True)
            ],
        )
        calls = f"{found['calls']:.0f} calls; medians of {REPEATS} fresh processes."
        body = "\n\n".join(
            (
                f"torch {torch.__version__}. {NOTES}",
                f"## Scores (G3)\n\n{scores}",
                f"## A capture of ResNet-50, batch 32 (G5)\n\n{table(('what', 'CPU time', 'budget'), lines)}",
                calls,
                torch_table(compared).markdown(),
            )
        )
        path = write(
            "torch-capture",
            "Captured torch modules",
            "python benchmarks/torch_capture.py --write",
            "none",
            body,
        )
        print(f"wrote {path}")
    missed = any(row.goal is not None and row.value > row.goal for row in rows)
    late = any(found[name] > 1.0 for name in budgets)
    return int(missed or late)


NOTES = """\
The counter is `torch.utils.flop_counter.FlopCounterMode` on a real run on the CPU, forward and backward
apart; it counts products, convolutions and fused attention. Corrections, through its own
`custom_mapping`:

- weight gradient of a grouped convolution: the counter takes it for that of an ungrouped one, `groups`
  times too many;
- causal attention: the counter counts masked scores; fused kernels skip them, and so do we;
- the CPU's fused attention, which it does not know, is counted like the CUDA kernels;
- recurrent layers run step by step (oneDNN off): the library's fused call is unknown to it. The first step
  has no gradient of a state to make, which is the deviation of 0.1 to 0.2 %.

`ONNX` is the backward pass that perfcast derives from the module's export (torch.onnx, opset 17), compared
with the captured one: all FLOPs, and bytes moved by every kernel."""


if __name__ == "__main__":
    raise SystemExit(main())

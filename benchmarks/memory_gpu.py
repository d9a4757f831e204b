"""Peak memory of training steps on the GPU of this machine beside our predictions (M6).

    python benchmarks/memory_gpu.py --device CATALOGUE-ID [--case NAME ...] [--steps 20] [--out FILE.csv]

The jobs are those of `predictor.evaluation.memory_networks`: convolutional, vision and language networks,
four optimizers, four precisions. Each runs in a process of its own. `--out` writes rows of the measurement
schema, one for what torch allocated, one for what it reserved, one for what nvidia-smi showed. Without a GPU
it ends with exit code 3.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from record import table, write

if TYPE_CHECKING:
    from predictor.evaluation.memory_networks import MemoryCase
    from predictor.models.profiling.memory import Peaks
    from predictor.types import Prediction


def named(names: Sequence[str]) -> list[MemoryCase]:
    """Cases by name, or all. Raises UnknownName."""
    from predictor.errors import UnknownName
    from predictor.evaluation.memory_networks import CASES

    known = {case.name: case for case in CASES}
    for name in names:
        if name not in known:
            raise UnknownName.among("case", name, known)
    return [known[name] for name in names] if names else list(CASES)


def measure_here(name: str, steps: int) -> Peaks:
    """One case in this process."""
    from predictor.models.profiling.memory import measure_peaks

    (case,) = named([name])
    module, inputs = case.make()
    return measure_peaks(module, inputs, case.optimizer, case.precision, steps)


def measure_apart(name: str, steps: int) -> Peaks | str:
    """One case in a fresh process, or the last line of what went wrong there."""
    from predictor.models.profiling.memory import Peaks

    command = [sys.executable, __file__, "--one", name, "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    return Peaks(**json.loads(done.stdout.strip().splitlines()[-1]))


def predicted(case: MemoryCase, device: str) -> Prediction:
    """Our answer to the same job."""
    from predictor.api import Predictor
    from predictor.types import Mode

    module, inputs = case.make()
    return Predictor.load().predict(
        module=module,
        example_inputs=inputs,
        device=device,
        mode=Mode.TRAIN,
        optimizer=case.optimizer,
        precision=case.precision,
    )


def run(names: Sequence[str], device: str, steps: int, out: Path | None, write_it: bool) -> None:
    """Measures, prints the table, writes the rows."""
    from predictor.hardware.catalog import find_device
    from predictor.models.bundle import Bundle
    from predictor.models.corpus.schema import COLUMNS
    from predictor.models.profiling.memory import memory_rows, require_gpu

    gpu = require_gpu()
    found = find_device(device).id
    rows: list[dict[str, object]] = []
    lines: list[tuple[str, ...]] = []
    for case in named(names):
        peaks = measure_apart(case.name, steps)
        if isinstance(peaks, str):
            lines.append((case.name, peaks, "", "", "", ""))
            continue
        fixed = {"optimizer": case.optimizer.value, "precision": case.precision.value, "steps": steps}
        rows += memory_rows(case.name, found, fixed, peaks)
        answer = predicted(case, found)
        seen = peaks.device_bytes or 0
        error = answer.device_peak_bytes.value / seen - 1 if seen else None
        lines.append(
            (
                case.name,
                f"{peaks.allocated_bytes / 2**20:,.0f}",
                f"{peaks.reserved_bytes / 2**20:,.0f}",
                f"{seen / 2**20:,.0f}",
                f"{answer.device_peak_bytes.value / 2**20:,.0f}",
                "" if error is None else f"{100 * error:+.1f} %",
            )
        )
    header = ("job", "allocated MiB", "reserved MiB", "device MiB", "predicted device MiB", "error")
    body = f"{gpu}, {steps} steps each.\n\n" + table(header, lines)
    print(body)
    if out is not None:
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(COLUMNS))
            writer.writeheader()
            writer.writerows(rows)
    if write_it:
        command = f"python benchmarks/memory_gpu.py --device {device} --write"
        print(write("memory-gpu", "Peak memory on a GPU", command, Bundle.load().id, body))


def main() -> int:
    """Exit code 3 without a GPU or with a name that nobody knows."""
    from predictor.errors import PerfcastError

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", help="catalogue id of the GPU, e.g. h100-sxm-80gb")
    parser.add_argument("--case", action="append", default=[], help="repeatable; default: all")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="CSV of rows in the measurement schema")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/memory-gpu.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        if given.one:
            print(json.dumps(asdict(measure_here(given.one, given.steps))))
            return 0
        if given.device is None:
            parser.error("--device is needed: which entry of the catalogue this GPU is")
        run(given.case, given.device, given.steps, given.out, given.write)
    except PerfcastError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

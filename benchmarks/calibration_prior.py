"""Learns how devices differ from their predictions, on devices that the bundle's op rows do not hold.

    python benchmarks/calibration_prior.py [--write]

Whole-model rows of the corpus, one device each, are predicted by the bundle that ships; chips of its operator
rows are left out. With --write the prior goes to models/data/calibration_prior.json.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from predictor.api.calibrate import PRIOR_PATH
from predictor.compose.calibrated import calibration_sample
from predictor.compose.time import price_program
from predictor.features.programs.program import build_program
from predictor.hardware.catalog import find_device
from predictor.models.bundle import Bundle
from predictor.models.corpus.build import data_root
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.whole_model import WholeModelRow, reader, source_graph
from predictor.models.device_calibration import FACTORS, Sample, learn_prior
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.train import OP_DEVICES
from predictor.types import Precision

SOURCES = ("lambda_pytorch", "pytorch_gpu_benchmark")
_LEAST_ROWS = 8


def samples_by_chip(root: Path, bundle: Bundle) -> dict[str, list[Sample]]:
    """Predicted and measured jobs of every chip that the op rows do not hold; equal cells once."""
    model = OpTimeModel.from_bundle(bundle)
    seen = {chip_of(device) for device in OP_DEVICES}
    programs: dict[object, object] = {}
    found: dict[str, list[Sample]] = defaultdict(list)
    for source in SOURCES:
        cells: dict[object, WholeModelRow] = {}
        for row in reader(source).read_rows(root / source).rows:
            if row.devices == 1 and row.device_group not in seen and row.precision is not Precision.FP64:
                cells.setdefault((row.job, row.batch, row.device, row.framework_version), row)
        for row in cells.values():
            key = (row.job, row.batch)
            if key not in programs:
                programs[key] = build_program(
                    source_graph(source, root, row.graph, row.batch, row.mode),
                    mode=row.mode,
                    precision=row.precision,
                    optimizer=row.optimizer,
                    runtime=row.runtime,
                )
            program = programs[key]
            costs = price_program(program, find_device(row.device), model)
            found[row.device].append(calibration_sample(program, costs, row.runtime, row.measured_s))
    return {device: samples for device, samples in found.items() if len(samples) >= _LEAST_ROWS}


def main() -> None:
    """Prints the prior; writes it with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    bundle = Bundle.load()
    groups = samples_by_chip(data_root(), bundle)
    prior = learn_prior(list(groups.values()))
    for name, width in zip(FACTORS, prior.widths, strict=True):
        print(f"{name:10s} {width:.3f}")
    print(f"{'noise':10s} {prior.noise:.3f}   {len(groups)} devices, {sum(map(len, groups.values()))} jobs")
    if write:
        content = {
            "prior": prior.to_json(),
            "bundle": bundle.id,
            "devices": sorted(groups),
            "jobs": sum(map(len, groups.values())),
            "command": "python benchmarks/calibration_prior.py --write",
        }
        PRIOR_PATH.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

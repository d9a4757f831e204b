"""Learns how devices differ from their predictions, on chips left out of the step model.

    python benchmarks/calibration_prior.py [--write]

Whole-model rows of the corpus are predicted by fits without their chip, as training measures its intervals.
With --write the prior goes to models/data/calibration_prior.json.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from predictor.api.calibrate import PRIOR_PATH
from predictor.evaluation.few_rows import job_samples
from predictor.evaluation.whole_model_sources import machine_of
from predictor.hardware.catalog import find_device
from predictor.models.bundle import Bundle
from predictor.models.device_calibration import FACTORS, Sample, learn_prior
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.steps.kernels import FAMILY as KERNELS
from predictor.models.steps.step_time import DEVICE
from predictor.models.steps.training import (
    CALIBRATION,
    CHIP_FOLDS,
    JUDGED,
    Refits,
    group_folds,
    step_tables,
    thinned,
)
from predictor.models.train import SEED

SOURCES = JUDGED | {"pytorch_gpu_benchmark"}
_LEAST_ROWS, _THINNING = 6, 8


def samples_by_machine(corpus: Path, bundle: Bundle) -> dict[str, list[Sample]]:
    """Predicted and measured jobs of every machine, by fits that saw no row of its chip."""
    op_time = OpTimeModel.from_bundle(bundle)
    table = step_tables(corpus, op_time, find_device, seed=SEED)[DEVICE]
    table = table.take(thinned(table, _THINNING))
    judged = np.isin(table.source, sorted(SOURCES)) & (table.text("family") != KERNELS)
    fold = group_folds(table.text("device_group"), CHIP_FOLDS, SEED)
    refits = Refits(table, find_device, CALIBRATION[DEVICE], SEED)
    found: dict[str, list[Sample]] = defaultdict(list)
    for number in range(CHIP_FOLDS):
        own = table.take(judged & (fold == number))
        samples = job_samples(refits.without(fold == number), own, harness=True)
        for row, source, sample in zip(own.rows, own.source, samples, strict=True):
            found[" ".join((source, *machine_of(row)))].append(sample)
    return {name: samples for name, samples in found.items() if len(samples) >= _LEAST_ROWS}


def main() -> None:
    """Prints the prior; writes it with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--corpus", type=Path, default=Path(".corpus"))
    arguments = parser.parse_args()
    bundle = Bundle.load()
    machines = samples_by_machine(arguments.corpus, bundle)
    prior = learn_prior(list(machines.values()))
    for name, width in zip(FACTORS, prior.widths, strict=True):
        print(f"{name:14s} {width:.3f}")
    jobs = sum(map(len, machines.values()))
    print(f"{'noise':14s} {prior.noise:.3f}   {len(machines)} machines, {jobs} jobs")
    if arguments.write:
        content = {
            "prior": prior.to_json(),
            "bundle": bundle.id,
            "machines": sorted(machines),
            "jobs": jobs,
            "command": "python benchmarks/calibration_prior.py --write",
        }
        PRIOR_PATH.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Trains every model from a built corpus and writes one bundle. Same corpus, same seed: same bundle id."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from predictor.hardware.catalog import find_device
from predictor.hardware.spec import DeviceSpec
from predictor.models.bundle import DEFAULT_PATH, Json, TrainedModel, write_bundle
from predictor.models.corpus.build import Progress, read_index, silent
from predictor.models.corpus.manifest import load_manifest
from predictor.models.op_rows import load_tables
from predictor.models.op_time import MODEL_NAME as OP_TIME
from predictor.models.op_training import train_op_time

SEED = 20260

OP_SOURCE = "neusight"
OP_DEVICES = ("p4-pcie-8gb", "p100-pcie-16gb", "v100-pcie-32gb", "t4-pcie-16gb", "a100-pcie-40gb")
"""Devices whose operator rows are trained on. The L4 and AMD rows of the same source stay unseen."""

Step = Callable[[Path, int, Progress], tuple[TrainedModel, Mapping[str, Json]]]
"""(corpus, seed, progress) -> (model, metrics of held-out groups)."""


def train(corpus: Path, out: Path | None = None, *, seed: int = SEED, progress: Progress = silent) -> str:
    """Trains all models on `corpus` and writes the bundle to `out` (default: the one the package ships).

    Returns the bundle's id. Raises InvalidData (corpus absent or incomplete), OutputNotWritable.
    """
    sources = _sources(corpus)
    models: dict[str, TrainedModel] = {}
    metrics: dict[str, Json] = {}
    for done, (name, step) in enumerate(STEPS.items()):
        progress(name, done, len(STEPS))
        models[name], metrics[name] = step(corpus, seed, progress)
    identity = write_bundle(
        out or DEFAULT_PATH,
        models,
        {"seed": seed, "sources": sources, "metrics": metrics, "libraries": _libraries()},
    )
    progress("bundle", len(STEPS), len(STEPS))
    return identity


def train_op_time_step(
    corpus: Path, seed: int, progress: Progress
) -> tuple[TrainedModel, Mapping[str, Json]]:
    """Op times from the operator rows of OP_DEVICES."""
    devices: dict[str, DeviceSpec] = {name: find_device(name) for name in OP_DEVICES}
    return train_op_time(load_tables(corpus, OP_SOURCE, devices), devices, seed)


def _later(module: str, function: str) -> Step:
    """A step whose module is imported when it runs: training code is heavy."""

    def run(corpus: Path, seed: int, progress: Progress) -> tuple[TrainedModel, Mapping[str, Json]]:
        step: Step = getattr(import_module(module), function)
        return step(corpus, seed, progress)

    return run


STEPS: Mapping[str, Step] = {
    OP_TIME: train_op_time_step,
}


def _sources(corpus: Path) -> dict[str, Json]:
    """Per source of the corpus: where it is from, and the hashes of its files and of its cleaned rows."""
    manifest = load_manifest()
    table: dict[str, Json] = {}
    for entry in read_index(corpus):
        source = manifest.get(entry.source)
        facts: dict[str, Json] = {"rows": entry.rows, "rows_sha256": entry.sha256}
        if source is not None:
            facts |= {
                "repository": source.repository,
                "commit": source.commit,
                "licence": source.licence,
                "files": {file.path: file.sha256 for file in source.files},
            }
        table[entry.source] = facts
    return table


def _libraries() -> dict[str, Json]:
    # Trees can differ between releases of the library that grew them; the bundle says which one did.
    names = ("numpy", "polars")
    found: dict[str, Json] = {name: version(name) for name in names}
    import xgboost

    return found | {"xgboost": xgboost.__version__, "python": platform.python_version()}

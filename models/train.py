"""Trains every model from a built corpus and writes one bundle. Same corpus, same seed: same bundle id."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from predictor.errors import InvalidData
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import usable_bytes
from predictor.models.bundle import DEFAULT_PATH, Json, TrainedModel, write_bundle
from predictor.models.corpus.aiconfigurator_ops import DEVICES as SYSTEMS
from predictor.models.corpus.build import Progress, missing_sources, read_index, read_source, silent
from predictor.models.corpus.exchanges import SOURCES as EXCHANGE_SOURCES
from predictor.models.corpus.finetune_memory import TABLE as FINETUNE_TABLE
from predictor.models.corpus.manifest import load_manifest
from predictor.models.corpus.megatron_memory import TABLE as GOLDEN_TABLE
from predictor.models.corpus.memory_brackets import DEVICE as BRACKET_DEVICE
from predictor.models.corpus.memory_brackets import TABLE as BRACKET_TABLE
from predictor.models.corpus.memory_features import TABLE as MEMORY_TABLE
from predictor.models.corpus.meters import METERS
from predictor.models.corpus.vidur_frontier import DEVICES as LAYER_DEVICES
from predictor.models.corpus.whole_model import READERS
from predictor.models.memory.allocated import MODEL_NAME as ALLOCATED
from predictor.models.memory.allocated_training import (
    allocated_rows,
    finetune_rows,
    joined_rows,
    train_allocated,
)
from predictor.models.memory.bounds import MODEL_NAME as BOUNDS
from predictor.models.memory.bounds_training import bound_rows, train_bounds
from predictor.models.memory.peak import MODEL_NAME as MEMORY
from predictor.models.memory.training import memory_rows, train_memory
from predictor.models.ops.kernel_tables import load_kernel_tables
from predictor.models.ops.kernel_training import train_kernels
from predictor.models.ops.op_rows import load_tables
from predictor.models.ops.op_time import MODEL_NAME as OP_TIME
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.ops.op_training import train_op_time
from predictor.models.plans.exchange_curves import MODEL_NAME as EXCHANGES
from predictor.models.plans.exchange_training import train_exchanges
from predictor.models.power.board_power import MODEL_NAME as POWER
from predictor.models.power.rows import as_measured, power_samples
from predictor.models.power.serving import MODEL_NAME as SERVING
from predictor.models.power.serving_training import serving_samples, train_serving
from predictor.models.power.training import train_power
from predictor.models.steps.step_time import MODEL_NAME as STEP_TIME
from predictor.models.steps.training import step_tables, train_step_time

SEED = 20260

OP_SOURCE = "neusight"
OP_DEVICES = ("p4-pcie-8gb", "p100-pcie-16gb", "v100-pcie-32gb", "t4-pcie-16gb", "a100-pcie-40gb")
"""Devices whose operator rows are trained on. The L4 and AMD rows of the same source stay unseen."""
KERNEL_SOURCES = ("aiconfigurator-ops", "vidur_frontier")
KERNEL_DEVICES = tuple(
    name for name in (*SYSTEMS.values(), *LAYER_DEVICES.values()) if name != "arc-pro-b60-24gb"
)
"""Devices whose kernels are trained on: all of the sources but the one that was timed through its host."""
MEMORY_SOURCE = "gpumemnet"
POWER_SOURCES = ("zeus-nsdi23", "gaissa-seaa2023-training")
KERNEL_POWER_SOURCE = "aiconfigurator-power"
"""Judged by suite energy, which fits it anew; no answer reads kernel watts yet, so no bundle carries them."""
SERVING_SOURCE = "ml-energy-leaderboard-v3"
"""Served decoders; a corpus without them gives a bundle that answers no such question."""
REQUIRED_SOURCES = (OP_SOURCE, *KERNEL_SOURCES, MEMORY_SOURCE, KERNEL_POWER_SOURCE, *POWER_SOURCES)
"""Without these no bundle is written."""


def train(corpus: Path, out: Path | None = None, *, seed: int = SEED, progress: Progress = silent) -> str:
    """Trains all models on `corpus` and writes the bundle to `out` (default: the one the package ships).

    Returns the bundle's id. Raises InvalidData (corpus absent or incomplete), OutputNotWritable.
    """
    if missing := missing_sources(corpus, REQUIRED_SOURCES):
        remedy = f"perfcast corpus build --out {corpus} {' '.join(f'--source {name}' for name in missing)}"
        raise InvalidData(f"{corpus}: no rows of {', '.join(missing)}; run `{remedy}` first")
    sources = _sources(corpus)
    progress("op times", 0, _STEPS)
    devices = {name: find_device(name) for name in OP_DEVICES}
    op_time, op_metrics = train_op_time(
        load_tables(corpus, OP_SOURCE, devices), devices, seed, kernels=_kernels(corpus, seed)
    )
    step_time, step_metrics = _train_step(corpus, OpTimeModel.from_trained(op_time), seed, progress)
    progress("memory", 1, _STEPS)
    memory = train_memory(memory_rows(read_source(corpus, MEMORY_TABLE)))
    progress("power", 2, _STEPS)
    power = _train_power(corpus, OpTimeModel.from_trained(op_time))
    exchanges, exchange_metrics = _train_exchanges(corpus, seed)
    progress("bundle", 3, _STEPS)
    identity = write_bundle(
        out or DEFAULT_PATH,
        {
            OP_TIME: op_time,
            MEMORY: memory,
            POWER: power,
            **step_time,
            **_train_serving(corpus),
            **exchanges,
            **_train_allocated(corpus, memory),
            **_train_bounds(corpus),
        },
        {
            "seed": seed,
            "sources": sources,
            "metrics": {OP_TIME: op_metrics, **step_metrics, **exchange_metrics},
            "libraries": _libraries(),
        },
    )
    progress("bundle", _STEPS, _STEPS)
    return identity


_STEPS = 4


def _kernels(corpus: Path, seed: int) -> TrainedModel:
    devices = {name: find_device(name) for name in KERNEL_DEVICES}
    return train_kernels(load_kernel_tables(corpus, KERNEL_SOURCES, devices), devices, seed)


def _train_step(
    corpus: Path, op_time: OpTimeModel, seed: int, progress: Progress
) -> tuple[dict[str, TrainedModel], dict[str, Json]]:
    """Corrections from whole-model timings by model name; nothing where the corpus holds none."""
    if len(missing_sources(corpus, READERS)) == len(READERS):
        return {}, {}
    tables = step_tables(corpus, op_time, find_device, seed=seed, progress=progress)
    trained, metrics = train_step_time(tables, find_device, seed, progress=progress)
    return {STEP_TIME: trained}, {STEP_TIME: metrics}


def _train_power(corpus: Path, op_time: OpTimeModel) -> TrainedModel:
    import polars as pl

    rows = pl.concat([read_source(corpus, source) for source in POWER_SOURCES])
    return train_power([as_measured(sample) for sample in power_samples(rows, op_time, find_device)])


def _train_exchanges(corpus: Path, seed: int) -> tuple[dict[str, TrainedModel], dict[str, Json]]:
    """Times of collectives from all sources that the corpus holds; nothing where it holds none."""
    held = [name for name in EXCHANGE_SOURCES if not missing_sources(corpus, (name,))]
    if not held:
        return {}, {}
    trained, metrics = train_exchanges((read_source(corpus, name) for name in held), seed)
    return {EXCHANGES: trained}, {EXCHANGES: metrics}


def _train_serving(corpus: Path) -> dict[str, TrainedModel]:
    if missing_sources(corpus, (SERVING_SOURCE,)):
        return {}
    return {SERVING: train_serving(serving_samples(read_source(corpus, SERVING_SOURCE)))}


def _train_allocated(corpus: Path, memory: TrainedModel) -> dict[str, TrainedModel]:
    """The correction of plans' memory, where the corpus holds the tables of jobs with plans."""
    if not all((corpus / f"{name}.parquet").is_file() for name in (GOLDEN_TABLE, FINETUNE_TABLE)):
        return {}
    context_bytes = memory.params["context_bytes"]
    assert isinstance(context_bytes, float)
    rows = joined_rows(
        allocated_rows(read_source(corpus, GOLDEN_TABLE)),
        finetune_rows(read_source(corpus, FINETUNE_TABLE), context_bytes),
    )
    return {ALLOCATED: train_allocated(rows)}


def _train_bounds(corpus: Path) -> dict[str, TrainedModel]:
    """Which jobs run within a capacity, where the corpus holds the table of those that ran or failed."""
    if not (corpus / f"{BRACKET_TABLE}.parquet").is_file():
        return {}
    rows = bound_rows(read_source(corpus, BRACKET_TABLE))
    return {BOUNDS: train_bounds(rows, usable_bytes(find_device(BRACKET_DEVICE)))}


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
        table[entry.source] = facts | source_meter(entry.source)
    return table


def source_meter(source: str) -> dict[str, Json]:
    """Who read the watts of a source; empty where it holds none."""
    meter = METERS.get(source)
    return {} if meter is None else {"meter": asdict(meter)}


def _libraries() -> dict[str, Json]:
    # Trees can differ between releases of the library that grew them; the bundle says which one did.
    names = ("numpy", "polars")
    found: dict[str, Json] = {name: version(name) for name in names}
    import xgboost

    return found | {"xgboost": xgboost.__version__, "python": platform.python_version()}

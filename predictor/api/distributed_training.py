"""The step correction trained on published runs as a bundle composes them, and added to that bundle.

Composing needs the trained models of single ops, so this follows `perfcast train`:

    python -m predictor.api.distributed_training ROOT CORPUS BUNDLE
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from predictor.api.distributed_rows import composed_rows
from predictor.api.predictor import Predictor
from predictor.models.bundle import Bundle, Json, TrainedModel, write_bundle
from predictor.models.corpus.build import Progress, silent
from predictor.models.corpus.distributed import DistributedRow, read_published
from predictor.models.plans.plan_calibration import PlanPoint, plan_point
from predictor.models.plans.step_correction import MODEL_NAME, StepFacts
from predictor.models.plans.step_correction_training import (
    CorrectionTable,
    correction_table,
    train_step_correction,
)

SEED = 20260


def published_table(
    root: Path, corpus: Path, bundle: Bundle, *, progress: Progress = silent
) -> CorrectionTable:
    """Every published run that can be composed with the models of `bundle`.

    Args:
        root: raw sources. corpus: keeps the composed facts.

    Raises InvalidData: the table is absent.
    """
    return table_of(*published_runs(root, corpus, bundle, progress=progress))


def published_runs(
    root: Path, corpus: Path, bundle: Bundle, *, progress: Progress = silent
) -> tuple[tuple[DistributedRow, ...], Mapping[str, StepFacts]]:
    """The runs that can be composed, and their facts by row id; arguments and errors as `published_table`."""
    rows = read_published(root / "curated").rows
    facts = composed_rows(rows, Predictor(bundle), bundle, corpus, progress=progress)
    return tuple(row for row in rows if row.row_id in facts), facts


def plan_points(rows: tuple[DistributedRow, ...], facts: Mapping[str, StepFacts]) -> tuple[PlanPoint, ...]:
    """What the calibration of plans reads of each row."""
    return tuple(plan_point(facts[row.row_id], row.recipe.layers) for row in rows)


def table_of(rows: tuple[DistributedRow, ...], facts: Mapping[str, StepFacts]) -> CorrectionTable:
    """Rows that have facts, as training sees them."""
    used = [row for row in rows if row.row_id in facts]
    return correction_table(
        [facts[row.row_id] for row in used],
        [row.measured_s for row in used],
        [row.source for row in used],
        [row.model for row in used],
        [row.device for row in used],
        [row.tuned for row in used],
    )


def add_step_correction(
    root: Path, corpus: Path, path: Path, *, seed: int = SEED, progress: Progress = silent
) -> str:
    """Adds the model to the bundle at `path` (and replaces one that is there); returns the new id.

    Raises InvalidData, InvalidBundle, OutputNotWritable.
    """
    bundle = Bundle.load(path)
    trained, metrics = train_step_correction(published_table(root, corpus, bundle, progress=progress), seed)
    entries = bundle.manifest["models"]
    models = {
        name: TrainedModel(
            {key: (path / part["file"]).read_bytes() for key, part in entry["boosters"].items()},
            entry["params"],
        )
        for name, entry in entries.items()
    }
    reserved = ("schema", "id", "models")
    extra: dict[str, Json] = {key: value for key, value in bundle.manifest.items() if key not in reserved}
    known = extra.get("metrics")
    extra["metrics"] = {**(known if isinstance(known, Mapping) else {}), MODEL_NAME: metrics}
    return write_bundle(path, {**models, MODEL_NAME: trained}, extra)


if __name__ == "__main__":
    sys.stdout.write(add_step_correction(*(Path(argument) for argument in sys.argv[1:4])) + "\n")

"""Peak memory of jobs beyond one device's plain step: golden runs, fine-tuning, fits, timelines (M2-M4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.evaluation.memory_allocated import allocated_suite
from predictor.evaluation.memory_fits import fit_rows, tool_rows
from predictor.evaluation.memory_timeline import timeline_rows, timeline_table, track_cases
from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow
from predictor.models.bundle import Bundle
from predictor.models.corpus import bigscience_memory, finetune_memory, megatron_memory, memory_brackets
from predictor.models.corpus.build import Progress, silent
from predictor.models.corpus.job_tables import job_table
from predictor.models.memory.allocated_training import allocated_rows
from predictor.models.memory.peak import MODEL_NAME

if TYPE_CHECKING:
    pass


def memory_jobs_suite(
    root: Path, corpus: Path, bundle: Bundle, *, progress: Progress = silent
) -> tuple[list[EvaluationRow], list[Table]]:
    """Rows of M2, M3 and M4. Tables that the corpus lacks are built into it.

    Args:
        root: folder of the raw sources.
        corpus: built corpus.
        bundle: gives the runtime's context.
    """
    golden_table, jobs, brackets, plans = (
        job_table(source.TABLE, root, corpus, progress=progress)
        for source in (megatron_memory, finetune_memory, memory_brackets, bigscience_memory)
    )
    context_bytes = float(bundle.params(MODEL_NAME)["context_bytes"])
    golden = allocated_rows(golden_table)
    rows, tables = allocated_suite(golden)
    tracked = track_cases()
    rows += tool_rows(jobs, golden, context_bytes)
    rows += fit_rows(jobs, golden, brackets, plans, context_bytes)
    rows += timeline_rows(tracked)
    return rows, [_shares(rows), *tables, timeline_table(tracked)]


_NAMES = {
    "hit_rate": "right",
    "called_fits": "out of memory, called fits",
    "outside": "outside 1 %",
    "max_ape": "largest deviation",
}


def _shares(rows: Sequence[EvaluationRow]) -> Table:
    """Scores that are shares of decisions or of modules."""
    lines = []
    for row in rows:
        if row.metric in _NAMES:
            goal = "" if row.goal is None else f"{100 * row.goal:.1f} %"
            value = f"{100 * row.value:.2f} %"
            lines.append((row.id, row.group, _NAMES[row.metric], value, goal, str(row.n)))
    return Table("Decisions and timelines", ("id", "group", "score", "value", "goal", "n"), tuple(lines))

"""Evaluation reports in Markdown: the command, the bundle, the scores, and the cells behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from predictor.evaluation.neusight import PUBLISHED, Scored
from predictor.evaluation.rows import EvaluationRow
from predictor.files import write_whole


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table of text cells."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Heading and pipe table."""
        rule = ("---",) * len(self.header)
        lines = ("| " + " | ".join(cells) + " |" for cells in (self.header, rule, *self.lines))
        return f"## {self.title}\n\n" + "\n".join(lines) + "\n"


def scores_table(rows: Sequence[EvaluationRow]) -> Table:
    """One line per group, one column per metric, in per cent."""
    groups = list(dict.fromkeys(row.group for row in rows))
    found = {(row.group, row.metric): row for row in rows}
    lines = []
    for group in groups:
        cells = [_score(found.get((group, metric))) for metric in _METRICS]
        count = next(row.n for row in rows if row.group == group)
        lines.append((group, str(count), *cells))
    header = ("group", "n", "mean error", "median", "90th percentile", "interval coverage", "hit rate")
    return Table("Scores", header, tuple(lines))


_METRICS = ("mape", "median_ape", "p90_ape", "coverage", "hit_rate")


def _score(row: EvaluationRow | None) -> str:
    if row is None:
        return ""
    text = f"{100 * row.value:.1f} %"
    return text if row.goal is None else f"{text} (goal {100 * row.goal:.1f} %)"


def cells_table(scored: Sequence[Scored]) -> Table:
    """Every NeuSight cell: measured, ours with its interval, and the signed errors of all predictors."""
    lines = []
    for item in scored:
        cell, time = item.cell, item.time
        if time is None:
            ours = ("", "", item.reason)
        else:
            ours = (
                f"{time.value * 1e3:.1f}",
                f"{time.low * 1e3:.0f}-{time.high * 1e3:.0f}",
                _signed(time.value, cell.measured_s),
            )
        others = (_signed(cell.published_s.get(name), cell.measured_s) for name in PUBLISHED)
        job = f"{cell.model} {cell.mode} {cell.sequence}x{cell.batch}" + (
            f" {cell.option}" if cell.option else ""
        )
        lines.append((cell.device, job, cell.group, f"{cell.measured_s * 1e3:.1f}", *ours, *others))
    header = ("device", "job", "group", "measured ms", "ours ms", "90 % interval", "ours", *PUBLISHED)
    return Table("Cells (signed errors)", header, tuple(lines))


def _signed(predicted: float | None, measured: float) -> str:
    return "" if predicted is None else f"{100 * (predicted / measured - 1):+.1f} %"


def write_report(
    path: Path, suite: str, bundle_id: str, rows: Sequence[EvaluationRow], tables: Sequence[Table]
) -> None:
    """Writes the report of one suite. Raises OutputNotWritable."""
    date = datetime.now(UTC).date().isoformat()
    head = (
        f"# Evaluation: {suite}\n\n"
        f"Written by `perfcast evaluate --suite {suite} --report docs/benchmarks` on {date}, "
        f"bundle `{bundle_id}`.\n"
    )
    text = "\n".join([head, *(table.markdown() for table in (scores_table(rows), *tables))])
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"), make_folder=True)

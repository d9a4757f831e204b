"""Learning curves from files: epochs to a target by global batch, seeds averaged.

A CSV file with a header: `batch` (or `batch_size`) and `epochs` (or `target_epoch`), one line a run. With a
column `target_metric` the lines of one target are taken; with `dataset` or `network`, those of one workload.
Runs that never reached the target have no number: a batch at which some did not is left out, because the
energy of a run that fails is not known.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from predictor.errors import InvalidInput
from predictor.search.time_to_target import EpochCurve, EpochTable

_BATCH, _EPOCHS, _TARGET = ("batch", "batch_size"), ("epochs", "target_epoch"), "target_metric"
_WORKLOAD = ("dataset", "network")


def read_epochs(
    text: str, target: float | None = None, workload: str | None = None
) -> EpochCurve | EpochTable:
    """A curve from `LEAST:CRITICAL` (epochs of a small batch, batch that needs twice as many) or a CSV file.

    Raises InvalidInput.
    """
    least, colon, critical = text.partition(":")
    if colon:
        try:
            return EpochCurve(float(least), float(critical))
        except ValueError:
            pass
    return load_epochs(Path(text), target, workload)


def load_epochs(path: Path, target: float | None = None, workload: str | None = None) -> EpochTable:
    """The table of a file. Raises InvalidInput naming the column or the line that is wrong."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            lines = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: cannot be read ({error}); expected a CSV file", file=path) from None
    columns = set(lines[0]) if lines else set()
    batch, epochs = _column(_BATCH, columns, path), _column(_EPOCHS, columns, path)
    lines = _of_workload(lines, [name for name in _WORKLOAD if name in columns], workload, path)
    if _TARGET in columns:
        lines = _of_target(lines, target, path)
    elif target is not None:
        raise InvalidInput(f"{path}: a target needs a column {_TARGET}", file=path)
    found: dict[float, list[float | None]] = {}
    for number, line in enumerate(lines, start=2):
        try:
            size, value = float(line[batch]), float(line[epochs] or "nan")
        except (TypeError, ValueError):
            raise InvalidInput(f"{path}: line {number}: expected numbers", file=path) from None
        found.setdefault(size, []).append(value if isfinite(value) else None)
    reached: list[tuple[float, float]] = []
    for size, values in sorted(found.items()):
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            reached.append((size, sum(known) / len(known)))
    if not reached:
        raise InvalidInput(f"{path}: no batch reaches the target in every run", file=path)
    return EpochTable(tuple(reached))


def _column(names: tuple[str, ...], columns: set[str], path: Path) -> str:
    for name in names:
        if name in columns:
            return name
    raise InvalidInput(f"{path}: no column {names[0]!r}; expected a header with batch and epochs", file=path)


def _of_workload(
    lines: list[dict[str, str]], columns: list[str], workload: str | None, path: Path
) -> list[dict[str, str]]:
    """Lines of one job: epochs of different networks say nothing of each other."""
    kept = [line for line in lines if workload is None or workload in (line[name] for name in columns)]
    jobs = sorted({" ".join(str(line[name]) for name in columns) for line in kept or lines})
    if not kept or len(jobs) > 1:
        wanted = "no such workload" if not kept else f"runs of {len(jobs)} workloads"
        raise InvalidInput(
            f"{path}: {wanted}; give one dataset or network with --workload: {', '.join(jobs)}",
            file=path,
        )
    return kept


def _of_target(lines: list[dict[str, str]], target: float | None, path: Path) -> list[dict[str, str]]:
    def value(line: Mapping[str, str]) -> float:
        try:
            return float(line[_TARGET])
        except (TypeError, ValueError):
            raise InvalidInput(f"{path}: {_TARGET} {line[_TARGET]!r} is no number", file=path) from None

    targets = sorted({value(line) for line in lines})
    if target is None and len(targets) == 1:
        return lines
    if target not in targets:
        known = ", ".join(f"{one:g}" for one in targets[:12])
        raise InvalidInput(f"{path}: give one of its targets: {known}", file=path)
    return [line for line in lines if value(line) == target]

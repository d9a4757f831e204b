"""Runs a suite: the rows that `perfcast evaluate` prints, the report it writes and the gate it applies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from predictor.api import Predictor
from predictor.errors import AccuracyGateFailed, InvalidData, UnknownName
from predictor.evaluation import configs, energy, memory, neusight, onnx_node_tests, torch_capture
from predictor.evaluation.report import Table, cells_table, write_report
from predictor.evaluation.rows import EvaluationRow
from predictor.models.bundle import Bundle
from predictor.models.corpus.build import Progress, build_corpus, data_root, silent

RECORD = Path(__file__).with_name("record.json")
"""Rows of the last accepted evaluation of each suite; the gate compares with them."""

# A change of an error by less than this, absolute, is within what refitting on reordered rows moves.
NOISE = 0.005


@dataclass(frozen=True, slots=True)
class Options:
    """Where a suite finds its inputs.

    Attributes:
        root: raw sources (None: PERFCAST_DATA).
        corpus: built corpus; built there when it is absent. Only memory and energy read it.
        bundle: None is the bundle that ships.
        report: folder for the Markdown report, or None for none.
    """

    root: Path | None = None
    corpus: Path = Path(".corpus")
    bundle: Path | None = None
    report: Path | None = None


def evaluate(suite: str, options: Options = Options(), *, progress: Progress = silent) -> list[EvaluationRow]:
    """Rows of one suite. Raises UnknownName (suite), InvalidData, InvalidBundle, OutputNotWritable."""
    runner = SUITES.get(suite)
    if runner is None:
        raise UnknownName.among("suite", suite, SUITES)
    rows, tables = runner(options, progress)
    if options.report is not None:
        write_report(options.report / f"{suite}.md", suite, Bundle.load(options.bundle).id, rows, tables)
    return rows


def gate(suite: str, rows: Sequence[EvaluationRow], record: Path = RECORD) -> None:
    """Raises AccuracyGateFailed, naming every row that is worse than the record by more than NOISE."""
    accepted = _read_record(record).get(suite)
    if accepted is None:
        raise InvalidData(f"{record}: holds no rows of suite {suite}; accept some with --accept first")
    worse = []
    for row in rows:
        before = accepted.get(_row_key(row))
        if before is None:
            continue
        loss = before - row.value if row.metric == "coverage" else row.value - before
        if loss > NOISE:
            worse.append(f"{row.group} {row.metric} {before:.4f} -> {row.value:.4f}")
    missing = sorted(accepted.keys() - {_row_key(row) for row in rows})
    worse += [f"{key} is no longer scored" for key in missing]
    if worse:
        raise AccuracyGateFailed(f"suite {suite}: {'; '.join(worse)}", suite=suite)


def accept(suite: str, rows: Sequence[EvaluationRow], record: Path = RECORD) -> None:
    """Makes `rows` the record that later runs are compared with."""
    known = _read_record(record)
    known[suite] = {_row_key(row): row.value for row in rows}
    record.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _row_key(row: EvaluationRow) -> str:
    return f"{row.group}|{row.metric}"


def _read_record(record: Path) -> dict[str, dict[str, float]]:
    if not record.is_file():
        return {}
    found: dict[str, dict[str, float]] = json.loads(record.read_text(encoding="utf-8"))
    return found


def _neusight(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    cells = neusight.read_cells(data_root(options.root) / "neusight")
    scored = neusight.score_cells(cells, Predictor.load(options.bundle), progress)
    return neusight.neusight_rows(scored), [cells_table(scored)]


def _memory(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    corpus = _corpus(options, progress)
    cells = memory.score_memory(
        data_root(options.root), corpus, Bundle.load(options.bundle), progress=progress
    )
    return memory.memory_evaluation_rows(cells), []


def _energy(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    cells = energy.score_power(_corpus(options, progress), Bundle.load(options.bundle), progress=progress)
    return energy.power_evaluation_rows(cells), []


def _graphs(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    cases = onnx_node_tests.read_cases()
    checked = [onnx_node_tests.check_case(case) for case in cases]
    rows, tables = configs.config_suite()
    captured_rows, captured_tables = torch_capture.torch_suite()
    return (
        [*onnx_node_tests.node_test_rows(checked), *rows, *captured_rows],
        [*onnx_node_tests.node_test_tables(checked), *tables, *captured_tables],
    )


def _corpus(options: Options, progress: Progress) -> Path:
    if not (options.corpus / "corpus.json").is_file():
        build_corpus(options.root, options.corpus, progress=progress)
    return options.corpus


SUITES: Mapping[str, Callable[[Options, Progress], tuple[list[EvaluationRow], list[Table]]]] = {
    "neusight": _neusight,
    "memory": _memory,
    "energy": _energy,
    "graphs": _graphs,
}
"""Suite name -> (rows, tables of the report)."""

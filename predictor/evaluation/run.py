"""Runs a suite: the rows that `perfcast evaluate` prints, the report it writes and the gate it applies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from predictor.api import Predictor
from predictor.api.distributed_training import plan_points, published_runs, table_of
from predictor.errors import AccuracyGateFailed, InvalidData, UnknownName
from predictor.evaluation import (
    architectures,
    collectives,
    configs,
    distributed,
    distributed_published,
    energy,
    memory,
    memory_jobs,
    neusight,
    onnx_node_tests,
    ops,
    ops_layer,
    plan_search,
    scaling,
    time,
    timm_graphs,
    torch_capture,
    whole_model_sources,
)
from predictor.evaluation.held_out import predictor_without
from predictor.evaluation.report import Table, cells_table, write_report
from predictor.evaluation.rows import EvaluationRow
from predictor.files import write_whole
from predictor.models.bundle import Bundle
from predictor.models.corpus.build import Progress, build_corpus, data_root, missing_sources, silent
from predictor.models.corpus.exchanges import SOURCES as EXCHANGE_SOURCES
from predictor.models.corpus.mlperf_power import SOURCE as NODE_SOURCE
from predictor.models.corpus.programs import build_programs
from predictor.models.corpus.sia_pollux import SOURCE as SCALING_SOURCE
from predictor.models.corpus.whole_model import whole_model_rows
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.steps.step_time import MODEL_NAME as STEP_TIME
from predictor.models.steps.training import TRAINED
from predictor.models.train import (
    KERNEL_POWER_SOURCE,
    KERNEL_SOURCES,
    MEMORY_SOURCE,
    OP_SOURCE,
    POWER_SOURCES,
    SERVING_SOURCE,
)

RECORD = Path(__file__).with_name("record.json")
"""Rows of the last accepted evaluation of each suite; the gate compares with them."""

# A change of an error by less than this, absolute, is within what refitting on reordered rows moves.
NOISE = 0.005
_MORE_IS_BETTER = frozenset({"coverage", "hit_rate"})


@dataclass(frozen=True, slots=True)
class Options:
    """Where a suite finds its inputs.

    Attributes:
        root: raw sources (None: PERFCAST_DATA).
        corpus: built corpus; sources that a suite needs and it lacks are built. Memory and energy read it.
        bundle: None is the bundle that ships.
        report: folder for the Markdown report, or None for none.
    """

    root: Path | None = None
    corpus: Path = Path(".corpus")
    bundle: Path | None = None
    report: Path | None = None


def evaluate(suite: str, options: Options = Options(), *, progress: Progress = silent) -> list[EvaluationRow]:
    """Rows of one suite. Raises UnknownName (suite), InvalidData, InvalidBundle, OutputNotWritable."""
    require_suites([suite])
    rows, tables = SUITES[suite](options, progress)
    if options.report is not None:
        write_report(options.report / f"{suite}.md", suite, Bundle.load(options.bundle).id, rows, tables)
    return rows


def require_suites(names: Iterable[str]) -> None:
    """Raises UnknownName for the first name that is no suite."""
    for name in names:
        if name not in SUITES:
            raise UnknownName.among("suite", name, SUITES)


def require_record(suites: Iterable[str], record: Path = RECORD) -> None:
    """Raises InvalidData naming the suites of which no rows were accepted yet."""
    known = _read_record(record)
    if missing := [suite for suite in suites if suite not in known]:
        raise InvalidData(f"{record}: no rows of suite {', '.join(missing)}; accept some with --accept first")


def gate(found: Mapping[str, Sequence[EvaluationRow]], record: Path = RECORD) -> None:
    """Raises AccuracyGateFailed, naming per suite every row that is worse than the record by more than NOISE.

    Raises InvalidData for a suite without a record.
    """
    require_record(found, record=record)
    accepted = _read_record(record)
    losses = {suite: _losses(rows, accepted[suite]) for suite, rows in found.items()}
    failed = [f"suite {suite}: {'; '.join(worse)}" for suite, worse in losses.items() if worse]
    if failed:
        raise AccuracyGateFailed(
            ". ".join(failed), suites=[suite for suite, worse in losses.items() if worse]
        )


def _losses(rows: Sequence[EvaluationRow], accepted: Mapping[str, float]) -> list[str]:
    worse = []
    for row in rows:
        before = accepted.get(_row_key(row))
        if before is None:
            continue
        loss = before - row.value if row.metric in _MORE_IS_BETTER else row.value - before
        if loss > NOISE:
            worse.append(f"{row.group} {row.metric} {before:.4f} -> {row.value:.4f}")
    missing = sorted(accepted.keys() - {_row_key(row) for row in rows})
    return worse + [f"{key} is no longer scored" for key in missing]


def accept(found: Mapping[str, Sequence[EvaluationRow]], record: Path = RECORD) -> None:
    """Makes these rows the record that later runs are compared with; other suites keep theirs."""
    known = _read_record(record)
    known |= {suite: {_row_key(row): row.value for row in rows} for suite, rows in found.items()}
    text = json.dumps(known, indent=1, sort_keys=True) + "\n"
    write_whole(record, lambda path: path.write_text(text, encoding="utf-8"))


def _row_key(row: EvaluationRow) -> str:
    return f"{row.group}|{row.metric}"


def _read_record(record: Path) -> dict[str, dict[str, float]]:
    if not record.is_file():
        return {}
    try:
        found: dict[str, dict[str, float]] = json.loads(record.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidData(f"{record}: is no JSON ({error}); restore it or remove it") from None
    return found


def _neusight(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    cells = neusight.read_cells(data_root(options.root) / "neusight")
    # Whole-model labels of this source train the step model, which suite time scores without them.
    with TemporaryDirectory() as folder:
        predictor = predictor_without(Bundle.load(options.bundle), STEP_TIME, Path(folder) / "bundle")
    scored = neusight.score_cells(cells, predictor, progress)
    return neusight.neusight_rows(scored), [cells_table(scored)]


def _ops(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    corpus = _corpus(options, (OP_SOURCE, *KERNEL_SOURCES), progress)
    layer_rows, layer_tables = ops_layer.layer_suite(OpTimeModel.from_bundle(Bundle.load(options.bundle)))
    rows = [*ops.score_kernels(corpus, progress), *ops.score_vectors(corpus, progress), *layer_rows]
    return rows, [*layer_tables, ops.counts_table(corpus)]


def _memory(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    corpus = _corpus(options, (MEMORY_SOURCE,), progress)
    cells = memory.score_memory(
        data_root(options.root), corpus, Bundle.load(options.bundle), progress=progress
    )
    return memory.memory_evaluation_rows(cells), []


def _memory_jobs(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    return memory_jobs.memory_jobs_suite(
        data_root(options.root), options.corpus, Bundle.load(options.bundle), progress=progress
    )


def _energy(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    needed = (OP_SOURCE, KERNEL_POWER_SOURCE, SERVING_SOURCE, NODE_SOURCE, *POWER_SOURCES)
    corpus = _corpus(options, needed, progress)
    return energy.energy_rows(corpus, Bundle.load(options.bundle), progress=progress), []


def _graphs(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    cases = onnx_node_tests.read_cases()
    checked = [onnx_node_tests.check_case(case) for case in cases]
    rows, tables = configs.config_suite()
    captured_rows, captured_tables = torch_capture.torch_suite()
    timm_rows, timm_tables = timm_graphs.timm_suite(
        data_root(options.root), options.corpus, options.bundle, progress
    )
    return (
        [*onnx_node_tests.node_test_rows(checked), *rows, *captured_rows, *timm_rows],
        [*onnx_node_tests.node_test_tables(checked), *tables, *captured_tables, *timm_tables],
    )


def _distributed(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    published = distributed.read_korthikanti(data_root(options.root) / "curated")
    scored = distributed.score(published, Predictor.load(options.bundle), progress)
    formulas, tables = architectures.architecture_rows()
    runs = published_runs(
        data_root(options.root), options.corpus, Bundle.load(options.bundle), progress=progress
    )
    learned, by_source = distributed_published.published_rows(table_of(*runs), plan_points(*runs))
    searched = plan_search.small_cases(Predictor.load(options.bundle), progress)
    scaled, by_cluster = scaling.scaling_suite(_corpus(options, (SCALING_SOURCE,), progress), progress)
    rows = [
        *distributed.distributed_rows(scored),
        *scaled,
        *learned,
        *formulas,
        *plan_search.search_rows(searched),
    ]
    searches = plan_search.search_table(searched)
    return rows, [distributed.distributed_table(scored), *by_source, *by_cluster, *tables, searches]


def _collectives(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    return collectives.collectives_suite(_corpus(options, EXCHANGE_SOURCES, progress), progress)


def _sources(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    return whole_model_sources.source_suite(data_root(options.root), options.bundle, progress)


def _time(options: Options, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    corpus = _corpus(options, (OP_SOURCE, *TRAINED), progress)
    for source in TRAINED:
        rows = whole_model_rows(corpus, source)
        build_programs(source, rows, data_root(options.root), corpus, progress=progress)
    return time.time_suite(data_root(options.root), corpus, Bundle.load(options.bundle), progress)


def _corpus(options: Options, sources: Sequence[str], progress: Progress) -> Path:
    if missing := missing_sources(options.corpus, sources):
        build_corpus(options.root, options.corpus, only=missing, progress=progress)
    return options.corpus


SUITES: Mapping[str, Callable[[Options, Progress], tuple[list[EvaluationRow], list[Table]]]] = {
    "neusight": _neusight,
    "ops": _ops,
    "memory": _memory,
    "memory-jobs": _memory_jobs,
    "energy": _energy,
    "graphs": _graphs,
    "sources": _sources,
    "time": _time,
    "distributed": _distributed,
    "collectives": _collectives,
}
"""Suite name -> (rows, tables of the report)."""

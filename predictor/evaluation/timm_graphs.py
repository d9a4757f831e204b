"""Multiply-adds and parameters of timm exports against the columns of timm's benchmark tables (G2).

The tables' `gmacs` comes from fvcore's counter, whose definitions are published with its source and listed in
`DEFINITIONS`: it counts products and convolutions as multiply-adds, and adds operations of normalizations,
pooling and resampling to the same number. It counts nothing for fused attention, recurrent layers and
convolutions padded by name ("same"). The goal is judged in that counter's convention, since the reference is
its number: ours with its additions, by its definitions, nothing taken away. The scores of our multiply-adds
as they stand are given beside it, and every pair that they put beyond 1 % is listed with its reason.
"""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from predictor.errors import InvalidData
from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow
from predictor.evaluation.timm_counts import DEVICE, GraphCount, count_graphs
from predictor.models.corpus.build import Progress, silent

_COUNTER_ADDS: Mapping[str, int] = {
    "batch_norm": 2,
    "batch_norm_plain": 1,
    "layer_norm": 5,
    "layer_norm_plain": 4,
    "group_norm": 5,
    "group_norm_plain": 4,
    # Standardized weights go through batch norm in training mode, which counts as any other norm.
    "weight_norm": 5,
    "weight_norm_plain": 4,
    "global_pool": 1,
    "resize_nearest": 1,
    "resize_linear": 4,
    # Of this the counter knows nothing.
    "resize_cubic": 0,
}
"""fvcore 0.1.5, `jit_handles`: operations per element of each op that is no product."""
DEFINITIONS: Sequence[tuple[str, str]] = (
    ("convolution, linear, matmul, einsum", "multiply-adds; a bias counts nothing"),
    ("batch norm, stored statistics", "2 per element of the input; 1 without scale and shift"),
    ("layer, group and instance norm, batch norm of weights", "5 per element of the input; 4 without"),
    ("adaptive average pooling", "1 per element of the input"),
    ("upsampling", "bilinear 4, nearest 1 per element of the output"),
    ("activations, additions, other pooling, softmax", "nothing"),
    ('fused attention, LSTM, convolution with `padding="same"`', "nothing: unknown to it"),
)
"""What the counter counts, as its source says it (`fvcore/nn/jit_handles.py`, `flop_count.py`)."""
MACS_LIMIT, MACS_WIDE_LIMIT, PARAMETER_LIMIT = 0.01, 0.03, 0.005
# gmacs has two decimals.
_ROUNDING_GMACS = 0.005
_TABLE = "timm_benchmarks_all.csv.gz"


@dataclass(frozen=True, slots=True)
class TableValues:
    """What the latest inference tables say of one model and size: every (gmacs, millions of parameters)."""

    values: tuple[tuple[float, float], ...]

    @property
    def gmacs(self) -> float:
        """The largest: later runs miss fused attention."""
        return max(gmacs for gmacs, _ in self.values)

    @property
    def parameters_m(self) -> float:
        """Parameters in the row of `gmacs`."""
        return max(self.values)[1]

    @property
    def disagree(self) -> bool:
        """True when the tables' own values differ by more than the limit."""
        return self.gmacs > (1 + MACS_LIMIT) * min(gmacs for gmacs, _ in self.values)


@dataclass(frozen=True, slots=True)
class Pair:
    """One model and size on both sides."""

    count: GraphCount
    table: TableValues

    @property
    def gmacs(self) -> float:
        """Ours: products and convolutions."""
        return self.count.macs / 1e9

    @property
    def counter_gmacs(self) -> float:
        """Ours with what the tables' counter adds."""
        added = sum(_COUNTER_ADDS.get(name, 0) * count for name, count in self.count.elements.items())
        return self.gmacs + added / 1e9

    @property
    def macs_error(self) -> float:
        """|ours / table - 1|."""
        return abs(self.gmacs / self.table.gmacs - 1)

    @property
    def counter_error(self) -> float:
        """The same in the counter's convention."""
        return abs(self.counter_gmacs / self.table.gmacs - 1)

    @property
    def parameter_error(self) -> float:
        """|ours / table - 1| of parameter counts."""
        return abs(self.count.parameters / 1e6 / self.table.parameters_m - 1)

    def without(self, *kinds: str) -> float:
        """`counter_gmacs` less products of these kinds."""
        return self.counter_gmacs - sum(self.count.products.get(kind, 0) for kind in kinds) / 2e9

    def fits(self, gmacs: float) -> bool:
        """True when a value of any table is `gmacs`, within the limit or its rounding."""
        return any(
            abs(gmacs - found) <= max(MACS_LIMIT * found, _ROUNDING_GMACS) for found, _ in self.table.values
        )

    @property
    def other_model(self) -> bool:
        """The tables timed a model of another size than the exported one."""
        return self.parameter_error > 0.02


_REASONS: Sequence[tuple[str, Callable[[Pair], bool]]] = (
    ("another model: parameter counts differ by more than 2 %", lambda pair: pair.other_model),
    ("gmacs has two decimals", lambda pair: abs(pair.gmacs - pair.table.gmacs) <= _ROUNDING_GMACS),
    (
        "the counter adds normalizations and pooling",
        lambda pair: pair.fits(pair.counter_gmacs),
    ),
    ("the counter misses recurrent layers", lambda pair: pair.fits(pair.without("recurrent"))),
    ("the counter misses fused attention", lambda pair: pair.fits(pair.without("attention"))),
    (
        "the counter misses fused attention",
        lambda pair: pair.fits(pair.without("attention", "product")),
    ),
    (
        'the counter misses depthwise convolutions padded by name ("same")',
        lambda pair: pair.fits(pair.without("depthwise")),
    ),
)
"""Explanations of a pair beyond the limit, the first that holds."""
UNEXPLAINED = "not explained"


def explain(pair: Pair) -> str:
    """Why a pair's multiply-adds differ from the table's; UNEXPLAINED when no rule gives its value."""
    return next((reason for reason, holds in _REASONS if holds(pair)), UNEXPLAINED)


def read_table(folder: Path) -> dict[tuple[str, int], TableValues]:
    """Values by (model without pretrained tag, image size). Raises InvalidData."""
    found: dict[tuple[str, int], set[tuple[float, float]]] = {}
    try:
        with gzip.open(folder / _TABLE, "rt", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["mode"] != "infer" or row["is_latest_version_of_file"].lower() != "true":
                    continue
                if not row["gmacs"] or not row["param_count"] or not float(row["gmacs"]):
                    continue
                key = (row["model"].partition(".")[0], int(float(row["img_size"])))
                found.setdefault(key, set()).add((float(row["gmacs"]), float(row["param_count"])))
    except (OSError, ValueError, KeyError) as error:
        raise InvalidData(f"{folder / _TABLE}: no table of timm benchmarks ({error})") from None
    return {key: TableValues(tuple(sorted(values))) for key, values in found.items()}


def join(counts: Sequence[GraphCount], table: Mapping[tuple[str, int], TableValues]) -> list[Pair]:
    """Graphs that were read, with their tables' values; graphs without a row are left out."""
    return [
        Pair(count, table[count.model, count.image_size])
        for count in counts
        if not count.error and (count.model, count.image_size) in table
    ]


def timm_suite(
    root: Path, cache_folder: Path, bundle: Path | None = None, progress: Progress = silent
) -> tuple[list[EvaluationRow], list[Table]]:
    """Rows and tables of all exports under `root`; minutes of CPU unless `cache_folder` has the counts.

    Raises InvalidData where exports or tables are absent.
    """
    counts = count_graphs(root / "timm_onnx", cache_folder, bundle, progress)
    pairs = join(counts, read_table(root / "timm_benchmarks"))
    return timm_rows(counts, pairs), timm_tables(pairs)


def timm_rows(counts: Sequence[GraphCount], pairs: Sequence[Pair]) -> list[EvaluationRow]:
    """Scores of all pairs, and of those whose table times the exported model; none without pairs."""
    if not pairs:
        return []
    same = [pair for pair in pairs if not pair.other_model]
    rows = [
        _row("timm", "unread", sum(bool(count.error) for count in counts), 0.0, len(counts)),
        _row(
            f"timm, {DEVICE}",
            "max_fallback_fraction",
            max(item.fallback_fraction for item in counts),
            0.01,
            len(counts),
        ),
    ]
    for group, chosen in (("timm", pairs), ("timm, same model", same)):
        conventions: tuple[tuple[str, Callable[[Pair], float]], ...] = (
            ("products alone", lambda pair: pair.macs_error),
            ("the table's counter", lambda pair: pair.counter_error),
        )
        for convention, error in conventions:
            for metric, limit, goal in _MACS:
                share = _within(map(error, chosen), limit)
                rows.append(_row(f"{group}, {convention}", metric, share, goal, len(chosen)))
        share = _within((pair.parameter_error for pair in chosen), PARAMETER_LIMIT)
        rows.append(_row(f"{group}, parameters", "within_half_percent", share, 0.98, len(chosen)))
    unexplained = sum(explain(pair) == UNEXPLAINED for pair in pairs if pair.macs_error > MACS_LIMIT)
    rows.append(_row("timm", "unexplained_outliers", unexplained, 0.0, len(pairs)))
    return rows


_MACS = (("within_1_percent", MACS_LIMIT, 0.90), ("within_3_percent", MACS_WIDE_LIMIT, 0.97))


def _row(group: str, metric: str, value: float, goal: float, count: int) -> EvaluationRow:
    return EvaluationRow("G2", "graphs", "none", group, metric, float(value), goal, count)


def _within(errors: Iterable[float], limit: float) -> float:
    found = [error <= limit for error in errors]
    return sum(found) / len(found)


def timm_tables(pairs: Sequence[Pair]) -> list[Table]:
    """Outliers by reason, every outlier, and pairs whose parameters differ."""
    outliers = [pair for pair in pairs if pair.macs_error > MACS_LIMIT]
    reasons = Counter(map(explain, outliers))
    wide = Counter(explain(pair) for pair in outliers if pair.macs_error > MACS_WIDE_LIMIT)
    summary = tuple((reason, str(count), str(wide[reason])) for reason, count in reasons.most_common())
    lines = tuple(
        (
            f"{pair.count.model} {pair.count.image_size}",
            f"{pair.gmacs:.3f}",
            f"{pair.counter_gmacs:.3f}",
            ", ".join(f"{gmacs:.2f}" for gmacs in sorted({gmacs for gmacs, _ in pair.table.values})),
            f"{100 * (pair.gmacs / pair.table.gmacs - 1):+.1f} %",
            explain(pair),
        )
        for pair in outliers
    )
    parameters = tuple(
        (
            f"{pair.count.model} {pair.count.image_size}",
            f"{pair.count.parameters / 1e6:.2f}",
            ", ".join(f"{count:.2f}" for count in sorted({count for _, count in pair.table.values})),
            f"{100 * (pair.count.parameters / 1e6 / pair.table.parameters_m - 1):+.1f} %",
        )
        for pair in pairs
        if pair.parameter_error > PARAMETER_LIMIT
    )
    disagree = sum(pair.table.disagree for pair in pairs)
    return [
        Table("What the table's counter counts (fvcore 0.1.5)", ("op", "counts"), tuple(DEFINITIONS)),
        Table("timm exports: pairs beyond 1 % by reason", ("reason", "pairs", "beyond 3 %"), summary),
        Table(
            f"timm exports: every pair beyond 1 % ({disagree} of {len(pairs)} pairs: tables disagree)",
            ("model, size", "GMAC", "with the counter's additions", "tables", "difference", "reason"),
            lines,
        ),
        Table(
            "timm exports: parameters beyond 0.5 %",
            ("model, size", "ours, millions", "tables", "difference"),
            parameters,
        ),
    ]

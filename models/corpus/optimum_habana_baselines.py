"""optimum-habana's regression thresholds: fine-tuning on one Gaudi or Gaudi 2 card.

What one row holds: a training rate that a release must reach, rounded and sometimes loosened by its
maintainers; BF16 autocast, the graph compiled by the card's lazy mode, AdamW. Used are the newest thresholds
of BERT-large, whose graph is here; the others are of models without one, of several cards, or of generation,
whose test names no lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.features.graph import Graph
from predictor.models.corpus.built_graphs import built_graph, graph_key
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.whole_model import ReadRows, WholeModelRow, gathered, measurements
from predictor.types import Mode, Optimizer, Precision, Runtime

if TYPE_CHECKING:
    import polars as pl

SOURCE = "optimum_habana_baselines"
_DEVICES = {"gaudi": "gaudi-oam-32gb", "gaudi2": "gaudi2-oam-96gb"}
_GRAPHS = {
    "bert_large_uncased_whole_word_masking / squad": graph_key("bert_large_spans", sequence=384),
    "bert_large_uncased_whole_word_masking / mrpc": graph_key("bert_large", sequence=128),
}


def read_rows(folder: Path) -> ReadRows:
    """The newest threshold of each test of one card."""
    import polars as pl

    raw = pl.read_csv(folder / "habana_baselines.csv.gz", infer_schema_length=None)
    seen: set[tuple[str, str]] = set()
    newest_first = raw.sort("date", descending=True, maintain_order=True).iter_rows(named=True)
    return gathered(_row(record, seen) for record in newest_first)


def read(folder: Path) -> pl.DataFrame:
    """The rows in the measurement schema."""
    return measurements(read_rows(folder).rows, SOURCE)


def graph(folder: Path, key: str, batch: int, mode: Mode) -> Graph:
    """The network of a test."""
    return built_graph(key, batch, mode)


def _row(record: Mapping[str, Any], seen: set[tuple[str, str]]) -> WholeModelRow | str:
    """A row, or why there is none."""
    if record["kind"] != "baseline" or record["distribution"] != "single_card":
        return "several cards or generation"
    if record["test"] not in _GRAPHS or not record["train_samples_per_second"]:
        return "model without a graph here"
    cell = (record["test"], record["device"])
    if cell in seen:
        return "older threshold of a test"
    seen.add(cell)
    device, batch = _DEVICES[record["device"]], int(record["train_batch_size"])
    return WholeModelRow(
        graph=_GRAPHS[record["test"]],
        model="bert_large",
        family="bert",
        device=device,
        device_group=chip_of(device),
        batch=batch,
        measured_s=batch / record["train_samples_per_second"],
        mode=Mode.TRAIN,
        precision=Precision.BF16,
        runtime=Runtime.COMPILED,
        optimizer=Optimizer.ADAMW,
        launch="graph",
        input_copy=True,
    )

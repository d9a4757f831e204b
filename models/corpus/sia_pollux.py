"""Sia and Pollux: step times of six data-parallel PyTorch jobs by placement, batch and cluster.

Read are the measured `placements` of five clusters; `dgx-ext` and `scalability` are partly their authors'
extrapolations, and the pipelined GPT has no run on one device. A step holds forward, backward, averaging and
the optimizer, with data loading in the loop. Placements that differ only in the order of nodes are merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.schema import Counted, canonical

if TYPE_CHECKING:
    import polars as pl

SOURCE = "sia_pollux"
DEVICES: Mapping[str, str] = {
    "aws": "t4-pcie-16gb",
    "azure": "v100-pcie-16gb",
    "rtx": "rtx-2080-ti-11gb",
    "dgx": "a100-sxm-40gb",
    "quad": "quadro-rtx-6000-24gb",
}
"""Clusters that were measured -> catalogue ids of their devices."""

GRADIENT_BYTES: Mapping[str, float] = {
    "bert": 108.3e6 * 4,
    "cifar10": 11.17e6 * 4,
    "deepspeech2": 41e6 * 4,
    "imagenet": 25.56e6 * 4,
    "ncf": 1.6e6 * 4,
    "yolov3": 61.95e6 * 4,
}
"""FP32 gradients of a replica. BERT-base, ResNet-18 for CIFAR, ResNet-50 and YOLOv3 are published sizes; the
publishers do not say how wide DeepSpeech2 (five bidirectional GRU of 800 taken) and NCF are (32 factors, 3
layers, MovieLens-1M taken): the time that one replica takes to copy its gradients agrees with both."""
_PIPELINED = "gpt_pmp"


def read(folder: Path) -> Counted:
    """One `iteration_time` row per application, cluster, placement and batch."""
    import polars as pl

    frame = pl.read_csv(folder / "sia_step_times.csv.gz", schema_overrides={"placement": pl.String})
    placed = frame.filter((pl.col("kind") == "placements") & pl.col("cluster").is_in(list(DEVICES)))
    parallel = placed.filter((pl.col("app") != _PIPELINED) & (pl.col("step_time") > 0))
    order = pl.col("placement").str.split("").list.sort(descending=True).list.join("").alias("nodes")
    keys = ["app", "cluster", "nodes", "local_bsz"]
    rows = parallel.with_columns(order).group_by(keys).agg(pl.col("step_time").median()).sort(keys)
    counts = {
        "available": frame.height,
        "used": rows.height,
        "extrapolated by the authors, or of another cluster": frame.height - placed.height,
        "pipelined": placed.height - parallel.height,
        "another order of the same nodes: median taken": parallel.height - rows.height,
    }
    return Counted(pl.DataFrame(list(_records(rows)), schema_overrides={"value": pl.Float64}), counts)


def _records(rows: pl.DataFrame) -> Iterator[dict[str, Any]]:
    for app, cluster, nodes, batch, seconds in rows.iter_rows():
        facts = {"cluster": cluster, "ranks_on_nodes": [int(count) for count in nodes], "local_batch": batch}
        yield {
            "subject": app,
            "subject_kind": "model",
            "device": DEVICES[cluster],
            "configuration": canonical(facts),
            "quantity": "iteration_time",
            "value": seconds,
            "unit": "s",
            "scope": "host_wall",
            "source": SOURCE,
            "device_group": chip_of(DEVICES[cluster]),
            "model_group": app,
        }

"""timm's own benchmarks: inference and training of vision models on two GeForce cards and a desktop CPU.

What one row holds (timm's benchmark.py): the mean of 50 iterations after 10 for warm-up, data on the device.
Training: zero_grad, forward, loss, backward and an SGD step with momentum; one file per torch version, device
and memory layout, the newest of each. GPUs run FP16 autocast; the CPU runs FP32 at batch 1, compiled. Graphs
are the exports of timm_onnx of the same name and image size.

Left out, each with its count: older versions of a file, rows without a number, models without an export at
the row's size, networks that ran other norms than their export; later, where the program is known, rows whose
parameter count is not the graph's (their name meant another model, or re-parameterised blocks were timed).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.errors import InvalidData
from predictor.features.graph import Graph
from predictor.features.reading.reader import read_graph
from predictor.models.corpus.whole_model import (
    ReadRows,
    WholeModelRow,
    counted,
    measurements,
)
from predictor.releases import release_number
from predictor.types import Layout, Mode, Optimizer, Precision, Runtime

if TYPE_CHECKING:
    import polars as pl

SOURCE = "timm_benchmarks"
GRAPHS = "timm_onnx"
_TABLE = "timm_benchmarks_all.csv.gz"
PARAMETER_TOLERANCE = 0.0005
"""Beside rounding. What differs by more was another network under the name, or (torch 2.9.1) one whose
branches were folded into single convolutions for inference."""
_DEVICES: Mapping[str, tuple[str, str]] = {
    "rtx3090": ("rtx-3090-24gb", "rtx3090"),
    "rtx4090": ("rtx-4090-24gb", "rtx4090"),
    "4090": ("rtx-4090-24gb", "rtx4090"),
    "i9_10940x": ("core-i9-10940x", "i9-10940x"),
}
_FAST_NORM_SINCE = 1.13
"""From these files on the benchmark ran with `fast_norm`: networks of group norms run up to twice as fast
as with torch 1.12 (efficientnet_b0_gn 2,749 to 5,402 images/s, poolformer_s12 3,483 to 4,050)."""
_IN_PLACE_NORMS = re.compile(r"tresnet|\w+_iabn$")
_PLAIN_NORMS_SINCE = 2.0
"""Networks of `inplace_abn`'s norms, whose kernels know images one after another alone (channels-last a
tresnet_m ran 1,306 images/s with torch 1.13, 3,458 with 2.1), until timm gave them torch's."""
_PORTS = ("tf_", "legacy_", "nf_", "gc_", "dm_")
# Up to 2022 a name also said where its weights came from; the network is that of the rest of the name. Their
# parameter counts are compared all the same.
_WEIGHTS = re.compile(
    r"^(?:gluon|ssl|swsl|ig|tv|jx|ens_adv|adv)_|_(?:ap|ns|sam|dist|distilled|in21k|in22k|in21ft1k|in22ft1k)(?=_|$)"
)
_RENAMED = (("swin_v2_cr_", "swinv2_cr_"), ("_b2a", "_b2"), ("_b3a", "_b3"))


def family(model: str) -> str:
    """What leave-family-out holds out: the leading letters of the name.

    Finer than the families of the memory model (117 instead of 67 over all exports): `seresnet`, `resnext`
    and `resnet` differ. It is the division of the reference study, with which errors are compared.
    """
    name = model.lower()
    for prefix in _PORTS:
        name = name.removeprefix(prefix)
    stem = name.split("_")[0]
    found = re.match(r"[a-z]+(?:v\d(?!\d))?", stem)
    return found.group() if found else stem


def read_rows(folder: Path) -> ReadRows:
    """Rows of the newest version of each file. Raises InvalidData when the exports are absent."""
    import polars as pl

    exports = _exports(folder.parent / GRAPHS)
    rows: list[WholeModelRow] = []
    reasons: list[str] = []
    for record in pl.read_csv(folder / _TABLE, infer_schema_length=None).iter_rows(named=True):
        if not record["is_latest_version_of_file"]:
            reasons.append("older version of a file")
            continue
        row = _row(record, exports)
        if isinstance(row, str):
            reasons.append(row)
        else:
            rows.append(row)
    return ReadRows(tuple(rows), counted(reasons))


def read(folder: Path) -> pl.DataFrame:
    """The rows in the measurement schema."""
    return measurements(read_rows(folder).rows, SOURCE)


def graph(folder: Path, key: str, batch: int, mode: Mode) -> Graph:
    """The export `key`, the same for training. Raises InvalidGraph."""
    return _export(folder.parent / GRAPHS / f"{key}.onnx.gz", batch)


@lru_cache(maxsize=4)
def _export(path: Path, batch: int) -> Graph:
    return read_graph(gzip.decompress(path.read_bytes()), batch=batch)


@cache
def _exports(folder: Path) -> frozenset[tuple[str, int]]:
    """(model, image size) of each export."""
    path = folder / "index.jsonl"
    if not path.is_file():
        raise InvalidData(f"{path}: not found; {SOURCE} needs the graphs of {GRAPHS} beside it")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return frozenset((line["model"], int(line["image_size"])) for line in lines)


def exports(folder: Path) -> frozenset[tuple[str, int]]:
    """(model, image size) of each export in `folder`. Raises InvalidData when its index is absent."""
    return _exports(folder)


def export_of(name: str, size: int, known: frozenset[tuple[str, int]]) -> str | None:
    """Today's name of the network that `name` meant, where there is an export of that size."""
    model = _network(name.split(".")[0], known)
    return model if (model, size) in known else None


def _network(name: str, exports: frozenset[tuple[str, int]]) -> str:
    """Today's name of the network that `name` meant, as far as an export shows that there is one."""
    names = _names(exports)
    if name in names:
        return name
    renamed = name
    for old, new in _RENAMED:
        renamed = renamed.replace(old, new)
    plain = _WEIGHTS.sub("", renamed)
    return next((found for found in (renamed, plain) if found in names), name)


@cache
def _names(exports: frozenset[tuple[str, int]]) -> frozenset[str]:
    return frozenset(name for name, _ in exports)


def _row(record: Mapping[str, Any], exports: frozenset[tuple[str, int]]) -> WholeModelRow | str:
    """A row, or why there is none."""
    rate, batch = record["samples_per_sec"], record["batch_size"]
    if not rate or rate != rate or not batch or batch != batch:
        return "no throughput"
    size = int(record["img_size"])
    model = _network(str(record["model"]).split(".")[0], exports)
    if (model, size) not in exports:
        known = any(name == model for name, _ in exports)
        return "no export of that size" if known else "no export of that name"
    device, group = _DEVICES[record["device"]]
    training = record["mode"] == "train"
    cuda = str(record["cuda"])
    version = release_number(str(record["torch"]))
    if _IN_PLACE_NORMS.match(model) and version < _PLAIN_NORMS_SINCE:
        return "in-place norms, which its export has not"
    return WholeModelRow(
        graph=f"{model}-{size}",
        model=model,
        family=family(model),
        device=device,
        device_group=group,
        batch=int(batch),
        measured_s=float(batch) / float(rate),
        mode=Mode.TRAIN if training else Mode.INFER,
        precision=Precision(record["precision"]),
        runtime=Runtime.COMPILED if record["compile"] else Runtime.EAGER,
        layout=Layout(record["layout"]),
        optimizer=Optimizer.MOMENTUM if training else Optimizer.NONE,
        framework_version=version,
        narrow_norms=version >= _FAST_NORM_SINCE,
        cuda=int(cuda[2:]) / 10 if cuda.startswith("cu") else 0.0,
        parameters=round(float(record["param_count"]) * 1e6),
    )

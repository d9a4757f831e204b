"""GPUMemNet: peak device memory of training steps of timm models on one A100-40GB.

Read by nvidia-smi, so the runtime context is included.

What one row holds: FP32 training of the model at its default image size with SGD momentum (timm's default),
batch 8 to 128. The publisher states neither precision nor optimizer: FP32 follows from the magnitudes (and
the file's own FakeTensor estimates); the optimizer is timm's default, and a second state tensor would exceed
the measured memory of the parameter-heavy models at batch 8.

Of 4,330 rows, 3,445 are kept as they are. Left out, by rules that look at the file alone:

- 667 that the file marks itself (`oom_suspect`: its FakeTensor estimate exceeds the reading or 39 GB);
- 22 below FakeTensor's forward pass plus the smallest context in the file: the run ended before its peak;
- 123 at or above a reading that one model repeats at two batch sizes: a full card, or a run that ended early;
- those below the same model's reading at a smaller batch.

Kept but marked (`autotuner_peak` in the configuration): rows far above what the same model takes per unit
of FakeTensor estimate at its other batch sizes. cuDNN's autotuner, which timm switches on, tries kernels
with gigabytes of workspace once; whether nvidia-smi catches that is chance. They are no training rows, and
scored apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.models.corpus.schema import canonical
from predictor.units import MIB

if TYPE_CHECKING:
    import polars as pl

Floats: TypeAlias = NDArray[np.float64]

DEVICE = "a100-sxm-40gb"
SMALLEST_CONTEXT_MIB = 1700
"""The smallest reading of the file, 1731 MiB, is a model that needs 23 MiB."""
_ROOMY_MIB = 34_000


def read(folder: Path) -> pl.DataFrame:
    """The usable rows of `timm_train_memory.csv.gz` in the measurement schema (unit bytes)."""
    import polars as pl

    raw = pl.read_csv(folder / "timm_train_memory.csv.gz").sort("model", "batch_size")
    rows = usable(raw)
    return pl.DataFrame(
        {
            "subject": rows["model"],
            "subject_kind": "model",
            "device": DEVICE,
            "configuration": [
                _configuration(*row) for row in rows.select("batch_size", "autotuner_peak").iter_rows()
            ],
            "quantity": "device_peak_memory",
            "value": rows["max_gpu_memory_mib"].cast(pl.Float64) * MIB,
            "unit": "bytes",
            "scope": "device_monitor",
            "source": "gpumemnet",
            "device_group": "a100",
            "model_group": [model_family(model) for model in rows["model"]],
        }
    )


def usable(raw: pl.DataFrame) -> pl.DataFrame:
    """Rows whose run reached its peak, by the rules of the module's text, with a column `autotuner_peak`."""
    import polars as pl

    value = pl.col("max_gpu_memory_mib")
    repeated = (
        raw.filter(pl.len().over("model", "max_gpu_memory_mib") > 1)
        .group_by("model")
        .agg(repeated=value.min())
    )
    finished = (
        raw.join(repeated, on="model", how="left")
        .filter(pl.col("oom_suspect") == 0)
        .filter(pl.col("faketensor_after_forward_mib") + SMALLEST_CONTEXT_MIB <= value)
        .filter(pl.col("repeated").is_null() | (value < pl.col("repeated")))
        .sort("model", "batch_size")
    )
    peaks: list[bool] = []
    for _, sweep in finished.group_by("model", maintain_order=True):
        columns = ("batch_size", "max_gpu_memory_mib", "faketensor_after_forward_mib", "faketensor_last_mib")
        peaks += _autotuner_peaks(*(sweep[name].to_numpy().astype(float) for name in columns))
    marked = finished.with_columns(autotuner_peak=pl.Series(peaks, dtype=pl.Boolean))
    plain = pl.when(pl.col("autotuner_peak")).then(0).otherwise(value)
    return marked.filter(pl.col("autotuner_peak") | (value >= plain.cum_max().over("model")))


def _autotuner_peaks(batch: Floats, measured: Floats, forward: Floats, estimate: Floats) -> list[bool]:
    """Which readings (MiB) of one model's sweep stand far above the others, per MiB of estimate."""
    if len(batch) < 2:
        return [False] * len(batch)
    slope = (forward[-1] - forward[0]) / (batch[-1] - batch[0])
    parameters = max(0.0, float(forward[0] - batch[0] * slope))
    rate = (measured - SMALLEST_CONTEXT_MIB - 2 * parameters) / estimate
    # A nearly full card leaves the autotuner no room: such rows do not tell what it takes elsewhere.
    roomy = measured < _ROOMY_MIB
    lowest = max(1.0, float((rate[roomy] if roomy.sum() >= 2 else rate).min()))
    limit = 1.1 * (SMALLEST_CONTEXT_MIB + 1.4 * lowest * estimate + 3 * parameters + 64)
    return [bool(above) for above in measured > limit]


def model_family(name: str) -> str:
    """Family that leave-family-out evaluation holds out.

    The first keyword of FAMILIES found anywhere in the timm name decides, so that ports and variants of the
    same blocks (`tf_efficientnetv2_s`, `gc_efficientnetv2_rw_t`, `seresnext50_32x4d`) leave together; else
    the name's leading letters.
    """
    lowered = name.lower()
    for keyword, family in FAMILIES.items():
        if keyword in lowered:
            return family
    letters = lowered.split("_")[0].rstrip("0123456789")
    return letters or lowered


FAMILIES: Mapping[str, str] = {
    "efficientvit": "efficientvit",
    "efficientnet": "efficientnet",
    "mixnet": "efficientnet",
    "mobileone": "mobileone",
    "xception": "xception",
    "mobilevit": "mobilevit",
    "mobilenet": "mobilenet",
    "fbnet": "mobilenet",
    "hardcorenas": "mobilenet",
    "mnasnet": "mobilenet",
    "spnasnet": "mobilenet",
    "nasnet": "nasnet",
    "coatne": "coatnet",
    "maxvit": "maxvit",
    "maxxvit": "maxvit",
    "inception_resnet": "inception",
    "inception_next": "inception_next",
    "convnext": "convnext",
    "regnet": "regnet",
    "resnest": "resnest",
    "botnet": "botnet",
    "botnext": "botnet",
    "halonet": "botnet",
    "halonext": "botnet",
    "bat_": "botnet",
    "lambda": "botnet",
    "darknet": "darknet",
    "cspres": "darknet",
    "cs3edge": "darknet",
    "ghostnet": "ghostnet",
    "vovnet": "vovnet",
    "nfnet": "nfnet",
    "nf_res": "nfnet",
    "tresnet": "tresnet",
    "res2ne": "res2net",
    "resne": "resnet",
    "senet": "resnet",
    "swin": "swin",
    "hiera": "hiera",
    "caformer": "metaformer",
    "convformer": "metaformer",
    "poolformer": "metaformer",
    "gcvit": "gcvit",
    "davit": "davit",
    "tiny_vit": "tiny_vit",
    "nextvit": "nextvit",
    "fastvit": "fastvit",
    "crossvit": "crossvit",
    "levit": "levit",
    "vitamin": "vitamin",
    "deit": "vit",
    "beit": "vit",
    "eva": "vit",
    "vit_": "vit",
}
"""Keyword in a timm name -> family, first match wins."""


def _configuration(batch: int, autotuner_peak: bool) -> str:
    fixed = {"batch": batch, "mode": "train", "optimizer": "momentum", "precision": "fp32"}
    return canonical({**fixed, "autotuner_peak": True} if autotuner_peak else fixed)

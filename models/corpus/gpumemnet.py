"""GPUMemNet: peak device memory of training steps of timm models on one A100-40GB.

Read by nvidia-smi, so the runtime context is included.

What one row holds: FP32 training of the model at its default image size with SGD momentum (timm's default),
batch 8 to 128. The publisher states neither precision nor optimizer: FP32 follows from the magnitudes (and
the file's own FakeTensor estimates); the optimizer is timm's default, and a second state tensor would exceed
the measured memory of the parameter-heavy models at batch 8.

667 of 4,330 rows are runs that most likely crashed (`oom_suspect`: the estimate exceeds the
measurement or 39 GB), and a few more fall with growing batch, the same sign. Both are dropped: what they hold
is no more than a lower bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.models.corpus.schema import canonical
from predictor.units import MIB

if TYPE_CHECKING:
    import polars as pl

DEVICE = "a100-sxm-40gb"


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
            "configuration": [_configuration(batch) for batch in rows["batch_size"]],
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
    """Rows whose run did not crash: not suspected, and not below the same model's peak at a smaller batch."""
    import polars as pl

    finished = raw.filter(pl.col("oom_suspect") == 0).sort("model", "batch_size")
    before = pl.col("max_gpu_memory_mib").cum_max().shift(1).over("model").fill_null(0)
    return finished.filter(pl.col("max_gpu_memory_mib") >= before)


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


def _configuration(batch: int) -> str:
    return canonical({"batch": batch, "mode": "train", "optimizer": "momentum", "precision": "fp32"})

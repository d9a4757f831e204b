"""Model zoos of Detectron2 and pycls on V100: detectors trained and run, classifiers' passes timed alone.

pycls times passes on random images that lie on one V100-16GB (FP32, torch 1.6): the forward pass at the test
batch (a 256th of 200 images per GPU for each image of the training batch), and forward and backward without a
step at the training batch. Its separate forward and backward times, and milliseconds per 64 images, are parts
and multiples of these. Detectron2's training times are of 8 GPUs with 2 images each, step and loading
included; its inference is one image on one GPU, post-processing included. Images of COCO are taken as 736 x
1024 after padding in training (short sides of 640 to 800) and 800 x 1088 in inference, of Cityscapes as 928 x
1856 and 1024 x 2048, of VOC as 640 x 864 and 800 x 1088. The three rows of other settings are left out: their
cells are shifted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.features.architectures import ARCHITECTURES
from predictor.features.graph import Graph
from predictor.models.corpus.built_graphs import built_graph, graph_key
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.whole_model import ReadRows, WholeModelRow, gathered, measurements
from predictor.types import Mode, Optimizer, Precision

if TYPE_CHECKING:
    import polars as pl

SOURCE = "detectron2_pycls"
DEVICE = "v100-sxm-16gb"
_IMAGES_PER_GPU, _GPUS = 2, 8
_SIZES: Mapping[str, tuple[dict[str, int], dict[str, int]]] = {
    "": ({"height": 736, "width": 1024}, {"height": 800, "width": 1088}),
    "Cityscapes": ({"height": 928, "width": 1856}, {"height": 1024, "width": 2048}),
    "PascalVOC-Detection": ({"height": 640, "width": 864}, {"height": 800, "width": 1088}),
}
"""Padded images of a data set in training and inference; those of COCO for all others."""
_RESNETS = {
    "ResNet-50": "resnet50",
    "ResNet-101": "resnet101",
    "ResNet-152": "resnet152",
    "ResNeXt-50": "resnext50_32x4d",
    "ResNeXt-101": "resnext101_32x4d",
    "ResNeXt-152": "resnext152_32x4d",
}
_DATASETS = {
    "COCO-Detection": 81,
    "COCO-InstanceSegmentation": 81,
    "COCO-Keypoints": 2,
    "COCO-PanopticSegmentation": 81,
    "LVISv0.5-InstanceSegmentation": 1231,
    "Cityscapes": 9,
    "PascalVOC-Detection": 21,
}
"""Folder of a configuration -> classes with background."""


def read_rows(folder: Path) -> ReadRows:
    """Rows of both zoos."""
    import polars as pl

    classifiers = pl.read_csv(folder / "pycls_timing.csv").iter_rows(named=True)
    detectors = pl.read_csv(folder / "detectron2_model_zoo.csv").iter_rows(named=True)
    found: list[WholeModelRow | str] = [row for record in classifiers for row in _pycls(record)]
    return gathered(found + [item for record in detectors for item in _detectron2(record)])


def read(folder: Path) -> pl.DataFrame:
    """The rows in the measurement schema."""
    return measurements(read_rows(folder).rows, SOURCE)


def graph(folder: Path, key: str, batch: int, mode: Mode) -> Graph:
    """The classifier or detector of a row."""
    return built_graph(key, batch, mode)


def _pycls(record: Mapping[str, Any]) -> Iterable[WholeModelRow]:
    model = record["model"]
    if model in _RESNETS:
        name, family = _RESNETS[model], model.split("-")[0].lower()
    elif model.startswith("RegNet"):
        name, family = f"regnet_{model[6:].lower().replace('-', '_').replace('.', '_')}", "regnet"
    else:
        name, family = f"efficientnet_{model[-2:].lower()}", "efficientnet"
    images = int(record["train_batch_total_8gpu"])
    common: dict[str, Any] = {"graph": name, "model": model, "family": family, "framework_version": 1.06}
    yield _row(batch=int(images * 200 / 256) // _GPUS, measured_s=record["test_fw_time_s"], **common)
    yield _row(batch=images // _GPUS, measured_s=record["train_fw_bw_time_s"], mode=Mode.TRAIN, **common)


def _detectron2(record: Mapping[str, Any]) -> Iterable[WholeModelRow | str]:
    config = record["config"] or ""
    name = _detector(config)
    if name is None:
        return ["cells shifted"] * 2
    # RetinaNet scores no background.
    folder = config.split("/")[1]
    options = {"classes": _DATASETS[folder] - name.startswith("retinanet")}
    train_size, test_size = _SIZES.get(folder, _SIZES[""])
    # Eight images on eight GPUs for Cityscapes, sixteen elsewhere.
    images = 1 if folder == "Cityscapes" else _IMAGES_PER_GPU
    common: dict[str, Any] = {
        "model": config,
        "family": name.split("_")[0],
        "framework_version": 1.07,
        "input_copy": True,
    }
    train = _row(
        graph=graph_key(name, **options, **train_size),
        batch=images,
        measured_s=record["train_time_s_per_iter"],
        mode=Mode.TRAIN,
        optimizer=Optimizer.MOMENTUM,
        devices=_GPUS,
        **common,
    )
    test = _row(
        graph=graph_key(name, **options, **test_size),
        batch=1,
        measured_s=record["inference_time_s_per_im"],
        **common,
    )
    return [train, test]


def _detector(config: str) -> str | None:
    """`configs/COCO-Detection/faster_rcnn_R_50_FPN_1x.yaml` -> `faster_rcnn_r50_fpn`."""
    parts = config.removesuffix(".yaml").split("/")
    if len(parts) != 3 or parts[1] not in _DATASETS:
        return None
    words = parts[2].lower().split("_")
    depth = next((words[i + 1] for i, word in enumerate(words) if word in ("r", "x")), "")
    kind = "x" if "x" in words else "r"
    neck = next((word for word in words if word in ("fpn", "c4", "dc5")), "")
    family = "_".join(words[: words.index(kind)]).removesuffix("_fpn")
    name = f"{family}_{kind}{depth}_{neck or 'fpn'}"
    return name if name in ARCHITECTURES else None


def _row(**facts: Any) -> WholeModelRow:
    return WholeModelRow(
        **{
            "mode": Mode.INFER,
            "device": DEVICE,
            "device_group": chip_of(DEVICE),
            "precision": Precision.FP32,
            **facts,
        }
    )

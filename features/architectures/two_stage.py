"""Two-stage detectors as Detectron2 and maskrcnn-benchmark train them: Faster and Mask R-CNN on FPN, C4, DC5.

What depends on the images is fixed by sizes: height and width after padding, objects and positives per image.
Boxes are detached between the stages by a cast to integers and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from predictor.features.architectures.layers import indices
from predictor.features.architectures.pyramid import (
    PyramidConfig,
    frozen_stages,
    pyramid,
    smooth_l1,
    stage_blocks,
)
from predictor.features.architectures.residual import RESNETS
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType


@dataclass(frozen=True, slots=True)
class DetectorConfig:
    """A detector.

    Attributes:
        neck: `fpn`, `c4` (the last stage runs per box) or `dc5`.
        masks, keypoints: heads on the positives. stuff: a head over all pixels (Panoptic FPN).
        first, second: which stages there are; without the first, boxes are given. proposals: boxes per image
            into the second stage.
        positives: boxes per image that reach the mask head; what training sees on COCO, not a limit.
        objects: annotated objects per image (COCO's mean is 7.3).
    """

    backbone: PyramidConfig
    neck: str = "fpn"
    masks: bool = True
    keypoints: bool = False
    stuff: bool = False
    first: bool = True
    second: bool = True
    proposals: int = 512
    positives: int = 64
    objects: int = 7


@dataclass(frozen=True, slots=True)
class _Job:
    b: GraphBuilder
    config: DetectorConfig
    batch: int
    classes: int
    training: bool


def two_stage(
    config: DetectorConfig,
    *,
    batch: int = 2,
    height: int = 800,
    width: int = 1216,
    classes: int = 81,
    training: bool = False,
) -> bytes:
    """ONNX bytes; `height` and `width` are those of the padded images, multiples of 32."""
    b = GraphBuilder("two_stage")
    sizes = config if training else replace(config, proposals=1000, positives=min(config.positives, 30))
    job = _Job(b, sizes, batch, classes, training)
    image = b.input("image", (batch, 3, height, width))
    if config.neck == "fpn":
        levels = pyramid(b, config.backbone, image)
        pooled = levels[:4]
    else:
        stages = frozen_stages(b, config.backbone, image, 3 if config.neck == "c4" else 4)
        levels = pooled = stages[-1:]
    if config.first:
        proposals, losses = _proposals(job, levels)
    else:
        proposals, losses = b.frozen((batch, sizes.proposals, 4)), []
    if not config.second:
        return b.build([*losses, proposals] if training else [proposals])
    boxes = _per_image(job, proposals, sizes.proposals)
    scores, offsets, features = _box_head(job, pooled, boxes)
    outputs = [scores, offsets]
    if training:
        outputs = [*losses, *_box_losses(job, scores, offsets)]
    if config.masks or config.keypoints:
        if config.neck == "c4":
            positive = b.slice(features, 0, batch * sizes.positives, axis=0)
        else:
            positive = _aligned(job, pooled, _per_image(job, proposals, sizes.positives), 14)
        outputs.append((_mask_head if config.masks else _keypoint_head)(job, positive))
    if config.stuff:
        outputs.append(_stuff_head(job, pooled))
    return b.build(outputs)


def _proposals(job: _Job, levels: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Boxes (batch, all kept, 4) of all levels, and the losses of the region proposal network."""
    b, training = job.b, job.training
    anchors = 3 if len(levels) > 1 else 15
    before, after = ((2000, 1000) if training else (1000, 1000)) if len(levels) > 1 else (12000, 2000)
    if not training and len(levels) == 1:
        before, after = 6000, 1000
    kept, scores, deltas = [], [], []
    for level in levels:
        with b.shared_weights("proposals"):
            shared = b.relu(b.conv(level, level.size(1), kernel=3, bias=True))
            objectness = b.conv(shared, anchors, kernel=1, bias=True)
            offsets = b.conv(shared, 4 * anchors, kernel=1, bias=True)
        count = anchors * level.size(2) * level.size(3)
        flat = b.reshape(b.transpose(objectness, [0, 2, 3, 1]), [0, count])
        parted = b.reshape(offsets, [0, anchors, 4, level.size(2), level.size(3)])
        moved = b.reshape(b.transpose(parted, [0, 3, 4, 1, 2]), [0, count, 4])
        scores.append(flat)
        deltas.append(moved)
        kept.append(_kept(job, flat, moved, min(before, count), min(after, count)))
    joined = b.concat(kept, axis=1) if len(kept) > 1 else kept[0]
    losses = _proposal_losses(job, scores, deltas) if training else []
    return joined, losses


def _kept(job: _Job, scores: Tensor, deltas: Tensor, before: int, after: int) -> Tensor:
    """The best boxes of a level, decoded and thinned; frameworks thin image by image, here all at once."""
    b = job.b
    best, places = b.op("TopK", [scores, b.constant([before])], 2)
    index = b.op("Expand", [b.reshape(places, [0, before, 1]), b.constant([job.batch, before, 4])])
    boxes = _decoded(b, _detached(b, b.op("GatherElements", [deltas, index], axis=1)))
    ranks = b.reshape(_detached(b, best), [job.batch, 1, before])
    chosen = b.op("NonMaxSuppression", [boxes, ranks, b.constant(after), b.constant(0.7)])
    rows = b.reshape(b.slice(chosen, 2, 3, axis=1), [job.batch, after, 1])
    index = b.op("Expand", [rows, b.constant([job.batch, after, 4])])
    thinned: Tensor = b.op("GatherElements", [boxes, index], axis=1)
    return thinned


def _detached(b: GraphBuilder, x: Tensor) -> Tensor:
    whole: Tensor = b.op("Cast", [b.op("Cast", [x], to=7)], to=1)
    return whole


def _decoded(b: GraphBuilder, deltas: Tensor) -> Tensor:
    """Corners from shifts and log sizes relative to anchors."""
    shift, size = b.split(deltas, 2, axis=-1)
    widths = b.frozen((1, deltas.size(1), 2))
    centre = b.add(b.mul(shift, widths), b.frozen((1, deltas.size(1), 2)))
    half = b.mul(b.mul(b.op("Exp", [size]), widths), b.constant(0.5))
    corners = b.concat([b.sub(centre, half), b.add(centre, half)], axis=-1)
    clipped: Tensor = b.op("Clip", [corners, b.constant(0.0), b.constant(1333.0)])
    return clipped


def _proposal_losses(job: _Job, scores: list[Tensor], deltas: list[Tensor]) -> list[Tensor]:
    """Every anchor is compared with every object; 256 anchors per image enter the losses."""
    b, sampled = job.b, 256
    all_scores = b.concat(scores, axis=1) if len(scores) > 1 else scores[0]
    all_deltas = b.concat(deltas, axis=1) if len(deltas) > 1 else deltas[0]
    count = all_scores.size(1)
    anchors = b.frozen((1, 1, count, 4))
    objects = b.input("objects", (job.batch, job.config.objects, 1, 4))
    closest, _ = b.op("TopK", [_overlaps(b, objects, anchors), b.constant([1])], 2, axis=1)
    _, rows = b.op("TopK", [b.reshape(closest, [job.batch, count]), b.constant([sampled])], 2)
    logits = b.op("GatherElements", [all_scores, rows], axis=1)
    index = b.op("Expand", [b.reshape(rows, [0, sampled, 1]), b.constant([job.batch, sampled, 4])])
    offsets = b.op("GatherElements", [all_deltas, index], axis=1)
    entropy = b.op("Softplus", [b.mul(logits, b.frozen((job.batch, sampled)))])
    distance = smooth_l1(b, offsets, b.frozen((job.batch, sampled, 4)))
    return [b.op("ReduceMean", [entropy], keepdims=0), b.op("ReduceSum", [distance], keepdims=0)]


def _overlaps(b: GraphBuilder, objects: Tensor, anchors: Tensor) -> Tensor:
    """(batch, objects, anchors, 1) intersections over unions, kernel by kernel."""
    low = b.op("Max", [b.slice(x, 0, 2, axis=3) for x in (objects, anchors)])
    high = b.op("Min", [b.slice(x, 2, 4, axis=3) for x in (objects, anchors)])
    sides = b.relu(b.sub(high, low))
    both = b.mul(b.slice(sides, 0, 1, axis=3), b.slice(sides, 1, 2, axis=3))
    union = b.sub(b.frozen((1, objects.size(1), anchors.size(2), 1)), both)
    return b.div(both, union)


def _per_image(job: _Job, proposals: Tensor, count: int) -> Tensor:
    """(batch * count, 4): the boxes that go on."""
    count = min(count, proposals.size(1))
    return job.b.reshape(job.b.slice(proposals, 0, count, axis=1), [job.batch * count, 4])


def _aligned(job: _Job, levels: list[Tensor], boxes: Tensor, side: int) -> Tensor:
    """Features of every box, (boxes, channels, side, side); each level holds an equal share of them."""
    b, count = job.b, boxes.size(0)
    share = [
        count * (place + 1) // len(levels) - count * place // len(levels) for place in range(len(levels))
    ]
    parts = b.split(boxes, share, axis=0) if len(levels) > 1 else (boxes,)
    aligned = [
        b.op(
            "RoiAlign",
            [level, part, indices(b, (part.size(0),), "image_of_box")],
            output_height=side,
            output_width=side,
            sampling_ratio=2,
        )
        for level, part in zip(levels, parts, strict=True)
    ]
    return b.concat(aligned, axis=0) if len(aligned) > 1 else aligned[0]


def _box_head(job: _Job, levels: list[Tensor], boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    b = job.b
    if job.config.neck == "c4":
        features = stage_blocks(b, _aligned(job, levels, boxes, 14), job.config.backbone, 3)
        x = b.flatten(b.global_pool(features))
    else:
        features = _aligned(job, levels, boxes, 7)
        x = b.relu(b.linear(b.flatten(features), 1024))
        x = b.relu(b.linear(x, 1024))
    return b.linear(x, job.classes), b.linear(x, 4 * (job.classes - 1)), features


def _box_losses(job: _Job, scores: Tensor, offsets: Tensor) -> list[Tensor]:
    b, count = job.b, scores.size(0)
    labels = b.input("classes", (count,), DType.INT64)
    named = b.op("SoftmaxCrossEntropyLoss", [scores, labels], reduction="mean")
    positive = b.slice(offsets, 0, job.batch * job.config.positives, axis=0)
    mine = b.slice(positive, 0, 4, axis=1)
    distance = smooth_l1(b, mine, b.frozen((mine.size(0), 4)))
    return [named, b.op("ReduceSum", [distance], keepdims=0)]


def _mask_head(job: _Job, x: Tensor) -> Tensor:
    b = job.b
    for _ in range(0 if job.config.neck == "c4" else 4):
        x = b.relu(b.conv(x, 256, kernel=3, bias=True))
    x = b.relu(b.conv_transpose(x, 256, kernel=2, stride=2))
    masks = b.conv(x, job.classes - 1, kernel=1, bias=True)
    return _pixel_loss(job, masks) if job.training else b.sigmoid(masks)


def _keypoint_head(job: _Job, x: Tensor) -> Tensor:
    b = job.b
    for _ in range(8):
        x = b.relu(b.conv(x, 512, kernel=3, bias=True))
    x = b.conv_transpose(x, 17, kernel=4, stride=2, padding=1)
    x = b.resize(x, 2.0, mode="linear")
    if not job.training:
        return x
    rows = b.reshape(x, [x.size(0) * 17, x.size(2) * x.size(3)])
    labels = b.input("keypoints", (rows.size(0),), DType.INT64)
    loss: Tensor = b.op("SoftmaxCrossEntropyLoss", [rows, labels], reduction="mean")
    return loss


def _stuff_head(job: _Job, levels: list[Tensor]) -> Tensor:
    """Every level brought to a quarter of the image's size by convolutions and resizing; 54 scores."""
    b, width = job.b, 128
    joined: Tensor | None = None
    for place, x in enumerate(levels):
        for step in range(max(1, place)):
            x = b.relu(b.group_norm(b.conv(x, width, kernel=3), 32))
            x = b.resize(x, 2.0, mode="linear") if step < place else x
        joined = x if joined is None else b.add(joined, x)
    assert joined is not None
    scores = b.resize(b.conv(joined, 54, kernel=1, bias=True), 4.0, mode="linear")
    if not job.training:
        return b.softmax(scores, axis=1)
    labels = b.input("stuff", (job.batch, scores.size(2), scores.size(3)), DType.INT64)
    loss: Tensor = b.op("SoftmaxCrossEntropyLoss", [scores, labels], reduction="mean")
    return loss


def _pixel_loss(job: _Job, masks: Tensor) -> Tensor:
    """Binary cross entropy of the mask of each box's own class."""
    b = job.b
    own = b.slice(masks, 0, 1, axis=1)
    entropy = b.op("Softplus", [b.mul(own, b.frozen(own.sizes))])
    loss: Tensor = b.op("ReduceMean", [entropy], keepdims=0)
    return loss


_BACKBONES = {"r50": "resnet50", "r101": "resnet101", "x101": "resnext101_32x8d"}


def _family() -> dict[str, Callable[..., bytes]]:
    found: dict[str, Callable[..., bytes]] = {}
    for short, name in _BACKBONES.items():
        for neck in ("fpn", "c4", "dc5"):
            backbone = PyramidConfig(RESNETS[name], dilated=neck == "dc5")
            for kind, masks, keypoints in (("faster", 0, 0), ("mask", 1, 0), ("keypoint", 0, 1)):
                config = DetectorConfig(backbone, neck, bool(masks), bool(keypoints))
                found[f"{kind}_rcnn_{short}_{neck}"] = partial(two_stage, config)
            first = DetectorConfig(backbone, neck, masks=False, second=False)
            found[f"rpn_{short}_{neck}"] = partial(two_stage, first)
        backbone = PyramidConfig(RESNETS[name])
        boxes = DetectorConfig(backbone, masks=False, first=False)
        found[f"fast_rcnn_{short}_fpn"] = partial(two_stage, boxes)
        found[f"panoptic_{short}_fpn"] = partial(two_stage, DetectorConfig(backbone, stuff=True))
    return found


TWO_STAGE_DETECTORS: dict[str, Callable[..., bytes]] = _family()

"""Single-stage detectors: SSD300 on ResNet-50 (MLPerf's and NVIDIA's), RetinaNet, YOLOv3.

With `training` the loss ends the graph, targets enter as inputs; without, scores and boxes do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from predictor.features.architectures.cnn import conv_norm
from predictor.features.architectures.pyramid import PyramidConfig, pyramid, smooth_l1
from predictor.features.architectures.residual import RESNETS, residual_block
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType

# Channels into and out of each extra stage of SSD300, and boxes per position of each feature map.
_SSD_EXTRA = ((512, 256), (512, 256), (256, 128), (256, 128), (256, 128))
_SSD_BOXES = (4, 6, 6, 6, 4, 4)


def ssd300_resnet50(
    *, batch: int | str = "batch", image: int = 300, classes: int = 81, training: bool = False
) -> bytes:
    """SSD300 with ResNet-50 up to its third stage, whose stride is 1: 8732 boxes at 300 x 300."""
    b = GraphBuilder("ssd300_resnet50")
    x = conv_norm(b, b.input("image", (batch, 3, image, image)), 64, 7, stride=2)
    x = b.max_pool(x, kernel=3, stride=2, padding=1)
    config = RESNETS["resnet50"]
    for stage, depth in enumerate(config.depths[:3]):
        for index in range(depth):
            x = residual_block(b, x, config, stage, 2 if stage == 1 and not index else 1)
    maps = [x]
    for place, (channels, narrow) in enumerate(_SSD_EXTRA):
        x = conv_norm(b, x, narrow, 1)
        stride, padding = (2, 1) if place < 3 else (1, 0)
        x = b.relu(b.batch_norm(b.conv(x, channels, kernel=3, stride=stride, padding=padding)))
        maps.append(x)
    boxes = b.concat([_flat(b, _head(b, y, 4 * n), 4) for y, n in zip(maps, _SSD_BOXES, strict=True)], axis=2)
    scores = b.concat(
        [_flat(b, _head(b, y, classes * n), classes) for y, n in zip(maps, _SSD_BOXES, strict=True)], axis=2
    )
    return b.build([_ssd_loss(b, boxes, scores, batch)] if training else [boxes, scores])


def _head(b: GraphBuilder, x: Tensor, channels: int) -> Tensor:
    return b.conv(x, channels, kernel=3, bias=True)


def _flat(b: GraphBuilder, x: Tensor, rows: int) -> Tensor:
    """(batch, boxes * rows, height, width) to (batch, rows, all boxes)."""
    return b.reshape(x, [0, rows, x.size(1) // rows * x.size(2) * x.size(3)])


def _ssd_loss(b: GraphBuilder, boxes: Tensor, scores: Tensor, batch: int | str) -> Tensor:
    """Smooth L1 over boxes, and cross entropy over scores after hard negatives are mined by two sorts."""
    count = scores.size(2)
    offsets = smooth_l1(b, boxes, b.input("boxes", (batch, 4, count)))
    labels = b.input("labels", (batch, count), DType.INT64)
    losses = b.op("SoftmaxCrossEntropyLoss", [scores, labels], reduction="none")
    whole = b.constant([count])
    # Detached by way of the indices: only ranks leave the sorts.
    _, order = b.op("TopK", [losses, whole], 2)
    _, rank = b.op("TopK", [order, whole], 2, largest=0)
    chosen = b.op("Cast", [b.op("Less", [rank, b.input("negatives", (batch, 1), DType.INT64)])], to=1)
    closeness = b.op("ReduceSum", [b.mul(losses, chosen)], keepdims=0)
    total: Tensor = b.add(closeness, b.op("ReduceSum", [offsets], keepdims=0))
    return total


def retinanet(
    config: PyramidConfig,
    *,
    batch: int = 2,
    height: int = 800,
    width: int = 1216,
    classes: int = 80,
    training: bool = False,
) -> bytes:
    """RetinaNet (Lin et al. 2017): five levels, two heads of four convolutions shared by all of them."""
    b = GraphBuilder("retinanet")
    levels = pyramid(b, config, b.input("image", (batch, 3, height, width)))
    scores, boxes = [], []
    for level in levels:
        with b.shared_weights("scores"):
            scores.append(_retina_head(b, level, 9 * classes))
        with b.shared_weights("boxes"):
            boxes.append(_retina_head(b, level, 9 * 4))
    joined = [
        b.concat([_rows(b, y, columns) for y in maps], axis=1)
        for maps, columns in ((scores, classes), (boxes, 4))
    ]
    return b.build([_focal_loss(b, *joined)] if training else [b.sigmoid(joined[0]), joined[1]])


def _retina_head(b: GraphBuilder, x: Tensor, channels: int) -> Tensor:
    for _ in range(4):
        x = b.relu(b.conv(x, 256, kernel=3, bias=True))
    return b.conv(x, channels, kernel=3, bias=True)


def _rows(b: GraphBuilder, x: Tensor, columns: int) -> Tensor:
    """(batch, anchors * columns, height, width) to (batch, boxes, columns)."""
    anchors, height, width = x.size(1) // columns, x.size(2), x.size(3)
    parted = b.transpose(b.reshape(x, [0, anchors, columns, height, width]), [0, 3, 4, 1, 2])
    return b.reshape(parted, [0, height * width * anchors, columns])


def _focal_loss(b: GraphBuilder, scores: Tensor, boxes: Tensor) -> Tensor:
    """Sigmoid focal loss over all scores, kernel by kernel, and smooth L1 over boxes."""
    target = b.input("targets", scores.sizes)
    p = b.sigmoid(scores)
    one = b.constant(1.0)
    entropy = b.op("Softplus", [b.mul(b.sub(one, b.add(target, target)), scores)])
    agreement = b.add(b.mul(p, target), b.mul(b.sub(one, p), b.sub(one, target)))
    focused = b.mul(entropy, b.op("Pow", [b.sub(one, agreement), b.constant(2.0)]))
    closeness = b.op("ReduceSum", [b.mul(focused, b.constant(0.25))], keepdims=0)
    offsets = smooth_l1(b, boxes, b.input("boxes", boxes.sizes))
    total: Tensor = b.add(closeness, b.op("ReduceSum", [offsets], keepdims=0))
    return total


_YOLO_STAGES = ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))


def yolov3(
    *, batch: int | str = "batch", image: int = 416, classes: int = 80, training: bool = False
) -> bytes:
    """YOLOv3 on Darknet-53 (Redmon & Farhadi 2018): 61,949,149 parameters with 80 classes."""
    b = GraphBuilder("yolov3")
    x = _leaky(b, b.input("image", (batch, 3, image, image)), 32, 3)
    maps = []
    for channels, repeats in _YOLO_STAGES:
        x = _leaky(b, x, channels, 3, 2)
        for _ in range(repeats):
            x = b.add(x, _leaky(b, _leaky(b, x, channels // 2, 1), channels, 3))
        maps.append(x)
    outputs = []
    y = maps[-1]
    for place, channels in enumerate((512, 256, 128)):
        if place:
            y = b.concat([b.resize(_leaky(b, y, channels, 1), 2.0), maps[-1 - place]], axis=1)
        for width, kernel in ((channels, 1), (2 * channels, 3)) * 2 + ((channels, 1),):
            y = _leaky(b, y, width, kernel)
        found = b.conv(_leaky(b, y, 2 * channels, 3), 3 * (classes + 5), kernel=1, bias=True)
        outputs.append(found)
    return b.build(outputs)


def _leaky(b: GraphBuilder, x: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
    normed = b.batch_norm(b.conv(x, channels, kernel=kernel, stride=stride))
    active: Tensor = b.op("LeakyRelu", [normed], alpha=0.1)
    return active


def _retinanets() -> dict[str, Callable[..., bytes]]:
    depths: Sequence[tuple[str, str]] = (("r50", "resnet50"), ("r101", "resnet101"))
    return {
        f"retinanet_{short}_fpn": partial(retinanet, PyramidConfig(RESNETS[name], extra="convolution"))
        for short, name in depths
    }


DETECTORS: dict[str, Callable[..., bytes]] = {
    "ssd300_resnet50": ssd300_resnet50,
    "yolov3": yolov3,
    **_retinanets(),
}

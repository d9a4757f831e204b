"""Image classifiers made of separable convolutions, at their Keras sizes: Xception and NASNet-A mobile.

A separable convolution is a depthwise one followed by a 1x1. Padding is symmetric where Keras pads `same`:
sizes and work agree, only the border pixels differ.
"""

from __future__ import annotations

from predictor.features.architectures.cnn import classifier, conv_norm
from predictor.features.builder import GraphBuilder, Tensor


def xception(*, batch: int | str = "batch", image: int = 299, classes: int = 1000) -> bytes:
    """Xception (Chollet 2016): 22,855,952 trainable parameters."""
    b = GraphBuilder("xception")
    x = b.input("image", (batch, 3, image, image))
    x = b.relu(b.batch_norm(b.conv(x, 32, kernel=3, stride=2, padding=0)))
    x = b.relu(b.batch_norm(b.conv(x, 64, kernel=3, padding=0)))
    x = _xception_down(b, x, (128, 128), starts_active=True)
    x = _xception_down(b, x, (256, 256))
    x = _xception_down(b, x, (728, 728))
    for _ in range(8):
        y = x
        for _ in range(3):
            y = b.batch_norm(_separable(b, b.relu(y), 728, 3))
        x = b.add(y, x)
    x = _xception_down(b, x, (728, 1024))
    for channels in (1536, 2048):
        x = b.relu(b.batch_norm(_separable(b, x, channels, 3)))
    return b.build([classifier(b, x, classes)])


def nasnet_mobile(*, batch: int | str = "batch", image: int = 224, classes: int = 1000) -> bytes:
    """NASNet-A (4 @ 1056) (Zoph et al. 2017): 5,289,978 trainable parameters."""
    b = GraphBuilder("nasnet_mobile")
    x = b.input("image", (batch, 3, image, image))
    x = b.batch_norm(b.conv(x, 32, kernel=3, stride=2, padding=0))
    filters = 44
    x, before = _reduction_cell(b, x, None, filters // 4), x
    x, before = _reduction_cell(b, x, before, filters // 2), x
    for level in range(3):
        if level:
            x, before = _reduction_cell(b, x, before, filters << level), x
        for _ in range(4):
            x, before = _normal_cell(b, x, before, filters << level), x
    return b.build([classifier(b, b.relu(x), classes)])


def _separable(b: GraphBuilder, x: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
    depth = b.conv(x, x.size(1), kernel=kernel, stride=stride, groups=x.size(1))
    return b.conv(depth, channels, kernel=1)


def _xception_down(
    b: GraphBuilder, x: Tensor, widths: tuple[int, int], *, starts_active: bool = False
) -> Tensor:
    """Two separable convolutions and a stride-2 pool, beside a strided 1x1."""
    shortcut = conv_norm(b, x, widths[1], 1, stride=2, act=False)
    y = b.batch_norm(_separable(b, x if starts_active else b.relu(x), widths[0], 3))
    y = b.batch_norm(_separable(b, b.relu(y), widths[1], 3))
    return b.add(b.max_pool(y, kernel=3, stride=2, padding=1), shortcut)


def _double_separable(b: GraphBuilder, x: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
    y = b.batch_norm(_separable(b, b.relu(x), channels, kernel, stride))
    return b.batch_norm(_separable(b, b.relu(y), channels, kernel))


def _squeezed(b: GraphBuilder, x: Tensor, filters: int) -> Tensor:
    return b.batch_norm(b.conv(b.relu(x), filters, kernel=1))


def _adjusted(b: GraphBuilder, before: Tensor | None, x: Tensor, filters: int) -> Tensor:
    """The output of the cell before, brought to this cell's size and width."""
    if before is None:
        return x
    if before.size(2) != x.size(2):
        active = b.relu(before)
        shifted = b.op("Pad", [active, b.constant([0, 0, 0, 0, 0, 0, 1, 1])])
        for axis in (2, 3):
            shifted = b.slice(shifted, 1, before.size(axis) + 1, axis=axis)
        halves = [
            b.conv(b.avg_pool(part, kernel=1, stride=2), filters // 2, kernel=1) for part in (active, shifted)
        ]
        return b.batch_norm(b.concat(halves, axis=1))
    return _squeezed(b, before, filters) if before.size(1) != filters else before


def _mean3(b: GraphBuilder, x: Tensor, stride: int = 1) -> Tensor:
    return b.avg_pool(x, kernel=3, stride=stride, padding=1)


def _normal_cell(b: GraphBuilder, x: Tensor, before: Tensor | None, filters: int) -> Tensor:
    p = _adjusted(b, before, x, filters)
    h = _squeezed(b, x, filters)
    branches = [
        b.add(_double_separable(b, h, filters, 5), _double_separable(b, p, filters, 3)),
        b.add(_double_separable(b, p, filters, 5), _double_separable(b, p, filters, 3)),
        b.add(_mean3(b, h), p),
        b.add(_mean3(b, p), _mean3(b, p)),
        b.add(_double_separable(b, h, filters, 3), h),
    ]
    return b.concat([p, *branches], axis=1)


def _reduction_cell(b: GraphBuilder, x: Tensor, before: Tensor | None, filters: int) -> Tensor:
    p = _adjusted(b, before, x, filters)
    h = _squeezed(b, x, filters)
    first = b.add(_double_separable(b, h, filters, 5, 2), _double_separable(b, p, filters, 7, 2))
    peak = b.max_pool(h, kernel=3, stride=2, padding=1)
    second = b.add(peak, _double_separable(b, p, filters, 7, 2))
    third = b.add(_mean3(b, h, 2), _double_separable(b, p, filters, 5, 2))
    fourth = b.add(second, _mean3(b, first))
    fifth = b.add(_double_separable(b, first, filters, 3), b.max_pool(h, kernel=3, stride=2, padding=1))
    return b.concat([second, third, fourth, fifth], axis=1)

"""Single operators as graphs: what a micro-benchmark runs, by the sizes in its name.

A `batch` multiplies the first dimension, so that one description serves every size.
"""

from __future__ import annotations

from collections.abc import Callable

from predictor.features.builder import GraphBuilder


def matmul(*, batch: int | str = 1, m: int = 1024, k: int = 1024, n: int = 1024) -> bytes:
    """(batch * m, k) by a weight (k, n), without bias."""
    b = GraphBuilder("matmul")
    x = b.reshape(b.input("x", (batch, m, k)), [-1, k])
    return b.build([b.linear(x, n, bias=False)])


def batched_matmul(*, batch: int | str = 8, m: int = 512, k: int = 64, n: int = 512) -> bytes:
    """`batch` products of (m, k) and (k, n), as attention runs them."""
    b = GraphBuilder("batched_matmul")
    return b.build([b.matmul(b.input("x", (batch, m, k)), b.input("y", (batch, k, n)))])


def convolution(
    *,
    batch: int | str = 8,
    channels: int = 64,
    filters: int = 64,
    image: int = 56,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
) -> bytes:
    """A convolution without bias that keeps the image's size at stride 1."""
    b = GraphBuilder("convolution")
    x = b.input("x", (batch, channels, image, image))
    return b.build([b.conv(x, filters, kernel=kernel, stride=stride, groups=groups)])


def addition(*, batch: int | str = 1, elements: int = 1 << 24) -> bytes:
    """x + y: three times the elements move."""
    b = GraphBuilder("addition")
    return b.build([b.add(b.input("x", (batch, elements)), b.input("y", (batch, elements)))])


def layer_norm(*, batch: int | str = 4096, width: int = 1024) -> bytes:
    """Layer normalisation of `batch` rows."""
    b = GraphBuilder("layer_norm")
    return b.build([b.layer_norm(b.input("x", (batch, width)))])


def softmax(*, batch: int | str = 4096, width: int = 1024) -> bytes:
    """Softmax of `batch` rows."""
    b = GraphBuilder("softmax")
    return b.build([b.softmax(b.input("x", (batch, width)))])


def launches(*, batch: int | str = 1, count: int = 200) -> bytes:
    """`count` additions of single numbers: nothing but the cost of calling a kernel."""
    b = GraphBuilder("launches")
    x = b.input("x", (batch, 1))
    y = b.input("y", (batch, 1))
    for _ in range(count):
        x = b.add(x, y)
    return b.build([x])


MICRO: dict[str, Callable[..., bytes]] = {
    "micro_matmul": matmul,
    "micro_batched_matmul": batched_matmul,
    "micro_convolution": convolution,
    "micro_addition": addition,
    "micro_layer_norm": layer_norm,
    "micro_softmax": softmax,
    "micro_launches": launches,
}

"""Networks of three search spaces: NAS-Bench-201 cells, FBNet layers, Once-for-all sub-networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from predictor.errors import InvalidRequest
from predictor.features.architectures.cnn import classifier, conv_norm
from predictor.features.architectures.mobile_cnn import inverted_residual, multiple_of_8
from predictor.features.builder import GraphBuilder, Tensor

_CELLS, _WIDTHS = 5, (16, 32, 64)


def nasbench201(cell: str, *, batch: int | str = "batch", image: int = 32, classes: int = 10) -> bytes:
    """A network of fifteen equal cells (Dong & Yang 2020): `|nor_conv_3x3~0|+|skip_connect~0|none~1|+...`.

    Raises InvalidRequest for an unknown operation.
    """
    b = GraphBuilder("nasbench201")
    x = b.batch_norm(b.conv(b.input("image", (batch, 3, image, image)), _WIDTHS[0], kernel=3))
    edges = [[tuple(edge.split("~")) for edge in node.strip("|").split("|")] for node in cell.split("+")]
    for stage, width in enumerate(_WIDTHS):
        if stage:
            x = _reduced(b, x, width)
        for _ in range(_CELLS):
            x = _cell(b, x, edges)
    return b.build([classifier(b, b.relu(b.batch_norm(x)), classes)])


def _cell(b: GraphBuilder, x: Tensor, edges: Sequence[Sequence[tuple[str, ...]]]) -> Tensor:
    nodes: list[Tensor | None] = [x]
    for incoming in edges:
        parts = [_edge(b, nodes[int(source)], op) for op, source in incoming]
        present = [part for part in parts if part is not None]
        nodes.append(list(accumulate(present, b.add))[-1] if present else None)
    last = nodes[-1]
    # A node that nothing reaches holds zeros.
    return b.mul(x, b.constant(0.0)) if last is None else last


def _edge(b: GraphBuilder, x: Tensor | None, op: str) -> Tensor | None:
    if x is None or op == "none":
        return None
    if op == "skip_connect":
        return x
    if op == "avg_pool_3x3":
        return b.avg_pool(x, kernel=3, stride=1, padding=1)
    if op not in ("nor_conv_1x1", "nor_conv_3x3"):
        raise InvalidRequest(f"cell: {op!r} is no operation of NAS-Bench-201", field="cell")
    return b.batch_norm(b.conv(b.relu(x), x.size(1), kernel=int(op[-1])))


def _reduced(b: GraphBuilder, x: Tensor, width: int) -> Tensor:
    """A residual block with stride 2; its shortcut pools and widens."""
    y = b.batch_norm(b.conv(b.relu(x), width, kernel=3, stride=2))
    y = b.batch_norm(b.conv(b.relu(y), width, kernel=3))
    return b.add(b.conv(b.avg_pool(x, kernel=2), width, kernel=1), y)


_FBNET_STAGES = ((16, 1, 1), (24, 4, 1), (32, 4, 2), (64, 4, 2), (112, 4, 1), (184, 4, 2), (352, 1, 1))


def fbnet(layers: str, *, batch: int | str = "batch", image: int = 32, classes: int = 100) -> bytes:
    """FBNet's 22 layers (Wu et al. 2019) at their sizes for CIFAR-100, e.g. `k3_e6 skip k5_e1_g2 ...`."""
    b = GraphBuilder("fbnet")
    x = conv_norm(b, b.input("image", (batch, 3, image, image)), 16, 3)
    places = [
        (width, stride if not index else 1)
        for width, count, stride in _FBNET_STAGES
        for index in range(count)
    ]
    chosen = layers.split()
    if len(chosen) != len(places):
        raise InvalidRequest(f"layers: {len(chosen)} given; expected {len(places)}", field="layers")
    for choice, (width, stride) in zip(chosen, places, strict=True):
        x = _fbnet_layer(b, x, choice, width, stride)
    return b.build([classifier(b, conv_norm(b, x, 1504, 1), classes)])


def _fbnet_layer(b: GraphBuilder, x: Tensor, choice: str, width: int, stride: int) -> Tensor:
    if choice == "skip":
        same = stride == 1 and x.size(1) == width
        return x if same else conv_norm(b, x, width, 1, stride=stride)
    kernel, expansion, *grouped = choice.split("_")
    groups = 2 if grouped else 1
    hidden = x.size(1) * int(expansion[1:])
    y = _shuffled(b, conv_norm(b, x, hidden, 1, groups=groups), groups)
    y = conv_norm(b, y, hidden, int(kernel[1:]), stride=stride, groups=hidden)
    y = conv_norm(b, y, width, 1, groups=groups, act=False)
    return b.add(y, x) if stride == 1 and x.size(1) == width else y


def _shuffled(b: GraphBuilder, x: Tensor, groups: int) -> Tensor:
    if groups == 1:
        return x
    channels, height, width = x.size(1), x.size(2), x.size(3)
    parted = b.reshape(x, [0, groups, channels // groups, height, width])
    return b.reshape(b.transpose(parted, [0, 2, 1, 3, 4]), [0, channels, height, width])


# Width, stride, gate, smooth activation of the five stages of MobileNetV3-large.
_OFA_STAGES = (
    (24, 2, False, False),
    (40, 2, True, False),
    (80, 2, False, True),
    (112, 1, True, True),
    (160, 2, True, True),
)


def once_for_all(
    kernels: Sequence[int],
    expansions: Sequence[int],
    depths: Sequence[int],
    *,
    batch: int | str = "batch",
    image: int = 224,
    classes: int = 1000,
    width: float = 1.0,
) -> bytes:
    """A sub-network of Once-for-all's MobileNetV3 (Cai et al. 2020): `depths` of four slots per stage."""
    b = GraphBuilder("once_for_all")
    stem = multiple_of_8(16 * width)
    x = b.hard_swish(conv_norm(b, b.input("image", (batch, 3, image, image)), stem, 3, stride=2, act=False))
    x = inverted_residual(b, x, stem, stride=1, expansion=1, act=b.relu)
    for stage, (channels, stride, gated, smooth) in enumerate(_OFA_STAGES):
        for index in range(depths[stage]):
            slot = 4 * stage + index
            hidden = x.size(1) * expansions[slot]
            x = inverted_residual(
                b,
                x,
                multiple_of_8(channels * width),
                stride=1 if index else stride,
                expansion=expansions[slot],
                kernel=kernels[slot],
                act=b.hard_swish if smooth else b.relu,
                squeezed=multiple_of_8(hidden / 4) if gated else 0,
                gate="HardSigmoid",
            )
    x = b.hard_swish(conv_norm(b, x, 6 * x.size(1), 1, act=False))
    x = b.hard_swish(b.conv(b.global_pool(x), multiple_of_8(1280 * width), kernel=1))
    return b.build([b.linear(b.flatten(x), classes)])

"""What detectors on feature pyramids share: frozen backbones, the pyramid itself, box losses.

Frozen weights are inputs of the graph: they are read like weights, and no gradient is computed for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.features.architectures.residual import ResNetConfig
from predictor.features.builder import GraphBuilder, Tensor


@dataclass(frozen=True, slots=True)
class PyramidConfig:
    """A backbone with frozen norms whose stem and first `frozen_stages` - 1 stages are not trained.

    extra: what makes the levels above the last stage: `pool` (one) or `convolution` (two, RetinaNet).
    dilated: the last stage keeps stride 16 and dilates (DC5).
    """

    backbone: ResNetConfig
    frozen_stages: int = 2
    extra: str = "pool"
    stride_first: bool = True
    dilated: bool = False


def frozen_stages(b: GraphBuilder, config: PyramidConfig, image: Tensor, count: int = 4) -> list[Tensor]:
    """Outputs of the first `count` stages."""
    fixed = config.frozen_stages
    x = frozen_conv(b, image, 64, 7, stride=2, fixed=fixed > 0)
    x = b.max_pool(b.relu(x), kernel=3, stride=2, padding=1)
    stages = []
    for stage in range(count):
        x = stage_blocks(b, x, config, stage)
        stages.append(x)
    return stages


def stage_blocks(b: GraphBuilder, x: Tensor, config: PyramidConfig, stage: int) -> Tensor:
    """All blocks of one stage with frozen norms."""
    backbone = config.backbone
    fixed = config.frozen_stages >= stage + 2
    planes = 64 << stage
    width = planes * backbone.group_width // 64 * backbone.groups
    dilation = 2 if config.dilated and stage == 3 else 1
    for index in range(backbone.depths[stage]):
        stride = 2 if stage and not index and dilation == 1 else 1
        outer, inner = (stride, 1) if config.stride_first and backbone.groups == 1 else (1, stride)
        y = b.relu(frozen_conv(b, x, width, 1, stride=outer, fixed=fixed))
        y = frozen_conv(b, y, width, 3, stride=inner, groups=backbone.groups, dilation=dilation, fixed=fixed)
        y = frozen_conv(b, b.relu(y), 4 * planes, 1, fixed=fixed)
        shortcut = x if index else frozen_conv(b, x, 4 * planes, 1, stride=stride, fixed=fixed)
        x = b.relu(b.add(y, shortcut))
    return x


def frozen_conv(
    b: GraphBuilder,
    x: Tensor,
    channels: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    dilation: int = 1,
    fixed: bool = False,
) -> Tensor:
    """A convolution, then an untrained scale and shift per channel; the weight is trained unless `fixed`."""
    if fixed:
        shape = (channels, x.size(1) // groups, kernel, kernel)
        padding = dilation * (kernel - 1) // 2
        y: Tensor = b.op(
            "Conv",
            [x, b.frozen(shape)],
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[padding] * 4,
            dilations=[dilation] * 2,
            group=groups,
        )
    else:
        y = b.conv(x, channels, kernel=kernel, stride=stride, groups=groups, dilation=dilation)
    per_channel = (1, channels, 1, 1)
    return b.add(b.mul(y, b.frozen(per_channel)), b.frozen(per_channel))


def pyramid(b: GraphBuilder, config: PyramidConfig, image: Tensor, channels: int = 256) -> list[Tensor]:
    """Levels at strides 4 (8 with extra convolutions) to 64 (128)."""
    stages = frozen_stages(b, config, image)
    if config.extra == "convolution":
        stages = stages[1:]
    top = b.conv(stages[-1], channels, kernel=1, bias=True)
    levels = [b.conv(top, channels, kernel=3, bias=True)]
    for stage in reversed(stages[:-1]):
        lateral = b.conv(stage, channels, kernel=1, bias=True)
        top = b.add(lateral, _enlarged(b, top, lateral))
        levels.insert(0, b.conv(top, channels, kernel=3, bias=True))
    if config.extra == "pool":
        return [*levels, b.max_pool(levels[-1], kernel=1, stride=2)]
    sixth = b.conv(stages[-1], channels, kernel=3, stride=2, bias=True)
    return [*levels, sixth, b.conv(b.relu(sixth), channels, kernel=3, stride=2, bias=True)]


def _enlarged(b: GraphBuilder, x: Tensor, like: Tensor) -> Tensor:
    """Nearest neighbours, to the size of `like`."""
    sizes = b.constant([x.size(0), x.size(1), like.size(2), like.size(3)])
    larger: Tensor = b.op("Resize", [x, None, None, sizes], mode="nearest")
    return larger


def smooth_l1(b: GraphBuilder, found: Tensor, wanted: Tensor) -> Tensor:
    """|d| - 1/2, or d^2 / 2 where |d| < 1, element by element."""
    distance: Tensor = b.op("Abs", [b.sub(found, wanted)])
    near = b.op("Less", [distance, b.constant(1.0)])
    square = b.mul(b.mul(distance, distance), b.constant(0.5))
    loss: Tensor = b.op("Where", [near, square, b.sub(distance, b.constant(0.5))])
    return loss

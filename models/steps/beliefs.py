"""What is known of kernels before an iteration is timed: pulls between and on the weights of the prior.

A sum does not tell which of its kernels took the time; left to sums alone, pointwise gradients took four
times their bytes' time and weight gradients a tenth of a product's. Four facts hold them:

- Kernels that stream their operands take about the time of their bytes, in training as in inference.
- Gradients run like their forward kernels: the same loops, and products of the same size.
- A softmax's gradient is two kernels in eager mode: the product with what comes back, and the sums.
- Compilers leave products to the libraries that eager mode calls, and merge small kernels into neighbours.
- An optimizer runs alike whatever the types, the layout and the compiler of the passes before it.

Strengths are per thousand iterations: what sums get wrong is no noise that more of them average out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from predictor.features.programs.work import Phase
from predictor.features.programs.work_table import PHASES
from predictor.features.tables.tiles import FloatArray
from predictor.models.steps.features import CLASSES, forward_class
from predictor.models.steps.prior import PHASE_COUNT, Levels

_BACKWARD = PHASES.index(Phase.BACKWARD)
_STREAMING = np.isin(
    CLASSES,
    (
        "batch_norm", "layer_norm", "group_norm", "norm_sums", "softmax", "add", "mul", "activation",
        "smooth_activation", "bias", "fused", "power", "elementwise", "reduction", "pooling", "cast",
        "transpose", "concat", "copy", "image_conversion",
    ),
)  # fmt: skip
_OF_LIBRARIES = np.array([name in ("linear", "bmm") or "conv" in name for name in CLASSES])
_MERGED = np.isin(CLASSES, ("bias", "cast"))
_BASE_LOG, _MERGED_LOG, _TWO_KERNELS_LOG = 0.2, -2.0, 0.7
_OPTIMIZER = CLASSES.index("optimizer")
_STREAM_PULLS = {"precision": 1.0, "training": 2.5}
_LIBRARY_PULLS = {"compiled": 7.0}
_LIKE_FORWARD = 1.5
_OPTIMIZER_PULL = 7.0


def first_log(effect: str, level: int, groups: Levels) -> FloatArray:
    """(g,) where the weights of an effect on groups of class and phase start, and are pulled to."""
    code, phase = np.divmod(groups, PHASE_COUNT)
    split = np.where((code == CLASSES.index("softmax")) & (phase == _BACKWARD), _TWO_KERNELS_LOG, 0.0)
    if effect == "base":
        return _BASE_LOG + split
    if effect == "compiled" and level == 1:
        return np.where(_MERGED[code], _MERGED_LOG, -split)
    return np.zeros(len(groups))


def strength(effect: str, groups: Levels) -> FloatArray:
    """(g,) pull of an effect to where it starts, per thousand iterations, beside that of all classes."""
    code = groups // PHASE_COUNT
    streaming = np.where(_STREAMING[code], _STREAM_PULLS.get(effect, 0.0), 0.0)
    libraries = np.where(_OF_LIBRARIES[code], _LIBRARY_PULLS.get(effect, 0.0), 0.0)
    return streaming + libraries + np.where((code == _OPTIMIZER) & (effect != "base"), _OPTIMIZER_PULL, 0.0)


def kin(groups: Levels) -> Iterator[tuple[int, int, float]]:
    """Positions in `groups` of gradients and of their forward kernels, and the pull between them."""
    place = {int(group): i for i, group in enumerate(groups)}
    for group, i in place.items():
        code, phase = divmod(group, PHASE_COUNT)
        forward = place.get(CLASSES.index(forward_class(CLASSES[code])) * PHASE_COUNT)
        if phase == _BACKWARD and forward is not None:
            yield i, forward, _LIKE_FORWARD

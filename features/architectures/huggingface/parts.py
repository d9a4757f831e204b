"""Norms, activations and feed-forward layers as the implementations launch them, kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from onnx import TensorProto, helper

from predictor.errors import UnknownName
from predictor.features.architectures.layers import tanh_gelu
from predictor.features.builder import GraphBuilder, Tensor

Activation: TypeAlias = Callable[[GraphBuilder, Tensor], Tensor]


def buffer(b: GraphBuilder, *shape: int, value: float = 0.0) -> Tensor:
    """A tensor that the model owns and does not train."""
    filled = helper.make_tensor("value", TensorProto.FLOAT, [1], [value])
    made: Tensor = b.op("ConstantOfShape", [b.constant(list(shape))], value=filled)
    return made


def pooled(b: GraphBuilder, x: Tensor, act: Activation | None = None, features: int | None = None) -> Tensor:
    """The first token's vector, (batch, width); through a matrix and `act` where that is given."""
    first = b.reshape(b.slice(x, 0, 1, axis=1), [0, x.size(-1)])
    return first if act is None else act(b, b.linear(first, features or x.size(-1)))


def scaled(b: GraphBuilder, x: Tensor, factor: float | None) -> Tensor:
    """x * factor; x itself for None or 1, as the implementations skip it."""
    return x if factor is None or factor == 1.0 else b.mul(x, b.constant(float(factor)))


class NormKind(StrEnum):
    """Ways to normalise the last dimension."""

    LAYER = "layer"
    LAYER_NO_SHIFT = "layer_no_shift"
    LAYER_PLAIN = "layer_plain"
    LAYER_BY_HAND = "layer_by_hand"
    RMS = "rms"
    RMS_OFFSET = "rms_offset"


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation with its own parameters every time it is applied."""

    kind: NormKind
    epsilon: float = 1e-5

    def __call__(self, b: GraphBuilder, x: Tensor) -> Tensor:
        """x normalised over its last dimension."""
        return _NORMS[self.kind](b, x, self.epsilon)


def _plain_norm(b: GraphBuilder, x: Tensor, epsilon: float) -> Tensor:
    y: Tensor = b.op("LayerNormalization", [x, buffer(b, x.size(-1), value=1.0)], axis=-1, epsilon=epsilon)
    return y


def _norm_by_hand(b: GraphBuilder, x: Tensor, epsilon: float) -> Tensor:
    centred = b.sub(x, b.reduce_mean(x, [-1], keepdims=True))
    variance = b.reduce_mean(b.op("Pow", [centred, b.constant(2.0)]), [-1], keepdims=True)
    root = b.op("Sqrt", [b.add(variance, b.constant(epsilon))])
    return b.mul(b.div(centred, root), b.parameter((x.size(-1),), "layer_norm.weight"))


def _offset_norm(b: GraphBuilder, x: Tensor, epsilon: float) -> Tensor:
    square = b.op("Pow", [x, b.constant(2.0)])
    root = b.op("Sqrt", [b.add(b.reduce_mean(square, [-1], keepdims=True), b.constant(epsilon))])
    weight = b.add(b.parameter((x.size(-1),), "rms_norm.weight"), b.constant(1.0))
    return b.mul(b.div(x, root), weight)


_NORMS: Mapping[NormKind, Callable[[GraphBuilder, Tensor, float], Tensor]] = {
    NormKind.LAYER: lambda b, x, epsilon: b.layer_norm(x, epsilon=epsilon),
    NormKind.LAYER_NO_SHIFT: lambda b, x, epsilon: b.layer_norm(x, epsilon=epsilon, bias=False),
    NormKind.LAYER_PLAIN: _plain_norm,
    NormKind.LAYER_BY_HAND: _norm_by_hand,
    NormKind.RMS: lambda b, x, epsilon: b.rms_norm(x, epsilon=epsilon),
    NormKind.RMS_OFFSET: _offset_norm,
}


def _quick_gelu(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.mul(x, b.sigmoid(b.mul(x, b.constant(1.702))))


def _squared_relu(b: GraphBuilder, x: Tensor) -> Tensor:
    positive = b.relu(x)
    return b.mul(positive, positive)


# gelu_fast and BLOOM's own form take the factors in another order, in as many kernels.
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": lambda b, x: b.gelu(x),
    "gelu_python": lambda b, x: b.gelu(x),
    "gelu_pytorch_tanh": lambda b, x: b.gelu(x, approximate="tanh"),
    "gelu_new": tanh_gelu,
    "gelu_fast": tanh_gelu,
    "quick_gelu": _quick_gelu,
    "relu": lambda b, x: b.relu(x),
    "relu2": _squared_relu,
    "silu": lambda b, x: b.silu(x),
    "swish": lambda b, x: b.silu(x),
    "tanh": lambda b, x: b.tanh(x),
    "sigmoid": lambda b, x: b.sigmoid(x),
}
"""Names that `hidden_act` and its like may hold."""


def activation(name: str) -> Activation:
    """The activation of that name. Raises UnknownName."""
    if name not in ACTIVATIONS:
        raise UnknownName.among("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Two matrices with an activation between them, or three where a gate multiplies.

    `joint` keeps gate and up-projection in one matrix. `bias` is that of all matrices.
    """

    hidden: int
    activation: str
    gated: bool = False
    joint: bool = False
    bias: bool = False

    def __call__(self, b: GraphBuilder, x: Tensor) -> Tensor:
        """(..., width) to (..., width)."""
        act = activation(self.activation)
        if not self.gated:
            inner = act(b, b.linear(x, self.hidden, bias=self.bias))
        elif self.joint:
            gate, up = b.split(b.linear(x, 2 * self.hidden, bias=self.bias), 2, axis=-1)
            inner = b.mul(up, act(b, gate))
        else:
            gate = act(b, b.linear(x, self.hidden, bias=self.bias))
            inner = b.mul(gate, b.linear(x, self.hidden, bias=self.bias))
        return b.linear(inner, x.size(-1), bias=self.bias)

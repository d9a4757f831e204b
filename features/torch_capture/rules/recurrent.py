"""Recurrent layers: one call for all layers and directions, priced layer by layer as exports spell them."""

from __future__ import annotations

from dataclasses import replace

from predictor.features.programs.work import OpWork
from predictor.features.torch_capture.call_view import ATEN_RULES, CallView, backward, forward
from predictor.features.torch_capture.calls import Tensor

_TYPES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


@ATEN_RULES.register("perfcast", "rnn")
def rnn(view: CallView) -> tuple[OpWork, ...]:
    """All steps of every layer."""
    works: list[OpWork] = []
    for inputs, out in _layers(view, view.tensor("data"), view.output):
        works += forward(view, _type(view), inputs, (out,), layout=view.integer("batch_first"))
    return tuple(works)


@ATEN_RULES.register("perfcast", "rnn_backward")
def rnn_backward(view: CallView) -> tuple[OpWork, ...]:
    """Gradients of every layer's data and weights, the last layer first."""
    works: list[OpWork] = []
    layers = _layers(view, view.tensor("data"), view.tensor("out"))
    for index, (inputs, out) in reversed(list(enumerate(layers))):
        wanted = [place for place, item in enumerate(inputs) if item is not None]
        if index == 0 and not view.integer("wants_data"):
            wanted.remove(0)
        layout = view.integer("batch_first")
        works += backward(view, _type(view), inputs, (out,), wanted, layout=layout)
    return tuple(works)


def _type(view: CallView) -> str:
    return _TYPES[view.text("cell")]


def _layers(view: CallView, data: Tensor, out: Tensor) -> list[tuple[tuple[Tensor | None, ...], Tensor]]:
    """Per layer the operands (data, weight, recurrence, bias) in the shapes of the ONNX operator."""
    directions = view.integer("directions", 1)
    weights = view.tensors("weights")
    per_layer = len(weights) // view.integer("layers", 1)
    found: list[tuple[tuple[Tensor | None, ...], Tensor]] = []
    for start in range(0, len(weights), per_layer):
        part = weights[start : start + per_layer]
        each = per_layer // directions
        matrices = part[:each]
        # Weights of all directions lie in one tensor there, both biases behind each other.
        weight, recurrence = (_stacked(item, directions) for item in matrices[:2])
        bias = None
        if each >= 4:
            size = 2 * matrices[2].shape[0]
            bias = replace(_stacked(matrices[2], directions), shape=(directions, size), strides=(size, 1))
        found.append(((data, weight, recurrence, bias), out))
        data = replace(out, storage=-1 - start)
    return found


def _stacked(item: Tensor, directions: int) -> Tensor:
    size = item.elements
    return replace(item, shape=(directions, *item.shape), strides=(size, *item.strides))

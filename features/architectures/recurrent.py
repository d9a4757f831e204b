"""Speech recognition: DeepSpeech2 with LSTM layers, as commonly trained on LibriSpeech.

Two convolutions over (frequency, time), five bidirectional LSTM layers whose directions are summed, and one
linear layer.
"""

from __future__ import annotations

from predictor.errors import InvalidRequest
from predictor.features.builder import GraphBuilder, Tensor

_BINS = 161


def deepspeech2(
    *,
    batch: int | str = "batch",
    frames: int = 1200,
    hidden: int = 1024,
    layers: int = 5,
    characters: int = 29,
) -> bytes:
    """ONNX bytes on spectrograms (batch, 1, 161, frames): 161 bins of a 20 ms window, one frame per 10 ms.

    Raises InvalidRequest when nothing is left after the convolutions' stride over time.
    """
    if frames < 11:
        raise InvalidRequest(f"frames is {frames}; expected at least 11 (110 ms of speech)", field="frames")
    b = GraphBuilder("deepspeech2")
    x = b.input("spectrogram", (batch, 1, _BINS, frames))
    x = _conv(b, x, kernel=(41, 11), stride=(2, 2), padding=(20, 5))
    x = _conv(b, x, kernel=(21, 11), stride=(2, 1), padding=(10, 5))
    features, steps = x.size(1) * x.size(2), x.size(3)
    x = b.transpose(b.reshape(x, [0, features, steps]), [2, 0, 1])
    for layer in range(layers):
        x = _bidirectional_lstm(b, _row_norm(b, x) if layer else x, hidden)
    return b.build([b.transpose(b.linear(_row_norm(b, x), characters, bias=False), [1, 0, 2])])


def _conv(
    b: GraphBuilder, x: Tensor, *, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    y = b.batch_norm(b.conv(x, 32, kernel=kernel, stride=stride, padding=padding, bias=True))
    clipped: Tensor = b.op("Clip", [y, b.constant(0.0), b.constant(20.0)])
    return clipped


def _row_norm(b: GraphBuilder, x: Tensor) -> Tensor:
    """Batch normalisation over all (step, sample) rows of (steps, batch, width)."""
    steps, width = x.size(0), x.size(2)
    return b.reshape(b.batch_norm(b.reshape(x, [-1, width])), [steps, -1, width])


def _bidirectional_lstm(b: GraphBuilder, x: Tensor, hidden: int) -> Tensor:
    """(steps, batch, width) to (steps, batch, hidden), both directions added."""
    weights = [
        b.parameter((2, 4 * hidden, x.size(2)), "lstm.input"),
        b.parameter((2, 4 * hidden, hidden), "lstm.recurrent"),
        b.parameter((2, 8 * hidden), "lstm.bias"),
    ]
    y = b.op("LSTM", [x, *weights], direction="bidirectional", hidden_size=hidden)
    summed: Tensor = b.op("ReduceSum", [y, b.constant([1])], keepdims=0)
    return summed

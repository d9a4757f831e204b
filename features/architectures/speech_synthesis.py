"""Speech from text as NVIDIA's examples train it: Tacotron 2 to mel frames, WaveGlow from them to samples."""

from __future__ import annotations

from onnx import load_model_from_string

from predictor.features.architectures.layers import dropout, embed
from predictor.features.architectures.translation import lstm
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType

_SYMBOLS, _MEL = 148, 80


def tacotron2(*, batch: int = 48, characters: int = 170, frames: int = 830, training: bool = False) -> bytes:
    """Tacotron 2 (Shen et al. 2017): 28,193,153 parameters; the decoder runs once per frame.

    `characters` and `frames` are those of the longest sentence of a batch of LJSpeech, to which it is padded.
    """
    b = GraphBuilder("tacotron2")
    ids = b.input("characters", (batch, characters), DType.INT64)
    x = b.transpose(embed(b, ids, b.parameter((_SYMBOLS, 512), "symbols")), [0, 2, 1])
    for _ in range(3):
        x = dropout(b, True, b.relu(_conv(b, x, 512))) if training else b.relu(_conv(b, x, 512))
    memory = lstm(b, b.transpose(x, [2, 0, 1]), 256, both_ways=True)
    memory = b.transpose(memory, [1, 0, 2])
    spoken = b.input("mel", (batch, _MEL, frames))
    y = b.transpose(spoken, [2, 0, 1])
    for _ in range(2):
        # The decoder's prenet drops in inference too.
        y = dropout(b, True, b.relu(_plain(b, y, 256)))
    keys = _plain(b, memory, 128)
    mel, gate = _decoded(b, y, memory, keys, training)
    mel = b.transpose(mel, [1, 2, 0])
    post = mel
    for channels in (512, 512, 512, 512):
        post = dropout(b, training, b.tanh(_conv(b, post, channels)))
    post = b.add(mel, dropout(b, training, _conv(b, post, _MEL)))
    if not training:
        return b.build([post, gate])
    losses = []
    for found in (mel, post):
        error = b.sub(found, spoken)
        losses.append(b.op("ReduceMean", [b.mul(error, error)], keepdims=0))
    stopped = b.op("ReduceMean", [b.op("Softplus", [gate])], keepdims=0)
    return b.build([b.add(b.add(*losses), stopped)])


def _conv(b: GraphBuilder, x: Tensor, channels: int) -> Tensor:
    return b.batch_norm(b.conv(x, channels, kernel=5, bias=True))


def _plain(b: GraphBuilder, x: Tensor, features: int) -> Tensor:
    return b.matmul(x, b.parameter((x.size(-1), features), "weight"))


def _decoded(
    b: GraphBuilder, frames: Tensor, memory: Tensor, keys: Tensor, training: bool
) -> tuple[Tensor, Tensor]:
    """(frames, batch, 80) mel frames and (frames, batch, 1) stop scores of the step-by-step decoder."""
    batch, length = memory.size(0), memory.size(1)
    step = GraphBuilder("step")
    states = [
        step.input(name, shape)
        for name, shape in (
            ("hidden", (batch, 1024)),
            ("cell", (batch, 1024)),
            ("hidden2", (batch, 1024)),
            ("cell2", (batch, 1024)),
            ("context", (batch, 512)),
            ("weights", (batch, length)),
            ("total", (batch, length)),
        )
    ]
    hidden, cell, hidden2, cell2, context, weights, total = states
    frame = step.input("frame", (batch, 256))
    # Read from the graph around the step, under their names there.
    seen, keyed = (step.input(outer.name, outer.sizes) for outer in (memory, keys))
    hidden, cell = _lstm_cell(step, step.concat([frame, context], axis=1), hidden, cell)
    hidden = dropout(step, training, hidden)
    places = step.concat([step.reshape(part, [batch, 1, length]) for part in (weights, total)], axis=1)
    located = step.transpose(step.conv(places, 32, kernel=31), [0, 2, 1])
    located = step.matmul(located, step.parameter((32, 128), "location"))
    asked = step.reshape(step.matmul(hidden, step.parameter((1024, 128), "query")), [batch, 1, 128])
    energies = step.tanh(step.add(step.add(asked, located), keyed))
    scores = step.reshape(step.matmul(energies, step.parameter((128, 1), "v")), [batch, length])
    mask = step.parameter((batch, length), "padding", DType.BOOL)
    weights = step.softmax(step.op("Where", [mask, step.constant(-65504.0), scores]))
    context = step.reshape(step.matmul(step.reshape(weights, [batch, 1, length]), seen), [batch, 512])
    total = step.add(total, weights)
    hidden2, cell2 = _lstm_cell(step, step.concat([hidden, context], axis=1), hidden2, cell2)
    hidden2 = dropout(step, training, hidden2)
    joined = step.concat([hidden2, context], axis=1)
    mel, gate = step.linear(joined, _MEL), step.linear(joined, 1)
    outputs = [hidden, cell, hidden2, cell2, context, weights, total, mel, gate]
    body = load_model_from_string(step.build(outputs)).graph
    del body.input[-2:]
    zeros = [b.frozen(state.sizes) for state in states]
    *_, mels, gates = b.op("Scan", [*zeros, frames], len(outputs), body=body, num_scan_inputs=1)
    return mels, gates


def _lstm_cell(b: GraphBuilder, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """One step of an LSTM: two products, and one fused kernel over the gates."""
    width = cell.size(1)
    gates = b.add(b.linear(x, 4 * width), b.linear(hidden, 4 * width))
    kept, added, shown, new = b.split(gates, 4, axis=1)
    cell = b.add(b.mul(b.sigmoid(kept), cell), b.mul(b.sigmoid(added), b.tanh(new)))
    return b.mul(b.sigmoid(shown), b.tanh(cell)), cell


def waveglow(
    *, batch: int | str = "batch", segment: int = 8000, channels: int = 512, training: bool = False
) -> bytes:
    """WaveGlow (Prenger et al. 2018): twelve flows of eight dilated layers on segments of audio."""
    b = GraphBuilder("waveglow")
    groups = segment // 8
    frames = segment // 256 + 1
    mel = b.conv_transpose(b.input("mel", (batch, _MEL, frames)), _MEL, kernel=1024, stride=256)
    mel = b.slice(mel, 0, segment, axis=2)
    mel = b.transpose(b.reshape(mel, [0, _MEL, groups, 8]), [0, 1, 3, 2])
    mel = b.reshape(mel, [0, 8 * _MEL, groups])
    audio = b.transpose(b.reshape(b.input("audio", (batch, segment)), [0, groups, 8]), [0, 2, 1])
    outputs, logs = [], []
    for flow in range(12):
        if flow and flow % 4 == 0:
            early, audio = b.split(audio, [2, audio.size(1) - 2], axis=1)
            outputs.append(early)
        half = audio.size(1) // 2
        audio = b.conv(audio, audio.size(1), kernel=1)
        first, second = b.split(audio, 2, axis=1)
        shift, log_scale = b.split(_wavenet(b, first, mel, channels, 2 * half), 2, axis=1)
        second = b.add(b.mul(b.op("Exp", [log_scale]), second), shift)
        logs.append(b.op("ReduceSum", [log_scale], keepdims=0))
        audio = b.concat([first, second], axis=1)
    z = b.concat([*outputs, audio], axis=1)
    if not training:
        return b.build([z])
    loss = b.op("ReduceSum", [b.mul(z, z)], keepdims=0)
    for log in logs:
        loss = b.sub(loss, log)
    return b.build([loss])


def _wavenet(b: GraphBuilder, x: Tensor, mel: Tensor, channels: int, outputs: int) -> Tensor:
    """Eight gated layers of doubling dilation, all told the frames; a residual path and a sum of skips."""
    x = b.conv(x, channels, kernel=1, bias=True)
    told = b.conv(mel, 2 * channels * 8, kernel=1, bias=True)
    skipped: Tensor | None = None
    for layer in range(8):
        mine = b.slice(told, layer * 2 * channels, (layer + 1) * 2 * channels, axis=1)
        gated = b.add(b.conv(x, 2 * channels, kernel=3, dilation=1 << layer, bias=True), mine)
        wave, gate = b.split(gated, 2, axis=1)
        active = b.mul(b.tanh(wave), b.sigmoid(gate))
        last = layer == 7
        both = b.conv(active, channels if last else 2 * channels, kernel=1, bias=True)
        skip = both
        if not last:
            residual, skip = b.split(both, 2, axis=1)
            x = b.add(x, residual)
        skipped = skip if skipped is None else b.add(skipped, skip)
    assert skipped is not None
    return b.conv(skipped, outputs, kernel=1, bias=True)

"""Translation: GNMT as NVIDIA's examples train it, the Transformer; and a recurrent language model."""

from __future__ import annotations

from predictor.features.architectures.layers import dropout, embed, merge_heads, split_heads, token_loss
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType

_GNMT_VOCABULARY = 32_320


def gnmt(
    *,
    batch: int | str = "batch",
    source: int = 27,
    target: int = 27,
    width: int = 1024,
    training: bool = False,
) -> bytes:
    """GNMT v2 (Wu et al. 2016) with four layers a side: 160,671,296 parameters.

    `source` and `target` are tokens per sentence, those of WMT16 English-German on average.
    """
    b = GraphBuilder("gnmt")
    tokens = b.parameter((_GNMT_VOCABULARY, width), "tokens")
    known = _ids(b, "source", batch, source)
    x = dropout(b, training, embed(b, known, tokens))
    x = dropout(b, training, lstm(b, x, width, both_ways=True))
    x = dropout(b, training, lstm(b, x, width))
    for layer in range(2):
        y = b.add(lstm(b, x, width), x)
        x = dropout(b, training, y) if not layer else y
    y = dropout(b, training, embed(b, _ids(b, "target", batch, target), tokens))
    y = lstm(b, y, width)
    context = _attention(b, y, x, width, training)
    for layer in range(3):
        before = y
        y = lstm(b, b.concat([dropout(b, training, y), context], axis=2), width)
        y = b.add(y, before) if layer else y
    scores = b.linear(b.reshape(y, [-1, width]), _GNMT_VOCABULARY)
    if not training:
        return b.build([scores])
    return b.build([_smoothed_loss(b, scores, b.reshape(_ids(b, "labels", batch, target), [-1]))])


def _smoothed_loss(b: GraphBuilder, scores: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy with label smoothing: the word's own score, and the mean of all."""
    logs = b.op("LogSoftmax", [scores], axis=-1)
    own = b.op("NegativeLogLikelihoodLoss", [logs, labels], reduction="mean")
    smooth = b.op("ReduceMean", [b.reduce_mean(logs, [1])], keepdims=0)
    return b.sub(b.mul(own, b.constant(0.9)), b.mul(smooth, b.constant(0.1)))


def _ids(b: GraphBuilder, name: str, batch: int | str, length: int) -> Tensor:
    return b.transpose(b.input(name, (batch, length), DType.INT64), [1, 0])


def lstm(b: GraphBuilder, x: Tensor, hidden: int, *, both_ways: bool = False) -> Tensor:
    """One layer of (length, batch, width) in one library call; directions are joined."""
    ways = 2 if both_ways else 1
    weights = [
        b.parameter((ways, 4 * hidden, x.size(2)), "lstm.input"),
        b.parameter((ways, 4 * hidden, hidden), "lstm.recurrent"),
        b.parameter((ways, 8 * hidden), "lstm.bias"),
    ]
    direction = "bidirectional" if both_ways else "forward"
    y = b.op("LSTM", [x, *weights], hidden_size=hidden, direction=direction)
    return b.reshape(b.transpose(y, [0, 2, 1, 3]), [0, -1, ways * hidden])


def _attention(b: GraphBuilder, queries: Tensor, keys: Tensor, width: int, training: bool) -> Tensor:
    """Bahdanau's normalised attention: tanh of every sum of a query and a key, which is a large tensor."""
    steps, seen = queries.size(0), keys.size(0)
    q = b.matmul(b.transpose(queries, [1, 0, 2]), b.parameter((width, width), "query"))
    values = b.transpose(keys, [1, 0, 2])
    k = b.matmul(values, b.parameter((width, width), "key"))
    sums = b.add(b.reshape(q, [-1, steps, 1, width]), b.reshape(k, [-1, 1, seen, width]))
    shifted = b.add(sums, b.parameter((width,), "attention.bias"))
    scores = b.reshape(
        b.matmul(b.tanh(shifted), b.parameter((width, 1), "attention.vector")), [-1, steps, seen]
    )
    mixed = b.matmul(dropout(b, training, b.softmax(scores)), values)
    return b.transpose(mixed, [1, 0, 2])


def lstm_language_model(
    *,
    batch: int | str = "batch",
    sequence: int = 35,
    width: int = 200,
    layers: int = 2,
    vocabulary: int = 33_278,
    training: bool = False,
) -> bytes:
    """The LSTM of PyTorch's word-language-model example on WikiText-2."""
    b = GraphBuilder("lstm_language_model")
    ids = _ids(b, "input_ids", batch, sequence)
    x = dropout(b, training, embed(b, ids, b.parameter((vocabulary, width), "tokens")))
    for layer in range(layers):
        x = lstm(b, dropout(b, training and layer > 0, x), width)
    scores = b.linear(b.reshape(dropout(b, training, x), [-1, width]), vocabulary)
    if not training:
        return b.build([scores])
    labels = b.reshape(_ids(b, "labels", batch, sequence), [-1])
    return b.build([token_loss(b, scores, labels)])


def seq2seq_transformer(
    *,
    batch: int | str = "batch",
    sequence: int = 24,
    width: int = 512,
    layers: int = 6,
    heads: int = 8,
    vocabulary: int = 9_521,
    training: bool = False,
) -> bytes:
    """The Transformer (Vaswani et al. 2017), base size, on sentence pairs of Multi30k."""
    b = GraphBuilder("seq2seq_transformer")
    ids = [b.input(name, (batch, sequence), DType.INT64) for name in ("source", "target")]
    x, y = (
        dropout(
            b, training, b.add(embed(b, i, b.parameter((vocabulary, width), "tokens")), _places(b, i, width))
        )
        for i in ids
    )
    for _ in range(layers):
        x = _fed_forward(b, _mixed(b, x, x, heads, training), training)
    for _ in range(layers):
        y = _mixed(b, y, y, heads, training)
        y = _fed_forward(b, _mixed(b, y, x, heads, training), training)
    scores = b.linear(b.reshape(y, [-1, width]), vocabulary, bias=False)
    if not training:
        return b.build([scores])
    labels = b.reshape(b.input("labels", (batch, sequence), DType.INT64), [-1])
    return b.build([_smoothed_loss(b, scores, labels)])


def _places(b: GraphBuilder, ids: Tensor, width: int) -> Tensor:
    return b.frozen((1, ids.size(1), width))


def _mixed(b: GraphBuilder, x: Tensor, seen: Tensor, heads: int, training: bool) -> Tensor:
    """Attention of x to `seen`, then the residual and its norm."""
    width = x.size(2)
    query, key, value = (
        b.matmul(source, b.parameter((width, width), "projection")) for source in (x, seen, seen)
    )
    scaled = b.div(split_heads(b, query, heads), b.constant((width / heads) ** 0.5))
    scores = b.matmul(scaled, split_heads(b, key, heads, keys=True))
    mask = b.parameter((1, 1, x.size(1), seen.size(1)), "mask", DType.BOOL)
    weights = b.softmax(b.op("Where", [mask, b.constant(-1e9), scores]))
    mixed = merge_heads(b, b.matmul(dropout(b, training, weights), split_heads(b, value, heads)))
    out = dropout(b, training, b.matmul(mixed, b.parameter((width, width), "out")))
    return b.layer_norm(b.add(out, x), epsilon=1e-6)


def _fed_forward(b: GraphBuilder, x: Tensor, training: bool) -> Tensor:
    hidden = b.linear(b.relu(b.linear(x, 4 * x.size(2))), x.size(2))
    return b.layer_norm(b.add(dropout(b, training, hidden), x), epsilon=1e-6)

"""Recommenders on MovieLens-20M: neural collaborative filtering, and an autoencoder of users' ratings."""

from __future__ import annotations

from predictor.features.architectures.layers import dropout, embed
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType

_USERS, _ITEMS = 138_493, 26_744


def ncf(*, batch: int | str = "batch", training: bool = False) -> bytes:
    """NeuMF (He et al. 2017) at MLPerf's sizes: 31,832,577 parameters; a sample is one (user, item) pair."""
    b = GraphBuilder("ncf")
    user, item = (b.input(name, (batch,), DType.INT64) for name in ("user", "item"))
    tables = [(user, _USERS), (item, _ITEMS)]
    factors = [embed(b, ids, b.parameter((count, 64), "factors")) for ids, count in tables]
    wide = [embed(b, ids, b.parameter((count, 128), "wide")) for ids, count in tables]
    x = b.concat(wide, axis=1)
    for features in (256, 128, 64):
        x = dropout(b, training, b.relu(b.linear(x, features)))
    score = b.linear(b.concat([b.mul(*factors), x], axis=1), 1)
    if not training:
        return b.build([b.sigmoid(score)])
    return b.build([_binary_loss(b, score, b.input("label", (batch, 1)))])


def _binary_loss(b: GraphBuilder, score: Tensor, label: Tensor) -> Tensor:
    """Mean of max(s, 0) - s * label + log(1 + exp(-|s|)), one kernel in the framework."""
    entropy = b.op("Softplus", [b.mul(score, label)])
    loss: Tensor = b.op("ReduceMean", [entropy], keepdims=0)
    return loss


def recommendation_autoencoder(*, batch: int | str = "batch", training: bool = False) -> bytes:
    """Recoder's autoencoder: ratings of all items to 200 hidden units and back, multinomial loss."""
    b = GraphBuilder("recommendation_autoencoder")
    ratings = b.input("ratings", (batch, _ITEMS))
    hidden = b.tanh(b.linear(dropout(b, training, ratings), 200))
    scores = b.linear(hidden, _ITEMS)
    if not training:
        return b.build([scores])
    logs = b.op("LogSoftmax", [scores], axis=-1)
    loss = b.op("ReduceMean", [b.mul(logs, ratings)], keepdims=0)
    return b.build([loss])

"""From the graph of a whole model to the graph of one rank: tensors, sequences and experts are split."""

from __future__ import annotations

from predictor.parallel.sharding.front import ParameterShard, Sharding, shard, sharding

__all__ = ["ParameterShard", "Sharding", "shard", "sharding"]

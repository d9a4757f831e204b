"""Shard rules of convolutional networks: channels and samples. Positions would need their neighbours."""

from __future__ import annotations

from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.layout import Split, is_exact
from predictor.parallel.sharding.registry import SHARD_RULES, Axis, along
from predictor.parallel.sharding.rules.parts import by_letters, operand_of, operands_of, same_dimensions


@SHARD_RULES.register("", "Conv", "ConvTranspose")
def convolution(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Output channels, or input channels whose contributions are added up; groups stay together."""
    transposed = op.op_type == "ConvTranspose"
    if op.integer("group", 1) > 1:
        return _grouped(op, operand, split, parts, transposed)
    spatial = (None,) * (len(op.input(0).shape) - 2)
    weight = ("c", "o") if transposed else ("o", "c")
    terms = {
        0: ("b", "c", *spatial),
        1: (*weight, *spatial),
        2: ("o",),
        -1: ("b", "o", *spatial),
    }
    return by_letters(op, terms, operand, split)


def _grouped(op: OpView, operand: int, split: Split, parts: int, transposed: bool) -> Axis | str:
    groups = op.integer("group", 1)
    value, channels, out = operand_of(op, operand), op.input(0).shape[1], op.output().shape[1]
    if operand in (0, -1) and split.dim == 0:
        return along(op, {0: split, -1: split})
    if (split.dim != 0 if operand in (1, 2) else split.dim != 1) or len(value.shape) < split.dim:
        return f"{op.op_type} cannot be split along dimension {split.dim} of its operand"
    one_each = groups == channels == out
    if groups % parts or not (one_each or (split.outer == 1 and len(split.sizes) == 1)):
        return f"{groups} groups of channels do not divide over {parts} ranks"
    if not is_exact(split, parts):
        return f"{channels} channels do not divide over {parts} ranks"

    def place(dim: int, size: int) -> Split:
        return Split(dim, split.outer, split.sizes) if one_each else Split(dim, 1, (size,))

    weight_out = channels if transposed else out
    places: dict[int, Split | None] = {
        0: place(1, channels),
        1: place(0, weight_out),
        2: place(0, out),
        -1: place(1, out),
    }
    return along(op, places, attributes={"group": groups // parts})


@SHARD_RULES.register("", "BatchNormalization")
def batch_norm(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Channels, each with its own statistics."""
    large = len(op.input(0).shape)
    rank = len(operand_of(op, operand).shape)
    if split.dim != (1 if rank == large and operand in (0, -1) else 0):
        return "BatchNormalization runs over samples and positions"
    return along(op, _channels(op, split, large))


@SHARD_RULES.register("", "InstanceNormalization", "GroupNormalization")
def group_norm(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Samples, and channels where groups stay together."""
    shape = op.input(0).shape
    if operand in (0, -1) and split.dim == 0:
        return along(op, {0: split, -1: split})
    if split.dim != (1 if operand in (0, -1) else 0):
        return f"{op.op_type} runs over positions"
    groups = op.integer("num_groups")
    if not groups:
        return along(op, _channels(op, split, len(shape)))
    if groups % parts or split.outer != 1 or len(split.sizes) != 1 or not is_exact(split, parts):
        return f"{groups} groups of channels do not divide over {parts} ranks"
    return along(op, _channels(op, split, len(shape)), attributes={"num_groups": groups // parts})


def _channels(op: OpView, split: Split, rank: int) -> dict[int, Split | None]:
    channels = op.input(0).shape[1]
    return {
        index: split._replace(dim=1 if index in (0, -1) else 0)
        for index, value in operands_of(op).items()
        if index in (0, -1) or (value.shape and value.shape[0] == channels)
    }


@SHARD_RULES.register("", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool")
@SHARD_RULES.register("", "Resize", "Upsample", "LRN")
def pool(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Samples and channels."""
    rank = len(op.input(0).shape)
    blocked = set(range(1 if op.op_type == "LRN" else 2, rank))
    return same_dimensions(op, operand, split, blocked)


@SHARD_RULES.register("", "DepthToSpace", "SpaceToDepth")
def blocks(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Samples."""
    return same_dimensions(op, operand, split, {1, 2, 3})

"""Shard rules of attention: by heads; by positions, where keys and values go round; by samples."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.features.graph import Attribute, Node
from predictor.features.ops.attention import FUSED
from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.layout import Split, is_exact
from predictor.parallel.sharding.registry import SHARD_RULES, Axis, along
from predictor.parallel.sharding.rules.parts import operand_of, same_dimensions

_QUERY, _KEY, _VALUE, _MASK, _OUT = 0, 1, 2, 3, -1
# Attributes that count heads, by the names that the domains give them.
_HEADS = ("heads", "q_num_heads", "num_heads")
_KEY_HEADS = ("kv_heads", "kv_num_heads")


def keys_and_values(node: Node) -> tuple[str, ...]:
    """What a fused attention reads as keys and values; nothing for any other node."""
    return node.inputs[_KEY : _VALUE + 1] if (node.domain, node.op_type) in FUSED else ()


def _count(op: OpView, names: tuple[str, ...]) -> int:
    return next((op.integer(name) for name in names if op.integer(name)), 0)


def _head_counts(op: OpView) -> tuple[int, int]:
    query, key = op.input(_QUERY).shape, op.input(_KEY).shape
    if len(query) == 4:
        return query[1], key[1]
    heads = _count(op, _HEADS)
    return heads, _count(op, _KEY_HEADS) or heads


@SHARD_RULES.register("perfcast", "Attention", "RingAttention")
@SHARD_RULES.register("", "Attention", since=23)
@SHARD_RULES.register("com.microsoft", "MultiHeadAttention", "GroupQueryAttention")
def attention(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """(q, k, v[, mask]) with heads as dimension 1, or folded into the last one."""
    present = [op.optional(index) for index in (_QUERY, _KEY, _VALUE)]
    if any(value is None or len(value.shape) not in (3, 4) for value in present):
        return f"{op.op_type} takes its operands joined"
    if operand not in (_QUERY, _KEY, _VALUE, _OUT):
        return f"{op.op_type} cannot be split along its mask or cache"
    rank = len(operand_of(op, operand).shape)
    if split.dim == 0:
        places = dict.fromkeys((_QUERY, _KEY, _VALUE, _OUT), split)
        return along(op, {**places, _MASK: _mask(op, 0, op.input(_QUERY).shape[0], split)})
    if split.dim == (1 if rank == 4 else 2):
        return _by_heads(op, operand, split, parts)
    if split.dim == (2 if rank == 4 else 1):
        return _by_positions(op, split, parts)
    return f"{op.op_type} computes each head whole"


def _mask(op: OpView, dim: int, size: int, split: Split) -> Split | None:
    """The mask's share where it has that dimension of the scores [batch, heads, queries, keys]."""
    mask = op.optional(_MASK)
    if mask is None or len(mask.shape) != 4 or mask.shape[dim] != size or size == 1:
        return None
    return split._replace(dim=dim)


def _by_heads(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    heads, key_heads = _head_counts(op)
    if not heads or heads % parts:
        return f"{heads} heads do not divide over {parts} ranks"
    if split.outer != 1 or len(split.sizes) != 1 or not is_exact(split, parts):
        return f"{heads} heads are not one after the other"
    shared = key_heads % parts != 0
    if shared and operand in (_KEY, _VALUE):
        return f"{key_heads} heads of keys do not divide over {parts} ranks"
    dim = 1 if len(op.input(_QUERY).shape) == 4 else 2
    places: dict[int, Split | None] = {
        index: Split(dim, 1, (operand_of(op, index).shape[dim],))
        for index in ((_QUERY, _OUT) if shared else (_QUERY, _KEY, _VALUE, _OUT))
    }
    places[_MASK] = _mask(op, 1, heads, Split(1, 1, (heads,)))
    own = heads // parts
    own_keys = _keys_of(own, heads, key_heads) if shared else key_heads // parts
    attributes: dict[str, Attribute] = {name: own for name in _HEADS if op.integer(name)}
    attributes |= {name: own_keys for name in _KEY_HEADS if op.integer(name)}
    if not shared:
        return along(op, places, attributes=attributes)
    return _sharing_keys(op, places, attributes, own_keys, key_heads, parts)


def _keys_of(own: int, heads: int, key_heads: int) -> int:
    """Heads of keys that `own` neighbouring heads of queries read."""
    return min(key_heads, -(-own * key_heads // heads))


def _sharing_keys(
    op: OpView,
    places: Mapping[int, Split | None],
    attributes: Mapping[str, Attribute],
    own_keys: int,
    key_heads: int,
    parts: int,
) -> Axis:
    found = along(
        op,
        places,
        attributes=attributes,
        notes=(f"keys and values of {key_heads} heads are on each of {parts} ranks",),
    )
    dim = 1 if len(op.input(_QUERY).shape) == 4 else 2
    taken = {
        index: (dim, op.input(index).shape[dim] * own_keys // key_heads)
        for index in (_KEY, _VALUE)
        if own_keys < key_heads
    }
    return Axis(found.inputs, found.outputs, attributes=attributes, taken=taken, notes=found.notes)


def _by_positions(op: OpView, split: Split, parts: int) -> Axis | str:
    if op.op_type == "RingAttention" or op.optional(4) is not None or op.has_output(1):
        return f"{op.op_type} with a cache or on a ring is not split by positions"
    if split.outer != 1 or len(split.sizes) != 1:
        return "positions are not one after the other"
    query, key = op.input(_QUERY).shape, op.input(_KEY).shape
    dim = 2 if len(query) == 4 else 1
    places: dict[int, Split | None] = {
        _QUERY: Split(dim, 1, (query[dim],)),
        _KEY: Split(dim, 1, (key[dim],)),
        _VALUE: Split(dim, 1, (key[dim],)),
        _OUT: Split(dim, 1, (query[dim],)),
        _MASK: _mask(op, 2, query[dim], Split(2, 1, (query[dim],))),
    }
    found = along(op, places)
    heads_dim = 1 if len(query) == 4 else 2
    by_heads = _by_heads(op, _QUERY, Split(heads_dim, 1, (query[heads_dim],)), parts)
    return Axis(
        found.inputs,
        found.outputs,
        ring=True,
        instead_of_ring=by_heads if isinstance(by_heads, Axis) else None,
    )


@SHARD_RULES.register("perfcast", "LatentAttention")
def latent_attention(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """(query [B, H, L, D], rows [B, 1, N, D]): heads share all rows."""
    heads = op.input(_QUERY).shape[1]
    if split.dim == 0:
        return along(op, {0: split, 1: split, -1: split})
    if operand == 1 or split.dim != 1 or heads % parts or split.outer != 1:
        return f"LatentAttention: {heads} heads over {parts} ranks along dimension {split.dim}"
    return along(op, {0: split, -1: split})


@SHARD_RULES.register("", "RotaryEmbedding", since=23)
@SHARD_RULES.register("com.microsoft", "RotaryEmbedding")
def rotary(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Heads, samples and positions; tables are cut by positions where they have them."""
    shape = op.input(0).shape
    if operand not in (0, -1):
        return "RotaryEmbedding cannot be split along its tables"
    positions = 2 if len(shape) == 4 else 1
    if len(shape) == 3 and split.dim == 2:
        heads = op.integer("num_heads")
        if not heads or heads % parts or split.outer != 1:
            return f"{heads} heads do not divide over {parts} ranks"
        return along(op, {0: split, -1: split}, attributes={"num_heads": heads // parts})
    found = same_dimensions(op, operand, split, {3} if len(shape) == 4 else set())
    if isinstance(found, str) or split.dim != positions:
        return found
    places: dict[int, Split | None] = {0: split, -1: split}
    for index in (1, 2, 3):
        table = op.optional(index)
        if table is not None and len(table.shape) > 1 and table.shape[1] == shape[positions]:
            places[index] = split._replace(dim=1)
    return along(op, places)

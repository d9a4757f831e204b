"""A name for a graph that depends on what it computes, not on what anything in it is called.

Each value gets a digest of how it is computed (forwards) and of what becomes of it (backwards); nodes
combine both, and the graph is the unordered sum of its nodes. Sums make the order of independent nodes
irrelevant; the backward digest tells one shared weight from two equal ones. Linear time: three digests per
node.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256

from predictor.features.graph import Attribute, Graph, Node, Shape

_SIZE = 32
_MODULUS = 1 << 8 * _SIZE
_ABSENT = b"-"
_VERSION = "perfcast.graph/1"


def fingerprint(graph: Graph) -> str:
    """`sha256:...` of the structure: ops, attributes, shapes, dtypes, constants, parameters, batch, opsets.

    Independent of the names of the model, its nodes and values, and of the order of independent nodes.
    Sensitive to the order of inputs and outputs, and to which weights are shared.
    """
    return f"sha256:{_digest_of(graph).hex()}"


def _digest_of(graph: Graph, outer: Mapping[str, bytes] | None = None) -> bytes:
    """The digest; `outer` holds those of enclosing values that a body reads."""
    types = _types(graph)
    forward = _leaves(graph, types, outer or {})
    digests: list[bytes] = []
    for node in graph.nodes:
        read = b"".join(forward.get(name, _ABSENT) for name in node.inputs)
        digest = _hash(_signature(node, types, forward), read)
        digests.append(digest)
        for position, name in enumerate(node.outputs):
            forward[name] = digest + position.to_bytes(4, "big")
    futures: dict[str, int] = {}
    for position, name in enumerate(graph.outputs):
        _add(futures, name, _OUTPUT, position)
    total = 0
    for node, digest in zip(reversed(graph.nodes), reversed(digests), strict=True):
        future = b"".join(futures.get(name, 0).to_bytes(_SIZE, "big") for name in node.outputs)
        combined = _number(_hash(digest, future))
        total += combined
        for position, name in enumerate(node.inputs):
            if name:
                _add(futures, name, combined, position)
    for name in (*graph.inputs, *graph.parameters, *graph.buffers):
        total += _number(_hash(forward[name], futures.get(name, 0).to_bytes(_SIZE, "big")))
    domains = {node.domain for node in graph.nodes}
    opsets = sorted((domain, version) for domain, version in graph.opsets.items() if domain in domains)
    ends = b"".join(forward.get(name, _ABSENT) for name in graph.outputs)
    header = repr((_VERSION, graph.batch, len(graph.nodes), opsets)).encode()
    return _hash(header, ends, (total % _MODULUS).to_bytes(_SIZE, "big"))


def _types(graph: Graph) -> dict[str, bytes]:
    """Every value's type as text; few types are many values."""
    known: dict[tuple[int, Shape], bytes] = {}
    found: dict[str, bytes] = {}
    for name, value in graph.values.items():
        # There is one object per element type, and hashing an enumeration's member is slow.
        key = (id(value.dtype), value.shape)
        text = known.get(key)
        if text is None:
            text = known[key] = f"{value.dtype.name}{value.shape}".encode()
        found[name] = text
    return found


def _leaves(graph: Graph, types: Mapping[str, bytes], outer: Mapping[str, bytes]) -> dict[str, bytes]:
    digests = dict(outer)
    for position, name in enumerate(graph.inputs):
        if name in digests:
            continue
        digests[name] = _hash(b"input", types.get(name, b"?"), position.to_bytes(4, "big"))
    for name in graph.parameters:
        if name not in digests:
            digests[name] = _hash(b"parameter", types.get(name, b"?"))
    for name in graph.buffers:
        if name in digests:
            continue
        contents = graph.constants.get(name)
        digests[name] = _hash(b"buffer", types.get(name, b"?"), repr(contents).encode())
    return digests


def _signature(node: Node, types: Mapping[str, bytes], forward: Mapping[str, bytes]) -> bytes:
    parts = [repr((node.domain, node.op_type, len(node.inputs), len(node.outputs))).encode()]
    for name in sorted(node.attributes):
        parts.append(name.encode())
        parts.append(_attribute(node.attributes[name], forward))
    parts.extend(types.get(name, b"?") for name in node.outputs)
    return b"\0".join(parts)


def _attribute(value: Attribute, forward: Mapping[str, bytes]) -> bytes:
    return _digest_of(value, forward) if isinstance(value, Graph) else repr(value).encode()


def _add(sums: dict[str, int], name: str, use: int, position: int) -> None:
    """Adds one use to a value's future: a sum forgets the order of uses, the factor keeps the place."""
    sums[name] = (sums.get(name, 0) + use * _factor(position)) % _MODULUS


@lru_cache(maxsize=1024)
def _factor(position: int) -> int:
    """A fixed odd number per position: multiplying by it loses nothing."""
    return _number(_hash(b"position", position.to_bytes(4, "big"))) | 1


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "big")


def _hash(*parts: bytes) -> bytes:
    lengths = b"".join([len(part).to_bytes(4, "big") for part in parts])
    return sha256(lengths + b"".join(parts)).digest()


_OUTPUT = _number(_hash(b"output"))

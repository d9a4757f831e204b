"""A name for a graph that depends on what it computes, not on what anything in it is called.

Each value gets a digest of how it is computed (forwards) and of what becomes of it (backwards); nodes
combine both, and the graph is the unordered sum of its nodes. Sums make the order of independent nodes
irrelevant; the backward digest tells one shared weight from two equal ones. Linear time: three digests per
node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from predictor.features.graph import Attribute, Graph, Node

_MODULUS = 1 << 256
_VERSION = "perfcast.graph/1"


def fingerprint(graph: Graph) -> str:
    """`sha256:...` of the structure: ops, attributes, shapes, dtypes, constants, parameters, batch, opsets.

    Independent of the names of the model, its nodes and values, and of the order of independent nodes.
    Sensitive to the order of inputs and outputs, and to which weights are shared.
    """
    return f"sha256:{_digest_of(graph).hex()}"


def _digest_of(graph: Graph, outer: Mapping[str, bytes] | None = None) -> bytes:
    """The digest; `outer` holds those of enclosing values that a body reads."""
    forward = _leaves(graph, outer or {})
    signatures: list[bytes] = []
    for node in graph.nodes:
        signature = _signature(graph, node, forward)
        read = b"".join(forward.get(name, b"-") for name in node.inputs)
        signatures.append(_hash(signature, read))
        for position, name in enumerate(node.outputs):
            forward[name] = _hash(signatures[-1], _type(graph, name), position.to_bytes(4, "big"))
    futures: dict[str, int] = {}
    for position, name in enumerate(graph.outputs):
        _add(futures, name, _hash(b"output", position.to_bytes(4, "big")))
    combined: list[bytes] = [b""] * len(graph.nodes)
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[index]
        future = b"".join(futures.get(name, 0).to_bytes(32, "big") for name in node.outputs)
        combined[index] = _hash(signatures[index], future)
        for position, name in enumerate(node.inputs):
            if name:
                _add(futures, name, _hash(combined[index], position.to_bytes(4, "big")))
    leaves = dict.fromkeys((*graph.inputs, *sorted(graph.parameters | graph.buffers)))
    total = sum(_number(_hash(forward[name], futures.get(name, 0).to_bytes(32, "big"))) for name in leaves)
    total += sum(map(_number, combined))
    domains = {node.domain for node in graph.nodes}
    opsets = sorted((domain, version) for domain, version in graph.opsets.items() if domain in domains)
    ends = b"".join(forward.get(name, b"-") for name in graph.outputs)
    header = repr((_VERSION, graph.batch, len(graph.nodes), opsets)).encode()
    return _hash(header, ends, (total % _MODULUS).to_bytes(32, "big"))


def _leaves(graph: Graph, outer: Mapping[str, bytes]) -> dict[str, bytes]:
    digests = dict(outer)
    for position, name in enumerate(graph.inputs):
        digests[name] = _hash(b"input", _type(graph, name), position.to_bytes(4, "big"))
    for name in graph.parameters:
        digests[name] = _hash(b"parameter", _type(graph, name))
    for name in graph.buffers:
        contents = graph.constants.get(name)
        digests[name] = _hash(b"buffer", _type(graph, name), repr(contents).encode())
    return digests


def _signature(graph: Graph, node: Node, forward: Mapping[str, bytes]) -> bytes:
    attributes = sorted(node.attributes.items(), key=lambda item: item[0])
    parts = [repr((node.domain, node.op_type, len(node.inputs), len(node.outputs))).encode()]
    for name, value in attributes:
        parts.append(name.encode())
        parts.append(_attribute(value, forward))
    parts.extend(_type(graph, name) for name in node.outputs)
    return b"\0".join(parts)


def _attribute(value: Attribute, forward: Mapping[str, bytes]) -> bytes:
    return _digest_of(value, forward) if isinstance(value, Graph) else repr(value).encode()


def _type(graph: Graph, name: str) -> bytes:
    value = graph.values.get(name)
    return b"?" if value is None else f"{value.dtype.name}{value.shape}".encode()


def _add(sums: dict[str, int], name: str, digest: bytes) -> None:
    sums[name] = (sums.get(name, 0) + _number(digest)) % _MODULUS


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "big")


def _hash(*parts: bytes) -> bytes:
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(4, "big"))
        state.update(part)
    return state.digest()

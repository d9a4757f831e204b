"""A tiny language for spelled-out blocks, and its matcher.

    Mul(x, Sigmoid(x))                  two ops; the same name twice must be the same value
    Mul(Mul(x, Add(Erf(Div(x, #)), #)), #)

    x          any value, captured           $w   a value that the caller's inputs do not influence, captured
    #          a constant of one element     _    anything
    d@Sub(..)  an op whose output is captured as d
    Cast?(y)   the op, or y itself where it is absent
    A|B(..)    one op or the other

Add and Mul match in both orders. Inputs beyond those written must be constants (axes, shapes). Only ops
of the standard domain match. A match is accepted when nothing outside it reads a value made inside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from predictor.features.draft import CONSTANT, DATA, Draft
from predictor.features.graph import Attribute, Node, Shape, Value
from predictor.types import Runtime

FUSING = (Runtime.COMPILED, Runtime.ONNXRUNTIME, Runtime.TENSORRT)
"""Runtimes that recognise blocks which somebody wrote out."""

_TOKEN = re.compile(r"\s*(?:([a-z]\w*)@)?([#_](?!\w)|\$?[a-z]\w*|[A-Z]\w*(?:\|[A-Z]\w*)*\??|[(),])")
_COMMUTATIVE = frozenset({"Add", "Mul"})


@dataclass(frozen=True, slots=True)
class Leaf:
    """A captured value: kind is `any`, `weight`, `scalar` or `ignored`."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """An op with sub-patterns for its first inputs."""

    op_types: frozenset[str]
    arguments: tuple[Pattern, ...]
    optional: bool
    name: str


Pattern: TypeAlias = Leaf | Call


@dataclass(frozen=True, slots=True)
class Match:
    """What a rule's builder sees: the matched root, its captures and the draft."""

    draft: Draft
    root: Node
    captures: dict[str, str]
    op_count: int

    def value(self, name: str) -> Value:
        """The type of a captured value."""
        return self.draft.values[self.captures[name]]

    def shape(self, name: str) -> Shape:
        """The shape of a captured value."""
        return self.value(name).shape

    def node(self, domain: str, op_type: str, inputs: tuple[str, ...], **attributes: Attribute) -> Node:
        """The fused node: named after the block's last node, writing its output."""
        attributes["eager_kernel_count"] = self.op_count
        return Node(self.root.name, op_type, inputs, self.root.outputs[:1], domain, attributes)


Builder: TypeAlias = Callable[[Match], tuple[Node, ...] | None]
"""Returns the nodes that replace the block, or None to leave it as it is."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Spellings of one block and what to put in their place.

    `runtimes` says where it applies, `since` from which release of torch on (major + minor / 100), `before`
    which on no more.
    """

    name: str
    spellings: tuple[Call, ...]
    build: Builder
    runtimes: frozenset[Runtime]
    since: float = 0.0
    before: float = inf

    def applies(self, runtime: Runtime, release: float) -> bool:
        """In `runtime` of a release of torch; 0 is the newest."""
        return runtime in self.runtimes and self.since <= (release or _NEWEST) < self.before


_NEWEST = 99.0


def rule(
    name: str,
    spellings: tuple[str, ...],
    build: Builder,
    runtimes: tuple[Runtime, ...] = tuple(Runtime),
    since: float = 0.0,
    before: float = inf,
) -> Rule:
    """A rule from pattern text. Raises ValueError on text that is no pattern."""
    return Rule(name, tuple(parse(text) for text in spellings), build, frozenset(runtimes), since, before)


def parse(text: str) -> Call:
    """The pattern that `text` spells. Raises ValueError where it does not end as it should."""
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text.rstrip()):
        found = _TOKEN.match(text, position)
        if not found:
            raise ValueError(f"pattern {text!r}: unexpected text at {position}: {text[position:]!r}")
        tokens.append((found[1] or "", found[2]))
        position = found.end()
    pattern, rest = _parse(tokens, 0)
    if rest != len(tokens) or not isinstance(pattern, Call):
        raise ValueError(f"pattern {text!r}: expected one op call")
    return pattern


def may_match(pattern: Call, producers: tuple[str, ...]) -> bool:
    """False when the op types that feed a root already rule the pattern out ("" for a graph's input)."""
    orders = [producers, producers[1::-1]] if pattern.op_types & _COMMUTATIVE else [producers]
    return any(
        all(_may_produce(part, made_by) for part, made_by in zip(pattern.arguments, order, strict=False))
        for order in orders
    )


def required_op_types(pattern: Pattern) -> frozenset[str]:
    """Op types without which the pattern cannot occur; alternatives and optional ops are not among them."""
    if isinstance(pattern, Leaf):
        return frozenset()
    own = pattern.op_types if len(pattern.op_types) == 1 and not pattern.optional else frozenset[str]()
    parts = pattern.arguments[:1] if pattern.optional else pattern.arguments
    return own.union(*(required_op_types(part) for part in parts))


def _may_produce(part: Pattern, op_type: str) -> bool:
    if isinstance(part, Leaf):
        return True
    return op_type in part.op_types or (part.optional and _may_produce(part.arguments[0], op_type))


def _parse(tokens: list[tuple[str, str]], at: int) -> tuple[Pattern, int]:
    label, token = tokens[at]
    if token == "#":
        return Leaf("scalar", ""), at + 1
    if token == "_":
        return Leaf("ignored", ""), at + 1
    if token[0] == "$":
        return Leaf("weight", token[1:]), at + 1
    if token[0].islower():
        return Leaf("any", token), at + 1
    if token in "(),":
        raise ValueError(f"pattern: expected an op or a name, found {token!r}")
    if at + 1 >= len(tokens) or tokens[at + 1][1] != "(":
        raise ValueError(f"pattern: expected '(' after {token!r}")
    arguments, at = [], at + 1
    while tokens[at][1] in "(,":
        argument, at = _parse(tokens, at + 1)
        arguments.append(argument)
        if at >= len(tokens):
            raise ValueError(f"pattern: {token!r} is not closed")
    return Call(frozenset(token.rstrip("?").split("|")), tuple(arguments), token.endswith("?"), label), at + 1


class Matcher:
    """One attempt at one pattern; keeps a trail so that a failed branch is undone."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._captures: dict[str, str] = {}
        self._nodes: list[Node] = []
        self._bound: list[str] = []

    def match(self, pattern: Call, root: Node) -> tuple[Match, list[Node]] | None:
        """The match rooted at `root` and all its nodes, or None."""
        if not self._call(pattern, root, root.outputs[0]):
            return None
        nodes = list({id(node): node for node in self._nodes}.values())
        if not self._is_closed(nodes, root):
            return None
        return Match(self._draft, root, dict(self._captures), len(nodes)), nodes

    def _value(self, pattern: Pattern, value: str) -> bool:
        if isinstance(pattern, Leaf):
            return self._leaf(pattern, value)
        node = self._draft.node(value)
        mark = len(self._bound), len(self._nodes)
        if node is not None and self._call(pattern, node, value):
            return True
        self._undo(mark)
        return pattern.optional and self._value(pattern.arguments[0], value)

    def _call(self, pattern: Call, node: Node, value: str) -> bool:
        arguments = pattern.arguments
        if node.op_type not in pattern.op_types or node.domain or len(node.inputs) < len(arguments):
            return False
        if any(n and self._draft.depends_on(n) != CONSTANT for n in node.inputs[len(arguments) :]):
            return False
        if pattern.name and not self._bind(pattern.name, value):
            return False
        self._nodes.append(node)
        mark = len(self._bound), len(self._nodes)
        if self._inputs(arguments, node.inputs):
            return True
        if len(arguments) == 2 and node.op_type in _COMMUTATIVE:
            self._undo(mark)
            return self._inputs(arguments, node.inputs[1::-1])
        return False

    def _inputs(self, patterns: tuple[Pattern, ...], values: tuple[str, ...]) -> bool:
        return all(self._value(p, v) for p, v in zip(patterns, values, strict=False))

    def _leaf(self, pattern: Leaf, value: str) -> bool:
        if pattern.kind == "ignored":
            return True
        if not value or (pattern.kind == "scalar" and not self._draft.is_scalar_constant(value)):
            return False
        if pattern.kind == "weight" and self._draft.depends_on(value) == DATA:
            return False
        return pattern.kind == "scalar" or self._bind(pattern.name, value)

    def _bind(self, name: str, value: str) -> bool:
        known = self._captures.get(name)
        if known is None:
            self._captures[name] = value
            self._bound.append(name)
            return True
        return known == value

    def _undo(self, mark: tuple[int, int]) -> None:
        bound, nodes = mark
        for name in self._bound[bound:]:
            del self._captures[name]
        del self._bound[bound:]
        del self._nodes[nodes:]

    def _is_closed(self, nodes: list[Node], root: Node) -> bool:
        inside: dict[str, int] = {}
        for node in nodes:
            for name in node.inputs:
                inside[name] = inside.get(name, 0) + 1
        return all(
            inside.get(name, 0) == self._draft.use_count.get(name, 0)
            for node in nodes
            if node is not root
            for name in node.outputs
            if name
        )

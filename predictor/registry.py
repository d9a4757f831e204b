"""One registry class for everything known per op: keyed by (domain, op type), versioned by opset.

The empty domain and `ai.onnx` are one. A rule registered `since=13` answers from opset 13 on, until a newer
one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Rule = TypeVar("Rule")

_ALIASES = {"ai.onnx": ""}
_REMEMBERED = 4096


class Registry(Generic[Rule]):
    """Rules of one kind. `copy()` gives an overlay that can be extended without touching the original."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._rules: dict[tuple[str, str], list[tuple[int, Rule]]] = {}
        # Graphs ask the same few questions a hundred thousand times.
        self._found: dict[tuple[str, str, int], Rule | None] = {}

    def register(self, domain: str, *op_types: str, since: int = 1) -> Callable[[Rule], Rule]:
        """Decorator that adds one rule for several op types. Raises ValueError on a duplicate."""

        def add(rule: Rule) -> Rule:
            for op_type in op_types:
                versions = self._rules.setdefault(self._key(domain, op_type), [])
                if any(version == since for version, _ in versions):
                    raise ValueError(f"duplicate {self.kind} for {domain}::{op_type} since opset {since}")
                versions.append((since, rule))
                versions.sort(key=lambda item: item[0])
            self._found.clear()
            return rule

        return add

    def get(self, domain: str, op_type: str, opset: int) -> Rule | None:
        """The newest rule whose `since` is at most `opset`, or None."""
        key = (domain, op_type, opset)
        try:
            return self._found[key]
        except KeyError:
            pass
        if len(self._found) >= _REMEMBERED:
            # Names come from files, and hostile ones have as many as they like.
            self._found.clear()
        found = self._found[key] = self._newest(domain, op_type, opset)
        return found

    def _newest(self, domain: str, op_type: str, opset: int) -> Rule | None:
        versions = self._rules.get(self._key(domain, op_type))
        if not versions:
            return None
        index = bisect_right([version for version, _ in versions], opset) - 1
        return versions[index][1] if index >= 0 else None

    def copy(self) -> Registry[Rule]:
        """An independent registry that starts with the same rules."""
        twin: Registry[Rule] = Registry(self.kind)
        twin._rules = {key: list(versions) for key, versions in self._rules.items()}
        return twin

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """All (domain, op type, since), sorted."""
        return iter(sorted((d, o, v) for (d, o), versions in self._rules.items() for v, _ in versions))

    def __len__(self) -> int:
        return len(self._rules)

    @staticmethod
    def _key(domain: str, op_type: str) -> tuple[str, str]:
        return _ALIASES.get(domain, domain), op_type

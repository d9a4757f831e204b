"""What the caller knows and the file does not: sizes that depend on data, trip counts, small integer inputs.

They travel in `dims` beside the symbolic dimensions:

    NAME.out.K=N        every unknown dimension of output K of the node NAME (or of the node that writes the
                        value NAME) is N; NAME.out.K.D=N sets dimension D alone
    NAME.trip_count=N   the Loop NAME runs N times
    NAME.then_branch=1  the If NAME takes that branch; NAME.else_branch=1 the other
    NAME.length=N       the sequence (or map) input NAME has N items
    NAME[I]=N           element I of the integer input NAME is N; a single number is NAME[0]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from predictor.errors import InvalidRequest, UnknownName

_PATTERN = re.compile(
    r"(?P<name>.+?)"
    r"(?:\.out\.(?P<output>\d{1,4})(?:\.(?P<axis>\d{1,2}))?"
    r"|\.(?P<word>trip_count|then_branch|else_branch|length)"
    r"|\[(?P<element>\d{1,6})\])",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Hints:
    """The facts by kind.

    Attributes:
        sizes: (name, output, axis) -> size; axis -1 stands for every unknown dimension.
        trips, lengths: by node and by input name.
        then_branches, else_branches: names of Ifs.
        elements: by input name, index -> number.
    """

    sizes: Mapping[tuple[str, int, int], int] = field(default_factory=dict)
    trips: Mapping[str, int] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    then_branches: frozenset[str] = frozenset()
    else_branches: frozenset[str] = frozenset()
    elements: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.node_names or self.lengths or self.elements)

    @property
    def node_names(self) -> frozenset[str]:
        """Names of nodes, or of values that they write."""
        sized = {name for name, _, _ in self.sizes}
        return frozenset(sized | self.trips.keys()) | self.then_branches | self.else_branches

    def size(self, names: Iterable[str], output: int, axis: int) -> int | None:
        """Size of one dimension of an output of the node known by any of `names`."""
        for name in names:
            for place in (axis, -1):
                found = self.sizes.get((name, output, place))
                if found is not None:
                    return found
        return None


NO_HINTS = Hints()


def split_dims(dims: Mapping[str, int], symbols: Iterable[str]) -> tuple[dict[str, int], Hints]:
    """Numbers of the file's own `symbols` (and of names that look like nothing else), and the hints."""
    known = frozenset(symbols)
    numbers: dict[str, int] = {}
    sizes: dict[tuple[str, int, int], int] = {}
    words: dict[str, dict[str, int]] = {}
    elements: dict[str, dict[int, int]] = {}
    for key, number in dims.items():
        match = None if key in known else _PATTERN.fullmatch(key)
        if match is None:
            numbers[key] = number
            continue
        name = match["name"]
        if match["element"] is not None:
            elements.setdefault(name, {})[int(match["element"])] = number
            continue
        if number < 1:
            raise InvalidRequest(f"dim {key}={number}; expected a positive number", field=f"dims.{key}")
        if match["output"] is not None:
            sizes[name, int(match["output"]), int(match["axis"] or -1)] = number
        else:
            words.setdefault(match["word"], {})[name] = number
    hints = Hints(
        sizes,
        words.get("trip_count", {}),
        words.get("length", {}),
        frozenset(words.get("then_branch", ())),
        frozenset(words.get("else_branch", ())),
        elements,
    )
    return numbers, hints


def check_names(hints: Hints, inputs: Iterable[str], seen: Iterable[str]) -> None:
    """Raises UnknownName for a hint about an input or node that the graph does not have."""
    given = frozenset(inputs)
    for name in (*hints.lengths, *hints.elements):
        if name not in given:
            raise UnknownName.among("graph input", name, given)
    nodes = frozenset(seen)
    for name in sorted(hints.node_names - nodes):
        raise UnknownName.among("node", name, nodes, "Give --dim NODE.out.0=N or --dim NODE.trip_count=N.")

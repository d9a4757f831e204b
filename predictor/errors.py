"""The exception tree. Every message says what is wrong, where, what was expected and what to try.

    PerfcastError
    ├── InvalidInput            3  INVALID_ARGUMENT
    │   ├── InvalidGraph           the bytes are not a usable ONNX graph
    │   ├── UnboundSymbol          a dimension has no number
    │   ├── InvalidRequest         a field of the request is out of its domain
    │   ├── InvalidPlan            the parallel plan does not divide what it must divide
    │   └── UnknownName         3  NOT_FOUND: a device, cluster, precision, ... that no catalogue holds
    │       ├── UnknownDevice
    │       └── UnknownGraph       a graph id that the server does not hold
    ├── DoesNotFit              4  only with `require_feasible`; otherwise an answer with `fits = False`
    ├── CoverageMissing         5  only with `strict`
    │   └── UnsupportedOp          lists every op without a rule
    ├── InvalidBundle           3  a bundle that is damaged or of another feature schema
    ├── InvalidData             3  measurements that are absent or not what their hash says
    ├── OutputNotWritable       3
    ├── Unavailable             6  UNAVAILABLE: the server cannot be reached, is starting or draining
    │   ├── Overloaded             RESOURCE_EXHAUSTED: too many calls or streams at once
    │   └── Unauthenticated        UNAUTHENTICATED: the server wants another token
    └── AccuracyGateFailed      7

`reason` is the stable code that travels in gRPC ErrorInfo; `metadata` holds the dynamic parts as strings.
`exit_code` is the CLI's answer; `predictor.wire.status` maps the classes to gRPC codes and back; nothing
else does.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import takewhile

# Names in a damaged or hostile file may be megabytes long, and messages quote names.
_MESSAGE_LIMIT = 4000


class PerfcastError(Exception):
    """Base of every error that perfcast raises on purpose.

    A message is one line; beyond 4,000 characters it is cut.
    """

    reason = "INTERNAL"
    exit_code = 1

    def __init__(self, message: str, **metadata: object) -> None:
        message = _shortened(message)
        super().__init__(message)
        self.message = message
        self.metadata = {key: _shortened(str(value)) for key, value in metadata.items()}


def _shortened(text: str) -> str:
    """Text on one line without control characters, and long text without its middle.

    The end of a message says what to do.
    """
    if not text.isprintable():
        text = "".join(char if char >= " " and char != "\x7f" else repr(char)[1:-1] for char in text)
    left_out = len(text) - _MESSAGE_LIMIT
    if left_out <= 0:
        return text
    half = _MESSAGE_LIMIT // 2 - 30
    return f"{text[:half]} ... ({left_out + 60} characters left out) ... {text[-half:]}"


class InvalidInput(PerfcastError):
    """Something the caller gave cannot be used as it is."""

    reason = "INVALID_INPUT"
    exit_code = 3


class InvalidGraph(InvalidInput):
    """The file or bytes are not an ONNX graph that can be priced."""

    reason = "GRAPH_INVALID"


class UnboundSymbol(InvalidInput):
    """One or more symbolic dimensions were given no number; the message lists all of them."""

    reason = "SYMBOL_UNBOUND"


class InvalidRequest(InvalidInput):
    """A field of the request lies outside its domain."""

    reason = "REQUEST_INVALID"


class InvalidPlan(InvalidInput):
    """The plan does not divide the devices, the batch or the graph."""

    reason = "PLAN_INVALID"


_LISTED, _SHOWN = 12, 80


def _nearest(name: str, candidates: list[str]) -> list[str]:
    """Up to three: those that begin alike come first, for `rtx 4090 ti` means rtx-4090 before rtx-4070-ti."""

    def squeezed(text: str) -> str:
        return "".join(char for char in text.lower() if char.isalnum())

    wanted = squeezed(name)
    shared = {known: _shared_length(wanted, squeezed(known)) for known in candidates}
    longest = max(shared.values(), default=0)
    alike = [known for known in candidates if shared[known] == longest >= max(2, len(wanted) // 2)]
    close = get_close_matches(name.lower(), candidates, n=3, cutoff=0.4)
    return list(dict.fromkeys([*alike[:2], *close]))[:3]


def _shared_length(one: str, other: str) -> int:
    """How many leading characters agree."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class UnknownName(InvalidInput):
    """A name that no catalogue or enumeration holds; the message names the nearest ones."""

    reason = "NAME_UNKNOWN"

    @classmethod
    def among(cls, kind: str, name: str, known: Iterable[str], hint: str = "") -> UnknownName:
        """The error for `name`, with up to three near names out of `known` and a closing hint."""
        candidates = sorted(set(known))
        name = name if len(name) <= _SHOWN else f"{name[: _SHOWN - 1]}…"
        near = _nearest(name, candidates)
        more = f" and {len(candidates) - _LISTED} more" if len(candidates) > _LISTED else ""
        expected = (
            f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(candidates[:_LISTED])}{more}."
        )
        message = f"unknown {kind} {name!r}: {expected}" + (f" {hint}" if hint else "")
        return cls(message, kind=kind, name=name, near=",".join(near))


class UnknownDevice(UnknownName):
    """No device of that id, name or alias."""

    reason = "DEVICE_UNKNOWN"


class UnknownGraph(UnknownName):
    """The server holds no graph of that fingerprint."""

    reason = "GRAPH_UNKNOWN"


class DoesNotFit(PerfcastError):
    """Memory is exceeded and the caller asked for feasible answers only."""

    reason = "DOES_NOT_FIT"
    exit_code = 4


class CoverageMissing(PerfcastError):
    """Strict mode, and no trained knowledge covers the request."""

    reason = "COVERAGE_MISSING"
    exit_code = 5


class UnsupportedOp(CoverageMissing):
    """Strict mode, and ops without a work rule occur; the message lists all of them."""

    reason = "OP_UNSUPPORTED"


class InvalidBundle(PerfcastError):
    """A bundle directory is missing, damaged or was trained for another feature schema."""

    reason = "BUNDLE_INVALID"
    exit_code = 3


class InvalidData(PerfcastError):
    """Measurements are absent, or are not what the corpus manifest says."""

    reason = "DATA_INVALID"
    exit_code = 3


class OutputNotWritable(PerfcastError):
    """A result could not be written; nothing half-written is left behind."""

    reason = "OUTPUT_NOT_WRITABLE"
    exit_code = 3


class Unavailable(PerfcastError):
    """The server cannot be reached, is starting, or is draining."""

    reason = "UNAVAILABLE"
    exit_code = 6


class Overloaded(Unavailable):
    """The server has as many calls or streams as it takes; try again later."""

    reason = "OVERLOADED"


class Unauthenticated(Unavailable):
    """The server wants a token, or another one."""

    reason = "UNAUTHENTICATED"


class AccuracyGateFailed(PerfcastError):
    """An evaluated row is worse than its record by more than noise."""

    reason = "ACCURACY_GATE"
    exit_code = 7

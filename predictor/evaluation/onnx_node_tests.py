"""Every model of ONNX's own backend tests: read without a crash, output shapes as the tests expect (G1).

Each model is read twice. As it is: what `perfcast graph check` does. And with the declared output shapes
taken away, which tells how much the reader derives by itself. Where a size stands in an integer input, the
test's own numbers are given, as a user would with `--dim INPUT[0]=N`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from predictor.errors import PerfcastError
from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow
from predictor.features.graph import Graph, Value

_ASSUMPTIONS = frozenset(
    {"SIZE_ASSUMED", "TRIPS_ASSUMED", "TRIPS_BOUND", "BRANCH_ASSUMED", "LENGTH_ASSUMED", "LOOP_GROWS"}
)
# Sizes, axes, repeats: longer inputs are data.
_SIZES_LIMIT = 16


class Outcome(StrEnum):
    """What became of one reading."""

    READ = "read"
    READ_WITH_INPUTS = "read with the contents of integer inputs"
    REFUSED = "refused with an error"
    CRASHED = "crashed"


class Agreement(StrEnum):
    """How output shapes compare with the test's expected outputs."""

    AGREES = "agree"
    DIFFERS = "differ"
    DEPENDS_ON_DATA = "depend on data (assumed, with a note)"
    UNKNOWN = "no expected outputs"


@dataclass(frozen=True, slots=True)
class Case:
    """One model with the inputs and outputs of its first data set, as far as it has one."""

    name: str
    kind: str
    model: Any
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Checked:
    """One case's result. `fallback` names op types that no rule knew."""

    case: str
    kind: str
    outcome: Outcome
    agreement: Agreement
    derived_outcome: Outcome
    derived_agreement: Agreement
    fallback: tuple[str, ...] = ()
    message: str = ""


def read_cases() -> list[Case]:
    """All cases in the installed onnx package: built in memory (node), and files (the other folders)."""
    import onnx
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        # The tests' own models provoke numpy's warnings on purpose.
        warnings.simplefilter("ignore")
        found = [_from_memory(item) for item in load_model_tests(kind="node")]
    root = Path(onnx.__file__).parent / "backend" / "test" / "data"
    found.extend(_from_file(path, root) for path in sorted(root.rglob("*.onnx")))
    return found


def _from_memory(item: Any) -> Case:
    inputs, outputs = item.data_sets[0] if item.data_sets else ((), ())
    return Case(item.name, "node", item.model, tuple(inputs), tuple(outputs))


def _from_file(path: Path, root: Path) -> Case:
    import onnx

    model = onnx.load(path, load_external_data=False)
    data = path.parent / "test_data_set_0"
    inputs = tuple(_tensor(item) for item in sorted(data.glob("input_*.pb"), key=_number))
    results = (*data.glob("output_*.pb"), *path.parent.glob(f"{path.stem}_output_*.pb"))
    outputs = tuple(_tensor(item) for item in sorted(results, key=_number))
    return Case(str(path.parent.relative_to(root)), path.relative_to(root).parts[0], model, inputs, outputs)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _tensor(path: Path) -> Any:
    """The array in a file; None for sequences and what else is no tensor."""
    from google.protobuf.message import DecodeError
    from onnx import TensorProto, numpy_helper

    proto = TensorProto()
    try:
        proto.ParseFromString(path.read_bytes())
        return numpy_helper.to_array(proto)
    except (DecodeError, ValueError, TypeError, KeyError):
        return None


def check_case(case: Case) -> Checked:
    """Reads the case both ways."""
    outcome, graph, fallback, message = _read(case, case.model)
    derived_outcome, derived, _, _ = _read(case, _without_shapes(case.model))
    return Checked(
        case.name,
        case.kind,
        outcome,
        _agreement(case, graph),
        derived_outcome,
        _agreement(case, derived),
        fallback,
        message,
    )


def _without_shapes(model: Any) -> Any:
    from onnx import ModelProto

    bare = ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for info in bare.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    return bare


def _read(case: Case, model: Any) -> tuple[Outcome, Graph | None, tuple[str, ...], str]:
    data = model.SerializeToString()
    message = ""
    for outcome, dims in ((Outcome.READ, {}), (Outcome.READ_WITH_INPUTS, _sizes(case))):
        if outcome is Outcome.READ_WITH_INPUTS and not dims:
            continue
        try:
            graph, fallback = _priced(data, dims)
            return outcome, graph, fallback, ""
        except PerfcastError as error:
            message = message or error.message
        except Exception as error:
            # A crash is what this counts.
            return Outcome.CRASHED, None, (), f"{type(error).__name__}: {error}"
    return Outcome.REFUSED, None, (), message


def _priced(data: bytes, dims: Mapping[str, int]) -> tuple[Graph, tuple[str, ...]]:
    from predictor.features.programs.program import build_program
    from predictor.features.reading.reader import read_graph
    from predictor.types import Mode, Optimizer, Precision, Runtime

    graph = read_graph(data, dims=dims)
    program = build_program(
        graph, mode=Mode.INFER, precision=Precision.FP32, optimizer=Optimizer.NONE, runtime=Runtime.EAGER
    )
    return graph, tuple(sorted({op.op_type for op in program.ops if not op.covered}))


def _sizes(case: Case) -> dict[str, int]:
    """`INPUT[I]` -> number for inputs that may hold sizes."""
    found: dict[str, int] = {}
    for info, array in zip(case.model.graph.input, case.inputs, strict=False):
        if not isinstance(array, np.ndarray | np.generic) or array.ndim > 1 or array.size > _SIZES_LIMIT:
            continue
        numbers = np.asarray(array).ravel()
        if array.dtype.kind in "iu" or (
            array.dtype.kind == "f" and bool(np.all(numbers == np.trunc(numbers)))
        ):
            found.update({f"{info.name}[{index}]": int(number) for index, number in enumerate(numbers)})
    return found


def _agreement(case: Case, graph: Graph | None) -> Agreement:
    if graph is None or not case.outputs:
        return Agreement.UNKNOWN
    pairs = [
        (expected, graph.values[name])
        for name, expected in zip(graph.outputs, case.outputs, strict=False)
        if expected is not None and name in graph.values
    ]
    if not pairs:
        return Agreement.UNKNOWN
    if all(_fits(expected, value) for expected, value in pairs):
        return Agreement.AGREES
    assumed = any(note.code in _ASSUMPTIONS for note in graph.notes)
    return Agreement.DEPENDS_ON_DATA if assumed else Agreement.DIFFERS


def _fits(expected: Any, value: Value) -> bool:
    if isinstance(expected, list):
        return sum(np.asarray(item).size for item in expected) == value.elements
    # Types that numpy lacks come as ONNX's own tensors.
    shape = expected.dims if hasattr(expected, "dims") else np.shape(expected)
    return tuple(shape) == value.shape


def node_test_rows(checked: Sequence[Checked]) -> list[EvaluationRow]:
    """Shares of models that were not read, and of compared models whose static shapes differ."""
    rows: list[EvaluationRow] = []
    for group in ("all", *dict.fromkeys(item.kind for item in checked)):
        part = [item for item in checked if group in ("all", item.kind)]
        unread = sum(item.outcome in (Outcome.REFUSED, Outcome.CRASHED) for item in part)
        crashed = sum(item.outcome is Outcome.CRASHED for item in part)
        rows.append(_row(group, "unread", unread, len(part)))
        rows.append(_row(group, "crashed", crashed, len(part)))
        for name, found in (
            ("shapes_differ", [item.agreement for item in part]),
            ("derived_shapes_differ", [item.derived_agreement for item in part]),
        ):
            known = [item for item in found if item is not Agreement.UNKNOWN]
            if known:
                rows.append(_row(group, name, known.count(Agreement.DIFFERS), len(known)))
    return rows


def _row(group: str, metric: str, count: int, total: int) -> EvaluationRow:
    return EvaluationRow("G1", "graphs", "none", f"onnx tests: {group}", metric, count / total, 0.0, total)


def node_test_tables(checked: Sequence[Checked]) -> list[Table]:
    """Counts by folder, and every model that is not simply read and right."""
    kinds = ("all", *dict.fromkeys(item.kind for item in checked))
    return [
        _counts("Reading", kinds, checked, Outcome, lambda item: (item.outcome, item.derived_outcome)),
        _counts("Shapes", kinds, checked, Agreement, lambda item: (item.agreement, item.derived_agreement)),
        _exceptions(checked),
    ]


def _counts(title: str, kinds: Iterable[str], checked: Sequence[Checked], names: Any, of: Any) -> Table:
    lines = []
    for kind in kinds:
        part = [item for item in checked if kind in ("all", item.kind)]
        for place, reading in enumerate(("as it is", "declared shapes removed")):
            counts = Counter(of(item)[place] for item in part)
            lines.append((kind, reading, str(len(part)), *(str(counts.get(name, 0)) for name in names)))
    return Table(title, ("models", "reading", "n", *(name.value for name in names)), tuple(lines))


def _exceptions(checked: Sequence[Checked]) -> Table:
    lines = []
    for item in checked:
        if item.outcome is Outcome.READ and item.agreement not in (
            Agreement.DIFFERS,
            Agreement.DEPENDS_ON_DATA,
        ):
            continue
        lines.append(
            (item.case, item.outcome.value, item.agreement.value, item.message.replace("|", "/")[:160])
        )
    header = ("model", "reading as it is", "shapes", "error")
    return Table("Not simply read, or shapes other than expected", header, tuple(lines))

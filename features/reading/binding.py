"""Numbers for symbolic dimensions, from what the caller gave: input shapes, sizes by name, and the batch.

Where two of them speak of the same size they must agree; a contradiction is an error, never settled here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from onnx import ModelProto, ValueInfoProto

from predictor.errors import InvalidGraph, InvalidRequest, UnboundSymbol, UnknownName
from predictor.features.reading.dim_expressions import evaluate, symbols_of
from predictor.features.reading.tensor_type import Dim, TensorType, read_type
from predictor.features.reading.type_rules.containers import ITEM_LIMIT, sized
from predictor.types import Notice


@dataclass(frozen=True, slots=True)
class Binding:
    """The graph's inputs with every dimension a number.

    Attributes:
        inputs: type of each input by name, in the file's order; `shape` is never None.
        symbols: numbers of symbols, for the shapes that the file declares elsewhere.
        batch: samples per iteration.
        replaced_batch: the hard-coded leading dimension that `batch` replaced, or None.
        traced: the inputs as the file has them, where a batch was replaced.
        notes: what was assumed on the way.
    """

    inputs: Mapping[str, TensorType]
    symbols: Mapping[str, int]
    batch: int
    replaced_batch: int | None = None
    traced: Mapping[str, TensorType] | None = None
    notes: tuple[Notice, ...] = ()


def bind(
    model: ModelProto,
    batch: int | None,
    dims: Mapping[str, int],
    input_shapes: Mapping[str, tuple[int, ...]],
    lengths: Mapping[str, int] = MappingProxyType({}),
) -> Binding:
    """Binds every input dimension of the model. A sequence input is as long as `lengths` says, or 1.

    `batch` goes to symbols that are called batch, or lead an input and stand nowhere else in any input;
    without it they are 1. Where every leading dimension is the same hard-coded number, `batch` replaces it.

    Raises:
        InvalidRequest: a number below 1, an impossible shape, or a batch that the graph cannot take or that
            `dims` or `input_shapes` contradict.
        UnknownName: an input or a symbol that the graph does not have.
        UnboundSymbol: symbols are left; the message lists all of them with the flags that bind them.
        InvalidGraph: an input that is no tensor or has a negative dimension.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    weights.update(sparse.values.name for sparse in model.graph.sparse_initializer)
    given = [info for info in model.graph.input if info.name not in weights]
    declared = {info.name: _declared(info) for info in given}
    nested = {info.name for info in given if info.type.WhichOneof("value") in _NESTED}
    _check_names(file_symbols(model) if dims else set(), declared, dims, input_shapes)
    _check_positive(batch, dims, input_shapes)
    numbers = _from_shapes(declared, dims, input_shapes)
    shapes = {name: tuple(input_shapes.get(name, known.dims or ())) for name, known in declared.items()}
    axes = {name: _batch_axis(known.dims) for name, known in declared.items()}
    leading = _batch_symbols(shapes, numbers, axes)
    numbers.update(dict.fromkeys(leading, 1 if batch is None else batch))
    replaced = None
    if batch is not None and not leading:
        replaced = _replaceable(declared, input_shapes, axes, batch)
    inputs: dict[str, TensorType] = {}
    missing: dict[str, list[str]] = {}
    for name, known in declared.items():
        if known.dims is None and name not in input_shapes:
            missing.setdefault("", []).append(name)
            continue
        bound = [_number(dim, numbers) for dim in shapes[name]]
        if bound and axes[name] == 0 and shapes[name][0] is None:
            bound[0] = 1 if batch is None else batch
        if replaced is not None and bound and name not in input_shapes:
            bound[0] = batch
        if name in nested:
            bound = [1 if size is None else size for size in bound]
        for axis, (size, dim) in enumerate(zip(bound, shapes[name], strict=True)):
            if size is None and isinstance(dim, str) and symbols_of(dim) <= numbers.keys():
                raise _no_size(name, axis, dim, numbers)
            if size is None:
                for symbol in symbols_of(dim) - numbers.keys() if isinstance(dim, str) else [""]:
                    missing.setdefault(symbol, []).append(f"{name}[{axis}]")
        inputs[name] = TensorType(known.elem_type, tuple(bound))
        _check_signs(name, bound)
    if missing:
        raise _unbound(missing)
    notes = [_empty_notice(name) for name, known in inputs.items() if known.dims and known.dims[0] == 0]
    counted = _counted(inputs, shapes, leading, axes)
    size = _samples(inputs[counted], axes[counted]) if counted else 1
    if batch is not None and size != batch:
        raise _contradiction(batch, size, counted, axes, declared, input_shapes)
    _wrap_containers(model, inputs, lengths, notes)
    if replaced is None:
        return Binding(inputs, numbers, size, notes=tuple(notes))
    traced = {
        name: known if name in input_shapes else _led_by(known, replaced) for name, known in inputs.items()
    }
    return Binding(inputs, numbers, size, replaced, traced, tuple(notes))


def _no_size(name: str, axis: int, dim: str, numbers: Mapping[str, int]) -> InvalidRequest:
    given = ", ".join(f"{symbol}={numbers[symbol]}" for symbol in sorted(symbols_of(dim)))
    return InvalidRequest(
        f"input {name!r}: dimension {dim!r} at axis {axis} is no whole number for {given}; give other "
        f"numbers with --dim, or the whole shape with --input-shape {name}=...",
        field=f"input_shapes.{name}",
    )


def _check_signs(name: str, sizes: Iterable[int | None]) -> None:
    for axis, size in enumerate(sizes):
        if size is not None and size < 0:
            raise InvalidGraph(
                f"input {name!r} has dimension {size} at axis {axis}; expected a positive number "
                f"(--input-shape {name}=... overrides it)",
                input=name,
            )


def _empty_notice(name: str) -> Notice:
    return Notice(
        "INPUT_EMPTY",
        f"input {name!r} has no elements, as the file says: what is computed from it costs nothing; give its "
        f"shape with --input-shape {name}=... where that is not meant",
    )


def _led_by(known: TensorType, size: int) -> TensorType:
    """The type with another leading dimension; a scalar or a container stays as it is."""
    if known.container:
        return known
    return TensorType(known.elem_type, (size, *known.dims[1:])) if known.dims else known


def _declared(info: ValueInfoProto) -> TensorType:
    """The input's type, or what one item of a sequence, optional or map is."""
    inner = info.type
    while inner.WhichOneof("value") in _NESTED:
        inner = getattr(inner, inner.WhichOneof("value")).elem_type
    known = read_type(inner)
    if known.elem_type == 0:
        raise InvalidGraph(f"input {info.name!r} is not a tensor with an element type", input=info.name)
    if known.container:
        return TensorType(known.elem_type, (1,))
    if inner is not info.type:
        # Items may differ where a size is open; 1 is what is known.
        return TensorType(known.elem_type, tuple(1 if dim is None else dim for dim in known.dims or ()))
    return known


def _wrap_containers(
    model: ModelProto, inputs: dict[str, TensorType], lengths: Mapping[str, int], notes: list[Notice]
) -> None:
    """Puts the bound items back into the sequences, optionals and maps that the file declares."""
    for info in model.graph.input:
        if info.type.WhichOneof("value") in _TENSORS or info.name not in inputs:
            continue
        length = lengths.get(info.name, 1)
        if length > ITEM_LIMIT:
            raise InvalidRequest(
                f"dim {info.name}.length={length}; expected at most {ITEM_LIMIT} items",
                field=f"dims.{info.name}.length",
            )
        if info.name not in lengths and info.type.WhichOneof("value") != "optional_type":
            notes.append(
                Notice(
                    "LENGTH_ASSUMED",
                    f"input {info.name!r} is a list of unknown length: 1 item of shape "
                    f"{'x'.join(map(str, inputs[info.name].dims or ())) or 'scalar'} is assumed; --dim "
                    f"{info.name}.length=N and --input-shape {info.name}=... give others",
                )
            )
        inputs[info.name] = sized(info.type, length, inputs[info.name].dims or ())


_NESTED = frozenset({"sequence_type", "optional_type"})
_TENSORS = frozenset({"tensor_type", "sparse_tensor_type"})


def file_symbols(model: ModelProto) -> set[str]:
    """Names of the symbolic dimensions that occur in the file's declarations."""
    graph = model.graph
    types = [read_type(info.type) for info in (*graph.input, *graph.value_info, *graph.output)]
    texts = {dim for known in types for dim in known.dims or () if isinstance(dim, str)}
    return texts.union(*map(symbols_of, texts)) if texts else set()


def _check_names(
    symbols: set[str],
    declared: Mapping[str, TensorType],
    dims: Mapping[str, int],
    input_shapes: Mapping[str, tuple[int, ...]],
) -> None:
    for name, shape in input_shapes.items():
        if name not in declared:
            raise UnknownName.among("graph input", name, declared, "Give --input-shape NAME=1x3x224x224.")
        known = declared[name].dims
        if known is not None and len(known) != len(shape):
            raise InvalidRequest(
                f"input shape {name}={'x'.join(map(str, shape))} has {len(shape)} dimensions; "
                f"the graph's input has {len(known)}",
                field=f"input_shapes.{name}",
            )
    for name in dims:
        if not symbols:
            raise UnknownName(
                f"unknown symbolic dimension {name!r}: all sizes of this graph are numbers", name=name
            )
        if name not in symbols:
            raise UnknownName.among("symbolic dimension", name, symbols, "Give --dim NAME=N.")


def _check_positive(
    batch: int | None, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    if batch is not None and batch < 1:
        raise InvalidRequest(f"batch is {batch}; expected a positive number of samples", field="batch")
    for name, number in dims.items():
        if number < 1:
            raise InvalidRequest(f"dim {name}={number}; expected a positive number", field=f"dims.{name}")
    for name, shape in shapes.items():
        if any(size < 0 for size in shape) or shape[:1] == (0,):
            text = "x".join(map(str, shape))
            raise InvalidRequest(
                f"input shape {name}={text}; expected positive sizes", field=f"input_shapes.{name}"
            )


def _from_shapes(
    declared: Mapping[str, TensorType],
    dims: Mapping[str, int],
    input_shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, int]:
    """`dims` and the numbers of symbols that the given input shapes determine."""
    numbers = dict(dims)
    for name, shape in input_shapes.items():
        for dim, size in zip(declared[name].dims or (), shape, strict=False):
            if not isinstance(dim, str):
                continue
            known = _number(dim, numbers)
            if known is None and symbols_of(dim) == {dim}:
                numbers[dim] = size
            elif known is not None and known != size:
                other = "--dim" if symbols_of(dim) & dims.keys() else "another input shape"
                raise InvalidRequest(
                    f"input shape {name}={'x'.join(map(str, shape))} gives dimension {dim!r} {size}, but it "
                    f"is {known} by {other}; make them agree, or leave one out",
                    field=f"input_shapes.{name}",
                )
    return numbers


_BATCH_NAMES = frozenset({"batch", "batch_size", "batchsize", "batch_dim", "nbatch", "bs"})


def _batch_axis(dims: Sequence[Dim] | None) -> int:
    """Axis of samples: that whose symbol is called batch (recurrent models put time first), or the first."""
    names = (dim.lower() if isinstance(dim, str) else "" for dim in dims or ())
    return next((axis for axis, name in enumerate(names) if name in _BATCH_NAMES), 0)


def _batch_symbols(
    shapes: Mapping[str, tuple[Dim, ...]], numbers: Mapping[str, int], axes: Mapping[str, int]
) -> list[str]:
    """Unbound symbols that count samples and stand nowhere else: a sequence length may lead, but not only."""
    inner = {
        part
        for name, dims in shapes.items()
        for axis, dim in enumerate(dims)
        if isinstance(dim, str) and axis != axes[name]
        for part in symbols_of(dim)
    }
    first = [dims[axes[name]] for name, dims in shapes.items() if dims]
    return list(
        dict.fromkeys(
            dim
            for dim in first
            if isinstance(dim, str) and dim not in numbers and dim not in inner and symbols_of(dim) == {dim}
        )
    )


def _replaceable(
    declared: Mapping[str, TensorType],
    input_shapes: Mapping[str, tuple[int, ...]],
    axes: Mapping[str, int],
    batch: int,
) -> int | None:
    """The hard-coded leading dimension to replace by `batch`; None when there is nothing to replace."""
    first = {
        name: known.dims[axes[name]]
        for name, known in declared.items()
        if known.dims and name not in input_shapes
    }
    sizes = {name: size for name, size in first.items() if isinstance(size, int)}
    if len(sizes) < len(first) or not sizes or set(sizes.values()) == {batch}:
        return None
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise InvalidRequest(
            f"batch is {batch}, but the inputs lead with different hard-coded numbers ({listed}); "
            "give their shapes with --input-shape NAME=...",
            field="batch",
        )
    return next(iter(sizes.values()))


def _number(dim: Dim, numbers: Mapping[str, int]) -> int | None:
    return evaluate(dim, numbers) if isinstance(dim, str) else dim


def _counted(
    inputs: Mapping[str, TensorType],
    shapes: Mapping[str, tuple[Dim, ...]],
    leading: Iterable[str],
    axes: Mapping[str, int],
) -> str:
    """The input that counts samples: the first with the batch symbol, else the first with any; or ""."""
    symbols = set(leading)
    carrying = [name for name, dims in shapes.items() if dims and dims[axes[name]] in symbols]
    carrying += [name for name, axis in axes.items() if axis]
    # An empty input has no samples.
    return next((name for name in (*carrying, *inputs) if _samples(inputs[name], axes[name])), "")


def _samples(known: TensorType, axis: int) -> int:
    return known.shape[axis] if known.shape else 0


def _contradiction(
    batch: int,
    size: int,
    counted: str,
    axes: Mapping[str, int],
    declared: Mapping[str, TensorType],
    input_shapes: Mapping[str, tuple[int, ...]],
) -> InvalidRequest:
    if not counted:
        return InvalidRequest(f"batch is {batch}, but no input of this graph counts samples", field="batch")
    dims = declared[counted].dims
    dim = dims[axes[counted]] if dims else None
    if counted in input_shapes:
        source = f"--input-shape {counted}={'x'.join(map(str, input_shapes[counted]))} holds {size} samples"
    elif isinstance(dim, str):
        source = f"--dim makes {dim!r}, which counts samples, {size}"
    else:
        return InvalidRequest(
            f"batch is {batch}, but the file fixes {size} samples in input {counted!r} and leaves others "
            "open; give the shape of every input with --input-shape NAME=...",
            field="batch",
        )
    return InvalidRequest(
        f"batch is {batch} (of one replica and microbatch, where a plan splits it), but {source}; make them "
        "agree, or leave one out",
        field="batch",
    )


def _unbound(missing: Mapping[str, list[str]]) -> UnboundSymbol:
    named = {symbol: places for symbol, places in missing.items() if symbol}
    parts = [f"{symbol!r} ({', '.join(dict.fromkeys(places))})" for symbol, places in named.items()]
    flags = [f"--dim {symbol}=N" for symbol in named]
    unnamed = list(dict.fromkeys(place.split("[")[0] for place in missing.get("", [])))
    if unnamed:
        parts.extend(f"unnamed sizes of input {name!r}" for name in unnamed)
        flags.extend(f"--input-shape {name}=..." for name in unnamed)
    return UnboundSymbol(
        f"dimensions without a number: {'; '.join(parts)}. Bind them with {' '.join(flags)}",
        symbols=",".join(named),
        inputs=",".join(unnamed),
    )

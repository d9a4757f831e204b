"""Output types of ai.onnx.ml ops, and of others where ONNX's inference stays silent or errs."""

from __future__ import annotations

from predictor.features.reading.elements import FLOAT, INT64, STRING, UINT8
from predictor.features.reading.tensor_type import Container, Dim, TensorType, contained
from predictor.features.reading.type_rules.containers import ITEM_LIMIT, map_of
from predictor.features.reading.type_rules.operands import TYPES_AFTER_ONNX, TYPES_BEFORE_ONNX, Operands

_ML = "ai.onnx.ml"
_UNKNOWN = TensorType(0, None)
_Types = tuple[TensorType, ...]


@TYPES_AFTER_ONNX.register(_ML, "Scaler", "Normalizer")
def _float_like(op: Operands) -> _Types:
    return (TensorType(FLOAT, op.dims(0)),)


@TYPES_AFTER_ONNX.register(_ML, "Imputer")
def _same(op: Operands) -> _Types:
    return (op.type(0) or _UNKNOWN,)


def _samples(op: Operands) -> Dim:
    dims = op.dims(0)
    return dims[0] if dims and len(dims) > 1 else 1


@TYPES_AFTER_ONNX.register(_ML, "FeatureVectorizer")
def _features(op: Operands) -> _Types:
    return (TensorType(FLOAT, (_samples(op), sum(op.items("inputdimensions")))),)


@TYPES_AFTER_ONNX.register(_ML, "LinearRegressor")
def _targets(op: Operands) -> _Types:
    return (TensorType(FLOAT, (_samples(op), op.integer("targets", 1))),)


@TYPES_AFTER_ONNX.register(_ML, "SVMRegressor")
def _decision(op: Operands) -> _Types:
    return (TensorType(FLOAT, (_samples(op), 1)),)


@TYPES_AFTER_ONNX.register(_ML, "TreeEnsembleRegressor")
def _tree_targets(op: Operands) -> _Types:
    return (TensorType(FLOAT, (_samples(op), op.integer("n_targets", 1))),)


@TYPES_AFTER_ONNX.register(_ML, "TreeEnsembleClassifier", "SVMClassifier", "LinearClassifier")
def _classes(op: Operands) -> _Types:
    words = op.items("classlabels_strings")
    numbers = op.items("classlabels_int64s") or op.items("classlabels_ints")
    count = len(words) or len(numbers) or 1
    samples = _samples(op)
    return TensorType(STRING if words else INT64, (samples,)), TensorType(FLOAT, (samples, count))


@TYPES_AFTER_ONNX.register(_ML, "ZipMap")
def _zip(op: Operands) -> _Types:
    shape = op.shape(0)
    if not shape:
        return ()
    words = op.items("classlabels_strings")
    rows = shape[0] if len(shape) > 1 else 1
    if rows > ITEM_LIMIT:
        return ()
    one = map_of(STRING if words else INT64, FLOAT, shape[-1])
    return (contained(Container.SEQUENCE, [one] * rows),)


@TYPES_AFTER_ONNX.register(_ML, "DictVectorizer")
def _vocabulary(op: Operands) -> _Types:
    count = len(op.items("string_vocabulary")) or len(op.items("int64_vocabulary"))
    return (TensorType(op.elem_type(0), (1, count)),)


@TYPES_AFTER_ONNX.register(_ML, "CastMap")
def _cast_map(op: Operands) -> _Types:
    known = op.type(0)
    entries = known.items[0].dims[0] if known and known.items and known.items[0].dims else 1
    sparse = op.attributes.get("map_form", "DENSE") == "SPARSE"
    to = {"TO_FLOAT": FLOAT, "TO_STRING": STRING, "TO_INT64": INT64}
    elem_type = to.get(op.attributes.get("cast_to", "TO_FLOAT"), FLOAT)
    return (TensorType(elem_type, (1, op.integer("max_map", 1) if sparse else entries)),)


@TYPES_AFTER_ONNX.register(_ML, "OneHotEncoder")
def _one_hot(op: Operands) -> _Types:
    dims = op.dims(0)
    count = len(op.items("cats_int64s")) or len(op.items("cats_strings"))
    return () if dims is None else (TensorType(FLOAT, (*dims, count)),)


@TYPES_AFTER_ONNX.register("ai.onnx.preview.training", "Gradient")
def _gradients(op: Operands) -> _Types:
    """The derivative by each of `xs` has its type."""
    return tuple(known or _UNKNOWN for known in op.types[: len(op.items("xs"))])


@TYPES_AFTER_ONNX.register("", "ImageDecoder")
def _picture(op: Operands) -> _Types:
    return (TensorType(UINT8, (None, None, 1 if op.attributes.get("pixel_format") == "Grayscale" else 3)),)


@TYPES_AFTER_ONNX.register("", "AffineGrid")
def _grid(op: Operands) -> _Types:
    size = op.integers(1)
    return () if size is None else (TensorType(op.elem_type(0), (size[0], *size[2:], len(size) - 2)),)


@TYPES_AFTER_ONNX.register("", "MaxUnpool")
def _unpool(op: Operands) -> _Types:
    size = op.integers(2)
    return () if size is None else (TensorType(op.elem_type(0), size),)


@TYPES_BEFORE_ONNX.register("", "STFT")
def _frames(op: Operands) -> _Types:
    """ONNX's own rule takes `onesided` for 0 where it is omitted; its specification says 1."""
    signal, step, window = op.shape(0), op.integers(1), op.shape(2)
    length = op.integers(3)
    if signal is None or step is None or (length is None and window is None):
        return ()
    size = length[0] if length is not None else (window or (1,))[0]
    frames = (signal[1] - size) // max(1, step[0]) + 1
    bins = size // 2 + 1 if op.integer("onesided", 1) else size
    return (TensorType(op.elem_type(0), (signal[0], frames, bins, 2)),)


@TYPES_AFTER_ONNX.register("", "Split")
def _split(op: Operands) -> _Types:
    """Parts of unknown lengths are as their source but along the axis."""
    dims, axis = op.dims(0), op.integer("axis")
    if not dims or not -len(dims) <= axis < len(dims):
        return ()
    axis %= len(dims)
    lengths = op.integers(1) or (None,) * op.output_count
    return tuple(TensorType(op.elem_type(0), (*dims[:axis], size, *dims[axis + 1 :])) for size in lengths)

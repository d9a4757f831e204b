"""Output types of com.microsoft ops, which ONNX's inference does not know.

Shapes are those of the operators' own documentation; a rule answers as far as they follow.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.features.reading.elements import BOOL, FLOAT, INT8, INT32, UINT8
from predictor.features.reading.tensor_type import Dim, TensorType
from predictor.features.reading.type_rules.operands import TYPES_AFTER_ONNX, Operands

_MS = "com.microsoft"
_UNKNOWN = TensorType(0, None)
_Types = tuple[TensorType, ...]


def _first(op: Operands) -> TensorType:
    return op.type(0) or _UNKNOWN


@TYPES_AFTER_ONNX.register(_MS, "BiasSoftmax", "ComplexMul", "ComplexMulConj", "Trilu", "SkipGroupNorm")
@TYPES_AFTER_ONNX.register(
    _MS, "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "MoE", "QMoE", "Inverse"
)
def _like_first(op: Operands) -> _Types:
    known = _first(op)
    return known, known


@TYPES_AFTER_ONNX.register(_MS, "BiasDropout")
def _dropout(op: Operands) -> _Types:
    known = _first(op)
    return known, replace(known, elem_type=BOOL)


@TYPES_AFTER_ONNX.register(_MS, "BiasSplitGelu")
def _halved(op: Operands) -> _Types:
    dims = op.dims(0)
    if not dims or not isinstance(dims[-1], int):
        return ()
    return (TensorType(op.elem_type(0), (*dims[:-1], dims[-1] // 2)),)


def _broadcast(a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
    if a is None or b is None:
        return None
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


@TYPES_AFTER_ONNX.register(_MS, "QLinearAdd", "QLinearMul")
def _binary(op: Operands) -> _Types:
    return (TensorType(op.elem_type(0), _broadcast(op.dims(0), op.dims(3))),)


@TYPES_AFTER_ONNX.register(_MS, "MulInteger")
def _integer_product(op: Operands) -> _Types:
    return (TensorType(INT32, _broadcast(op.dims(0), op.dims(2))),)


@TYPES_AFTER_ONNX.register(_MS, "QLinearWhere")
def _where(op: Operands) -> _Types:
    return (TensorType(op.elem_type(1), _broadcast(op.dims(0), _broadcast(op.dims(1), op.dims(4)))),)


@TYPES_AFTER_ONNX.register(_MS, "QLinearConcat")
def _concat(op: Operands) -> _Types:
    shapes = [op.shape(index) for index in range(2, len(op.types), 3)]
    first = shapes[0] if shapes else None
    if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
        return ()
    axis = op.integer("axis") % len(first)
    total = sum(shape[axis] for shape in shapes if shape is not None)
    return (TensorType(op.elem_type(1), (*first[:axis], total, *first[axis + 1 :])),)


@TYPES_AFTER_ONNX.register(_MS, "QLinearGlobalAveragePool")
def _global_pool(op: Operands) -> _Types:
    shape = op.shape(0)
    if shape is None or len(shape) < 3:
        return ()
    ones = (1,) * (len(shape) - 2)
    dims = (shape[0], *ones, shape[-1]) if op.integer("channels_last") else (*shape[:2], *ones)
    return (TensorType(op.elem_type(0), dims),)


def _window(op: Operands, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Spatial output of a convolution or pooling."""
    rank = len(spatial)
    strides = op.items("strides") or (1,) * rank
    dilations = op.items("dilations") or (1,) * rank
    pads = op.items("pads") or (0,) * (2 * rank)
    auto = op.attributes.get("auto_pad", "NOTSET")
    found = []
    for axis in range(rank):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            found.append(-(-spatial[axis] // strides[axis]))
            continue
        padded = spatial[axis] + (0 if auto == "VALID" else pads[axis] + pads[rank + axis])
        room = padded - reach
        found.append((-(-room // strides[axis]) if op.integer("ceil_mode") else room // strides[axis]) + 1)
    return tuple(found)


@TYPES_AFTER_ONNX.register(_MS, "QLinearAveragePool")
def _pool(op: Operands) -> _Types:
    shape, kernel = op.shape(0), op.items("kernel_shape")
    if shape is None or len(shape) != len(kernel) + 2:
        return ()
    if op.integer("channels_last"):
        dims = (shape[0], *_window(op, shape[1:-1], kernel), shape[-1])
    else:
        dims = (*shape[:2], *_window(op, shape[2:], kernel))
    return (TensorType(op.elem_type(0), dims),)


def _conv(op: Operands, weight_index: int, *, last: bool) -> _Types:
    data, weight = op.shape(0), op.shape(weight_index)
    if data is None or weight is None or len(data) != len(weight) or len(data) < 3:
        return ()
    kernel = op.items("kernel_shape") or weight[2:]
    spatial = _window(op, data[1:-1] if last else data[2:], kernel)
    return (
        TensorType(
            op.elem_type(0), (data[0], *spatial, weight[0]) if last else (data[0], weight[0], *spatial)
        ),
    )


@TYPES_AFTER_ONNX.register(_MS, "FusedConv")
def _fused_conv(op: Operands) -> _Types:
    return _conv(op, 1, last=False)


@TYPES_AFTER_ONNX.register(_MS, "NhwcConv", "NhwcFusedConv")
def _nhwc_conv(op: Operands) -> _Types:
    return _conv(op, 1, last=True)


@TYPES_AFTER_ONNX.register(_MS, "QLinearConv")
def _quantised_conv(op: Operands) -> _Types:
    return _conv(op, 3, last=bool(op.integer("channels_last")))


def _product(op: Operands, a: int, b: int, elem_type: int) -> _Types:
    left, right = op.dims(a), op.dims(b)
    if left is None or right is None or not left or not right:
        return ()
    if len(left) == 1 or len(right) == 1:
        return (TensorType(elem_type, (*left[:-1], *right[1:])),)
    rows = left[-1] if op.integer("transA") else left[-2]
    columns = right[-2] if op.integer("transB") else right[-1]
    stack = _broadcast(left[:-2], right[:-2])
    return (TensorType(elem_type, (*(stack or ()), rows, columns)),)


@TYPES_AFTER_ONNX.register(_MS, "TransposeMatMul", "FusedMatMulActivation", "FusedGemm")
def _fused_product(op: Operands) -> _Types:
    return _product(op, 0, 1, op.elem_type(0))


@TYPES_AFTER_ONNX.register(_MS, "GemmFloat8")
def _float8_product(op: Operands) -> _Types:
    return _product(op, 0, 1, op.integer("dtype", FLOAT))


@TYPES_AFTER_ONNX.register(_MS, "MatMulIntegerToFloat")
def _to_float(op: Operands) -> _Types:
    return _product(op, 0, 1, op.elem_type(2) or FLOAT)


@TYPES_AFTER_ONNX.register(_MS, "DynamicQuantizeMatMul")
def _dynamic(op: Operands) -> _Types:
    return _product(op, 0, 1, op.elem_type(0))


@TYPES_AFTER_ONNX.register(_MS, "MatMulInteger16")
def _integer16(op: Operands) -> _Types:
    return _product(op, 0, 1, INT32)


@TYPES_AFTER_ONNX.register(_MS, "QGemm")
def _quantised_gemm(op: Operands) -> _Types:
    # Without an output scale the result stays a float.
    return _product(op, 0, 3, op.elem_type(0) if op.type(7) is not None else FLOAT)


@TYPES_AFTER_ONNX.register(_MS, "QLinearMatMul")
def _quantised_product(op: Operands) -> _Types:
    return _product(op, 0, 3, op.elem_type(7) or op.elem_type(0))


@TYPES_AFTER_ONNX.register(_MS, "MatMulBnb4", "MatMulFpQ4")
def _few_bits(op: Operands) -> _Types:
    dims, columns = op.dims(0), op.integer("N")
    return (TensorType(op.elem_type(0), (*dims[:-1], columns)),) if dims and columns else ()


@TYPES_AFTER_ONNX.register(_MS, "QuantizeLinear")
def _quantise(op: Operands) -> _Types:
    return (TensorType(op.elem_type(2) or UINT8, op.dims(0)),)


@TYPES_AFTER_ONNX.register(_MS, "DequantizeLinear")
def _dequantise(op: Operands) -> _Types:
    return (TensorType(op.elem_type(1) or FLOAT, op.dims(0)),)


@TYPES_AFTER_ONNX.register(_MS, "EmbedLayerNormalization", "QEmbedLayerNormalization")
def _embed(op: Operands) -> _Types:
    words, table = op.dims(0), op.dims(2)
    if words is None or table is None or len(words) != 2:
        return ()
    # Quantised tables come out in the type of their scale (input 8).
    elem_type = op.elem_type(2)
    if elem_type in (INT8, UINT8):
        elem_type = op.elem_type(8) or FLOAT
    hidden = TensorType(elem_type, (*words, table[-1]))
    return hidden, TensorType(INT32, words[:1]), hidden


def _heads_width(op: Operands, columns: Dim) -> tuple[int, int] | None:
    """(query width, value width) of a joint projection."""
    sizes = op.items("qkv_hidden_sizes")
    if len(sizes) == 3:
        return sizes[0], sizes[2]
    return (columns // 3, columns // 3) if isinstance(columns, int) else None


@TYPES_AFTER_ONNX.register(
    _MS, "Attention", "QAttention", "DecoderMaskedSelfAttention", "LongformerAttention"
)
def _projected(op: Operands) -> _Types:
    data, weight, heads = op.dims(0), op.dims(1), op.integer("num_heads")
    widths = _heads_width(op, weight[-1]) if weight else None
    if data is None or len(data) != 3 or widths is None:
        return ()
    elem_type = op.elem_type(0)
    past_index = 4
    if elem_type in (INT8, UINT8):
        elem_type, past_index = op.elem_type(3) or FLOAT, 8
    out = TensorType(elem_type, (*data[:2], widths[1]))
    past = op.dims(past_index)
    cached = past[3] if past and len(past) == 5 else 0
    if not heads or not isinstance(data[1], int) or not isinstance(cached, int):
        return (out,)
    present = (2, data[0], heads, data[1] + cached, widths[0] // heads)
    return out, TensorType(elem_type, present)


@TYPES_AFTER_ONNX.register(_MS, "PackedAttention")
def _packed(op: Operands) -> _Types:
    data, weight = op.dims(0), op.dims(1)
    widths = _heads_width(op, weight[-1]) if weight else None
    return (TensorType(op.elem_type(0), (data[0], widths[1])),) if data and widths else ()


@TYPES_AFTER_ONNX.register(_MS, "PackedMultiHeadAttention")
def _packed_heads(op: Operands) -> _Types:
    query, value = op.shape(0), op.shape(2)
    if query is None:
        return ()
    if value is not None:
        return (TensorType(op.elem_type(0), (query[0], value[-1])),)
    width = query[1] * query[3] if len(query) == 4 else query[1]
    return (TensorType(op.elem_type(0), (query[0], width)),)


@TYPES_AFTER_ONNX.register(_MS, "MultiHeadAttention")
def _multi_head(op: Operands) -> _Types:
    """A cache (input 6) comes before the new keys."""
    past = op.shape(6)
    return _attended(op, past[2] if past is not None and len(past) == 4 else 0, shared=False)


@TYPES_AFTER_ONNX.register(_MS, "DecoderMaskedMultiHeadAttention")
def _one_token(op: Operands) -> _Types:
    """The cache (input 5) has room for the new keys."""
    past = op.shape(5)
    return _attended(op, past[2] if past is not None and len(past) == 4 else 0, shared=past is not None)


def _attended(op: Operands, cached: int, *, shared: bool) -> _Types:
    query, key, value, heads = op.shape(0), op.shape(1), op.shape(2), op.integer("num_heads")
    if query is None or not heads:
        return ()
    if len(query) == 5:
        samples, length, heads, _, width = query
        kv_length, value_width = length, heads * width
    else:
        samples, length, hidden = query
        width, kv_length, value_width = hidden // heads, length, hidden
    if key is not None:
        kv_length = key[2] if len(key) == 4 else key[1]
    if value is not None:
        value_width = value[1] * value[3] if len(value) == 4 else value[2]
    kv_length = cached if shared else cached + kv_length
    elem_type = op.elem_type(0)
    keys = TensorType(elem_type, (samples, heads, kv_length, width))
    values = TensorType(elem_type, (samples, heads, kv_length, value_width // heads))
    return TensorType(elem_type, (samples, length, value_width)), keys, values


@TYPES_AFTER_ONNX.register(_MS, "GroupQueryAttention", "SparseAttention")
def _group_query(op: Operands) -> _Types:
    query, key, past = op.shape(0), op.shape(1), op.shape(3)
    heads, kv_heads = op.integer("num_heads"), op.integer("kv_num_heads")
    if query is None or len(query) != 3 or not heads or not kv_heads:
        return ()
    width = query[2] // (heads if key is not None else heads + 2 * kv_heads)
    samples, length = query[:2]
    new = key[1] if key is not None else length
    out = TensorType(op.elem_type(0), (samples, length, heads * width))
    # A cache that is written in place keeps its length; the file says so where it does.
    total = past[2] + new if past is not None and len(past) == 4 else new
    present = TensorType(op.elem_type(3) or op.elem_type(0), (samples, kv_heads, total, width))
    return out, present, present


@TYPES_AFTER_ONNX.register(_MS, "GatherBlockQuantized")
def _gather(op: Operands) -> _Types:
    table, indices = op.dims(0), op.dims(1)
    if not table or indices is None:
        return ()
    axis = op.integer("gather_axis") % len(table)
    return (TensorType(op.elem_type(2), (*table[:axis], *indices, *table[axis + 1 :])),)


@TYPES_AFTER_ONNX.register(_MS, "TorchEmbedding")
def _embedding(op: Operands) -> _Types:
    table, indices = op.dims(0), op.dims(1)
    return (TensorType(op.elem_type(0), (*indices, table[-1])),) if table and indices is not None else ()


@TYPES_AFTER_ONNX.register(_MS, "Rfft")
def _to_frequencies(op: Operands) -> _Types:
    """Half of the frequencies and one, as pairs in a last axis."""
    shape = op.shape(0)
    return (TensorType(op.elem_type(0), (*shape[:-1], shape[-1] // 2 + 1, 2)),) if shape else ()


@TYPES_AFTER_ONNX.register(_MS, "Irfft")
def _from_frequencies(op: Operands) -> _Types:
    shape = op.shape(0)
    if shape is None or len(shape) < 2:
        return ()
    return (TensorType(op.elem_type(0), (*shape[:-2], 2 * (shape[-2] - 1))),)


@TYPES_AFTER_ONNX.register(_MS, "CDist")
def _distances(op: Operands) -> _Types:
    a, b = op.dims(0), op.dims(1)
    return (TensorType(op.elem_type(0), (a[0], b[0])),) if a and b else ()


@TYPES_AFTER_ONNX.register(_MS, "MurmurHash3")
def _hash(op: Operands) -> _Types:
    return (TensorType(INT32, op.dims(0)),)


@TYPES_AFTER_ONNX.register(_MS, "ExpandDims")
def _expand(op: Operands) -> _Types:
    dims, axis = op.dims(0), op.integers(1)
    if dims is None or axis is None:
        return ()
    place = axis[0] % (len(dims) + 1)
    return (TensorType(op.elem_type(0), (*dims[:place], 1, *dims[place:])),)


@TYPES_AFTER_ONNX.register(_MS, "RelativePositionBias")
def _bias(op: Operands) -> _Types:
    table, rows, columns = op.dims(0), op.integers(1), op.integers(2)
    if not table or rows is None or columns is None:
        return ()
    return (TensorType(op.elem_type(0), (1, table[-1], rows[0], columns[0])),)


@TYPES_AFTER_ONNX.register(_MS, "GatedRelativePositionBias")
def _gated_bias(op: Operands) -> _Types:
    query, heads = op.dims(0), op.integer("num_heads")
    if not query or len(query) != 3 or not heads:
        return ()
    return (TensorType(op.elem_type(0), (query[0], heads, query[1], query[1])),)


@TYPES_AFTER_ONNX.register(_MS, "DynamicQuantizeLSTM")
def _recurrent(op: Operands) -> _Types:
    data, weight, hidden = op.dims(0), op.dims(1), op.integer("hidden_size")
    if data is None or not weight or not hidden or len(data) != 3:
        return ()
    state = TensorType(op.elem_type(0), (weight[0], data[1], hidden))
    return TensorType(op.elem_type(0), (data[0], weight[0], data[1], hidden)), state, state


@TYPES_AFTER_ONNX.register(_MS, "QLinearReduceMean")
def _mean(op: Operands) -> _Types:
    return _reduced(op, op.elem_type(0))


@TYPES_AFTER_ONNX.register(_MS, "ReduceSumInteger")
def _integer_sum(op: Operands) -> _Types:
    return _reduced(op, INT32)


def _reduced(op: Operands, elem_type: int) -> _Types:
    dims, axes = op.dims(0), op.items("axes")
    if dims is None:
        return ()
    gone = {axis % len(dims) for axis in axes} if axes else set(range(len(dims)))
    if op.integer("keepdims", 1):
        kept: tuple[Dim, ...] = tuple(1 if axis in gone else size for axis, size in enumerate(dims))
    else:
        kept = tuple(size for axis, size in enumerate(dims) if axis not in gone)
    return (TensorType(elem_type, kept),)


@TYPES_AFTER_ONNX.register(_MS, "ConvTransposeWithDynamicPads")
def _transposed_conv(op: Operands) -> _Types:
    data, weight, pads = op.shape(0), op.shape(1), op.integers(2)
    if data is None or weight is None or len(data) != len(weight):
        return ()
    rank = len(data) - 2
    strides = op.items("strides") or (1,) * rank
    dilations = op.items("dilations") or (1,) * rank
    extra = op.items("output_padding") or (0,) * rank
    kernel = op.items("kernel_shape") or weight[2:]
    # Padding that is data is taken for none: the largest result.
    cut = pads if pads is not None else (0,) * (2 * rank)
    spatial = tuple(
        strides[axis] * (data[2 + axis] - 1)
        + extra[axis]
        + dilations[axis] * (kernel[axis] - 1)
        + 1
        - cut[axis]
        - cut[rank + axis]
        for axis in range(rank)
    )
    channels = weight[1] * op.integer("group", 1)
    return (TensorType(op.elem_type(0), (data[0], channels, *spatial)),)


@TYPES_AFTER_ONNX.register(_MS, "GridSample")
def _sampled(op: Operands) -> _Types:
    data, grid = op.dims(0), op.dims(1)
    return (TensorType(op.elem_type(0), (*data[:2], *grid[1:-1])),) if data and grid else ()


@TYPES_AFTER_ONNX.register(_MS, "CropAndResize")
def _crops(op: Operands) -> _Types:
    data, boxes, size = op.dims(0), op.dims(1), op.integers(3)
    if not data or not boxes or size is None:
        return ()
    return (TensorType(op.elem_type(0), (boxes[0], data[1], *size)),)


@TYPES_AFTER_ONNX.register(_MS, "Pad")
def _padded(op: Operands) -> _Types:
    shape, pads = op.shape(0), op.integers(1)
    if shape is None or pads is None or len(pads) != 2 * len(shape):
        return ()
    sizes = zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True)
    return (TensorType(op.elem_type(0), tuple(size + a + b for size, a, b in sizes)),)


@TYPES_AFTER_ONNX.register(_MS, "Range")
def _range(op: Operands) -> _Types:
    start, limit, delta = op.integers(0), op.integers(1), op.integers(2) or (1,)
    if not start or not limit or not delta[0]:
        return ()
    return (TensorType(op.elem_type(0), (max(0, -(-(limit[0] - start[0]) // delta[0])),)),)


@TYPES_AFTER_ONNX.register(_MS, "UnfoldTensor")
def _windows(op: Operands) -> _Types:
    shape = op.shape(0)
    size, step = op.integer("size", 1), op.integer("step", 1)
    if not shape or step < 1:
        return ()
    axis = op.integer("dim", -1) % len(shape)
    count = (shape[axis] - size) // step + 1
    return (TensorType(op.elem_type(0), (*shape[:axis], count, *shape[axis + 1 :], size)),)


@TYPES_AFTER_ONNX.register(_MS, "RestorePadding")
def _restored(op: Operands) -> _Types:
    data, places = op.dims(0), op.dims(1)
    return (TensorType(op.elem_type(0), (*places, data[-1])),) if data and places else ()

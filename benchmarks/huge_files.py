"""Files at the limits of what is read: very many nodes, and very many bytes of weights."""

from __future__ import annotations

from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

_INPUT = "image"


class _Writer:
    """Nodes and weights of a graph as an exporter writes them; weights name a file that does not exist."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, *shape: int) -> str:
        """A new parameter."""
        tensor = TensorProto(name=f"w{len(self.weights)}", dims=shape, data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="absent.bin")
        self.weights.append(tensor)
        return tensor.name

    def numbers(self, *values: int) -> str:
        """A Constant node of integers, as exporters write shapes."""
        tensor = helper.make_tensor("", TensorProto.INT64, [len(values)], values)
        return self("Constant", value=tensor)

    def __call__(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """Adds a node of one output; returns the output."""
        name = f"/v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, inputs, [name], f"/{op_type}_{len(self.nodes)}", **attributes)
        )
        return name


def mixed_model(node_count: int) -> ModelProto:
    """Residual, separable and attention blocks of changing widths; `node_count` nodes or just over.

    Attention blocks carry exporter noise: Shape, Gather, Concat, Constant, Unsqueeze.
    """
    w = _Writer()
    width, side = 64, 14
    value = w(
        "Conv", _INPUT, w.weight(width, 3, 16, 16), w.weight(width), strides=[16, 16], kernel_shape=[16, 16]
    )
    block = 0
    while len(w.nodes) < node_count:
        if block % 7 == 6:
            wider = 32 * (2 + block % 11)
            value = w("Conv", value, w.weight(wider, width, 1, 1), w.weight(wider), kernel_shape=[1, 1])
            width = wider
        value = (_residual, _separable, _attention)[block % 3](w, value, width, side)
        block += 1
    value = w("Flatten", w("GlobalAveragePool", value))
    value = w("Gemm", value, w.weight(1000, width), w.weight(1000), transB=1)
    graph = helper.make_graph(
        w.nodes,
        "mixed",
        [helper.make_tensor_value_info(_INPUT, TensorProto.FLOAT, ["batch", 3, 16 * side, 16 * side])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["batch", 1000])],
        w.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _norm(w: _Writer, value: str, width: int) -> str:
    return w("BatchNormalization", value, *(w.weight(width) for _ in range(4)))


def _residual(w: _Writer, value: str, width: int, side: int) -> str:
    inner = w("Relu", _norm(w, w("Conv", value, w.weight(width, width, 3, 3), pads=[1, 1, 1, 1]), width))
    inner = _norm(w, w("Conv", inner, w.weight(width, width, 3, 3), pads=[1, 1, 1, 1]), width)
    return w("Relu", w("Add", value, inner))


def _separable(w: _Writer, value: str, width: int, side: int) -> str:
    inner = w("Conv", value, w.weight(width, 1, 3, 3), pads=[1, 1, 1, 1], group=width)
    inner = _norm(w, inner, width)
    inner = w("Mul", inner, w("Sigmoid", inner))
    gate = w("Conv", w("GlobalAveragePool", inner), w.weight(width, width, 1, 1), w.weight(width))
    inner = w("Mul", inner, w("Sigmoid", gate))
    return w("Add", value, _norm(w, w("Conv", inner, w.weight(width, width, 1, 1)), width))


def _attention(w: _Writer, value: str, width: int, side: int) -> str:
    tokens, head = side * side, 32
    rows = w("Transpose", w("Reshape", value, w.numbers(0, width, tokens)), perm=[0, 2, 1])
    normal = w("LayerNormalization", rows, w.weight(width), w.weight(width), axis=-1)
    batch = w("Gather", w("Shape", normal), w.numbers(0), axis=0)
    shape = w("Concat", batch, *(w.numbers(size) for size in (tokens, width // head, head)), axis=0)

    def part() -> str:
        linear = w("Add", w("MatMul", normal, w.weight(width, width)), w.weight(width))
        return w("Transpose", w("Reshape", linear, shape), perm=[0, 2, 1, 3])

    query, key, content = part(), part(), part()
    scores = w("MatMul", query, w("Transpose", key, perm=[0, 1, 3, 2]))
    scale = w("Constant", value=helper.make_tensor("", TensorProto.FLOAT, [], [head**-0.5]))
    mixed = w("MatMul", w("Softmax", w("Mul", scores, scale), axis=-1), content)
    mixed = w(
        "Reshape",
        w("Transpose", mixed, perm=[0, 2, 1, 3]),
        w("Concat", batch, w.numbers(tokens, width), axis=0),
    )
    mixed = w("Add", rows, w("MatMul", mixed, w.weight(width, width)))
    return w("Reshape", w("Transpose", mixed, perm=[0, 2, 1]), w.numbers(0, width, side, side))


def write_inline(path: Path, model: ModelProto, tensor_bytes: int, total_bytes: int) -> None:
    """Writes `model` with as many further weights of zeros as fit below `total_bytes`, payloads inline.

    Payloads are holes of a sparse file: it takes no room on the disk, and reading them gives zeros.
    """
    graph = model.graph.SerializeToString()
    rest = ModelProto.FromString(model.SerializeToString())
    rest.ClearField("graph")
    count = (total_bytes - len(graph)) // (tensor_bytes + 64)
    heads = []
    for index in range(count):
        tensor = TensorProto(name=f"inline{index}", dims=[tensor_bytes // 4], data_type=TensorProto.FLOAT)
        head = tensor.SerializeToString() + _tag(9, tensor_bytes)
        field = GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
        heads.append(_tag(field, len(head) + tensor_bytes) + head)
    size = len(graph) + sum(map(len, heads)) + count * tensor_bytes
    with path.open("wb") as file:
        file.write(rest.SerializeToString() + _tag(7, size) + graph)
        for head in heads:
            file.write(head)
            file.seek(tensor_bytes, 1)
        file.truncate(file.tell())


def _tag(field: int, length: int) -> bytes:
    """Tag and length of a protobuf field of bytes."""
    encoded = bytearray()
    for number in (field << 3 | 2, length):
        while number > 127:
            encoded.append(number & 127 | 128)
            number >>= 7
        encoded.append(number)
    return bytes(encoded)

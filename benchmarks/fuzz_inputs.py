"""Inputs of the fuzzer: damaged bytes, and models that are well-formed protobuf and wrong otherwise.

Every input follows from a seed and a number alone, so a finding can be made again.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_models import CRAFTED, SIZES
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from record import ROOT

from predictor.features.architectures.from_config import CACHES, from_config
from predictor.features.builder import GraphBuilder

# Larger seeds would spend the time on parsing.
_SEED_LIMIT_BYTES = 60_000
_NAMES = ("", "x", "x" * 100_000, "a\nb", "../../etc/passwd", "\0", "%s%n{0}", "é" * 999, "-1", "0")
_SYMBOLS = (
    "batch",
    "16*H",
    "H*" * 5000 + "H",
    "(" * 3000 + "H" + ")" * 3000,
    "9**9**9**9",
    "a//0",
    "-" * 4000 + "1",
    "__import__('os')",
    "H+" * 200 + "H",
    "9" * 5000,
    "a-a-1",
)
_LOCATIONS = ("../../../../etc/passwd", "/dev/zero", "/dev/stdin", "", "a" * 5000, "weights.bin", "..", "\0")

Change = Callable[[random.Random, ModelProto], None]


@cache
def seeds() -> tuple[bytes, ...]:
    """Small real models: ONNX's node tests, the examples, transformers and their decoding steps, networks."""
    from onnx.backend.test.loader import load_model_tests

    # The tests' own arithmetic overflows on purpose.
    warnings.simplefilter("ignore")
    found = [item.model.SerializeToString() for item in load_model_tests(kind="node")]
    found += [path.read_bytes() for path in sorted((ROOT / "examples").glob("*.onnx"))]
    configs = sorted((ROOT / "tests" / "assets" / "configs").glob("*.json"))
    for path in configs:
        if path.name != "measured.json":
            found.append(from_config(path, batch=1, sequence=16))
            if json.loads(path.read_text()).get("model_type") in CACHES:
                found.append(from_config(path, batch=1, past_length=15))
    small = [bytes(data) for data in found if len(data) <= _SEED_LIMIT_BYTES]
    return (*small, *(_network() for _ in range(len(small) // 4)))


@cache
def _network() -> bytes:
    b = GraphBuilder("small")
    image = b.input("image", ("batch", 3, 16, 16))
    x = b.relu(b.batch_norm(b.conv(image, 8, kernel=3, stride=2)))
    x = b.linear(b.flatten(b.global_pool(b.resize(x, 2.0))), 12)
    text = b.layer_norm(b.linear(b.input("text", ("batch", "16*H", 12)), 12))
    heads = b.transpose(b.reshape(text, (0, 0, 3, 4)), (0, 2, 1, 3))
    mixed = b.reshape(b.transpose(b.attention(heads, heads, heads), (0, 2, 1, 3)), (0, -1, 12))
    return b.build([b.add(b.reduce_mean(mixed, [1]), x)])


def make_input(seed: int, number: int) -> tuple[str, bytes]:
    """(what was done, bytes) of input `number` of run `seed`."""
    rng = random.Random(f"{seed}:{number}")
    if rng.random() < 0.35:
        return _damaged(rng)
    if rng.random() < 0.12:
        make = rng.choice(CRAFTED)
        return make.__name__.strip("_"), _bytes(make(rng))
    model = ModelProto.FromString(rng.choice(seeds()))
    names = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        change = rng.choice(_CHANGES)
        names.append(change.__name__.strip("_"))
        try:
            change(rng, model)
        except (ValueError, TypeError, IndexError):
            # The model has nothing of the kind, or protobuf refuses to hold the value.
            continue
    return "+".join(names), _bytes(model)


def _bytes(model: ModelProto) -> bytes:
    return bytes(model.SerializeToString())


def _damaged(rng: random.Random) -> tuple[str, bytes]:
    data = bytearray(rng.choice(seeds()))
    kind = rng.choice(("flip", "cut", "insert", "repeat", "splice", "ends", "lengths"))
    for _ in range(rng.choice((1, 2, 5, 30))):
        if not data:
            break
        at = rng.randrange(len(data))
        if kind == "flip":
            data[at] = rng.randrange(256)
        elif kind == "cut":
            del data[at : at + rng.randrange(1, 40)]
        elif kind == "insert":
            data[at:at] = rng.randbytes(rng.randrange(1, 12))
        elif kind == "repeat":
            piece = data[at : at + rng.randrange(1, 200)]
            data[at:at] = piece * rng.choice((1, 2, 50))
        elif kind == "splice":
            other = rng.choice(seeds())
            start = rng.randrange(len(other))
            data[at:at] = other[start : start + rng.randrange(1, 400)]
        elif kind == "ends":
            del data[at:]
        else:
            data[at : at + 1] = rng.choice((b"\xff\xff\xff\xff\x0f", b"\x80" * 9 + b"\x01", b"\x7f", b"\x00"))
    return kind, bytes(data)


def _graphs(model: ModelProto) -> list[GraphProto]:
    found = [model.graph]
    for graph in found:
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    found.append(attribute.g)
                found.extend(attribute.graphs)
    return found


def _node(rng: random.Random, model: ModelProto) -> NodeProto:
    return rng.choice([node for graph in _graphs(model) for node in graph.node])


def _value(rng: random.Random, model: ModelProto) -> str:
    names = [name for node in model.graph.node for name in (*node.input, *node.output)]
    return str(rng.choice([*names, *(item.name for item in model.graph.input), ""]))


@cache
def _op_types() -> tuple[tuple[str, str], ...]:
    import onnx

    return tuple(sorted({(item.domain, item.name) for item in onnx.defs.get_all_schemas()}))


def _other_op(rng: random.Random, model: ModelProto) -> None:
    node = _node(rng, model)
    node.domain, node.op_type = rng.choice((*_op_types(), ("", rng.choice(_NAMES))))


def _rewired(rng: random.Random, model: ModelProto) -> None:
    node = _node(rng, model)
    node.input[rng.randrange(len(node.input))] = _value(rng, model)


def _own_output_read(rng: random.Random, model: ModelProto) -> None:
    node = _node(rng, model)
    node.input[rng.randrange(len(node.input))] = node.output[0]


def _operands_changed(rng: random.Random, model: ModelProto) -> None:
    node = _node(rng, model)
    operands = rng.choice((node.input, node.output))
    if rng.random() < 0.5:
        del operands[rng.randrange(len(operands))]
    else:
        operands.extend([_value(rng, model) for _ in range(rng.choice((1, 2, 500)))])


def _nodes_moved(rng: random.Random, model: ModelProto) -> None:
    graph = rng.choice(_graphs(model))
    nodes = list(graph.node)
    if rng.random() < 0.4:
        nodes.remove(rng.choice(nodes))
    elif rng.random() < 0.5:
        nodes.append(rng.choice(nodes))
    else:
        rng.shuffle(nodes)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _dims(rng: random.Random, model: ModelProto) -> None:
    graph = rng.choice(_graphs(model))
    infos = [*graph.input, *graph.output, *graph.value_info]
    sizes = rng.choice(infos).type.tensor_type.shape
    where = rng.randrange(4)
    if where == 0:
        sizes.dim.add().dim_value = rng.choice(SIZES)
    elif where == 1:
        rng.choice(sizes.dim).dim_param = rng.choice(_SYMBOLS)
    elif where == 2:
        del sizes.dim[rng.randrange(len(sizes.dim))]
    else:
        rng.choice(sizes.dim).dim_value = rng.choice(SIZES)


def _weights(rng: random.Random, model: ModelProto) -> None:
    tensor = rng.choice(rng.choice(_graphs(model)).initializer)
    where = rng.randrange(4)
    if where == 0:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(SIZES)
    elif where == 1:
        tensor.dims.append(rng.choice(SIZES))
    elif where == 2:
        tensor.data_type = rng.randrange(-1, 40)
    else:
        tensor.raw_data = rng.randbytes(rng.choice((0, 1, 7, 8, 64)))


def _types(rng: random.Random, model: ModelProto) -> None:
    info = rng.choice([*model.graph.input, *model.graph.output, *model.graph.value_info])
    where = rng.randrange(3)
    if where == 0:
        info.type.tensor_type.elem_type = rng.randrange(-1, 40)
    elif where == 1:
        inner = info.type
        for _ in range(rng.choice((1, 2, 40))):
            inner = rng.choice((inner.sequence_type, inner.optional_type)).elem_type
        inner.tensor_type.elem_type = 1
    else:
        info.ClearField("type")


def _attributes(rng: random.Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if not node.attribute or rng.random() < 0.2:
        name = rng.choice(
            ("axis", "axes", "to", "perm", "group", "pads", "kernel_shape", "equation", "value")
        )
        node.attribute.append(helper.make_attribute(name, _attribute_value(rng)))
        return
    attribute = rng.choice(node.attribute)
    where = rng.randrange(5)
    if where == 0:
        attribute.type = rng.randrange(0, 16)
    elif where == 1:
        node.attribute.remove(attribute)
    elif where == 2:
        attribute.name = rng.choice(_NAMES)
    elif where == 3 and attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(SIZES)
    else:
        attribute.CopyFrom(helper.make_attribute(attribute.name or "axis", _attribute_value(rng)))


def _attribute_value(rng: random.Random) -> Any:
    choices: tuple[Any, ...] = (
        rng.choice(SIZES),
        [rng.choice(SIZES) for _ in range(rng.choice((1, 2, 4, 300)))],
        rng.choice((float("nan"), float("inf"), -1e300, 0.0)),
        [0.5, float("inf")],
        rng.choice((*_NAMES, "ij,jk->ik", "i" * 9999, "...ab,...->", "->", "SAME_UPPER", "linear")),
        [b"\xff\xfe", b"x"],
        helper.make_tensor("t", TensorProto.INT64, [2], [rng.choice(SIZES), rng.choice(SIZES)]),
        helper.make_graph([], "empty", [], []),
    )
    return rng.choice(choices)


def _constants(rng: random.Random, model: ModelProto) -> None:
    """A small integer operand (a shape, axes, repeats) with other contents."""
    tensor = helper.make_tensor(
        "other", TensorProto.INT64, [count := rng.choice((1, 2, 4, 60))], rng.choices(SIZES, k=count)
    )
    model.graph.initializer.append(tensor)
    node = _node(rng, model)
    node.input[rng.randrange(len(node.input))] = "other"


def _opsets(rng: random.Random, model: ModelProto) -> None:
    rng.choice(model.opset_import).version = rng.choice((*SIZES, *range(1, 30)))


def _renamed(rng: random.Random, model: ModelProto) -> None:
    name = rng.choice(_NAMES)
    where = rng.randrange(4)
    if where == 0:
        _node(rng, model).name = name
    elif where == 1:
        _node(rng, model).output[0] = name
    elif where == 2:
        rng.choice(model.graph.input).name = name
    else:
        rng.choice(model.graph.output).name = name


def _external(rng: random.Random, model: ModelProto) -> None:
    tensor = rng.choice(model.graph.initializer)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = (
        ("location", rng.choice(_LOCATIONS)),
        ("offset", str(rng.choice(SIZES))),
        ("length", "9" * 5000),
    )
    for key, text in entries:
        tensor.external_data.add(key=key, value=text)


def _other_outputs(rng: random.Random, model: ModelProto) -> None:
    rng.choice(model.graph.output).name = _value(rng, model)


def _huge_op(rng: random.Random, model: ModelProto) -> None:
    """An op at the end whose result is far larger than its operands."""
    source = _value(rng, model)
    sizes = [rng.choice(SIZES) for _ in range(rng.choice((1, 2, 4)))]
    sizes = rng.choice((sizes, [2**31], [10**9], [10**6, 10**6], [2**20, 2**20, 2**20]))
    model.graph.initializer.append(helper.make_tensor("sizes", TensorProto.INT64, [len(sizes)], sizes))
    one = helper.make_tensor("one", TensorProto.INT64, [], [rng.choice(SIZES)])
    model.graph.initializer.append(one)
    op_type, inputs = rng.choice(
        (
            ("ConstantOfShape", ["sizes"]),
            ("Expand", [source, "sizes"]),
            ("Expand", ["one", "sizes"]),
            ("Tile", [source, "sizes"]),
            ("Tile", ["sizes", "sizes"]),
            ("Reshape", [source, "sizes"]),
            ("Range", ["one", "one", "one"]),
            ("Pad", ["sizes", "sizes"]),
            ("Pad", [source, "sizes"]),
            ("OneHot", ["sizes", "one", "sizes"]),
            ("EyeLike", ["sizes"]),
            ("Gather", ["sizes", "sizes"]),
            ("Split", [source, "sizes"]),
            ("Resize", [source, "", "", "sizes"]),
            ("TopK", [source, "one"]),
            ("RandomUniform", []),
        )
    )
    extra: dict[str, Any] = {"shape": sizes} if op_type == "RandomUniform" else {}
    model.graph.node.append(helper.make_node(op_type, inputs, ["grown"], **extra))
    shape = helper.make_node("Shape", ["grown"], ["grown_shape"])
    again = helper.make_node("ConstantOfShape", ["grown_shape"], ["again"])
    model.graph.node.extend([shape, again])
    model.graph.output.append(helper.make_tensor_value_info(rng.choice(("grown", "again")), 1, None))


_CHANGES: Sequence[Change] = (
    _other_op,
    _rewired,
    _own_output_read,
    _operands_changed,
    _nodes_moved,
    _dims,
    _weights,
    _types,
    _attributes,
    _attributes,
    _constants,
    _opsets,
    _renamed,
    _external,
    _other_outputs,
    _huge_op,
)


def save(folder: Path, seed: int, number: int) -> Path:
    """Writes one input to a file; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{seed}-{number}.onnx"
    path.write_bytes(make_input(seed, number)[1])
    return path

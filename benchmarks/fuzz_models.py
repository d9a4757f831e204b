"""Models of the fuzzer made on purpose: valid protobuf that grows, nests, loops or recurses."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TensorProto, helper

SIZES = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 64, 10**5, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
"""Numbers at the edges of what a field can hold."""


def _model(
    nodes: Sequence[NodeProto], *, functions: Sequence[FunctionProto] = (), out: str = "y"
) -> ModelProto:
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph(
        nodes, "g", [x, flag], [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)


def _doubling(rng: random.Random) -> ModelProto:
    """A chain whose every link has twice (or k times) the size of the last."""
    width = rng.choice((2, 3, 16))
    op_type = rng.choice(("Concat", "Add", "Mul", "Einsum", "Max", "Tile"))
    nodes = []
    names = ["x"]
    for index in range(rng.choice((10, 70, 2000))):
        name = f"v{index}"
        extra: dict[str, Any] = {"axis": 0} if op_type == "Concat" else {}
        if op_type == "Einsum":
            extra["equation"] = ",".join(["ij"] * width) + "->ij"
        nodes.append(helper.make_node(op_type, [names[-1]] * width, [name], **extra))
        names.append(name)
    return _model(nodes, out=names[-1])


def _functions(rng: random.Random) -> ModelProto:
    """Functions that call functions: billions of nodes after expansion, or one that never ends."""
    width, depth = rng.choice(((2, 40), (10, 30), (1, 3000), (300, 700), (1, 17000), (2, 12), (7, 6)))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    functions = []
    for level in range(depth):
        inner = helper.make_node("Relu", ["a"], ["v0"])
        nodes = [inner]
        for index in range(width if level else 0):
            called = level - 1 if rng.random() < 0.999 else rng.randrange(depth)
            nodes.append(helper.make_node(f"f{called}", [f"v{index}"], [f"v{index + 1}"], domain="mine"))
        nodes.append(helper.make_node("Identity", [f"v{len(nodes) - 1}"], ["b"]))
        functions.append(helper.make_function("mine", f"f{level}", ["a"], ["b"], nodes, opsets))
    call = helper.make_node(f"f{depth - 1}", ["x"], ["y"], domain="mine")
    return _model([call], functions=functions)


def _nested(rng: random.Random) -> ModelProto:
    """If or Loop bodies inside each other."""
    depth = rng.choice((3, 9, 14, 17, 30))
    kind = rng.choice(("If", "If", "Loop"))
    body = [helper.make_node("Relu", ["x"], ["y"])]
    for level in range(depth):
        out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        if kind == "If":
            graph = helper.make_graph(body, f"b{level}", [], out)
            body = [helper.make_node("If", ["flag"], ["y"], then_branch=graph, else_branch=graph)]
            if level > 12:
                # Twice the size a level: the copies would be the bomb, and belong to the other inputs.
                body = [helper.make_node("If", ["flag"], ["y"], then_branch=graph)]
            continue
        given = [
            helper.make_tensor_value_info(f"i{level}", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"c{level}", TensorProto.BOOL, []),
        ]
        graph = helper.make_graph(
            body, f"b{level}", given, [helper.make_tensor_value_info("flag", TensorProto.BOOL, []), *out]
        )
        body = [helper.make_node("Loop", ["", "flag"], ["y"], body=graph)]
    return _model(body)


def _trips(rng: random.Random) -> ModelProto:
    """Loops with huge constant trip counts, nested."""
    count = helper.make_tensor("n", TensorProto.INT64, [], [rng.choice(SIZES)])
    body = [helper.make_node("Concat", ["c", "c"], ["d"], axis=0)]
    info = helper.make_tensor_value_info
    given = [info("i", TensorProto.INT64, []), info("k", TensorProto.BOOL, []), info("c", 1, [2, 3])]
    scanned = [info("k", TensorProto.BOOL, []), info("d", 1, None)]
    if rng.random() < 0.5:
        scanned.append(info("c", 1, None))
    graph = helper.make_graph(body, "body", given, scanned)
    outputs = ["y", "scanned"][: len(scanned) - 1]
    nodes = [
        helper.make_node("Constant", [], ["trips"], value=count),
        helper.make_node("Loop", ["trips", "flag", "x"], outputs, body=graph),
    ]
    return _model(nodes)


def _wide(rng: random.Random) -> ModelProto:
    """Very many cheap nodes, or one value that all of them read."""
    count = rng.choice((3_000, 12_000))
    kind = rng.randrange(4)
    if kind == 0:
        nodes = [helper.make_node("Relu", ["x"], [f"v{i}"]) for i in range(count)]
        nodes.append(helper.make_node("Sum", [f"v{i}" for i in range(count)], ["y"]))
    elif kind == 1:
        nodes = [helper.make_node("Identity", [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(count)]
        nodes.append(helper.make_node("Relu", [f"v{count}"], ["y"]))
        nodes.reverse()
    elif kind == 2:
        nodes = [helper.make_node("Relu", [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(count)]
        rng.shuffle(nodes)
        nodes.append(helper.make_node("Relu", [f"v{count}"], ["y"]))
    else:
        nodes = [helper.make_node("Transpose", [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(count)]
        nodes.append(helper.make_node("Shape", [f"v{count}"], ["s"]))
        nodes.append(helper.make_node("Cast", ["s"], ["y"], to=1))
    return _model(nodes)


def _bombs(rng: random.Random) -> ModelProto:
    """Megabytes of text where a name is expected."""
    text = rng.choice(("x", "\n", "é", "('")) * rng.choice((10**5, 10**6))
    node = helper.make_node("Relu", ["x"], ["y"], name=text)
    where = rng.randrange(4)
    if where == 0:
        node.op_type = text
    elif where == 1:
        node.domain = text
    elif where == 2:
        node.input[0] = text
    else:
        node.attribute.append(helper.make_attribute(text, [text, text]))
    return _model([node])


def _deep_messages(rng: random.Random) -> ModelProto:
    """Types and attributes inside each other far deeper than a reader's stack."""
    model = _model([helper.make_node("Relu", ["x"], ["y"])])
    inner = model.graph.input[0].type
    for _ in range(rng.choice((5, 20, 45))):
        inner = inner.sequence_type.elem_type
    inner.tensor_type.elem_type = 1
    holder = model.graph.node[0]
    for _ in range(rng.choice((1, 30))):
        attribute: AttributeProto = holder.attribute.add(name="g", type=AttributeProto.GRAPH)
        holder = attribute.g.node.add(op_type="Relu", input=["x"], output=["z"])
    return model


CRAFTED: Sequence[Callable[[random.Random], ModelProto]] = (
    _doubling,
    _functions,
    _nested,
    _trips,
    _wide,
    _bombs,
    _deep_messages,
)
"""Each makes one model from a source of randomness."""

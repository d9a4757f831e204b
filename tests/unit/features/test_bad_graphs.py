"""Bad input is one clear line of one of our errors, whatever is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, helper

from predictor.errors import InvalidGraph, UnboundSymbol
from predictor.features.builder import GraphBuilder
from predictor.features.programs.program import build_program
from predictor.features.reading import structure, type_inference
from predictor.features.reading.model_file import DEPTH_LIMIT, NODE_LIMIT
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime
from tests.unit.features.onnx_files import FLOAT, fails, good, model_of


def test_empty_bytes() -> None:
    fails(b"", "0 bytes")


def test_text() -> None:
    fails(b"# just a readme\n" * 20, "not an ONNX model", "text")


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (b"\x1f\x8b\x08", "gzip"),
        (b"PK\x03\x04", "torch.onnx.export"),
        (b"\x80\x02}q", "pickle"),
        (b"\x89HDF\r", "Keras"),
    ],
)
def test_other_formats_are_guessed(head: bytes, word: str) -> None:
    fails(head + bytes(range(256)), word)


@pytest.mark.parametrize("length", [1, 30, 100])
def test_truncated(length: int) -> None:
    fails(good()[:-length], "ONNX")


def test_a_model_without_a_graph() -> None:
    fails(ModelProto(ir_version=9).SerializeToString(), "holds no ONNX graph")


def test_a_model_without_operator_sets() -> None:
    model = ModelProto.FromString(good())
    del model.opset_import[:]
    fails(model.SerializeToString(), "operator set")


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path, word in ((tmp_path / "absent.onnx", "does not exist"), (tmp_path, "is a directory")):
        with pytest.raises(InvalidGraph, match=word) as caught:
            read_graph(path)
        assert str(path) in caught.value.message


def test_unreadable_path() -> None:
    with pytest.raises(InvalidGraph, match="cannot be read"):
        read_graph("model\0.onnx")


def test_cycle() -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("Relu", ["a"], ["y"], name="third"),
    ]
    fails(model_of(nodes), "cycle", "'first'", "'second'")


def test_nodes_out_of_order_are_put_in_order() -> None:
    nodes = [
        helper.make_node("Relu", ["a"], ["y"], name="late"),
        helper.make_node("Exp", ["x"], ["a"], name="early"),
    ]
    assert [node.name for node in read_graph(model_of(nodes)).nodes] == ["early", "late"]


def test_a_value_written_twice() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Exp", ["x"], ["y"], name="again")]
    fails(model_of(nodes), "'y' is written twice", "'again'")


def test_an_input_written_again() -> None:
    fails(model_of([helper.make_node("Relu", ["x"], ["x"])], outputs=("x",)), "'x' is written twice")


def test_a_value_nobody_writes() -> None:
    fails(model_of([helper.make_node("Add", ["x", "ghost"], ["y"], name="reader")]), "'ghost'", "'reader'")


def test_an_output_nobody_writes() -> None:
    fails(model_of([helper.make_node("Relu", ["x"], ["z"])]), "output 'y'")


def test_initializers_of_one_name_or_negative_size() -> None:
    twin = TensorProto(name="w", data_type=FLOAT, dims=[3])
    add = helper.make_node("Add", ["x", "w"], ["y"])
    fails(model_of([add], initializers=(twin, twin)), "'w' occurs twice")
    fails(model_of([add], initializers=(TensorProto(name="w", data_type=FLOAT, dims=[-3]),)), "negative")


def test_absurd_sizes() -> None:
    huge = TensorProto(name="w", data_type=FLOAT, dims=[2**40, 2**40])
    fails(model_of([helper.make_node("Identity", ["w"], ["y"])], initializers=(huge,)), "'w'", str(2**40))


def test_an_op_that_contradicts_its_inputs_is_named() -> None:
    nodes = [helper.make_node("MatMul", ["x", "z"], ["y"], name="product")]
    fails(model_of(nodes, {"x": [2, 3], "z": [4, 5]}), "'product'", "(2, 3)", "(4, 5)")


def test_a_reshape_that_loses_elements_is_named() -> None:
    shape = helper.make_tensor("s", TensorProto.INT64, [2], [5, 5])
    fails(
        model_of([helper.make_node("Reshape", ["x", "s"], ["y"], name="r")], initializers=(shape,)),
        "'r'",
        "6",
    )


def test_shapes_that_depend_on_data_are_listed_by_cause() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["sizes"], to=TensorProto.INT64),
        helper.make_node("Flatten", ["sizes"], ["flat"], axis=0),
        helper.make_node("Squeeze", ["flat"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["found"], name="which"),
        helper.make_node("Relu", ["found"], ["y"]),
    ]
    fails(model_of(nodes), "2 values", "'found' (from ConstantOfShape 'which')", "value_info", "NODE.out.0")


def test_an_unknown_op_is_listed_and_a_declared_shape_helps() -> None:
    nodes = [
        helper.make_node("Mystery", ["x"], ["m"], name="odd", domain="else"),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    data = model_of(nodes)
    fails(data, "Mystery 'odd'")
    model = ModelProto.FromString(data)
    model.graph.value_info.append(helper.make_tensor_value_info("m", FLOAT, [2, 7]))
    graph = read_graph(model.SerializeToString())
    assert graph.values["y"].shape == (2, 7)
    assert [node.domain for node in graph.nodes] == ["else", ""]


def test_unknown_shapes_that_nothing_uses_do_not_matter() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["unused"]), helper.make_node("Relu", ["x"], ["y"])]
    assert len(read_graph(model_of(nodes)).nodes) == 1


def test_inputs_that_are_no_tensors() -> None:
    model = ModelProto.FromString(good())
    model.graph.input[0].type.Clear()
    fails(model.SerializeToString(), "'x' is not a tensor")


def _nested(depth: int) -> bytes:
    """An If in the then-branch of an If, `depth` times, around a Relu."""

    def body(node: object, output: str) -> object:
        return helper.make_graph([node], "b", [], [helper.make_tensor_value_info(output, FLOAT, None)])

    leaf = body(helper.make_node("Exp", ["x"], ["e"]), "e")
    node = helper.make_node("Relu", ["x"], ["r0"])
    for level in range(1, depth + 1):
        inner = body(node, node.output[0])
        node = helper.make_node("If", ["c"], [f"r{level}"], then_branch=inner, else_branch=leaf)
    flag = helper.make_tensor("c", TensorProto.BOOL, [], [1])
    return model_of([node, helper.make_node("Identity", [node.output[0]], ["y"])], initializers=(flag,))


def test_nesting_is_limited() -> None:
    assert [node.op_type for node in read_graph(_nested(DEPTH_LIMIT)).nodes] == ["Relu"]
    fails(_nested(DEPTH_LIMIT + 1), f"more than {DEPTH_LIMIT} deep")


def test_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NODE_LIMIT == 200_000
    monkeypatch.setattr("predictor.features.reading.model_file.NODE_LIMIT", 2)
    nodes = [helper.make_node("Relu", ["x" if i == 0 else f"v{i}"], [f"v{i + 1}"]) for i in range(3)]
    fails(model_of(nodes, outputs=("v3",)), "more than 2 nodes")


def _function(name: str, *calls: Callable[[str, str], object]) -> FunctionProto:
    names = ["a", *(f"t{i}" for i in range(len(calls)))]
    nodes = [call(before, after) for call, before, after in zip(calls, names, names[1:], strict=False)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_function("mine", name, ["a"], [names[-1]], nodes, opsets)


def _call(op: str, domain: str = "mine") -> Callable[[str, str], object]:
    return lambda before, after: helper.make_node(op, [before], [after], domain=domain)


def test_functions_are_opened() -> None:
    inner = _function("Inner", _call("Exp", ""))
    outer = _function("Outer", _call("Inner"), _call("Relu", ""), _call("Inner"))
    graph = read_graph(model_of([_call("Outer")("x", "y")], functions=(inner, outer)))
    assert [node.op_type for node in graph.nodes] == ["Exp", "Relu", "Exp"]


def test_functions_that_call_themselves() -> None:
    fails(
        model_of([_call("A")("x", "y")], functions=(_function("A", _call("B")), _function("B", _call("A")))),
        "itself",
    )


def test_functions_that_explode() -> None:
    bombs = [_function("F0", _call("Relu", ""))]
    bombs.extend(_function(f"F{i}", *[_call(f"F{i - 1}")] * 10) for i in range(1, 9))
    fails(model_of([_call("F8")("x", "y")], functions=tuple(bombs)), "expand to", str(NODE_LIMIT))


def test_names_that_are_no_text() -> None:
    data = bytearray(good())
    at = bytes(data).index(b"relu")
    data[at] = 0xFF
    fails(bytes(data), "UTF-8")


@pytest.mark.parametrize("groups", [1, 0, -1, 2, 7])
def test_convolutions_whose_channels_do_not_fit(groups: int) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="mixed", group=groups)
    model = helper.make_model(
        helper.make_graph(
            [node],
            "g",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 5, 8, 8]),
                helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3, 3, 3]),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 6, 6])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    graph = read_graph(model.SerializeToString())
    with pytest.raises(InvalidGraph, match=r"'mixed'.*(5 channels|cannot price)"):
        build_program(
            graph,
            mode=Mode.INFER,
            precision=Precision.FP32,
            optimizer=Optimizer.NONE,
            runtime=Runtime.EAGER,
        )


def _loops(depth: int) -> bytes:
    """Loops of unknown trips in each other; every level is tried twice."""
    info = helper.make_tensor_value_info
    body = [helper.make_node("Relu", ["x"], ["y"])]
    for level in range(depth):
        given = [info(f"i{level}", TensorProto.INT64, []), info(f"c{level}", TensorProto.BOOL, [])]
        results = [info("flag", TensorProto.BOOL, []), info("y", FLOAT, None)]
        graph = helper.make_graph(body, f"b{level}", given, results)
        body = [helper.make_node("Loop", ["", "flag"], ["y"], body=graph)]
    given = [info("x", FLOAT, [2, 3]), info("flag", TensorProto.BOOL, [])]
    model = helper.make_model(
        helper.make_graph(body, "g", given, [info("y", FLOAT, None)]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    return bytes(model.SerializeToString())


def test_loops_in_loops_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_graph(_loops(4)).values["y"].shape == (1, 1, 1, 1, 2, 3)
    # What is only tried is given up; what is needed is not.
    monkeypatch.setattr("predictor.features.reading.type_inference._OPENED_LIMIT", 20)
    assert read_graph(_loops(6)).values["y"].shape == (1, 1, 1, 1, 1, 1, 2, 3)
    monkeypatch.setattr("predictor.features.reading.type_inference._OPENED_LIMIT", 3)
    fails(_loops(6), "open to more than 3 nodes")


def test_tries_in_tries_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Counter[bool]()
    real = type_inference._Walk.walk

    def counted(self: type_inference._Walk, *arguments: Any) -> Any:
        opened[self.trials > 0] += 1
        return real(self, *arguments)

    monkeypatch.setattr(type_inference._Walk, "walk", counted)
    monkeypatch.setattr(type_inference, "_TRIED_LIMIT", 50)
    assert read_graph(_loops(9)).values["y"].shape == (*(1,) * 9, 2, 3)
    # Each level opens its body once for the answer; what is tried comes to an end.
    assert opened[False] <= 1 + 2 * 9
    assert opened[True] < 150


def test_names_in_loops_do_not_double() -> None:
    graph = read_graph(_loops(9))
    assert max(map(len, graph.values)) < 2000


@pytest.mark.parametrize("version", [2**40, -1, -(2**63)])
def test_operator_sets_beyond_any_number(version: int) -> None:
    model = ModelProto.FromString(good())
    model.opset_import[0].version = version
    fails(bytes(model.SerializeToString()), "operator set version", "damaged")


def test_functions_that_explode_to_numbers_of_thousands_of_digits() -> None:
    bombs = [_function("F0", _call("Relu", ""))]
    bombs.extend(_function(f"F{i}", *[_call(f"F{i - 1}")] * 300) for i in range(1, 60))
    fails(model_of([_call("F59")("x", "y")], functions=tuple(bombs)), "expand to more than")


def test_messages_quote_no_megabytes() -> None:
    node = helper.make_node("Relu", ["x" * 10**6], ["y"])
    with pytest.raises(InvalidGraph) as caught:
        read_graph(model_of([node]))
    assert len(caught.value.message) < 5000
    assert "characters left out" in caught.value.message


def test_messages_are_one_line_whatever_names_hold() -> None:
    b = GraphBuilder()
    model = ModelProto.FromString(b.build([b.relu(b.input("x", (2, "H")))]))
    model.graph.input[0].name = model.graph.node[0].input[0] = "a\nb\x1b[2J"
    with pytest.raises(UnboundSymbol) as caught:
        read_graph(bytes(model.SerializeToString()))
    assert caught.value.message.isprintable()
    assert "a\\nb\\x1b" in caught.value.message


def test_function_calls_in_a_long_chain() -> None:
    chain = [_function("F0", _call("Relu", ""))]
    chain.extend(_function(f"F{i}", _call(f"F{i - 1}")) for i in range(1, 150))
    fails(model_of([_call("F149")("x", "y")], functions=tuple(chain)), "cannot be opened", "depth")


def test_attributes_of_another_type_are_no_bug() -> None:
    node = helper.make_node("Shape", ["x"], ["s"], start=[1.5, 2.0])
    fails(model_of([node, helper.make_node("Cast", ["s"], ["y"], to=FLOAT)]), "Shape", "start")


def _tree_of_branches(depth: int, width: int = 1) -> bytes:
    """An If in both branches of an If, and so on: 2^depth of them, `width` nodes before each."""
    info = helper.make_tensor_value_info

    def graph(level: int, name: str) -> GraphProto:
        nodes = [helper.make_node("Relu", ["x"], [f"{name}_{index}"]) for index in range(width)]
        result = f"{name}_y"
        if level:
            branches = {key: graph(level - 1, name + key[0]) for key in ("then_branch", "else_branch")}
            nodes.append(helper.make_node("If", ["flag"], [result], **branches))
        else:
            nodes.append(helper.make_node("Relu", ["x"], [result]))
        return helper.make_graph(nodes, name, [], [info(result, FLOAT, [2, 3])])

    whole = graph(depth, "g")
    whole.input.extend([info("x", FLOAT, [2, 3]), info("flag", TensorProto.BOOL, [])])
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def test_branches_in_branches_are_limited_by_what_opening_them_goes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = read_graph(_tree_of_branches(4))
    assert graph.values[graph.outputs[0]].shape == (2, 3)
    # 2 + 4 + ... nodes on every level, each gone over once per level above it.
    monkeypatch.setattr("predictor.features.reading.type_inference._MOVED_LIMIT", 100)
    fails(_tree_of_branches(4), "bodies (If, Loop, Scan) inside bodies hold too much", "nest them less deep")


def test_values_that_bodies_read_are_found_once_per_body(monkeypatch: pytest.MonkeyPatch) -> None:
    visited = Counter[str]()
    real = structure._free_names

    def counted(body: GraphProto) -> dict[str, None]:
        visited[body.name] += 1
        return real(body)

    monkeypatch.setattr(structure, "_free_names", counted)
    read_graph(_tree_of_branches(5))
    assert max(visited.values()) == 1
    assert len(visited) == 2**6 - 2


@pytest.mark.parametrize(("name", "elem_type"), [("unread", 99), ("", FLOAT)])
def test_an_input_that_nobody_can_read_is_left_out(name: str, elem_type: int) -> None:
    model = ModelProto.FromString(good())
    extra = model.graph.input.add()
    extra.CopyFrom(model.graph.input[0])
    extra.name = name
    extra.type.tensor_type.elem_type = elem_type
    graph = read_graph(model.SerializeToString())
    assert name not in graph.inputs
    program = build_program(
        graph,
        mode=Mode.INFER,
        precision=Precision.FP32,
        optimizer=Optimizer.NONE,
        runtime=Runtime.EAGER,
    )
    assert program.ops


def test_an_empty_input_with_huge_dimensions() -> None:
    b = GraphBuilder()
    x = b.input("x", (0, 2**40, 2**20))
    assert read_graph(b.build([b.relu(x)])).values["x"].elements == 0


@pytest.mark.parametrize("runtime", list(Runtime))
def test_operands_that_no_rule_can_price_are_named_whatever_fuses(runtime: Runtime) -> None:
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [7])
    data = model_of([helper.make_node("CumSum", ["x", "axis"], ["y"], name="running")], initializers=(axis,))
    with pytest.raises(InvalidGraph, match="running"):
        build_program(
            read_graph(data),
            mode=Mode.INFER,
            precision=Precision.FP32,
            optimizer=Optimizer.NONE,
            runtime=runtime,
        )


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("num_scan_inputs", [1, 2]),
        ("num_scan_inputs", "one"),
        ("scan_input_axes", ["a"]),
        ("scan_output_axes", 3),
    ],
)
def test_attributes_of_a_scan_of_another_type(attribute: str, value: object) -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Relu", ["part"], ["done"])],
        "body",
        [info("part", FLOAT, [3])],
        [info("done", FLOAT, [3])],
    )
    given: dict[str, object] = {"num_scan_inputs": 1, attribute: value}
    data = model_of([helper.make_node("Scan", ["x"], ["y"], name="scan", body=body, **given)])
    with suppress(InvalidGraph):
        assert read_graph(data).nodes

"""Where the numbers of symbolic dimensions come from; what happens when some are missing or contradict."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import ModelProto

from predictor.errors import InvalidGraph, InvalidInput, InvalidRequest, UnboundSymbol, UnknownName
from predictor.features.builder import GraphBuilder
from predictor.features.dtype import DType
from predictor.features.reading.dim_expressions import evaluate, symbols_of
from predictor.features.reading.reader import read_graph


def image_model(*shape: int | str) -> bytes:
    b = GraphBuilder()
    x = b.input("image", shape)
    return b.build([b.linear(b.flatten(b.global_pool(b.conv(x, 8, kernel=3))), 10)])


def text_model(*shape: int | str, positions: tuple[int | str, ...] | None = None) -> bytes:
    b = GraphBuilder()
    x = b.embedding(b.input("ids", shape, DType.INT64), 30, 8)
    if positions:
        x = b.add(x, b.embedding(b.input("positions", positions, DType.INT64), 50, 8))
    return b.build([b.linear(x, 4)])


def test_batch_binds_the_leading_symbol() -> None:
    graph = read_graph(image_model("N", 3, 8, 8), batch=6)
    assert graph.batch == 6
    assert graph.values["image"].shape == (6, 3, 8, 8)
    assert graph.values[graph.outputs[0]].shape == (6, 10)


def test_a_symbolic_batch_is_one_by_default() -> None:
    assert read_graph(image_model("N", 3, 8, 8)).batch == 1


def test_a_hard_coded_batch_is_kept_by_default() -> None:
    assert read_graph(image_model(4, 3, 8, 8)).batch == 4


def test_numbers_that_agree_may_be_given_twice() -> None:
    data = image_model("N", 3, "H", 8)
    graph = read_graph(data, batch=7, dims={"N": 7, "H": 16}, input_shapes={"image": (7, 3, 16, 8)})
    assert graph.values["image"].shape == (7, 3, 16, 8)
    assert graph.batch == 7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch": 2, "dims": {"N": 5, "H": 8}}, r"batch is 2 .*--dim makes 'N', which counts samples, 5"),
        (
            {"batch": 2, "input_shapes": {"image": (5, 3, 8, 8)}},
            r"batch is 2 .*image=5x3x8x8 holds 5 samples",
        ),
        ({"dims": {"H": 9}, "input_shapes": {"image": (5, 3, 8, 8)}}, "'H' 8, but it is 9 by --dim"),
    ],
)
def test_numbers_that_contradict_each_other_are_never_settled_in_silence(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_graph(image_model("N", 3, "H", 8), **given)


def test_an_input_shape_that_an_expression_contradicts_is_refused() -> None:
    data = image_model("N", 3, "16*H", 8)
    assert read_graph(data, dims={"H": 2}, input_shapes={"image": (1, 3, 32, 8)}).batch == 1
    with pytest.raises(InvalidRequest, match=r"'16\*H' 33, but it is 32 by --dim"):
        read_graph(data, dims={"H": 2}, input_shapes={"image": (1, 3, 33, 8)})


@pytest.mark.parametrize("text", ["L//(L-5)", "L/2", "Mod(L, L-5)"])
def test_an_expression_without_a_whole_number_is_named_with_its_symbols(text: str) -> None:
    data = text_model("L", text)
    with pytest.raises(InvalidRequest, match="no whole number for L=5; give other numbers with --dim"):
        read_graph(data, dims={"L": 5})
    assert read_graph(data, dims={"L": 5}, input_shapes={"ids": (5, 7)}).values["ids"].shape == (5, 7)


def test_a_batch_that_a_hard_coded_input_contradicts_is_refused() -> None:
    """One input fixes its samples, another is open: the batch has nowhere to go."""
    with pytest.raises(InvalidRequest, match="fixes 1 samples in input 'ids'"):
        read_graph(text_model(1, 5, positions=("L",)), batch=8, dims={"L": 5})


@pytest.mark.parametrize("batch", [None, 8])
def test_a_first_size_is_no_batch_where_a_later_one_is_called_batch(batch: int | None) -> None:
    b = GraphBuilder()
    model = ModelProto.FromString(b.build([b.relu(b.input("x", ("seq", "batch", 512)))]))
    first = model.graph.input[0].type.tensor_type.shape.dim[0]
    first.ClearField("dim_param")
    with pytest.raises(UnboundSymbol, match="--input-shape x="):
        read_graph(model.SerializeToString(), batch=batch)
    first.dim_value = 10
    graph = read_graph(model.SerializeToString(), batch=batch, dims={"batch": 8})
    assert graph.values["x"].shape == (10, 8, 512)
    assert graph.batch == 8


def test_an_input_shape_binds_its_symbols_in_other_inputs() -> None:
    graph = read_graph(text_model("N", "L", positions=("N", "L")), input_shapes={"ids": (2, 9)})
    assert graph.values["positions"].shape == (2, 9)


def test_all_unbound_symbols_are_listed_with_their_flags() -> None:
    with pytest.raises(UnboundSymbol) as caught:
        read_graph(image_model("N", 3, "height", "width"), batch=2)
    message = caught.value.message
    assert "--dim height=N" in message
    assert "--dim width=N" in message
    assert "image[2]" in message
    assert caught.value.metadata["symbols"] == "height,width"


def test_a_length_that_leads_one_input_is_no_batch() -> None:
    data = text_model("N", "L", positions=("L",))
    with pytest.raises(UnboundSymbol, match="--dim L=N"):
        read_graph(data, batch=2)
    assert read_graph(data, batch=2, dims={"L": 7}).values["positions"].shape == (7,)


def test_unnamed_sizes_ask_for_the_input_shape() -> None:
    model = ModelProto.FromString(image_model("N", 3, "H", 8))
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].ClearField("dim_param")
    dims[2].ClearField("dim_param")
    data = model.SerializeToString()
    with pytest.raises(UnboundSymbol, match="--input-shape image=") as caught:
        read_graph(data, batch=2)
    assert caught.value.metadata["inputs"] == "image"
    assert read_graph(data, input_shapes={"image": (2, 3, 8, 8)}).batch == 2


def test_expressions_take_their_symbols() -> None:
    data = image_model("N", 3, "16*H", "16*H")
    assert read_graph(data, dims={"H": 2}).values["image"].shape == (1, 3, 32, 32)
    with pytest.raises(UnboundSymbol, match="--dim H=N"):
        read_graph(data)


@pytest.mark.parametrize(
    ("text", "numbers", "expected"),
    [
        ("16*H", {"H": 3}, 48),
        ("s0//2 + 1", {"s0": 9}, 5),
        ("floor(W/2)", {"W": 9}, 4),
        ("ceiling(W/2)", {"W": 9}, 5),
        ("Max(1, s1 - 4)", {"s1": 3}, 1),
        ("s0**2", {"s0": 7}, 49),
        ("Mod(s0, 4)", {"s0": 7}, 3),
        ("a/2", {"a": 5}, None),
        ("a/b", {"a": 5, "b": 0}, None),
        ("a", {}, None),
        ("batch-size", {"batch-size": 4}, 4),
        ("__import__('os')", {}, None),
        ("a if a else b", {"a": 1, "b": 2}, None),
        ("2**a", {"a": 10**6}, None),
    ],
)
def test_dimension_arithmetic(text: str, numbers: dict[str, int], expected: int | None) -> None:
    assert evaluate(text, numbers) == expected


def test_symbols_of_arithmetic_and_of_other_text() -> None:
    assert symbols_of("16*H + floor(W/2)") == {"H", "W"}
    assert symbols_of("H") == {"H"}
    assert symbols_of("what ever?") == {"what ever?"}


def test_unknown_names_are_named() -> None:
    with pytest.raises(UnknownName, match="imag"):
        read_graph(image_model("N", 3, 8, 8), input_shapes={"imag": (1, 3, 8, 8)})
    with pytest.raises(UnknownName, match="M"):
        read_graph(image_model("N", 3, 8, 8), dims={"M": 3})
    with pytest.raises(UnknownName, match="all sizes of this graph are numbers"):
        read_graph(image_model(1, 3, 8, 8), dims={"N": 3})


@pytest.mark.parametrize(
    "bad",
    [
        {"batch": 0},
        {"batch": -2},
        {"dims": {"N": 0}},
        {"input_shapes": {"image": (1, 3, -8, 8)}},
        {"input_shapes": {"image": (1, 3, 8)}},
    ],
)
def test_impossible_numbers_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        read_graph(image_model("N", 3, 8, 8), **bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [2**40, 2**62, 2**63, 10**30])
def test_absurd_batches_are_refused_in_one_line(batch: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_graph(image_model("N", 2**30, 8, 8), batch=batch)
    assert "\n" not in caught.value.message


def test_contradicting_input_shapes_are_refused() -> None:
    data = text_model("N", "L", positions=("N", "L"))
    with pytest.raises(InvalidRequest, match="'L' 8, but it is 9 by another input shape"):
        read_graph(data, input_shapes={"ids": (2, 9), "positions": (2, 8)})


def test_a_hard_coded_batch_is_replaced() -> None:
    graph = read_graph(image_model(1, 3, 8, 8), batch=5)
    assert graph.batch == 5
    assert graph.values[graph.outputs[0]].shape == (5, 10)


def test_replacing_ignores_declared_shapes_of_the_old_batch() -> None:
    model = ModelProto.FromString(image_model(1, 3, 8, 8))
    model.graph.value_info.append(model.graph.output[0])
    assert read_graph(model.SerializeToString(), batch=5).batch == 5


@pytest.mark.parametrize(
    ("shape", "axes", "target", "expected"),
    [
        # Flatten, as torch exports it for a fixed batch.
        ((1, 3, 4), (0, 1, 2), [1, 12], (8, 12)),
        ((2, 3, 4), (0, 1, 2), [2, -1], (8, 12)),
        ((2, 3, 4), (0, 1, 2), [2, 0, 2, 2], (8, 3, 2, 2)),
        # Heads folded into the batch, and out of it.
        ((2, 6, 5, 4), (0, 1, 2, 3), [12, 5, 4], (48, 5, 4)),
        ((2, 3, 4), (1, 0, 2), [3, 4, 2], (3, 16, 2)),
        ((2, 3, 4), (0, 1, 2), [-1, 4], (24, 4)),
    ],
)
def test_reshapes_traced_with_a_fixed_batch_follow(
    shape: tuple[int, ...], axes: tuple[int, ...], target: list[int], expected: tuple[int, ...]
) -> None:
    b = GraphBuilder()
    x = b.transpose(b.input("x", shape), axes)
    graph = read_graph(b.build([b.relu(b.reshape(x, target))]), batch=8)
    assert graph.values[graph.outputs[0]].shape == expected
    assert graph.batch == 8


def test_a_reshape_that_hides_the_old_batch_is_named() -> None:
    b = GraphBuilder()
    x = b.transpose(b.input("x", (2, 3, 4)), (1, 0, 2))
    data = b.build([b.op("Reshape", [x, b.constant([4, 6])], name="hard")])
    with pytest.raises(InvalidRequest, match=r"'hard'.*batch 2") as caught:
        read_graph(data, batch=8)
    assert caught.value.metadata["node"] == "hard"
    assert read_graph(data).batch == 2


def test_reshapes_of_weights_do_not_follow() -> None:
    b = GraphBuilder()
    weight = b.reshape(b.parameter((8, 4)), (1, -1))
    data = b.build([b.mul(b.input("x", (1, 32)), weight)])
    graph = read_graph(data, batch=8)
    assert graph.values[graph.nodes[0].outputs[0]].shape == (1, 32)


def test_different_hard_coded_batches_need_input_shapes() -> None:
    data = text_model(2, 5, positions=(1, 5))
    with pytest.raises(InvalidRequest, match="ids=2, positions=1"):
        read_graph(data, batch=8)
    assert read_graph(data).batch == 2
    assert read_graph(data, input_shapes={"ids": (8, 5)}).batch == 8


def test_an_empty_input_is_noted() -> None:
    model = ModelProto.FromString(image_model(4, 3, 8, 8))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    graph = read_graph(model.SerializeToString())
    assert graph.batch == 1
    assert [note.code for note in graph.notes] == ["INPUT_EMPTY"]
    assert read_graph(model.SerializeToString(), batch=2).batch == 2


def test_impossible_sizes_in_the_file_are_named() -> None:
    model = ModelProto.FromString(image_model(4, 3, 8, 8))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    data = model.SerializeToString()
    with pytest.raises(InvalidGraph, match="'image' has dimension -1"):
        read_graph(data)
    assert read_graph(data, input_shapes={"image": (2, 3, 8, 8)}).batch == 2


def test_a_symbol_called_batch_counts_samples_wherever_it_stands() -> None:
    b = GraphBuilder()
    data = b.build([b.relu(b.input("x", ("seq", "batch", 512)))])
    by_name, by_batch = (
        read_graph(data, dims={"batch": 8, "seq": 16}),
        read_graph(data, batch=8, dims={"seq": 16}),
    )
    assert by_name.batch == by_batch.batch == 8
    assert by_name.values["x"].shape == by_batch.values["x"].shape == (16, 8, 512)
    assert read_graph(data, input_shapes={"x": (16, 4, 512)}).batch == 4
    with pytest.raises(UnboundSymbol, match="--dim seq=N"):
        read_graph(data, batch=8)

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from predictor.features.architectures.from_config import from_config
from predictor.features.graph import Graph
from predictor.features.lowering.layers import segments
from predictor.features.lowering.lower import lower
from predictor.features.reading.reader import read_graph

ROOT = Path(__file__).resolve().parents[3]


def lowered(name: str, batch: int = 2) -> Graph:
    if name.endswith(".json"):
        data = from_config(ROOT / "tests/assets/configs" / name, batch=batch, sequence=64)
        return lower(read_graph(data), training=True)
    return lower(read_graph(ROOT / "examples" / name, batch=batch), training=True)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("gpt2.onnx", 12),
        ("vit_b16.onnx", 12),
        ("bert-base-uncased.json", 12),
        ("llama-7b.json", 31),
        ("t5-base.json", 11),
    ],
)
def test_layers_of_transformers_are_whole_and_equal(name: str, layers: int) -> None:
    # The first layer of Llama also makes the rotary angles, that of T5 the position biases.
    pieces = segments(lowered(name))
    assert Counter(pieces.repeats).most_common(1)[0][1] >= layers


@pytest.mark.parametrize(("name", "blocks"), [("resnet50.onnx", 16), ("mobilenet_v2.onnx", 17)])
def test_blocks_of_every_size_of_image_are_pieces(name: str, blocks: int) -> None:
    pieces = segments(lowered(name))
    begins = [0, *pieces.ends]
    longest = max(end - begin for begin, end in pairwise(begins))
    # A block that changes the size of the image has a way around it.
    assert longest <= 12
    assert len(pieces) >= blocks


@pytest.mark.parametrize(
    "name",
    ["gpt2.onnx", "unet.onnx", "resnet50.onnx", "mobilenet_v2.onnx", "t5-small.json", "qwen2-0.5b.json"],
)
def test_what_crosses_is_all_that_later_pieces_read(name: str) -> None:
    graph = lowered(name)
    pieces = segments(graph)
    assert pieces.ends[-1] == len(pieces.nodes)
    assert list(pieces.ends) == sorted(set(pieces.ends))
    made: set[str] = set()
    known = {*graph.parameters, *graph.buffers, *pieces.weight_roots}
    begin = 0
    for end, crossing in zip(pieces.ends, pieces.crossing, strict=True):
        made.update(name for node in pieces.nodes[begin:end] for name in node.outputs)
        later = {name for node in pieces.nodes[end:] for name in node.inputs if name}
        assert set(crossing) <= made & later
        assert bool(crossing) == (end < len(pieces.nodes))
        assert known.isdisjoint(crossing)
        begin = end


def test_skips_cross_every_cut_that_they_span() -> None:
    graph = lowered("unet.onnx")
    pieces = segments(graph)
    assert len(pieces) > 16
    assert max(map(len, pieces.crossing)) >= 4


def test_tied_embeddings_are_one_weight() -> None:
    graph = lowered("gpt2.onnx")
    pieces = segments(graph)
    piece_of = pieces.piece_of_nodes()
    holders: dict[str, set[int]] = {}
    for index, node in enumerate(pieces.nodes):
        for name in node.inputs:
            for root in pieces.weight_roots.get(name, ()):
                holders.setdefault(root, set()).add(piece_of[index])
    shared = [name for name, found in holders.items() if len(found) > 1]
    assert len(shared) == 1
    assert holders[shared[0]] == {0, len(pieces) - 1}

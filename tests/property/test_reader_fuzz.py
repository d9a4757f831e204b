"""Damaged bytes give a graph or one of our errors, never anything else."""

from __future__ import annotations

import gzip
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.errors import InvalidInput
from predictor.features.builder import GraphBuilder
from predictor.features.dtype import DType
from predictor.features.reading.reader import read_graph
from predictor.features.reading.strip import strip_model
from predictor.features.reading.weight_payloads import WireError, strip_bytes


@lru_cache(maxsize=1)
def _model() -> bytes:
    b = GraphBuilder("small")
    image = b.input("image", ("batch", 3, 16, 16))
    ids = b.input("ids", ("batch", "length"), DType.INT64)
    x = b.relu(b.batch_norm(b.conv(image, 8, kernel=3, stride=2)))
    x = b.linear(b.flatten(b.global_pool(b.resize(x, 2.0))), 12)
    text = b.layer_norm(b.embedding(ids, 50, 12))
    heads = b.transpose(b.reshape(text, (0, 0, 3, 4)), (0, 2, 1, 3))
    mixed = b.reshape(b.transpose(b.attention(heads, heads, heads), (0, 2, 1, 3)), (0, -1, 12))
    return b.build([b.add(b.reduce_mean(mixed, [1]), x)])


def _read(data: bytes) -> None:
    with suppress(InvalidInput):
        read_graph(data, batch=2, input_shapes={"ids": (2, 5)})
        return
    # The second way of asking fails alike; its message is one line.
    with pytest.raises(InvalidInput) as caught:
        read_graph(data)
    assert caught.value.message
    assert "\n" not in caught.value.message


_CHANGES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6)


@given(_CHANGES)
@settings(max_examples=400, deadline=None)
def test_flipped_bytes_raise_only_our_errors(changes: list[tuple[int, int]]) -> None:
    data = bytearray(_model())
    for position, byte in changes:
        data[position % len(data)] = byte
    _read(bytes(data))


@given(st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_truncated_bytes_raise_only_our_errors(length: int) -> None:
    _read(_model()[: length % len(_model())])


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_moved_bytes_raise_only_our_errors(start: int, length: int, target: int) -> None:
    data = _model()
    start, target = start % len(data), target % len(data)
    piece = data[start : start + length % 200]
    _read(data[:target] + piece + data[target:])


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_random_bytes_raise_only_our_errors(data: bytes) -> None:
    _read(data)


@given(_CHANGES)
@settings(max_examples=200, deadline=None)
def test_the_wire_reader_refuses_or_copies(changes: list[tuple[int, int]]) -> None:
    data = bytearray(_model())
    for position, byte in changes:
        data[position % len(data)] = byte
    with suppress(WireError):
        # Nothing is invented: what is left is what was there, minus payloads, plus the marks of cut tensors.
        assert len(strip_bytes(bytes(data))) <= 2 * len(data)


def test_a_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(gzip.compress(strip_model(_model())))
    with pytest.raises(InvalidInput, match="gzip"):
        read_graph(path)

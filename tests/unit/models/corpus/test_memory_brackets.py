"""timm's brackets: which rows are used, and how their programs lie to the bound."""

from __future__ import annotations

import polars as pl
import pytest

from predictor.errors import InvalidData
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import usable_bytes
from predictor.models.corpus import memory_brackets
from predictor.models.corpus.memory_brackets import DEVICE, FOLDER, GRAPHS, bracket_table, read_brackets
from predictor.models.memory.bounds_training import bound_rows
from tests.public_data import public_data


@pytest.mark.data
def test_rows_of_another_network_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = public_data(FOLDER)
    public_data(GRAPHS, "convnext_tiny-224.onnx.gz")
    brackets = [bracket for bracket in read_brackets(folder)[0] if bracket.model == "convnext_tiny"]
    assert {bracket.parameters for bracket in brackets} == {28_590_000, 88_590_000}
    monkeypatch.setattr(memory_brackets, "read_brackets", lambda folder: (brackets, {}))
    table = bracket_table(folder)
    # The rows of ConvNeXt-B would say that ConvNeXt-T fails with half the batch that it ran with.
    assert table.filter("ran")["batch"].min() == 256
    assert table.filter(~pl.col("ran"))["batch"].min() == 384
    assert (table["needed_bytes"] <= table["reserved_bytes"]).all()
    rows = bound_rows(table)
    capacity = usable_bytes(find_device(DEVICE))
    assert rows.log_room[rows.ran].min() > rows.log_room[~rows.ran].max()
    assert (table.filter("ran")["needed_bytes"] < capacity).all()


def test_a_table_of_an_older_version_is_refused() -> None:
    with pytest.raises(InvalidData, match="older version"):
        bound_rows(pl.DataFrame({"ran": [True]}))

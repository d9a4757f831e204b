"""Scores of configurations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from predictor.errors import InvalidData
from predictor.evaluation.configs import (
    FOLDER,
    Comparison,
    Reference,
    config_rows,
    config_suite,
    config_table,
    read_references,
)

THEIRS = Reference("one", 2, 16, parameters=101, single_parameters=1, flops=1000)
OURS = Comparison(THEIRS, parameters=100, flops=900, square_flops=1000)
STEP = Comparison(
    replace(THEIRS, past=9, step_flops=50), parameters=100, flops=900, square_flops=1000, step_flops=51
)


def values(found: list[Comparison]) -> dict[str, float]:
    return {row.metric: row.value for row in config_rows(found)}


def test_single_elements_are_left_aside_and_squares_compared() -> None:
    assert values([OURS]) == {"wrong_parameter_counts": 0, "max_flops_error": 0}


def test_every_difference_counts() -> None:
    off = [OURS, replace(OURS, parameters=101), replace(OURS, square_flops=980)]
    assert values(off) == {"wrong_parameter_counts": 1, "max_flops_error": pytest.approx(0.02)}
    assert {row.id for row in config_rows(off)} == {"G4"}
    assert config_rows([]) == []


def test_the_table_shows_both_sides() -> None:
    (line,) = config_table([OURS]).lines
    assert line[:5] == ("one", "2 x 16", "100", "101", "0")
    assert line[-4:] == ("1.00000", "0.9000", "", "")
    (line,) = config_table([STEP]).lines
    assert line[-2:] == ("0.000 after 9", "1.02000")


def test_steps_have_a_row_of_their_own() -> None:
    rows = {row.group: row for row in config_rows([OURS, STEP])}
    assert rows["decoding steps"].value == pytest.approx(0.02)
    assert rows["decoding steps"].n == 1


def test_a_suite_of_one_configuration(tmp_path: Path) -> None:
    stored = json.loads((FOLDER / "measured.json").read_text())
    only = {"configurations": {"t5-small": stored["configurations"]["t5-small"]}}
    (tmp_path / "measured.json").write_text(json.dumps(only))
    (tmp_path / "t5-small.json").write_text((FOLDER / "t5-small.json").read_text())
    rows, (table,) = config_suite(tmp_path)
    assert [(row.metric, row.value, row.n) for row in rows] == [
        ("wrong_parameter_counts", 0, 1),
        ("max_flops_error", 0, 1),
        ("max_flops_error", 0, 1),
    ]
    assert len(table.lines) == 1


def test_absent_and_damaged_measurements_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"measured\.json: no measured configurations"):
        read_references(tmp_path)
    (tmp_path / "measured.json").write_text('{"configurations": {"one": {"batch": 1}}}')
    with pytest.raises(InvalidData, match="no measured configurations"):
        read_references(tmp_path)

"""Tables at every width: columns go, text wraps, cells stack; what is shown is shown whole."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console, RenderableType

from predictor.cli.fitted_table import FittedTable, SideBySide

WIDTHS = range(14, 90)


def printed(content: RenderableType, width: int) -> list[str]:
    file = StringIO()
    Console(file=file, width=width, color_system=None).print(content)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def table() -> FittedTable:
    found = FittedTable("<device", "name??", ">iteration", ">90 % interval?", "", ">power")
    found.add_row("t4-pcie-16gb", "Tesla T4", "6.53 ms", "5.37 to 7.93 ms", "fits", "70.0 W")
    found.add_row("h100", "H100", "1,200 s", "1,000 to 1,440 s", "does not fit", "700 W")
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_at_any_width(width: int) -> None:
    lines = printed(table(), width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    words = " ".join(" ".join(lines).split())
    for cell in ("t4-pcie-16gb", "h100", "6.53 ms", "1,200 s", "70.0 W", "700 W", "fits"):
        assert cell in words


def test_columns_with_more_question_marks_go_first() -> None:
    assert printed(table(), 90) == [
        "device        name      iteration     90 % interval                 power",
        "t4-pcie-16gb  Tesla T4    6.53 ms   5.37 to 7.93 ms  fits          70.0 W",
        "h100          H100        1,200 s  1,000 to 1,440 s  does not fit   700 W",
    ]
    assert printed(table(), 66)[0].split() == ["device", "iteration", "90", "%", "interval", "power"]
    assert printed(table(), 50)[0].split() == ["device", "iteration", "power"]


def test_text_wraps_between_words_before_cells_stack() -> None:
    assert printed(table(), 40) == [
        "device        iteration            power",
        "t4-pcie-16gb    6.53 ms  fits     70.0 W",
        "h100            1,200 s  does      700 W",
        "                         not fit",
    ]


def test_cells_stack_under_the_first_where_words_do_not_fit() -> None:
    assert printed(table(), 30) == [
        "device t4-pcie-16gb",
        "  iteration 6.53 ms  fits",
        "  power 70.0 W",
        "device h100",
        "  iteration 1,200 s  does not",
        "fit",
        "  power 700 W",
    ]


def test_blocks_side_by_side_stack_where_they_do_not_fit() -> None:
    left, right = FittedTable("<", ">"), FittedTable("<", ">")
    left.add_row("forward", "19.2 ms")
    right.add_row("parameters", "97.7 MiB")
    wide, narrow = (printed(SideBySide(left, right), width) for width in (60, 24))
    assert wide == ["forward  19.2 ms    parameters  97.7 MiB"]
    assert narrow == ["forward  19.2 ms", "", "parameters  97.7 MiB"]

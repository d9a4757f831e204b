"""Layouts that give way on a narrow terminal: columns go, or blocks stack, before any text is cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_GAP = 2


class FittedTable:
    """Rows under headers, without lines.

    Headers may start with `>` (align to the right) and end with `?`, `??`, ...: the more question marks, the
    sooner the column goes when the width does not suffice.
    """

    def __init__(self, *headers: str) -> None:
        self._names = [header.lstrip(">").rstrip("?") for header in headers]
        self._right = [header.startswith(">") for header in headers]
        self._drop_rank = [len(header) - len(header.rstrip("?")) for header in headers]
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        """One row; cells that are missing at the end stay empty."""
        texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self._rows.append([*texts, *(Text() for _ in range(len(self._names) - len(texts)))])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table at this width."""
        yield self._table(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """As wide as the columns that stay."""
        return Measurement.get(console, options, self._table(options.max_width))

    def _table(self, width: int) -> Table:
        kept = self._kept(width)
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for index in kept:
            table.add_column(
                self._names[index], justify="right" if self._right[index] else "left", no_wrap=True
            )
        for row in self._rows:
            table.add_row(*(row[index] for index in kept))
        return table

    def _kept(self, width: int) -> Sequence[int]:
        cells = [[Text(name) for name in self._names], *self._rows]
        widths = [
            max(cell_len(row[index].plain) for row in cells) + _GAP for index in range(len(self._names))
        ]
        kept = list(range(len(self._names)))
        for index in sorted(kept, key=lambda index: -self._drop_rank[index]):
            if sum(widths[index] for index in kept) - _GAP <= width or not self._drop_rank[index]:
                break
            kept.remove(index)
        return kept


class SideBySide:
    """Two renderables next to each other, or one below the other where the width does not suffice."""

    def __init__(self, left: RenderableType, right: RenderableType, gap: int = 4) -> None:
        self._left = left
        self._right = right
        self._gap = gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Both, in the arrangement that fits."""
        yield self._arranged(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """As wide as the arrangement."""
        return Measurement.get(console, options, self._arranged(console, options))

    def _arranged(self, console: Console, options: ConsoleOptions) -> RenderableType:
        widths = (
            Measurement.get(console, options.update(max_width=10_000), part).maximum
            for part in (self._left, self._right)
        )
        if sum(widths) + self._gap > options.max_width:
            return Group(self._left, Text(), self._right)
        grid = Table.grid(padding=(0, self._gap, 0, 0))
        grid.add_row(self._left, self._right)
        return grid

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
    """Rows under headers, without lines; on a narrow terminal columns go, then text wraps, then cells stack.

    Headers may start with `>` (numbers, aligned to the right) or `<` (to the left): their cells are never
    wrapped or cut. They may end with `?`, `??`, ...: the more question marks, the sooner the column goes when
    the width does not suffice. Where none may go any more, columns of text wrap between words; where even
    their words are too wide, every row becomes a block of lines, one a cell.
    """

    def __init__(self, *headers: str, gap: int = _GAP) -> None:
        self._names = [header.lstrip("<>").rstrip("?") for header in headers]
        self._right = [header.startswith(">") for header in headers]
        self._whole = [header.startswith((">", "<")) for header in headers]
        self._drop_rank = [len(header) - len(header.rstrip("?")) for header in headers]
        self._gap = gap
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        """One row; cells that are missing at the end stay empty."""
        texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self._rows.append([*texts, *(Text() for _ in range(len(self._names) - len(texts)))])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table at this width."""
        yield self._fitted(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """As wide as the columns that stay."""
        return Measurement.get(console, options, self._fitted(options.max_width))

    def _fitted(self, width: int) -> RenderableType:
        kept, widths = self._kept(width)
        spare = width - self._total(kept, widths)
        if spare < 0:
            widths = self._narrowed(kept, widths, -spare)
            if self._total(kept, widths) > width:
                return self._stacked(kept)
        table = Table(
            box=None,
            pad_edge=False,
            padding=(0, self._gap, 0, 0),
            header_style="bold",
            show_header=any(self._names[index] for index in kept),
        )
        for index in kept:
            table.add_column(
                self._names[index],
                justify="right" if self._right[index] else "left",
                no_wrap=spare >= 0 or self._whole[index],
                width=widths[index],
            )
        for row in self._rows:
            table.add_row(*(row[index] for index in kept))
        return table

    def _kept(self, width: int) -> tuple[list[int], list[int]]:
        """Columns that stay, and the width of each column when nothing wraps."""
        widths = [
            max(cell_len(line) for text in self._column(index) for line in text.split("\n"))
            for index in range(len(self._names))
        ]
        kept = list(range(len(self._names)))
        for index in sorted(kept, key=lambda index: -self._drop_rank[index]):
            if self._total(kept, widths) <= width or not self._drop_rank[index]:
                break
            kept.remove(index)
        return kept, widths

    def _column(self, index: int) -> list[str]:
        return [self._names[index], *(row[index].plain for row in self._rows)]

    def _total(self, kept: Sequence[int], widths: Sequence[int]) -> int:
        return sum(widths[index] + self._gap for index in kept) - self._gap

    def _narrowed(self, kept: Sequence[int], widths: Sequence[int], excess: int) -> list[int]:
        """The widths with columns of text narrower by `excess` in all, the widest first, if words allow."""
        found = list(widths)
        least = {
            index: max(cell_len(word) for text in self._column(index) for word in text.split(" "))
            for index in kept
            if not self._whole[index]
        }
        for _ in range(excess):
            wide = [index for index in least if found[index] > least[index]]
            if not wide:
                break
            found[max(wide, key=lambda index: found[index])] -= 1
        return found

    def _stacked(self, kept: Sequence[int]) -> RenderableType:
        """Each row as lines: the first cell, under it `name cell`; a cell without a name follows the last."""
        blocks: list[Text] = []
        for row in self._rows:
            lines: list[Text] = []
            for index in kept:
                if not row[index].plain:
                    continue
                if lines and not self._names[index]:
                    lines[-1].append("  ").append_text(row[index])
                    continue
                name = f"{self._names[index]} " if self._names[index] else ""
                lines.append(Text("  " if lines else "").append(name, "dim").append_text(row[index]))
            blocks.append(Text("\n").join(lines))
        return Group(*blocks)


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

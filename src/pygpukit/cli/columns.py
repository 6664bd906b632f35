"""Tables that fit a terminal: columns are left out by their rank, names shortened in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["Column", "fitted", "shortened"]

# Letters of a name that are always shown, and of a text that may have several lines.
_NAME = 12
_PROSE = 24
_ELLIPSIS = "..."

_Row = Mapping[str, Any]


class Column(NamedTuple):
    """A column: its title, and what it shows of a row.

    Attributes
    ----------
    rank : int
        0 is always shown; where not all fit, those of the highest rank are left out first.
    is_name : bool
        Long texts lose their middle.
    is_prose : bool
        Long texts have several lines.
    """

    title: str
    cell: Callable[[_Row], RenderableType]
    is_number: bool = True
    rank: int = 0
    is_name: bool = False
    is_prose: bool = False


def fitted(title: str, columns: Sequence[Column], rows: Sequence[_Row], width: int) -> Table:
    """A table of `rows` that is at most `width` letters wide, if its columns of rank 0 are."""
    cells = [[column.cell(row) for row in rows] for column in columns]
    natural = [max([len(column.title), *map(_length, shown)]) for column, shown in zip(columns, cells, strict=True)]
    least = [
        min(size, _NAME if column.is_name else _PROSE if column.is_prose else size)
        for column, size in zip(columns, natural, strict=True)
    ]
    kept = list(range(len(columns)))
    while _total(least[i] for i in kept) > width and any(columns[i].rank for i in kept):
        kept.remove(max(kept, key=lambda i: (columns[i].rank, i)))
    sizes = _grown({i: least[i] for i in kept}, natural, width)
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i in kept:
        column = columns[i]
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=not column.is_prose,
            overflow="fold" if column.is_prose else "ellipsis",
            min_width=None if column.is_prose else sizes[i],
        )
    for number in range(len(rows)):
        table.add_row(*(_cut(columns[i], cells[i][number], sizes[i]) for i in kept))
    return table


def shortened(name: str, size: int) -> str:
    """A name of at most so many letters: beginning and end remain, which is where names differ.

    Examples
    --------
    >>> shortened("training-worker-17", 12)
    'train...r-17'
    """
    if len(name) <= size:
        return name
    left = max(size - len(_ELLIPSIS), 0)
    end = left // 2
    return (name[: left - end] + _ELLIPSIS + (name[-end:] if end else ""))[:size]


def _length(cell: RenderableType) -> int:
    if isinstance(cell, Text):
        return cell.cell_len
    # What is no text says its width: a bar.
    return len(cell) if isinstance(cell, str) else int(getattr(cell, "width", None) or 1)


def _total(sizes: Iterable[int]) -> int:
    # A space on each side of the table, and two between columns.
    each = list(sizes)
    return sum(each) + 2 * len(each) + 2


def _grown(sizes: dict[int, int], natural: Sequence[int], width: int) -> dict[int, int]:
    """Hand out what is left, a letter at a time, to what is shortest of its own length."""
    left = width - _total(sizes.values())
    while left > 0:
        short = [i for i, size in sizes.items() if size < natural[i]]
        if not short:
            break
        sizes[min(short, key=lambda i: sizes[i])] += 1
        left -= 1
    return sizes


def _cut(column: Column, cell: RenderableType, size: int) -> RenderableType:
    if not column.is_name:
        return cell
    text = cell if isinstance(cell, Text) else Text(str(cell))
    return Text(shortened(text.plain, size), text.style)

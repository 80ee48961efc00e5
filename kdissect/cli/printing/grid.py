"""Rows in aligned columns, within a width: less important columns go first when it gets narrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, set_cell_size

from kdissect.escaping import visible

if TYPE_CHECKING:
    from rich.text import Text

GAP = 2
"""Blanks between columns."""
LEAST = 4
"""Cells of a column that is cut as far as it goes: two characters and what says that it is cut."""
CLUSTER_CELLS = 10
"""Of clusters' ids, of 22 characters mostly: as many as this tell them apart, if they are made at random."""


class Header(NamedTuple):
    """A column: its title, its alignment, and how soon it is left out when the width is short (0 never)."""

    title: str
    right: bool = False
    drop: int = 0
    style: str = ""


def fit(text: str, cells: int) -> str:
    """The text in at most so many terminal cells; `..` marks what was cut."""
    return text if cell_len(text) <= cells else set_cell_size(text, max(0, cells - 2)).rstrip() + ".."


def pad(text: str, cells: int, *, right: bool = False) -> str:
    """The text filled with blanks to so many terminal cells."""
    blanks = " " * max(0, cells - cell_len(text))
    return blanks + text if right else text + blanks


def grid_by_cluster(
    headers: Sequence[Header], rows: Iterable[Sequence[str]], clusters: Sequence[str | None], width: int
) -> Iterator[Text]:
    """The lines of `grid`, each row behind its cluster (`-` for None) where there are several. `clusters`: of these
    rows, and behind them of those that are not shown."""
    names = {cluster or "-" for cluster in clusters}
    if len(names) > 1:
        longest = max(map(cell_len, names))
        sizes = range(CLUSTER_CELLS, longest)
        cells = next((size for size in sizes if len({fit(name, size) for name in names}) == len(names)), longest)
        told = (fit(cluster or "-", cells) for cluster in clusters)
        headers = [Header("cluster"), *headers]
        rows = ((cluster, *row) for row, cluster in zip(rows, told, strict=False))
    return gridded(headers, rows, width)


def grid(headers: Sequence[Header], rows: Iterable[Sequence[str]], width: int, *, titles: bool = True) -> list[Text]:
    """Lines of a table at most `width` cells wide: the titles, then a line a row.

    Columns are dropped, the highest `drop` first, until the rest fits; then the widest columns are cut. Control
    characters of cells are shown.
    """
    return list(gridded(headers, rows, width, titles=titles))


def gridded(
    headers: Sequence[Header], rows: Iterable[Sequence[str]], width: int, *, titles: bool = True
) -> Iterator[Text]:
    """The lines of `grid` one after the other: a line takes ten times the memory of its cells."""
    from rich.text import Text

    rows = [tuple(visible(cell) for cell in row) for row in rows]
    kept = list(range(len(headers)))
    widths = [
        max([cell_len(header.title) if titles else 0, *(cell_len(row[i]) for row in rows)])
        for i, header in enumerate(headers)
    ]

    def total() -> int:
        return sum(widths[i] for i in kept) + GAP * (len(kept) - 1)

    while total() > width and any(headers[i].drop for i in kept):
        kept.remove(max(kept, key=lambda i: (headers[i].drop, i)))
    while total() > width:
        widest = max(kept, key=lambda i: widths[i])
        if widths[widest] <= LEAST:
            break
        widths[widest] -= 1

    def line(cells: Sequence[str], style: str | None) -> Text:
        text = Text()
        for place, i in enumerate(kept):
            last = place == len(kept) - 1
            cell = fit(cells[i], widths[i])
            shown = pad(cell, widths[i], right=headers[i].right) if headers[i].right or not last else cell
            text.append(shown, headers[i].style if style is None else style)
            text.append("" if last else " " * GAP)
        text.rstrip()
        return text

    if titles:
        yield line([header.title for header in headers], "dim")
    for row in rows:
        yield line(row, None)

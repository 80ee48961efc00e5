"""Values over time as a line of bars."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

CELLS = 60
"""Cells of a sparkline."""
BARS, PLAIN_BARS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588", " .:-=+*#%"


def sparkline(values: Sequence[float], cells: int, *, plain: bool) -> str:
    """Values over time as bars, the largest as high as a line; several values share a cell by their largest."""
    count = min(cells, len(values))
    if not count:
        return ""
    edges = [len(values) * i // count for i in range(count + 1)]
    heights = [max(values[a:b]) for a, b in itertools.pairwise(edges)]
    bars = PLAIN_BARS if plain else BARS
    most = max(heights) or 1
    return "".join(bars[int(-(-height * (len(bars) - 1) // most))] for height in heights)

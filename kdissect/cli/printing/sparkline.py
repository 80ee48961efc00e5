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


def share_bars(shares: Sequence[float], *, plain: bool) -> str:
    """Shares of a whole as bars, 1 as high as a line; what rounds to nothing is blank."""
    bars = PLAIN_BARS if plain else BARS
    return "".join(bars[min(len(bars) - 1, round(share * (len(bars) - 1)))] for share in shares)

"""The lines of `--timings`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from kdissect.cli.printing import terminal

if TYPE_CHECKING:
    from kdissect.engine.timings import Timings

COLUMNS = {
    "layer": "", "seconds": "{:.3f}", "cpu_seconds": "{:.3f}", "share": "{:.0%}", "ns_per_packet": "{:,.0f}",
    "ns_per_frame": "{:,.0f}", "mb_per_s": "{:,.0f}", "does": "",
}  # fmt: skip
"""Columns on the screen, and how their numbers look."""


def say_timings(timings: Timings) -> None:
    """Where the time went by layer, on standard error."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, show_edge=False)
    for name, form in COLUMNS.items():
        shown.add_column(
            name.replace("_", " ").replace("cpu", "CPU").replace("mb per s", "MB/s"),
            justify="right" if form else "left",
        )
    for row in timings.table().to_pylist():
        cells = [(row[name], form) for name, form in COLUMNS.items()]
        shown.add_row(*("-" if cell is None else form.format(cell) if form else cell for cell, form in cells))
    console = terminal.console(sys.stderr)
    console.print(shown)
    through = [f"{timings.bytes / 1e6:,.1f} MB", f"{timings.packets:,} packets", f"{timings.frames:,} frames"]
    if timings.packets and timings.frames:
        through.append(
            f"{timings.bytes / timings.packets:,.0f} bytes a packet, {timings.bytes / timings.frames:,.0f} a frame"
        )
    used = sum(os.times()[:4])  # of a second process that has ended, too
    through.append(f"{used:.2f} CPU seconds of the process in all, its start too")
    console.print("; ".join(through))

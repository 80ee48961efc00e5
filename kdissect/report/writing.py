"""Writes the page as a file: aside first, then under its name."""

from __future__ import annotations

import importlib.util
import os

from kdissect.output import whole_file
from kdissect.problems import UsageError
from kdissect.report.figures import report
from kdissect.report.page import MISSING, render
from kdissect.report.rows import Tables


def ready() -> None:
    """Raises UsageError where the packages that a page needs are not installed: before a long capture is read."""
    if any(importlib.util.find_spec(name) is None for name in ("jinja2", "vl_convert")):
        raise UsageError(MISSING)


def write(tables: Tables, path: str | os.PathLike[str], target: str) -> int:
    """Write the page made of the tables of `READ`; returns its bytes. `target`: how its commands name the captures.

    Raises OutputError, UsageError.
    """
    text = render(report(tables, target)).encode()
    with whole_file(os.fspath(path)) as stream:
        stream.write(text)
    return len(text)

"""`python -m kdissect`."""

from __future__ import annotations

from kdissect.cli.entry import run

run()

"""The process behind the command line: what it leaves out to start quickly, then `main`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

NEEDS_PANDAS = ("spark",)
"""Commands that work with DataFrames."""


class Without:
    """pyarrow imports pandas, if there is one, the first time that it makes an array; tables are printed without.
    numba imports colorama, which sends an escape sequence to the terminal when the program ends."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Says that there is no such module."""
        if name in ("pandas", "colorama"):
            raise ImportError(name)
        return None


def run() -> None:
    """Run the command line and leave."""
    gc.set_threshold(50_000, 20, 50)  # imports and cached kernels make many objects, and nearly all of them stay
    if not any(name in sys.argv[1:2] for name in NEEDS_PANDAS):
        sys.meta_path.insert(0, Without)
    from kdissect.cli.main import main

    sys.exit(main())

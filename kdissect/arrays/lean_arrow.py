"""Arrow without the libraries that it loads although a command does not need them.

pyarrow imports pandas, where it is installed, the first time that it makes an array. It imports its datasets with all
file systems and TLS the first time that it groups rows. This takes longer than to read a small capture. pyarrow works
without both: it asks once whether each is there. `load_arrow_alone` makes it ask, and lets both imports fail meanwhile.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from typing import Any, cast


class _Refusal:
    """A finder that stops the import of some modules. Python's import reference, 5.3.4 "The meta path", names this
    way: who raises ModuleNotFoundError prevents an import."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Raises ModuleNotFoundError for a refused module, and leaves all others to the finders behind it."""
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


@contextlib.contextmanager
def refused(*names: str) -> Iterator[None]:
    """Imports of these modules fail within the block. A module that is loaded already stays."""
    refusal = cast("Any", _Refusal(names))
    sys.meta_path.insert(0, refusal)
    try:
        yield
    finally:
        sys.meta_path.remove(refusal)


def load_arrow_alone() -> None:
    """Load pyarrow and what it groups rows with, without pandas and `pyarrow.dataset`. For processes of our own only:
    pyarrow does not recognise objects of pandas here, until something (such as `to_pandas`) needs pandas and imports
    it."""
    with refused("pandas", "pyarrow.dataset"):
        import pyarrow.acero

        pyarrow.scalar(0)  # the first value without a type: Arrow's Python and C++ layers look for pandas

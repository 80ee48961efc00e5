"""Names that callers give: the one that was probably meant, and those that are named twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kdissect.problems import UsageError


def near(name: str, names: Iterable[str]) -> str:
    """` (did you mean 'fetches'?)` when a known name is close, else nothing."""
    from difflib import get_close_matches

    lower = {item.lower(): item for item in names}
    found = get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    return f" (did you mean {lower[found[0]]!r}?)" if found else ""


def refuse_repeated(table: str, columns: Sequence[str]) -> None:
    """Raise UsageError for a column that is named twice: no table has two columns of one name."""
    for at, name in enumerate(columns):
        if name in columns[:at]:
            raise UsageError(f"column {name!r} of table {table!r} is named twice")

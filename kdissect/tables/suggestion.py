"""The name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def near(name: str, names: Iterable[str]) -> str:
    """` (did you mean 'fetches'?)` when a known name is close, else nothing."""
    from difflib import get_close_matches

    lower = {item.lower(): item for item in names}
    found = get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    return f" (did you mean {lower[found[0]]!r}?)" if found else ""

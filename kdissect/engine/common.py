"""The common state of captures that were given together, kept for all passes over them."""

from __future__ import annotations

from collections.abc import Callable

from kdissect.engine.inputs import Segments
from kdissect.tables.sights import Sights


class Common:
    """Connections that several captures, or two interfaces of one, saw: what `sights.searching.find_sights` found."""

    def __init__(self, found: Sights | None = None, given: bool = False) -> None:
        self.found = found
        self.given = given
        """Somebody knows it already: nothing is looked for."""
        self.one_sight: Callable[[Segments], Segments] | None = None
        """Leaves out of segments what another interface tells; None where no interface does."""
        self.of: tuple[int | None, ...] = ()
        """The captures, and the span of time, that it was found in."""

    def drop_copies(self, segments: Segments) -> Segments:
        """Segments without those that another interface tells."""
        return segments if self.one_sight is None else self.one_sight(segments)

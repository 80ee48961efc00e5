"""What captures that were given together have in common, looked for once, whatever the number of runs over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdissect.capture import CaptureSet
from kdissect.tables.sights import Sights

if TYPE_CHECKING:
    from kdissect.engine.run import Settings


class Common:
    """Connections that several captures saw. `given`: somebody knows them already."""

    def __init__(self, found: Sights | None = None, *, given: bool = False) -> None:
        self._found = found
        self._given = given
        self._of: tuple[int | None, ...] = ()

    @property
    def known(self) -> Sights | None:
        """What was given, or found by now."""
        return self._found

    def sights(self, captures: Sequence[CaptureSet], settings: Settings) -> Sights | None:
        """What these captures have in common; None for nothing, and for a single one."""
        if self._given or len(captures) < 2:
            return self._found
        of = (*map(id, captures), settings.after, settings.before)
        if of != self._of:
            from kdissect.engine.sights.survey import surveyed

            self._found, self._of = surveyed(captures, settings), of
        return self._found

"""What captures that were given together have in common, looked for once, whatever the number of runs over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdissect.capture import CaptureSet
from kdissect.engine.inputs import Segments
from kdissect.engine.sights.interfaces import OneSight, Views, interfaces
from kdissect.tables.sights import Sights

if TYPE_CHECKING:
    from kdissect.engine.run import Settings


class Common:
    """Connections that several captures, or two interfaces of one, saw. `given`: somebody knows them already."""

    def __init__(self, found: Sights | None = None, *, given: bool = False) -> None:
        self._found = found
        self._given = given
        self._views: Views | None = None
        self._of: tuple[int | None, ...] = ()

    @property
    def known(self) -> Sights | None:
        """What was given, or found by now."""
        return self._found

    def sights(self, captures: Sequence[CaptureSet], settings: Settings) -> Sights | None:
        """What these captures have in common; None for nothing."""
        of = (*map(id, captures), settings.after, settings.before)
        if self._given or of == self._of:
            return self._found
        self._found, self._views, self._of = None, None, of
        if len(captures) > 1:
            from kdissect.engine.sights.survey import surveyed

            self._found = surveyed(captures, settings)
        elif captures and settings.follow is None and interfaces(captures[0]) > 1:
            from kdissect.engine.sights.one_file import sights_of_interfaces

            found = sights_of_interfaces(captures[0], settings)
            self._found, self._views = (None, None) if found is None else found
        return self._found

    def told(self, segments: Segments) -> Segments:
        """Segments without those that another interface tells."""
        return segments if self._views is None else OneSight(segments, self._views)

"""Looks for the common part of captures that were given together: once, for any number of passes over them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kdissect.capture import CaptureSet
from kdissect.engine.settings import Settings
from kdissect.engine.sights.interfaces import OneSight, interfaces
from kdissect.tables.sights import Sights


def find_sights(captures: Sequence[CaptureSet], settings: Settings) -> Sights | None:
    """Connections that several of these captures, or two interfaces of one, saw; None for none.

    The result stays in `settings.common`; nothing is looked for where that has it already.
    """
    common = settings.common
    of = (*map(id, captures), settings.after, settings.before)
    if common.given or of == common.of:
        return common.found
    common.found, common.one_sight, common.of = None, None, of
    if len(captures) > 1:
        from kdissect.engine.sights.survey import surveyed

        common.found = surveyed(captures, settings)
    elif captures and settings.follow is None and len(interfaces(captures[0])) > 1:
        from kdissect.engine.sights.one_file import sights_of_interfaces

        found = sights_of_interfaces(captures[0], settings)
        if found is not None:
            common.found, views = found
            common.one_sight = partial(OneSight, views=views)
    return common.found

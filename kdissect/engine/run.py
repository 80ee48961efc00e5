"""A pass over captures with the options of their opener: a packet counts once, and traffic is limited to the clients,
brokers and topics that were asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kdissect.capture import CaptureSet
from kdissect.engine.books import Books
from kdissect.engine.common import Common
from kdissect.engine.inputs import Packets, Segments
from kdissect.engine.passes.threads import SharedPass
from kdissect.engine.settings import Settings
from kdissect.engine.sights.interfaces import OneSight, interfaces
from kdissect.problems import UsageError
from kdissect.tables import recording
from kdissect.tables.identity import SEPARATOR
from kdissect.tables.selection import Address, Selected, Selection, read_address
from kdissect.tables.sights import Sights


class Run(SharedPass):
    """A pass that begins with what its captures have in common, and with the addresses of the brokers asked for."""

    def begin(self) -> None:
        """See Pass."""
        settings = self._settings
        self.books.builder.sights = find_sights(self.books.captures, settings)
        if settings.selection:
            self.books.builder.selected = selected(self.books.captures, settings)
            settings.timings.count_exchanges(0)

    def readings(self) -> Iterator[tuple[int, Packets, Segments]]:
        """The readings of the inputs, with each packet that two interfaces captured once."""
        for number, capture, segments in super().readings():
            yield number, capture, self._settings.common.drop_copies(segments)


def selected(captures: Sequence[CaptureSet], settings: Settings) -> Selected:
    """The selection of `settings` ready to work on these captures.

    Node ids become addresses, and ids of topics names, in a pass of their own, for messages tell them at any time. Node
    ids are those of the whole files, whatever span of time is wanted: clients ask for them as they start. A pipe is
    read only once: there ids of topics are known when a message has told them. Raises UsageError for a node id that no
    message tells, and for node ids in a pipe.
    """
    wish = settings.selection or Selection()
    ends = [wish.broker_addresses] * len(captures) if wish.broker_addresses or wish.nodes else None
    if not wish.nodes and not wish.topics:
        return Selected(wish, ends)
    if not all(capture.regular for capture in captures):
        if wish.nodes:
            raise UsageError("a pipe is read once, and where a node is stands anywhere in it: say --broker as ip:port")
        return Selected(wish, ends)
    columns = {"exchanges": ["broker"]} if wish.nodes else {}
    whole = _of_all_times(settings) if wish.nodes else settings
    survey = Books(captures, {**columns, **({"topics": ["topic"]} if wish.topics else {})}, _all(whole))
    for _ in Run(survey).rows():
        pass
    if wish.nodes:
        ends = _nodes(captures, survey.builder.brokers.names(), wish)
    return Selected(wish, ends, survey.builder.topics.names() if wish.topics else {})


def _all(settings: Settings) -> Settings:
    return replace(settings, selection=None, follow=None, reading=recording.Reading())


def _of_all_times(settings: Settings) -> Settings:
    """The settings without limits of time. Connections that several captures saw are kept by span, so they are looked
    for again, unless they were given."""
    if settings.after is settings.before is None:
        return settings
    common = settings.common if settings.common.given else Common()
    return replace(settings, after=None, before=None, common=common)


def _nodes(captures: Sequence[CaptureSet], names: Mapping[str, str], wish: Selection) -> list[tuple[Address, ...]]:
    """By capture, the addresses of the brokers wanted, those known by node id among them."""
    ends = [list(wish.broker_addresses) for _ in captures]
    number = {capture.name: i for i, capture in enumerate(captures)}
    for unresolved, name in names.items():
        capture, place = unresolved.split(SEPARATOR)
        address = read_address(place)
        if name in wish.nodes and address is not None:
            ends[number[capture]].append(address)
    missing = sorted(set(wish.nodes) - set(names.values()))
    if missing:
        known = sorted((name for name in set(names.values()) if name.isdigit()), key=int)
        told = f"those known are {', '.join(known)}" if known else "none is known; say it as ip:port"
        raise UsageError(f"no connection of this capture goes to a broker known as node {missing[0]}: {told}")
    return [tuple(addresses) for addresses in ends]


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

"""Finds the message fields that tables need by their declarations, so that nothing else is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kdissect.schema.apikeys import ApiKey
from kdissect.tables import brokers, clients, groups, leaders, recordsets, topics, versions
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.model import DeclarationError, Gathering, Path

Paths = dict[tuple[int, int], set[str]]


def _united(*given: Paths) -> Paths:
    """All of these paths."""
    found: Paths = {}
    for paths in given:
        for message, names in paths.items():
            found.setdefault(message, set()).update(names)
    return found


GATHERED: Mapping[Gathering, Paths] = {
    Gathering.BROKERS: brokers.claim_paths(),
    Gathering.HOSTS: {},
    Gathering.CLUSTERS: brokers.claim_paths(),
    Gathering.TOPICS: _united(topics.topic_paths(), brokers.claim_paths()),
    Gathering.MENTIONS: _united(topics.topic_paths(mentions=True), brokers.claim_paths()),
    Gathering.CLIENTS: clients.client_paths(),
    Gathering.OFFERS: versions.offer_paths(),
    Gathering.GROUPS: groups.group_paths(),
    Gathering.LEADERS: _united(leaders.leader_paths(), brokers.claim_paths()),
    Gathering.RECORDS: recordsets.record_set_paths(),
    Gathering.FETCHED_RECORDS: recordsets.record_set_paths(ApiKey.FETCH),
    Gathering.SENT_RECORDS: recordsets.record_set_paths(ApiKey.PRODUCE),
}
"""The message paths of what is gathered, as the modules that gather it say."""
for _one in Gathering:
    if _one not in GATHERED:
        raise DeclarationError(f"nobody says what is read to gather {str(_one)!r}")


def message_paths(
    tables: Iterable[str], columns: Mapping[str, Iterable[str]] | None = None
) -> dict[tuple[int, int], frozenset[str]]:
    """The message paths needed for these tables: (API key, side) -> dotted snake_case paths.

    `columns[table]` are the columns that will be read of it, filters included; all where it is not named. The maps of
    brokers and topics are included where a column needs them.
    """
    given = columns or {}
    return _paths(read for name in tables for read in TABLES[name].needs(given.get(name, TABLES[name].by_name)))


def gathered(tables: Mapping[str, Iterable[str]]) -> dict[tuple[int, int], frozenset[str]]:
    """Of the message paths needed for these columns of tables those of what is gathered."""
    reads = (read for name, columns in tables.items() for read in TABLES[name].needs(columns))
    return _paths(read for read in reads if not isinstance(read, Path))


def _paths(reads: Iterable[Path | Gathering]) -> dict[tuple[int, int], frozenset[str]]:
    found: Paths = {}
    for read in reads:
        for message, names in ({read[:2]: {read.path}} if isinstance(read, Path) else GATHERED[read]).items():
            found.setdefault(message, set()).update(names)
    return {message: frozenset(names) for message, names in found.items()}


def only_gathered(tables: Mapping[str, Iterable[str]]) -> frozenset[tuple[int, int]]:
    """The message types that these columns of tables read for values of nodes and for nothing else. Their messages need
    not be there if their version has none of the fields."""
    others: set[tuple[int, int]] = set()
    for table, columns in tables.items():
        for read in TABLES[table].needs(columns):
            if isinstance(read, Path):
                others.add(read[:2])
            elif read not in (Gathering.BROKERS, Gathering.CLUSTERS):
                others.update(GATHERED[read])
    return frozenset(GATHERED[Gathering.BROKERS].keys() - others)

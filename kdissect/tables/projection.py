"""The columns that callers name, and the message fields that tables need for them by their declarations: nothing else
is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kdissect.problems import UsageError
from kdissect.schema.apikeys import ApiKey
from kdissect.tables import brokers, clients, groups, leaders, recordsets, topics, versions
from kdissect.tables.declaration import TABLES, columns_of
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


def list_names(names: str | Iterable[str]) -> list[str]:
    """The names as a list; a text is one name. Raises UsageError for what is none."""
    if isinstance(names, str):
        return [names]
    try:
        listed = list(names)
    except TypeError:
        raise UsageError(f"names are texts in a list, not {names!r}") from None
    for name in listed:
        if not isinstance(name, str):
            raise UsageError(f"a name is a text, not {name!r}")
    return listed


def choose_columns(table: str, columns: str | Iterable[str] | None) -> list[str] | None:
    """The names of columns of a table, in the order asked for; None for all. Raises UsageError for an unknown table or
    column, for a column that is named twice, and for none at all: rows without columns have no number."""
    listed = columns_of(table, None if columns is None else list_names(columns))
    if not listed:
        raise UsageError(f"no column of table {table!r} is named")
    return None if columns is None else listed


def choose_columns_of_each(
    tables: str | Iterable[str] | Mapping[str, Sequence[str] | None],
) -> dict[str, list[str] | None]:
    """The columns of each table that is named; None for all of them. Raises UsageError as `choose_columns` does."""
    asked = tables if isinstance(tables, Mapping) else dict.fromkeys(list_names(tables))
    return {name: choose_columns(name, columns) for name, columns in asked.items()}

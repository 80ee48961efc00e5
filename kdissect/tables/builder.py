"""From finished exchanges to tables: what an engine calls.

    builder = TableBuilder(connections, {"exchanges": None, "fetches": ["exchange_id", "latency_ms"]})
    decoder = Decoder(builder.wanted)
    for each block:
        rows = builder.feed(completed)              # table -> RecordBatch, unresolved
        for name, rows in builder.recorded(): ...   # the same of its record sets, piece by piece
    tables = builder.finish(problems, quality)      # the tables made at the end
    builder.finished("exchanges", [batches...])     # resolved, in order, plain: what `table()` returns
    builder.resolved("exchanges", batch)            # with what is known now, plain: what `batches()` yields

Rows of a block are *unresolved*: brokers and topic ids may be named by a message that comes later. Strings are
dictionaries, and helper columns stand among the others (`_time`, and more for ordering, resolving or filtering).
Nothing shows unresolved rows to anybody.

Claims about brokers, names of topics and offers of APIs are in `brokers`, `topics` and `offered`. Parts of one work
that ran apart `merge` theirs before resolving.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.arrow import Coder
from kdissect.arrays.dictionaries import repeated, unified
from kdissect.arrays.from_numpy import arrow_array
from kdissect.arrays.lending import Lender
from kdissect.arrays.rows import Rows, Texts
from kdissect.kafka.completed import Completed, Connections, Problems, Quality
from kdissect.tables import quality as qualities
from kdissect.tables.brokers import Brokers
from kdissect.tables.clients import Clients
from kdissect.tables.connections import connections_tables
from kdissect.tables.declaration import SCHEMAS, TABLES, columns_of, schema_of
from kdissect.tables.declaration.model import (
    ACKS_KEY,
    ANSWERED_KEY,
    EXCHANGE_KEYS,
    TEXT,
    TEXTS,
    TIME_KEY,
    UNSEEN_KEY,
    By,
    Gathering,
    Path,
)
from kdissect.tables.host_names import HostNames
from kdissect.tables.identity import SEPARATOR, Directory, written_out
from kdissect.tables.leaders import Leaders
from kdissect.tables.order import order, sort_columns
from kdissect.tables.projection import message_paths
from kdissect.tables.recording import Reading, Recorder
from kdissect.tables.registered import BLOCK_MAKERS
from kdissect.tables.table_block import READ_ASIDE, Block, assemble
from kdissect.tables.topics import Given, Replicas, Topics
from kdissect.tables.versions import Offered
from kdissect.tables.where import Filter

if TYPE_CHECKING:
    from kdissect.tables.candidates import Candidates
    from kdissect.tables.coded_rows import Later
    from kdissect.tables.fetch_rows import NamedFetches
    from kdissect.tables.selection import Selected
    from kdissect.tables.sights import Sights

ROW = "_row"
TRAFFIC = "traffic sums"
"""What `kdissect.tables.traffic_sums.Sums` are called among the rows of a block."""

PIECE = 1 << 16
"""Rows made plain at a time, those of a block and more: with all columns some 30 MB."""


class Walked:
    """A block's exchanges with everything that is read from the bytes of their messages: rows can be made of it when
    these are gone."""

    def __init__(self, whole: Completed, block: Block, recorded: list[tuple[str, pa.RecordBatch]]) -> None:
        self.whole = whole
        """All exchanges, those too that another capture tells."""
        self.block = block
        """Those of which there are rows."""
        self.recorded = recorded
        """Unresolved rows of its record sets."""

    def __len__(self) -> int:
        return len(self.whole)


class TableBuilder:
    """Tables of a run. `tables`: name -> columns that will be read (None: all), filters included. `reading`: what is
    computed of record batches."""

    def __init__(
        self,
        connections: Connections,
        tables: Mapping[str, Sequence[str] | None],
        reading: Reading | None = None,
    ) -> None:
        self.columns = {name: columns_of(name, asked) for name, asked in tables.items()}
        self.directory = Directory(connections)
        self.brokers = Brokers()
        self.topics = Topics(self.brokers, mentions="topics" in tables)
        self.hosts = HostNames({})
        self.clients = Clients()
        self.offered = Offered()
        self.leaders = Leaders()
        needed = {one for name, columns in self.columns.items() for one in TABLES[name].needs(columns)}
        self._topics = not needed.isdisjoint((Gathering.TOPICS, Gathering.MENTIONS))
        by_cluster = (Gathering.BROKERS, Gathering.CLUSTERS, Gathering.LEADERS)
        self._brokers = self._topics or not needed.isdisjoint(by_cluster)
        self._odd: list[Problems] = []
        self._recorder = Recorder(self.columns, reading or Reading(), self.topics)
        self.selected: Selected | None = None
        """Which exchanges and connections are wanted; None: all."""
        self.selected_rows: int | None = None
        """How many of the exchanges that were fed last are."""
        self.sights: Sights | None = None
        """Connections that several captures saw; None: there are none."""
        self.candidates: Candidates | None = None
        """Of which exchanges rows are made; None: of all."""
        self.fed: Completed | None = None
        """The exchanges of the block fed last that are wanted."""
        self.keyed = False
        """Whether rows have the helper columns by which the analysis joins tables."""
        self.dated = False
        """Whether rows have the helper column ANSWERED_KEY."""
        self._walked: list[tuple[str, pa.RecordBatch]] | None = None
        """Rows of record sets that came with the block fed last; None: they are made here."""
        self._passed_over = False
        """Rows as codes were not made because nobody knew replicas by then."""
        self._scratch = Lender()
        self._none: dict[str, pa.RecordBatch] = {}
        """No rows, of tables that had none in some block."""
        self.coded: frozenset[str] = frozenset()
        """Tables whose rows come as `Rows` of integers, for the analysis alone reads them."""
        self.unnamed: frozenset[str] = frozenset()
        """Tables whose rows have the helper columns in place of exchange ids, for nobody shows any."""
        self.sums_traffic = False
        """Whether what such rows say of topics is added up (`kdissect.tables.traffic_sums`)."""

    @property
    def message_paths(self) -> dict[tuple[int, int], frozenset[str]]:
        """The message paths to decode: (API key, side: 0 request, 1 response) -> dotted snake_case paths."""
        return message_paths(self.columns, self.columns)

    def told_clusters(self, directory: Directory, connections: npt.NDArray[np.int32]) -> bool:
        """Whether the brokers of all these connections have told their ClusterId: then their topic ids join nothing."""
        codes = directory.distinct_brokers(connections).tolist()
        return all(directory.brokers.texts[code] in self.brokers.clusters.ids for code in codes)

    def block(self, completed: Completed) -> Block:
        """The block that `feed` and `recordsets` work on: make it once where both are used."""
        return Block(completed, self.directory)

    def walked(self, completed: Completed) -> Walked:
        """A block for the `feed` of another builder, which does not need the bytes of messages any more. Of this
        builder nothing but `learn_sent` and `keep` is used then: another thread may feed at the same time."""
        block = self.block(completed)
        if self.sights is not None:
            block = self.block(self.sights.of(completed, block.connections))
        block.batches, block.sent = self._recorder.begin(block)
        return Walked(completed, block, list(self.recorded()))

    def feed(self, completed: Completed | Block | Walked) -> dict[str, pa.RecordBatch]:
        """Rows of a block, unresolved, for the tables asked for that come block by block; those of its record sets are
        fetched afterwards, with `recorded`."""
        walked = completed if isinstance(completed, Walked) else None
        if isinstance(completed, Walked):
            completed.block.directory = self.directory
            completed = completed.block if completed.block.done is completed.whole else completed.whole
        block = completed if isinstance(completed, Block) else self.block(completed)
        if self._brokers:
            self.brokers.feed(block)
        if self._topics:
            self.topics.feed(block)
        if "connections" in self.columns:
            self.clients.feed(block)
        if self.selected is not None:
            block = self.block(self.selected.of(block.done, block, self.topics.names()))
            self.selected_rows = len(block)
        if walked is not None:
            block = walked.block
        elif self.sights is not None:
            block = self.block(self.sights.of(block.done, block.connections))
        if "api_versions" in self.columns:
            self.offered.feed(block)
        if "leaders" in self.columns:
            self.leaders.feed(block)
        if self.candidates is not None:
            rows = self.candidates.pick_rows(block)
            if rows is not None and not len(rows):
                self.fed, self._walked = None, []
                return {}
            block = self._only(block, rows)
        self.fed = block.done
        if walked is None:
            block.batches, block.sent = self._recorder.begin(block)
        self._walked = None if walked is None else walked.recorded
        out: dict[str, Any] = {}
        if self.coded:
            out |= self._rows_as_codes(block)
        for name in self.columns:
            if name in BLOCK_MAKERS and name not in self.coded:
                out[name] = self._make_rows(name, block)
                if block.odd.rows:
                    self._odd.append(qualities.odd_times(block.odd, block, name))
                    block.odd.rows = []
        return out

    def _only(self, block: Block, rows: npt.NDArray[np.int64] | None) -> Block:
        """The exchanges of a block in these rows, at least; None: all."""
        from kdissect.tables.selection import only

        # what was counted or read aside is of all exchanges
        whole = not (block.batches is block.sent is block.done.aside is None)
        return block if rows is None or whole else self.block(only(block.done, rows))

    def _make_rows(self, name: str, block: Block) -> pa.RecordBatch:
        """Rows of a table. Where none of the messages that tell them is in the block, those that were made first."""
        wanted, spoken = self.working_columns(name), _messages(name)
        silent = bool(spoken) and spoken.isdisjoint(block.done.messages)
        if silent and (none := self._none.get(name)) is not None and none.schema.names == wanted:
            return none
        columns, rows = BLOCK_MAKERS[name](block)
        made = assemble(name, columns, wanted, rows)
        if silent:
            self._none[name] = made
        return made

    def _rows_as_codes(self, block: Block) -> dict[str, Any]:
        from kdissect.tables import coded_rows

        topics = coded_rows.Topics()
        names = self.coded.intersection(self.columns, coded_rows.CODED)
        made: dict[str, Any] = coded_rows.rows_as_codes(block, names, topics)
        if self.sums_traffic:
            from kdissect.tables.traffic_sums import traffic

            made[TRAFFIC] = traffic(block, topics, made["fetch_partitions"], made.get(READ_ASIDE), self._scratch)
        return made

    def recorded(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Rows of `record_batches` and `records` of the block that was fed last, unresolved, piece by piece."""
        columns = {n: self.working_columns(n) for n in self.columns if TABLES[n].made is By.RECORD_SETS}
        if self._walked is None:
            return self._recorder.parts(columns)
        made, self._walked = self._walked, None
        return ((name, batch.select(columns[name])) for name, batch in made if name in columns)

    def working_columns(self, name: str, coded: frozenset[str] | None = None) -> list[str]:
        """The columns that unresolved rows of a table have: those asked for, and what ordering and resolving need.
        `coded`: other tables than by now came as codes when they were made."""
        columns = list(self.columns[name])
        extra = [*sort_columns(name)]
        if self.dated and TIME_KEY in extra:
            extra.append(ANSWERED_KEY)
        if self.keyed and TABLES[name].is_analysed:
            extra += EXCHANGE_KEYS
            if name in self.unnamed:
                extra.remove("exchange_id")
            if name == "fetches":
                extra.append(UNSEEN_KEY)
            if name == "exchanges" and "produces" in (self.coded if coded is None else coded):
                extra.append(ACKS_KEY)
        if "replicas" in columns:
            extra += ["topic", "topic_id"]
        if "topic" in columns and "topic_id" in SCHEMAS[name].names:
            extra.append("topic_id")
        if any(one in columns for one in ("topic", "topics", "replicas", "assigned_partitions")):
            extra.append("cluster")  # topics have names within their cluster
        if name == "connections" and "group_id" in columns:
            extra += ["capture", "client_ip", "client_id"]  # by which groups of other connections are known
        return columns + [column for column in dict.fromkeys(extra) if column not in columns]

    def sent(self) -> pa.Table | None:
        """The rows that the table `producers` is made of (`recording.producers_table`), not resolved; None for
        nothing."""
        return self._recorder.sent()

    @property
    def sent_in_part(self) -> bool:
        """Producers have sent more batches than were to be kept for `producers`."""
        return self._recorder.full

    # ---- one work in several parts

    def apart(self, connections: Connections) -> TableBuilder:
        """A builder for other connections of the same work."""
        made = TableBuilder(connections, self.columns, self._recorder.reading)
        made.keyed, made.dated = self.keyed, self.dated
        made.coded = self.coded
        made.unnamed, made.sums_traffic = self.unnamed, self.sums_traffic
        made.sights, made.hosts = self.sights, self.hosts
        made.candidates = self.candidates
        return made

    def learn(self, other: TableBuilder) -> None:
        """Take over what messages told another builder of the whole work since the last call."""
        self.learn_names(other)
        self.learn_sent(other)

    def learn_sent(self, other: TableBuilder) -> None:
        """Of `learn` what producers sent."""
        self._recorder.learn(other._recorder)

    def learn_names(self, other: TableBuilder) -> None:
        """Of `learn` everything else."""
        self.brokers.merge(other.brokers)
        self.topics.merge(other.topics)
        self.offered.merge(other.offered)
        self.leaders.merge(other.leaders)
        for known in (other.brokers, other.topics, other.offered, other.leaders):
            known.clear()

    def block_ended(self) -> None:
        """All exchanges of a block were fed, and other builders were learned from."""
        self.fed = None
        self._recorder.block_ended()

    def agree(self, parent: TableBuilder) -> None:
        """Go on as the builder that learns names from this one does."""
        self.columns, self.coded = parent.columns, parent.coded
        self.unnamed, self.sums_traffic = parent.unnamed, parent.sums_traffic

    def keep(self, columns: Mapping[str, list[str]], parent: TableBuilder) -> None:
        """Of record sets make rows for these columns from here on, and as many as `parent`, which learns from here what
        was sent, has room for."""
        self._recorder.agree(parent._recorder)
        if self.columns is not columns:
            self.columns = dict(columns)
            self._recorder.narrow(self.columns)

    def narrow(self, tables: Mapping[str, Collection[str]]) -> None:
        """From the next block on make only these columns (name -> columns) of tables that come block by block, and no
        other such tables. No caller reads the others any more."""
        kept = {}
        for name, columns in self.columns.items():
            if TABLES[name].made not in (By.BLOCK, By.RECORD_SETS):
                kept[name] = columns
            elif name in tables:
                kept[name] = [column for column in columns if column in tables[name]]
        self.columns = kept
        self._recorder.narrow(kept)

    def absorb(self, other: TableBuilder, first: int) -> None:
        """Take over what another builder knows of its connections, which are counted from `first` on here."""
        addresses = [self.directory.ips.code(text) for text in other.directory.ips.texts]
        self.clients.absorb(other.clients, first, addresses)
        self._odd += [part.moved(first) for part in other._odd]
        self.absorb_problems(other, first)

    def absorb_problems(self, other: TableBuilder, first: int) -> None:
        """Of `absorb` the problems of record sets."""
        self._recorder.problems += [part.moved(first) for part in other._recorder.problems]

    # ---- the end

    def finish(self, problems: Iterable[Problems] = (), quality: Iterable[Quality] = ()) -> dict[str, pa.Table]:
        """The tables asked for that are made at the end, whole, resolved and in order. To be called once.

        Problems found while tables were made (times outside the calendar) are added to `problems` and to the counts of
        connections; `problems` holds those of everybody else, who have counted theirs.
        """
        return {name: self.finished(name, [table]) for name, table in self.at_the_end(problems, quality).items()}

    def at_the_end(self, problems: Iterable[Problems] = (), quality: Iterable[Quality] = ()) -> dict[str, pa.Table]:
        """The tables that `finish` returns, not resolved yet. To be called once."""
        made: dict[str, list[pa.Table]] = {}
        for name, table in self.pieces_at_the_end(problems, quality):
            made.setdefault(name, []).append(table)
        return {name: unified(pa.concat_tables(parts, promote_options="none")) for name, parts in made.items()}

    def connection_pieces(self) -> Iterator[pa.Table]:
        """The connections that are known, not resolved yet, in pieces, at least one."""
        columns, wanted = self.working_columns("connections"), self._wanted_connections()
        return connections_tables(self.directory, self.clients, columns, wanted, self.sights)

    def _wanted_connections(self) -> npt.NDArray[np.bool_] | None:
        """Flags of the connections that have rows; None: all have."""
        connections = self.directory.connections
        wanted = None if self.selected is None else self.selected.connections(connections)
        if self.sights is not None:
            kept = self.sights.connections(connections)
            wanted = kept if wanted is None else wanted & kept
        return wanted

    def pieces_at_the_end(
        self, problems: Iterable[Problems] = (), quality: Iterable[Quality] = ()
    ) -> Iterator[tuple[str, pa.Table]]:
        """The tables made at the end, not resolved yet, in pieces, at least one of each: connections in order, problems
        as they came. To be called once."""
        self.brokers.given = self.hosts.given = None  # all was read: names do not change any more
        ours = [*self._odd, *self._recorder.problems]
        connections = self.directory.connections
        for part in ours:
            np.add.at(connections.problems, part.conn[part.conn >= 0], 1)
        wanted = self._wanted_connections()
        for name in self.columns:
            if name == "connections":
                for table in self.connection_pieces():
                    yield name, table
            elif name == "producers":
                yield name, self._recorder.producers()
            elif name == "api_versions":
                yield name, self.offered.table(self.brokers)
            elif name == "leaders":
                yield name, self.leaders.table(self.topics)
            elif name == "topics":
                yield name, self.topics.table()
            elif name == "clock_offsets":
                yield name, SCHEMAS[name].empty_table() if self.sights is None else self.sights.offsets
            elif name == "capture_quality":
                yield name, qualities.capture_quality(quality)
            elif name == "problems":
                yield name, SCHEMAS[name].empty_table()
                for part in itertools.chain(problems, ours):
                    if wanted is not None:
                        part = part.only((part.conn < 0) | np.append(wanted, True)[part.conn])
                    batch = qualities.problems(part, self.directory).cast(SCHEMAS[name])
                    yield name, pa.Table.from_batches([batch], SCHEMAS[name])

    def finished(
        self,
        name: str,
        parts: Iterable[pa.RecordBatch | pa.Table],
        where: Filter | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """A whole table: resolved, filtered, in order, with the columns asked for (or `columns` of them), plain, in
        pieces that have rows."""
        schema = self._schema(name, columns)
        table = self._ordered(name, parts, where)
        if table is None or not table.num_rows:
            return schema.empty_table()
        return pa.Table.from_batches([one for one in conform_to_schema(table, schema).to_batches() if len(one)], schema)

    def pieces(
        self,
        name: str,
        parts: Iterable[pa.RecordBatch | pa.Table],
        where: Filter | None = None,
        columns: Sequence[str] | None = None,
        resolved: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The table that `finished` returns, in batches that are made plain one after the other. Plain rows take
        several times the memory of those that they are made of. `resolved`: the parts are resolved already."""
        schema = self._schema(name, columns)
        table = self._ordered(name, parts, where, resolved)
        if table is None:
            return
        for first in range(0, table.num_rows, PIECE):
            yield from conform_to_schema(table.slice(first, PIECE), schema).to_batches()

    def _ordered(
        self, name: str, parts: Iterable[pa.RecordBatch | pa.Table], where: Filter | None, resolved: bool = False
    ) -> pa.Table | None:
        """Parts as one table, resolved, filtered and in order; None for no parts."""
        made = list(parts) if resolved else [self.resolve(name, part) for part in parts]
        if not made:
            return None
        table = unified(pa.concat_tables(made, promote_options="none") if len(made) > 1 else made[0])
        if where is not None:
            table = filtered(name, table, where)
        leading = sort_columns(name)[:1]
        # `finish` has put its tables in order by columns that are not asked for and are gone by now
        return order(name, table) if leading and leading[0] in table.schema.names else table

    def resolved(
        self,
        name: str,
        batch: pa.RecordBatch | pa.Table,
        where: Filter | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatch:
        """One block's rows with what is known now: for reading a table batch by batch, in order of completion."""
        table = self.resolve(name, batch)
        if where is not None:
            table = filtered(name, table, where)
        table = conform_to_schema(table, self._schema(name, columns))
        return _one_batch(table)

    def prefilter_rows(self, name: str, batch: pa.RecordBatch, where: Filter) -> pa.RecordBatch:
        """Unresolved rows without those that the filter will drop, where that can be said before the end.

        A filter on a column that is resolved or analysed later keeps all rows. Not for tables that an analysis still
        reads whole. `finished` and `resolved` apply the whole filter anyway: this only saves memory.
        """
        if not where.columns.isdisjoint(TABLES[name].late):
            return batch
        return _one_batch(filtered(name, pa.Table.from_batches([batch]), where))

    def resolve_codes(self, rows: Rows, lasting: Coder, replicas: Replicas | None = None) -> Rows:
        """Rows as codes with brokers and topics by what is known now, their texts with the codes of `lasting`, and
        `replicas` where these are asked for."""
        from kdissect.tables.coded_rows import resolved

        if self.topics.given is not None:
            columns = (rows.columns.get(name) for name in ("broker", "topic", "topic_id"))
            self._note_names(*(one.values if isinstance(one, Texts) else () for one in columns))
        return resolved(rows, self.brokers.names(), self.topics.names(), lasting, replicas)

    def resolve_later(self, rows: Later, lasting: Coder) -> Rows:
        """As `resolve_codes`, of rows that are made only if it is known of any topic how many replicas it has."""
        replicas = self.topics.known_replicas()
        if not any(replicas):
            self._passed_over = self._passed_over or rows.num_rows > 0
            return Rows({}, 0)
        return Rows.together([self.resolve_codes(part, lasting, replicas) for part in rows.made()])

    def resolve_fetches(self, fetches: NamedFetches) -> NamedFetches:
        """Fetches that were read aside, with brokers and topics by what is known now."""
        if self.topics.given is not None:
            self._note_names(fetches.brokers, *zip(*fetches.topics, strict=True) if fetches.topics else ((), ()))
        return fetches.resolved(self.brokers.names(), self.topics.names())

    def _note_names(
        self, brokers: Sequence[str | None], topics: Sequence[str | None], topic_ids: Sequence[str | None]
    ) -> None:
        """Remember what rows are named by, once `note_names` has said so."""
        if self.brokers.given is not None:
            known = self.brokers.names()
            self.brokers.given |= {text: known.get(text, text) for text in brokers if text and SEPARATOR in text}
        if (given := self.topics.given) is not None and (topics or topic_ids):
            names, (by_id, by_name) = self.topics.names(), self.topics.known_replicas()
            ids = [text for text in topic_ids if text]
            given.names |= {(None, text): names.get(text) for text in ids}
            given.replicas_by_id |= {text: by_id.get(text) for text in ids}
            given.replicas_by_name |= {text: by_name.get(text) for text in topics if text}

    def resolve(self, name: str, part: pa.RecordBatch | pa.Table, plain: bool = False) -> pa.Table:
        """Rows with brokers and topics by what is known now. Idempotent; helpers and dictionaries stay. `plain`:
        brokers are texts, for callers that put them next to those of other tables."""
        table = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
        names, cluster = table.schema.names, None
        for column in _called(name):
            if column not in names:
                continue
            declared, at, values = TABLES[name].by_name[column], names.index(column), table[column]
            if declared.resolver is Gathering.CLUSTERS:
                values = self.brokers.resolve_clusters(values)
                values = values.cast(TEXT) if plain else values
            elif declared.resolver is Gathering.BROKERS:
                values = self.brokers.resolve(values)
                values = values.cast(TEXT) if plain else values
            elif declared.resolver is Gathering.HOSTS:
                values = self.hosts.resolve(values)
            elif column == "replicas":
                values = self.topics.resolve_replicas(table["topic"], table["topic_id"], cluster)
            elif declared.type == TEXTS:
                values = self.topics.resolve_lists(values, cluster)
            elif declared.type != TEXT:
                values = self.topics.resolve_assignments(values, cluster)
            elif "topic_id" in names:
                values = self.topics.resolve(values, table["topic_id"], cluster)
            table = table.set_column(at, column, values)
            cluster = values if column == "cluster" else cluster
        return table

    def note_names(self, replicas: bool = True) -> None:
        """From here on remember which names `resolve` gave, and how many `replicas` topics have, if these matter."""
        self.brokers.given, self.hosts.given, self.topics.given = {}, {}, Given(replicas)
        self.brokers.given_clusters = {}

    @property
    def names_kept(self) -> bool:
        """True if `resolve` would return now the names that it returned since `note_names`. It may have returned
        several names, one after the other, so ask whenever messages were read, before more is resolved."""
        given = self.topics.given
        replicas = given is not None and given.replicas and self._passed_over and any(self.topics.known_replicas())
        return (
            self.brokers.names_unchanged and self.hosts.names_unchanged and self.topics.names_unchanged and not replicas
        )

    def _schema(self, name: str, columns: Sequence[str] | None) -> pa.Schema:
        return schema_of(name, self.columns[name] if columns is None else columns)


@cache
def _called(name: str) -> tuple[str, ...]:
    """The columns of a table with names that messages tell, `cluster` first; messages themselves have none."""
    columns = TABLES[name].by_name.values() if name in TABLES else ()
    called = [column.name for column in columns if column.resolver is not None]
    return tuple(sorted(called, key=lambda column: column != "cluster"))


@cache
def _messages(name: str) -> frozenset[tuple[int, int]]:
    """The messages (API key, side) that a table's rows are parts of; none where other things tell rows too."""
    told = [(one.key, one.side) for one in TABLES[name].reads if isinstance(one, Path)]
    return frozenset(told) if len(told) == len(TABLES[name].reads) else frozenset()


def filtered(name: str, table: pa.Table, where: Filter) -> pa.Table:
    """The rows for which the filter holds. Only the columns that it reads are looked at."""
    declared = SCHEMAS[name]
    read = {column: table[column].cast(declared.field(column).type) for column in where.columns}
    rows = arrow_array(np.arange(table.num_rows))
    kept = pa.table({**read, ROW: rows}).filter(where.expression)[ROW]
    if not len(kept):
        return table.slice(0, 0)
    return table if len(kept) == table.num_rows else table.take(kept)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def conform_to_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Exactly the columns and types of a declared schema: plain strings, no helpers."""
    return pa.table([_plain(table[name], schema.field(name).type) for name in schema.names], schema=schema)


def _plain(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column as `kind`. Dictionaries of one text, such as the file's name, are written out at once."""
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type) and not column.null_count and column.type.value_type == kind:
        values = [chunk.dictionary for chunk in column.chunks]
        if all(len(one) == 1 for one in values):
            chunks = [repeated(one[0], len(chunk)) for one, chunk in zip(values, column.chunks, strict=True)]
            return pa.chunked_array(chunks, kind)
    if kind == TEXT and pa.types.is_dictionary(column.type):
        return pa.chunked_array([written_out(chunk) for chunk in column.chunks], kind)
    return column.cast(kind)

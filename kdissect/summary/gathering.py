"""Gathers the summary from batches of tables: vectorised counts per batch, small Python objects at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.arrow import EPOCH, encoded, numbers
from kdissect.arrays.lending import Lender
from kdissect.problems import UsageError
from kdissect.summary.client_summaries import JUDGED, Tallies, broker_itself, in_order, waited
from kdissect.summary.joint_codes import Counted, combined
from kdissect.summary.model import BrokerLine, ClientLine, ErrorLine, LatencyLine, SessionLine, Summary
from kdissect.summary.pace import Buckets
from kdissect.summary.quantiles import Latencies
from kdissect.summary.troubles import Troubles
from kdissect.tables.declaration.model import CLUSTER, EXCHANGE_KEYS
from kdissect.tables.declaration.readers import FIRST_SCREEN
from kdissect.tables.identity import exchange_id

if TYPE_CHECKING:
    from kdissect.analysis.findings import Found

INSTANT = pa.timestamp("us", "UTC")

GROUPINGS: Mapping[str, tuple[str, ...]] = {
    "api": ("api",),
    "client": ("client_id",),
    "broker": ("broker", "cluster"),
    "version": ("api", "api_version"),
}
"""What the latency block can be grouped by, and the columns of `exchanges` that make a group."""

WANTED = FIRST_SCREEN.tables
"""Tables and columns that the summary reads. Tables that an engine does not make are left out and cost nothing."""

EACH = ("connection_id", "started_at", "ended_at", "bytes", "start_seen", "missing_bytes", "exchanges")
"""Columns of connections by which each differs from the next."""

OTHERS = frozenset({"capture", "is_kafka", "protocol", "silent"})
"""Columns by which connections that are not Kafka are counted. Each may have ends of its own: somebody may have scanned
a network."""

SEVERITIES = ("high", "medium", "low", "info")
"""Severities of findings, worst first."""


class _Group:
    def __init__(self) -> None:
        self.latencies = Latencies()
        self.exchanges = 0
        self.versions: set[int] = set()
        self.errors: Counter[str] = Counter()
        self.slowest: str | None = None
        self.slowest_ms: float | None = None
        self.long_polls = 0
        self.judged = 0


class Summarizer:
    """Gathers a `Summary` from batches of tables. `by` says what the latency block is grouped by."""

    def __init__(self, by: str = "api") -> None:
        if by not in GROUPINGS:
            raise UsageError(f"cannot group by {by!r}; there are {', '.join(GROUPINGS)}")
        self.by = by
        self._groups: dict[tuple[Any, ...], _Group] = defaultdict(_Group)
        self._statuses: Counter[str] = Counter()
        self._clients = Tallies()
        self._pace = Buckets()
        self._broker_exchanges: Counter[tuple[str | None, str | None]] = Counter()
        """By cluster and broker."""
        self._tables: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        self._ids: list[npt.NDArray[np.uint64]] = []
        self._troubles = Troubles()
        self._memory = Lender()

    def feed(self, table: str, batch: pa.RecordBatch) -> None:
        """Take a batch of one of the tables in `WANTED`; other tables and empty batches are ignored."""
        if not batch.num_rows or table not in WANTED:
            return
        if table == "exchanges":
            self._exchanges(batch)
        elif table == "problems":
            self._troubles.add(batch)
        elif table == "connections":
            self._connection_rows(batch)
        else:
            self._tables[table].append(batch.select([c for c in WANTED[table] if c in batch.schema.names]))

    def feed_found(self, result: Found) -> None:
        """Take what was found, and which finders failed."""
        for name, table in (("findings", result.findings), ("problems", result.problems)):
            for batch in table.to_batches():
                self.feed(name, batch)

    def _exchanges(self, batch: pa.RecordBatch) -> None:
        self._count_brokers(batch)
        latency = _floats(batch.column("latency_ms"))
        queued = _floats(batch.column("queued_ms")) if "queued_ms" in batch.schema.names else np.zeros(len(latency))
        own = np.where(waited(batch), np.nan, latency - np.nan_to_num(queued))
        self._clients.add(batch, own)
        if "request_first_at" in batch.schema.names:
            begun = batch.column("request_first_at").cast(pa.int64())
            known = np.asarray(begun.is_valid())
            self._pace.add(begun.drop_null().to_numpy(), own[known])

        keys = (*GROUPINGS[self.by], "api_version", "status", "error", "hold")
        codes, names = _combined([batch.column(key) for key in keys])
        order = np.argsort(codes, kind="stable")
        edges = np.searchsorted(codes[order], np.arange(len(names) + 1))
        ids = batch.column("exchange_id")
        for code, values in enumerate(names):
            rows = order[edges[code] : edges[code + 1]]
            mine = rows[~np.isnan(own[rows])]
            top = int(mine[np.argmax(own[mine])]) if len(mine) else -1
            known = latency[rows[~np.isnan(latency[rows])]]
            one = Counted(values, len(rows), known, float(own[top]) if len(mine) else None, top)
            self._add(one, lambda row: str(ids[row].as_py()))

    def count(self, rows: pa.RecordBatch) -> None:
        """Take rows of `exchanges` that have numbers in place of names and ids (`readers.FIRST_SCREEN_COUNTS`)."""
        from kdissect.summary.exchange_counts import counted

        if not rows.num_rows:
            return
        self._count_brokers(rows)
        groups, own = counted(rows, (*GROUPINGS[self.by], "api_version", "status", "error", "hold"), self._memory)
        self._clients.add(rows, own)
        begun = rows.column("request_first_at")
        if begun.null_count:
            known = np.asarray(begun.is_valid())
            self._pace.add(numbers(begun)[known], own[known])
        else:
            self._pace.add(numbers(begun), own)
        ids, n = (rows.column(key).to_numpy() for key in EXCHANGE_KEYS)
        for one in groups:
            self._add(one, lambda row: exchange_id(int(ids[row]), int(n[row])))

    def _add(self, counted: Counted, exchange_of: Callable[[int], str]) -> None:
        """Take what is said of exchanges with the same values. `exchange_of`: the exchange of a row."""
        grouping = GROUPINGS[self.by]
        version, status, error, hold = counted.values[len(grouping) :]
        self._statuses[status] += counted.exchanges
        group = self._groups[counted.values[: len(grouping)]]
        group.exchanges += counted.exchanges
        if version is not None:
            group.versions.add(version)
        if status == "error":
            group.errors[error or "error"] += counted.exchanges
        if hold == "timeout":
            group.long_polls += counted.exchanges
        if status in JUDGED:
            group.judged += counted.exchanges
        group.latencies.add(counted.latencies)
        if counted.slowest_ms is not None and (group.slowest_ms is None or counted.slowest_ms > group.slowest_ms):
            group.slowest_ms = counted.slowest_ms
            group.slowest = exchange_of(counted.row)

    def _connection_rows(self, batch: pa.RecordBatch) -> None:
        """Connections that only their ids and times tell apart become one row: there may be millions."""
        self._ids.append(_numbers(batch.column("connection_id")))
        self._troubles.connected(batch)
        rows = pa.table([batch.column(name) for name in batch.schema.names], batch.schema.names)
        if "bytes" in rows.schema.names:
            rows = rows.append_column("silent", pc.equal(rows["bytes"], 0))
        present = rows.schema.names
        keys = [name for name in (*WANTED["connections"], "silent") if name in present and name not in EACH]
        figures = [("connection_id", "count"), ("started_at", "min"), ("ended_at", "max")]
        figures = [one for one in figures if one[0] in present]
        kafka = rows["is_kafka"]
        for some, names in ((rows.filter(kafka), keys), (rows.filter(pc.invert(kafka)), OTHERS)):
            named = [name for name in keys if name in names]
            found = some.group_by(named, use_threads=False).aggregate(figures)
            self._tables["connections"] += found.to_batches()

    def _count_brokers(self, rows: pa.RecordBatch) -> None:
        """Count exchanges by the cluster and name of their broker."""
        codes, brokers = encoded(rows.column("broker"))
        clusters: list[str | None] = [None]
        if "cluster" in rows.schema.names:
            own, texts = encoded(rows.column("cluster"))
            clusters += texts
            codes = (own + 1) * (len(brokers) + 1) + codes
        for place, found in enumerate(np.bincount(codes + 1).tolist()):
            if found:
                cluster, broker = divmod(place, len(brokers) + 1)
                self._broker_exchanges[clusters[cluster], (None, *brokers)[broker]] += found

    def finish(self, looked_at: int | None = None) -> Summary:
        """The summary of everything fed so far. `looked_at`: exchanges that findings come from, None for all."""
        connections = self._rows("connections")
        quality = self._rows("capture_quality")
        findings = sorted(self._rows("findings"), key=lambda f: _severity(f["severity"]))
        starts = [c["started_at_min"] for c in connections if c["started_at_min"] is not None]
        ends = [c["ended_at_max"] for c in connections if c["ended_at_max"] is not None]
        others: Counter[str] = Counter()
        silent = 0
        problems, explained = self._troubles.finish(bool(_measure(quality, "snapped_packets")))
        for c in connections:
            if c["is_kafka"]:
                continue
            if c.get("silent"):
                silent += c["connection_id_count"]
            else:
                others[c["protocol"] or "unknown"] += c["connection_id_count"]
        return Summary(
            captures=list(dict.fromkeys([q["capture"] for q in quality] + [c["capture"] for c in connections])),
            started_at=min(starts, default=None),
            ended_at=max(ends, default=None),
            packets=_measure(quality, "packets"),
            bytes=_measure(quality, "original_bytes"),
            connections=sum(c["connection_id_count"] for c in connections),
            kafka_connections=sum(c["connection_id_count"] for c in connections if c["is_kafka"]),
            protocols=_most_first(others),
            silent=silent,
            statuses=_most_first(self._statuses),
            by=self.by,
            latencies=self._latency_lines(),
            errors=self._error_lines(),
            clients=self._client_lines(connections),
            brokers=self._broker_lines(connections),
            sessions=_session_lines(self._rows("fetch_sessions")),
            findings=findings,
            findings_of=looked_at,
            quality=quality,
            both_ends=self._rows("clock_offsets"),
            problems=problems,
            explained=explained,
            pace=self._pace.finish(),
            id_digits=_telling_digits(self._ids),
            budget=None,
            topics=None,
            deliveries=[],
            deliveries_of=None,
        )

    def _rows(self, table: str) -> list[dict[str, Any]]:
        return [row for batch in self._tables[table] for row in _as_rows(batch)]

    def _latency_lines(self) -> list[LatencyLine]:
        lines = []
        for key, group in self._groups.items():
            p50, p95, p99 = group.latencies.quantiles((0.5, 0.95, 0.99))
            lines.append(
                LatencyLine(
                    name=self._name(key),
                    cluster=self._cluster(key),
                    exchanges=group.exchanges,
                    versions=sorted(group.versions),
                    errors=group.errors.total(),
                    answered=group.latencies.count,
                    p50=p50,
                    p95=p95,
                    p99=p99,
                    max=group.latencies.largest if group.latencies.count else None,
                    slowest=group.slowest,
                    slowest_ms=group.slowest_ms,
                    long_polls=group.long_polls,
                    judged=group.judged,
                )
            )
        return sorted(lines, key=lambda line: (-line.exchanges, line.name, line.cluster or ""))

    def _error_lines(self) -> list[ErrorLine]:
        lines = [
            ErrorLine(error, self._name(key), count, self._cluster(key))
            for key, group in self._groups.items()
            for error, count in group.errors.items()
        ]
        return sorted(lines, key=lambda line: (-line.count, line.error, line.name, line.cluster or ""))

    def _name(self, key: tuple[Any, ...]) -> str:
        """The name of a group of GROUPINGS: an API and its version, say, or a broker without its cluster."""
        parts = [part for name, part in zip(GROUPINGS[self.by], key, strict=True) if name != CLUSTER.name]
        return " v".join("(unknown)" if part is None else str(part) for part in parts)

    def _cluster(self, key: tuple[Any, ...]) -> str | None:
        """The cluster of a group, where GROUPINGS tell clusters apart."""
        found: str | None = dict(zip(GROUPINGS[self.by], key, strict=True)).get(CLUSTER.name)
        return found

    def _client_lines(self, connections: list[dict[str, Any]]) -> list[ClientLine]:
        of: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
        for connection in connections:
            if connection["is_kafka"]:
                of[connection["client_id"]].append(connection)
        clients = []
        for client in {**dict.fromkeys(self._clients.of), **dict.fromkeys(of)}:
            tally = self._clients.of[client]
            if client is None and not tally.exchanges:
                continue
            clients.append(
                ClientLine(
                    client_id=client,
                    software=_first(of[client], "client_software_name"),
                    version=_first(of[client], "client_software_version"),
                    groups=_distinct(of[client], "group_id"),
                    addresses=sorted({_host(c, "client") for c in of[client]} - {None}),
                    connections=sum(c["connection_id_count"] for c in of[client]),
                    exchanges=tally.exchanges,
                    errors=tally.errors,
                    judged=tally.judged,
                    lost_ms=tally.lost_ms,
                    slowest_ms=tally.slowest_ms,
                    slowest_at=tally.slowest_at,
                    broker_itself=broker_itself(client),
                )
            )
        return in_order(clients)

    def _broker_lines(self, connections: list[dict[str, Any]]) -> list[BrokerLine]:
        of: dict[tuple[str | None, str], list[dict[str, Any]]] = defaultdict(list)
        for connection in connections:
            if connection["is_kafka"] and connection["broker"] is not None:
                of[connection.get("cluster"), connection["broker"]].append(connection)
        brokers = [
            BrokerLine(
                broker=broker,
                addresses=sorted({_endpoint(_host(c, "broker"), c["broker_port"]) for c in rows}),
                connections=sum(c["connection_id_count"] for c in rows),
                exchanges=self._broker_exchanges[cluster, broker],
                cluster=cluster,
            )
            for (cluster, broker), rows in of.items()
        ]
        return sorted(brokers, key=lambda b: (b.cluster or "", len(b.broker), b.broker))


def summarize(tables: Mapping[str, pa.Table], by: str = "api") -> Summary:
    """The summary of whole tables (such as those read back from Parquet), by name; see `WANTED`."""
    summarizer = Summarizer(by)
    for name, table in tables.items():
        for batch in table.to_batches():
            summarizer.feed(name, batch)
    return summarizer.finish()


def _combined(columns: list[pa.Array]) -> tuple[npt.NDArray[np.int64], list[tuple[Any, ...]]]:
    """Codes 0..k-1 of the distinct combinations of values, a code a row, and the combinations."""
    coded = [encoded(column) for column in columns]
    codes, firsts = combined(np.stack([codes for codes, _ in coded]))
    values = [[(*texts, None)[at] for at in codes[firsts].tolist()] for codes, texts in coded]
    return codes, list(zip(*values, strict=True))


def _floats(column: pa.Array) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = pc.fill_null(pc.cast(column, pa.float64()), float("nan")).to_numpy(
        zero_copy_only=False
    )
    return values


def _session_lines(rows: list[dict[str, Any]]) -> list[SessionLine]:
    of: dict[tuple[str | None, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        of[row.get("cluster"), row["broker"] or "unknown"].append(row)
    lines = []
    for (cluster, broker), sessions in of.items():
        steps = sorted(
            [(s["opened_at"], 1) for s in sessions if s["opened_at"]]
            + [(s["closed_at"], -1) for s in sessions if s["closed_at"]]
        )
        live = np.cumsum([step for _, step in steps]) if steps else np.zeros(1, dtype=np.int64)
        lines.append(
            SessionLine(
                broker=broker,
                sessions=len(sessions),
                created=sum(s["first_epoch"] == 0 for s in sessions),
                evicted=sum(s["end_reason"] == "evicted" for s in sessions),
                open=sum(s["end_reason"] == "open" for s in sessions),
                peak=max(0, int(live.max())),
                requests=sum(s["requests"] or 0 for s in sessions),
                cluster=cluster,
            )
        )
    return sorted(lines, key=lambda line: (line.cluster or "", len(line.broker), line.broker))


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    """The largest first; equal ones by name, for rows come in any order."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _measure(quality: list[dict[str, Any]], measure: str) -> int | None:
    """A measure of all captures: the rows of whole captures where there are any, else the sum over files."""
    rows = [q for q in quality if q["measure"] == measure and q["value"] is not None]
    whole = [q for q in rows if q["file"] is None]
    return int(sum(q["value"] for q in whole or rows)) if rows else None


def _severity(name: str) -> int:
    return SEVERITIES.index(name) if name in SEVERITIES else len(SEVERITIES)


def _first(rows: list[dict[str, Any]], column: str) -> str | None:
    return next((row[column] for row in rows if row[column] is not None), None)


def _distinct(rows: list[dict[str, Any]], column: str) -> list[str]:
    return sorted({row[column] for row in rows if row[column] is not None})


def _host(connection: Mapping[str, Any], side: str) -> Any:
    """The name of an end of a connection, or its address where no name is known."""
    return connection.get(f"{side}_name") or connection[f"{side}_ip"]


def _as_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """`to_pylist` without Arrow's instants, for which it loads time zones."""
    columns = [
        [None if at is None else EPOCH + timedelta(microseconds=at) for at in column.cast(pa.int64()).to_pylist()]
        if column.type == INSTANT
        else column.to_pylist()
        for column in batch.columns
    ]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _endpoint(ip: str | None, port: int | None) -> str:
    return f"[{ip}]:{port}" if ip and ":" in ip else f"{ip}:{port}"


def _numbers(ids: pa.Array) -> npt.NDArray[np.uint64]:
    """Connection ids, 16 hex digits each, as numbers."""
    plain = ids.cast(pa.string()).drop_null()
    digits = np.frombuffer(plain.buffers()[2] or b"", np.uint8)[16 * plain.offset :][: 16 * len(plain)]
    found: npt.NDArray[np.uint64] = np.frombuffer(bytes.fromhex(digits.tobytes().decode()), ">u8").astype(np.uint64)
    return found


def _telling_digits(ids: list[npt.NDArray[np.uint64]]) -> int:
    """How many leading digits tell the ids apart, at least 4. Takes the ids: there may be millions."""
    if not ids:
        return 4
    ordered = np.concatenate(ids)
    ids.clear()
    ordered.sort()
    np.bitwise_xor(ordered[1:], ordered[:-1], out=ordered[:-1])
    differing = int(np.min(ordered[:-1], where=ordered[:-1] > 0, initial=2**64 - 1))
    return max(4, min(16, 16 - (differing.bit_length() - 1) // 4))

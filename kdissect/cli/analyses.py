"""Texts of `sessions`, `latency` and `diff`: the analysis of a capture as blocks of aligned lines.

Pure functions from Arrow tables to lines. Figures for machines are in the tables (`--table fetch_sessions`), and
`latency --format` writes its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from kdissect.cli.printing import words
from kdissect.cli.printing.grid import Header, grid, grid_by_cluster
from kdissect.cli.printing.sparkline import CELLS, sparkline
from kdissect.escaping import visible

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 12
"""Rows of a block unless --top says otherwise."""
Tables = Mapping[str, "pa.Table"]


def sessions(tables: Tables, width: int, *, top: int | None = None, plain: bool = False) -> list[Text]:
    """Per broker: what its session cache went through, sessions alive over time, who creates and who evicts."""
    top = ROWS if top is None else top
    brokers = tables["brokers"].to_pylist()
    lines: list[Text] = []
    for row in brokers:
        lines += [*([Text()] if lines else []), *_broker(row, tables, width, top, plain)]
    if not brokers:
        lines.append(Text("No fetch with a session in what was read."))
    shares = _shares(tables["share_sessions"].to_pylist(), width, top)
    return [*lines, *([Text(), *shares] if shares else [])]


def _broker(row: Mapping[str, Any], tables: Tables, width: int, top: int, plain: bool) -> list[Text]:
    name = row["broker"]
    several = cluster_column(tables["brokers"])
    lines = [Text(f"Broker {_name(name)}" + (f" of cluster {_name(row['cluster'])}" if several else ""), "bold")]
    seen = words.number_of(row["sessions"], "fetch session")
    before = f", {words.count(row['left_censored'])} of them opened before the capture" if row["left_censored"] else ""
    ends = [f"{words.count(row[end])} {end}" for end in ("closed", "replaced", "empty", "evicted", "open") if row[end]]
    facts = [f"{seen}{before}" + (f": {', '.join(ends)}." if ends else ".")]
    if row["sessions"]:
        known = "their clients knew" if row["evicted"] else "the capture shows"
        facts.append(f"Up to {words.count(row['peak_live'])} were alive at once, as far as {known}.")
    elif row["refused"]:
        facts = ["No fetch session seen: requests for one were refused."]
    else:
        facts = ["No fetch session seen: no answer that tells of one was captured."]
    trouble = [
        words.number_of(row[column], one, several)
        for column, one, several in (
            ("refused", "request for a session refused", "requests for a session refused"),
            ("lost", "answer that a session is not known", "answers that a session is not known"),
            ("epoch_errors", "wrong epoch", "wrong epochs"),
            ("topic_id_errors", "change between names and topic ids", "changes between names and topic ids"),
        )
        if row[column]
    ]
    if trouble:
        facts.append(f"{'; '.join(trouble)}.")
    if row["requests"]:
        size, saved = words.size(row["request_bytes"]), words.size(row["full_request_bytes_avoided"])
        facts.append(
            f"{words.number_of(row['requests'], 'request')} of {size} in them, {saved} saved; "
            f"{words.number_of(row['churn'], 'partition')} came or went."
        )
    lines += [Text(f"  {line}") for fact in facts for line in words.wrapped(fact, width - 2)]
    lines += _demand(row, tables, width, plain)
    mine = _of_broker(tables["creators"], row)
    headers = [
        Header("  Client", style="cyan"), Header("created", right=True), Header("reused", right=True),
        Header("ended", right=True, drop=1), Header("left open", right=True), Header("refused", right=True, drop=2),
        Header("lost", right=True), Header("wrong epoch", right=True, drop=3), Header("first created by", drop=4),
    ]  # fmt: skip
    columns = ("created", "reused", "ended", "left_open", "refused", "lost", "epoch_errors")
    rows = [
        [f"  {_client(one['client_id'])}", *(words.count(one[c]) if one[c] else "" for c in columns),
         one["first_exchange_id"] or ""]
        for one in mine[:top]
    ]  # fmt: skip
    lines += grid(headers, rows, width) if rows else []
    lines += _more(len(mine) - top, "clients")
    evictors = _of_broker(tables["evictors"], row)
    headers = [
        Header("  Evictor", style="red"), Header("created", right=True), Header("evictions", right=True),
        Header("of", right=True),
    ]  # fmt: skip
    rows = [
        [f"  {_client(one['client_id'])}", words.count(one["sessions_created"]), f"{one['evictions']:,.1f}",
         words.count(one["victims"])]
        for one in evictors[:top]
    ]  # fmt: skip
    lines += grid(headers, rows, width) if rows else []
    return lines + _more(len(evictors) - top, "evictors")


def _of_broker(table: pa.Table, broker: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of this broker of its cluster."""
    key = broker["cluster"], broker["broker"]
    return [row for row in table.to_pylist() if (row["cluster"], row["broker"]) == key]


def _demand(broker: Mapping[str, Any], tables: Tables, width: int, plain: bool) -> list[Text]:
    """Sessions alive over time: the broker's, and of its fullest shard where it has shards."""
    every = [row["live"] for row in _of_broker(tables["demand"], broker)]
    if not every:
        return []
    lines = [("alive", every)]
    of: dict[int, list[int]] = {}
    for row in _of_broker(tables["shards"], broker):
        if row["shard"] is not None:
            of.setdefault(row["shard"], []).append(row["live"])
    if of:
        shard = max(of, key=lambda number: max(of[number]))
        lines.append((f"shard {shard}", of[shard]))
    cells = max(10, min(CELLS, width - 32))
    return [
        Text.assemble(
            (f"  {label:<8}", "dim"), (sparkline(levels, cells, plain=plain), "cyan"),
            f"  {words.count(min(levels))} to {words.count(max(levels))}",
        )
        for label, levels in lines
    ]  # fmt: skip


def _shares(rows: list[dict[str, Any]], width: int, top: int) -> list[Text]:
    headers = [
        Header("Share sessions", style="cyan"), Header("member", drop=2), Header("requests", right=True),
        Header("acquired", right=True), Header("accepted", right=True), Header("released", right=True),
        Header("rejected", right=True), Header("renewed", right=True, drop=3), Header("refused", right=True),
        Header("again", right=True), Header("end", drop=1),
    ]  # fmt: skip
    columns = (
        "requests", "records_acquired", "accepted", "released", "rejected", "renewed", "refused", "redelivered",
    )  # fmt: skip
    cells = [
        [f"{_name(row['group_id'])} on broker {_name(row['broker'])}", row["member_id"] or "-",
         *(words.count(row[column]) for column in columns), row["end_reason"]]
        for row in rows[:top]
    ]  # fmt: skip
    return [*grid(headers, cells, width), *_more(len(rows) - top, "share sessions")] if rows else []


def slots(table: pa.Table, slots: int, width: int, top: int | None = None) -> list[Text]:
    """The effect of so many slots on each broker, client by client: only clients that would have lost by it."""
    top = ROWS if top is None else top
    every = table.to_pylist()
    rows = [row for row in every if row["evicted"] or row["refused"]]
    total = {name: sum(row[name] for row in every) for name in ("evicted", "refused", "request_bytes_more")}
    each = f"With {words.number_of(slots, 'session slot')} on each broker"
    if not every:
        return [Text("No fetch session in what was read.")]
    if not rows:
        return [Text(f"{each} no client would have lost a session, or got none.")]
    head = Text(
        f"{each}: {words.number_of(total['evicted'], 'session')} evicted, "
        f"{words.number_of(total['refused'], 'request')} refused, {words.size(total['request_bytes_more'])} more of "
        f"requests.",
        "bold",
    )
    headers = [
        Header("client", style="cyan"), Header("broker"), Header("asked for", right=True),
        Header("evicted", right=True), Header("refused", right=True), Header("full fetches", right=True),
        Header("bytes more", right=True, drop=1),
    ]  # fmt: skip
    cells = [
        [_client(row["client_id"]), _name(row["broker"]),
         *(words.count(row[name]) for name in ("sessions", "evicted", "refused", "full_fetches")),
         words.size(row["request_bytes_more"])]
        for row in rows[:top]
    ]  # fmt: skip
    clusters = [row["cluster"] for row in rows[:top]]
    return [head, *grid_by_cluster(headers, cells, clusters, width), *_more(len(rows) - top, "clients")]


def _more(count: int, noun: str) -> list[Text]:
    return [Text(f"  {words.count(count)} more {noun}: --top N", "dim")] if count > 0 else []


def _name(text: str | None) -> str:
    return "(unknown)" if text is None else visible(text)


def _client(text: str | None) -> str:
    return "(none)" if text is None else visible(text) or '""'


ID_COLUMNS, ID_DIGITS = ("exchange_id", "connection_id"), 8
"""Columns with ids of connections and exchanges, and the digits of a connection that a terminal shows."""
NUMBERS = ("_port", "_frame", "correlation_id", "offset", "producer_id", "_epoch", "_sequence", "generation")
"""Columns of numbers that are names or places: no separators."""
TITLES = {
    "exchange_id": "exchange", "connection_id": "connection", "request_first_at": "at", "requested_at": "at",
    "beyond_ms": "beyond wait", "latency_ms": "latency", "silent_ms": "silent", "begin_at": "from", "end_at": "to",
    "first_at": "first", "last_at": "last", "first_exchange_id": "first exchange", "next_exchange_id": "ended by",
    "started_at": "opened", "excess_ms": "beyond wait", "replication_ms": "replication",
    "client_id": "client", "api_version": "version", "exchanges": "count", "p50_ms": "p50", "p90_ms": "p90",
    "p99_ms": "p99", "p999_ms": "p99.9", "max_ms": "max", "mean_ms": "mean", "broker_p50_ms": "broker p50",
    "broker_p99_ms": "broker p99", "excess_p50_ms": "excess p50", "excess_p99_ms": "excess p99",
    "excess_max_ms": "excess max", "throttled_ms": "throttled", "per_second": "per s", "request_bytes": "request",
    "response_bytes": "answer", "change_p50_ms": "p50 change", "change_p99_ms": "p99 change", "ratio_p50": "ratio",
    "round_trip_p50_ms": "round trip p50", "round_trip_p99_ms": "p99", "round_trip_max_ms": "max",
    "latency_p50_ms": "latency p50", "clock_offset_ms": "clocks apart", "own_p50_ms": "p50", "own_p99_ms": "p99",
    "change_own_ms": "change",
    **{f"{box}_ms": box for box in (
        "wall", "agreed", "broker", "network", "replication", "transaction", "own", "idle", "silent", "gone", "unknown"
    )},
    "group_id": "group", "producer_client_id": "producer", "is_follower": "follower", "waited_for": "waited for",
    "buffered_p50_ms": "buffered p50",
    "p_value": "chance", "part": "most in", "waits": "long polls", "nearer_to_client": "nearer to client",
}  # fmt: skip
"""Titles of columns where they are shorter than their names."""
LATENCY = (
    "exchanges", "errors", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms", "broker_p50_ms", "broker_p99_ms",
    "excess_p99_ms", "excess_max_ms", "throttled_ms", "per_second",
)  # fmt: skip
"""Columns of `latency` on the screen, after those grouped by."""
DELIVERY_LATENCY = (
    "deliveries", "timed", "records", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms", "buffered_p50_ms",
    "waited_for",
)  # fmt: skip
"""The same of deliveries."""
DROPPED_OF_DELIVERIES = ("p999_ms", "p90_ms", "records", "buffered_p50_ms", "timed")
DROPPED = (
    "per_second", "throttled_ms", "excess_max_ms", "p999_ms", "broker_p50_ms", "p90_ms", "broker_p99_ms",
    "excess_p99_ms", "errors",
)  # fmt: skip
"""In this order columns go when the width is short."""


def latency(table: pa.Table, by: Sequence[str], width: int, *, local: bool = False) -> list[Text]:
    """Latencies by group; `by` are the columns grouped by."""
    if not table.num_rows:
        return [Text("No Kafka exchange in what was read.")]
    columns = [*_shown_keys(table, by), *(["at"] if "at" in table.column_names else []), *LATENCY]
    shown = [name for name in columns if name not in ("throttled_ms", "errors") or any(table[name].to_pylist())]
    return rows_of(table, shown, width, DROPPED, local=local)


def delivery_latency(table: pa.Table, by: Sequence[str], width: int, *, local: bool = False) -> list[Text]:
    """How long deliveries took by group; `by` are the columns grouped by."""
    if not table.num_rows:
        return [Text("No record batch that a consumer was given in what was read.")]
    columns = [*_shown_keys(table, by), *(["at"] if "at" in table.column_names else []), *DELIVERY_LATENCY]
    shown = [name for name in dict.fromkeys(columns) if name in table.column_names]
    if table["timed"].equals(table["deliveries"]):
        shown.remove("timed")
    return rows_of(table, shown, width, DROPPED_OF_DELIVERIES, local=local)


def budget(table: pa.Table, width: int, *, several: bool, local: bool = False) -> list[Text]:
    """Where the time of each subject went, without empty boxes; where the width is short, without those that hold
    least. `several`: rows have a time."""
    if not table.num_rows:
        return [Text("No Kafka exchange in what was read.")]
    kinds = set(table["by"].to_pylist())
    kind = ["by"] if len(kinds) > 1 else []
    names = [*cluster_column(table), *kind, "subject", *(["at"] if several else []), "wall_ms"]
    total = {name: sum(filter(None, table[name].to_pylist())) for name in table.column_names
             if name.endswith("_ms") and name != "wall_ms"}  # fmt: skip
    boxes = [name for name, spent in total.items() if spent]
    dropped = ("exchanges", *sorted(boxes, key=lambda name: total[name])[:-2])
    return rows_of(table, [*names, *boxes, "exchanges"], width, dropped, local=local)


def cluster_column(table: pa.Table) -> list[str]:
    """The name of the column `cluster` where the rows are of several, for a column more."""
    return ["cluster"] if len(table["cluster"].unique()) > 1 else []


def _shown_keys(table: pa.Table, by: Sequence[str]) -> list[str]:
    """The columns grouped by that are shown: the cluster first, where it is all that there is or the rows are of
    several."""
    others = [name for name in by if name != "cluster"]
    if len(others) == len(by):
        return others
    return [*cluster_column(table), *others] if others else ["cluster"]


def rows_of(
    table: pa.Table, columns: Sequence[str], width: int, dropped: Sequence[str] = (), *, local: bool = False,
    short: bool = False,
) -> list[Text]:  # fmt: skip
    """A table's columns as people read them: durations in the unit that fits, lists of versions in short. `short`: ids
    by their beginnings, which commands take, and times without their days."""
    headers: list[Header] = []
    cells: list[list[str]] = []
    for name in columns:
        drop = len(dropped) - dropped.index(name) if name in dropped else 0
        values = table[name].to_pylist()
        number = any(isinstance(value, int | float) for value in values)
        base = name.removesuffix("_a").removesuffix("_b")
        title = TITLES.get(base, base.removesuffix("_ms").replace("_", " ")) + (f" {name[-1]}" if base != name else "")
        if any(title == header.title for header in headers):  # a broker, and its time
            title += " time"
        style = "cyan" if not number and not cells else ""
        headers.append(Header(title, right=number, drop=drop, style=style))
        cells.append([_cell(name, value, local, short) for value in values])
    return grid(headers, list(zip(*cells, strict=True)), width)


def _cell(name: str, value: Any, local: bool, short: bool = False) -> str:
    if value is None:
        return words.UNKNOWN
    if isinstance(value, list):
        return words.versions(value)
    if isinstance(value, str):
        return visible(_short_id(value) if short and name.endswith(ID_COLUMNS) else value)
    if short and isinstance(value, datetime):
        return words.time_of_day(value, local=local)
    if name.endswith(NUMBERS):
        return str(value)
    if name.startswith("change_") or name in ("clock_offset_ms", "latency_p50_ms"):
        return ("+" if value > 0 else "") + words.milliseconds(value)
    if name == "p_value":
        return f"{value:.2g}" if value >= 0.001 else "< 0.001"
    if "_ms" in name:
        return words.milliseconds(value)
    if name.endswith("_bytes"):
        return words.size(value)
    if isinstance(value, float):
        return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
    return words.count(value) if isinstance(value, int) else words.moment(value, local=local)


def _short_id(text: str) -> str:
    """The beginning of a connection's or an exchange's id."""
    connection, colon, ordinal = text.partition(":")
    return f"{connection[:ID_DIGITS]}{colon}{ordinal}"


def diff(tables: Tables, by: Sequence[str], width: int, *, top: int | None = None) -> list[Text]:
    """Two captures, a and b: latencies side by side, versions and errors that differ, and the network between."""
    top = ROWS if top is None else top
    blocks: list[list[Text]] = []
    network = tables["network"]
    if network.num_rows:
        columns = [
            "client_id", "broker", "exchanges", "nearer_to_client", "round_trip_p50_ms", "round_trip_p99_ms",
            "round_trip_max_ms", "clock_offset_ms",
        ]  # fmt: skip
        title = f"The same traffic: {words.number_of(sum(network['exchanges'].to_pylist()), 'exchange')} in both"
        lines = rows_of(network.slice(0, top), columns, width, ("clock_offset_ms", "round_trip_max_ms"))
        blocks.append([Text(title, "bold"), *lines, *_more(network.num_rows - top, "connections")])
    slower = tables["latency"]
    sides = [f"{name}_{side}" for name in ("counted", "own_p50_ms", "own_p99_ms") for side in "ab"]
    columns = [*_shown_keys(slower, by), *sides, "change_own_ms", "p_value", "part", "waits_a", "waits_b"]
    dropped = ("waits_a", "waits_b", "own_p99_ms_a", "own_p99_ms_b", "part", "counted_a", "counted_b")
    lines = rows_of(slower.slice(0, top), columns, width, dropped)
    title = (
        "Latency without long-poll waits; significant changes first"
        if slower.num_rows
        else "No Kafka exchange in either capture"
    )
    blocks.append([Text(title, "bold"), *(lines if slower.num_rows else []), *_more(slower.num_rows - top, "rows")])
    for name, title, same in (
        ("versions", "API versions that differ", "Clients use the same API versions in both"),
        ("errors", "Errors", "No errors in either"),
    ):
        table = tables[name]
        if not table.num_rows:
            blocks.append([Text(same, "dim")])
            continue
        lines = rows_of(table.slice(0, top), table.column_names, width)
        blocks.append([Text(title, "bold"), *lines, *_more(table.num_rows - top, "rows")])
    return [line for i, block in enumerate(blocks) for line in ([Text()] if i else []) + block]

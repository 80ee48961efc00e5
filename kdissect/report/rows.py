"""The rows behind the report's figures: tables of the contract in, small tables out.

What is drawn is bounded by constants here, however large the capture: counts per bucket of time and step of latency,
lists cut where they stop telling anything. Everything is counted in Arrow and numpy; nothing here makes one Python
object per exchange but for the few that are listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.grouping import Float64s, figures, group
from kdissect.analysis.latency import latency
from kdissect.arrays.arrow import NULL_TIME, Flags, Int64s, instants, ints, one, reals, times, with_columns
from kdissect.report.stretches import stretched
from kdissect.summary import ProblemLine
from kdissect.tables.wireshark import exchange_filter

Tables = Mapping[str, pa.Table]

BUCKETS = 96
"""Buckets of time in a figure at most: each is still some pixels wide on a laptop's screen."""
NICE = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
"""Lengths of buckets that people can add up, in whatever unit."""
STEPS = 6
"""Steps of latency in a power of ten: each half as long again as the one before."""
CELLS = 10_000
"""Cells of the heat map, of all its choices together: about 250 kB in the file."""
SERIES = 8
"""APIs and clients that can be looked at by themselves; the others are in the whole."""
LINES = 400
"""Rows of a table that people read: groups by API and client, clients, sessions."""
OUTLIERS = 100
"""Slowest exchanges that are listed."""
SESSIONS = 150
"""Fetch sessions that are drawn: more lines than these cannot be told apart."""
CHOSEN = 25
"""Sessions whose epochs can be looked at."""
POINTS = 200
"""Fetches of one session that are drawn."""
OTHERS = "(others)"
NONE = "(none)"


def bucket_seconds(exchanges: pa.Table) -> float:
    """Length of a bucket of time: a round number of seconds (or milliseconds) that makes at most BUCKETS of them."""
    start = begun(exchanges)
    known = start[start != NULL_TIME]
    span = (int(known.max()) - int(known.min())) / 1e6 if len(known) else 0.0
    least = max(span / (BUCKETS - 1), 1e-3)
    for unit in (1e-3, 1.0, 3600.0, 86_400.0):
        for nice in (n for n in NICE if unit != 1e-3 or n < 1000):
            if nice * unit >= least:
                return nice * unit
        if unit == 1e-3 and least <= 0.5:
            return next(n for n in (0.1, 0.2, 0.5) if n >= least)
    return float(np.ceil(least / 86_400) * 86_400)


def by_api_and_client(exchanges: pa.Table, fetches: pa.Table) -> pa.Table:
    """Quantiles per API and client, the slowest p99 first; at most LINES rows, those with most exchanges."""
    table = latency(exchanges, None, ("api", "client"), None, fetches)
    columns = [
        "api", "client_id", "exchanges", "errors", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms", "broker_p50_ms",
        "broker_p99_ms", "excess_p50_ms", "excess_p99_ms", "excess_max_ms", "throttled_ms", "per_second",
    ]  # fmt: skip
    most = table.sort_by([("exchanges", "descending")]).slice(0, LINES)
    return most.sort_by([("p99_ms", "descending"), ("exchanges", "descending")]).select(columns)


def by_api(exchanges: pa.Table, fetches: pa.Table) -> pa.Table:
    """Quantiles per API, those with most exchanges first."""
    table = latency(exchanges, None, ("api",), None, fetches)
    columns = ["api", "exchanges", "errors", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms", "broker_p50_ms",
               "broker_p99_ms"]  # fmt: skip
    return table.filter(pc.greater(table["answered"], 0)).sort_by([("exchanges", "descending")]).select(columns)


def heat(exchanges: pa.Table, every: float) -> pa.Table:
    """Exchanges per bucket of time and step of latency: of all, of the busiest APIs and of the busiest clients.

    Columns: series ("" for all, else an API or a client), name, long_poll (the broker waited as asked), at, from_ms,
    to_ms, exchanges.
    """
    durations = reals(exchanges, "latency_ms")
    start = begun(exchanges)
    known = ~np.isnan(durations) & (start != NULL_TIME)
    table = exchanges.filter(pa.array(known))
    width = round(every * 1e6)
    bucket = start[known] // width
    step = np.floor(np.log10(np.maximum(durations[known], 1e-3)) * STEPS).astype(np.int64)
    polls = np.asarray(_is(table, "hold", "timeout"))
    series: list[tuple[str, str, Flags]] = [("", "", np.ones(table.num_rows, np.bool_))]
    for column in ("api", "client_id"):
        groups = group(table, [column])
        names = groups.keys[column].to_pylist()
        busiest = np.argsort(-groups.count(), kind="stable")[:SERIES].tolist()
        series += [(column, NONE if names[code] is None else names[code], groups.code == code) for code in busiest]
    parts: list[pa.Table] = []
    room = CELLS
    for kind, name, mine in series:
        cells, counts = np.unique(
            np.stack([polls[mine].astype(np.int64), bucket[mine], step[mine]], 1), axis=0, return_counts=True
        )
        room -= len(cells)
        if room < 0:
            break
        parts.append(
            pa.table(
                {
                    "series": pa.array([kind] * len(cells), pa.string()),
                    "name": pa.array([name] * len(cells), pa.string()),
                    "long_poll": pa.array(cells[:, 0] > 0),
                    "at": instants(cells[:, 1] * width),
                    "from_ms": figures(10.0 ** (cells[:, 2] / STEPS)),
                    "to_ms": figures(10.0 ** ((cells[:, 2] + 1) / STEPS)),
                    "exchanges": pa.array(counts.astype(np.int64)),
                }
            )
        )
    return pa.concat_tables(parts)


PARTS = (
    "waited as asked", "until data came", "beyond what was asked", "broker", "replication", "rebalance", "throttled",
    "unknown", "queued", "network", "transfer",
)  # fmt: skip
"""What the time of an exchange is made of, as `time_parts` tells them apart."""


def time_parts(exchanges: pa.Table, fetches: pa.Table, every: float) -> pa.Table:
    """Where the time went, per API, client and stretch of time: api, client_id, part (of PARTS), at, until, exchanges,
    total_ms. `every`: seconds of the shortest stretch.

    A fetch's `broker_ms` is what it agreed to wait for and `excess_ms` beyond; where the excess is not known it counts
    as "until data came" for hold=data, as unknown where it is not known whether it waited as asked, else as the
    broker's. A throttled, replicating or rebalancing wait has its own
    name. At most LINES pairs of API and client, those that took longest.
    """
    broker = reals(exchanges, "broker_ms")
    excess = np.full(exchanges.num_rows, np.nan)
    if fetches.num_rows and exchanges.num_rows:
        excess = np.append(reals(fetches, "excess_ms"), np.nan)[locate(keys_of(exchanges), keys_of(fetches))]
    known = ~np.isnan(excess)
    words = {
        word: np.asarray(_is(exchanges, "hold", word)) for word in ("data", "throttled", "replication", "rebalance")
    }
    rest = ~known
    values: dict[str, Float64s] = dict.fromkeys(PARTS, np.zeros(exchanges.num_rows))
    values["waited as asked"] = np.where(known, np.maximum(broker - excess, 0), 0)
    values["beyond what was asked"] = np.where(known, np.maximum(excess, 0), 0)
    for word, part in (("data", "until data came"), ("throttled", "throttled"), ("replication", "replication"),
                       ("rebalance", "rebalance")):  # fmt: skip
        values[part] = np.where(rest & words[word], broker, 0)
        rest = rest & ~words[word]
    unknown = rest & unexplained(exchanges)
    values["unknown"] = np.where(unknown, broker, 0)
    values["broker"] = np.where(rest & ~unknown, broker, 0)
    values["queued"] = reals(exchanges, "queued_ms")
    values["network"] = reals(exchanges, "network_ms")
    values["transfer"] = np.nan_to_num(reals(exchanges, "request_transfer_ms")) + np.nan_to_num(
        reals(exchanges, "response_transfer_ms")
    )
    pairs = group(exchanges, ["api", "client_id"])
    spent = {part: np.maximum(np.nan_to_num(column), 0) for part, column in values.items()}
    every_part = sum((pairs.total(column) for column in spent.values()), np.zeros(len(pairs)))
    listed = np.zeros(len(pairs), np.bool_)
    listed[np.argsort(-every_part, kind="stable")[:LINES]] = True
    bucket, width = _buckets(exchanges, every)
    table = with_columns(exchanges.select(["api", "client_id"]), {"bucket": pa.array(bucket)})
    groups = group(table.filter(pa.array(listed[pairs.code])), ["api", "client_id", "bucket"])
    counts, mine = groups.count(), listed[pairs.code]
    tables = []
    for part, column in spent.items():
        total = groups.total(column[mine])
        rows = pa.array(np.flatnonzero(total > 0))
        found = groups.keys.take(rows)
        columns = {"exchanges": pa.array(counts).take(rows), "total_ms": figures(total).take(rows),
                   "part": pa.array([part] * len(rows), pa.string())}  # fmt: skip
        tables.append(with_columns(found, columns))
    made = pa.concat_tables(tables)
    keys = ["api", "client_id", "part"]
    return stretched(made, ints(made, "bucket"), width, keys, ["exchanges", "total_ms"])


def unexplained(exchanges: pa.Table) -> Flags:
    """Fetches of which it is not known why they were answered when they were: a long poll, or a slow broker."""
    hold = exchanges["hold"].cast(pa.string())
    untold = np.asarray(pc.or_(pc.is_null(hold), pc.fill_null(pc.equal(hold, "unknown"), False)))
    fetches = np.asarray(_is(exchanges, "api", "Fetch")) | np.asarray(_is(exchanges, "api", "ShareFetch"))
    found: Flags = untold & fetches
    return found


def holds(exchanges: pa.Table, every: float) -> pa.Table:
    """Exchanges with a `hold` by API, hold, step of `broker_ms` and stretch of time: api, hold, at, until, from_ms,
    to_ms, exchanges. `every`: seconds of the shortest stretch."""
    broker = reals(exchanges, "broker_ms")
    held = np.asarray(pc.is_valid(exchanges["hold"])) & ~np.isnan(broker)
    table = exchanges.filter(pa.array(held)).select(["api", "hold"])
    step = np.floor(np.log10(np.maximum(broker[held], 1e-3)) * STEPS).astype(np.int64)
    bucket, width = _buckets(exchanges, every)
    columns = {"step": pa.array(step), "exchanges": pa.array(np.ones(len(step), np.int64))}
    found = stretched(with_columns(table, columns), bucket[held], width, ["api", "hold", "step"], ["exchanges"])
    low = ints(found, "step").astype(np.float64)
    ends = {"from_ms": figures(10.0 ** (low / STEPS)), "to_ms": figures(10.0 ** ((low + 1) / STEPS))}
    return with_columns(found, ends).select(["api", "hold", "at", "until", *ends, "exchanges"])


def _buckets(exchanges: pa.Table, every: float) -> tuple[Int64s, int]:
    """The bucket of time of each exchange (-1: unknown), and how long buckets are, in us."""
    start, width = begun(exchanges), max(1, round(every * 1e6))
    found: Int64s = np.where(start == NULL_TIME, -1, start // width)
    return found, width


def outliers(exchanges: pa.Table, fetches: pa.Table) -> pa.Table:
    """The OUTLIERS slowest exchanges: a fetch by its `excess_ms` (left out where that is not known), others by their
    latency without what they lay behind the connection's previous request (which may be a long poll, and is listed
    itself where it is slow).

    Columns: exchange_id, at, api, api_version, client_id, broker, latency_ms, queued_ms, broker_ms, excess_ms, slow_ms
    (what they are ordered by), hold, error, request_file, request_frame, response_file, response_frame, wireshark (a
    display filter).
    """
    excess = np.full(exchanges.num_rows, np.nan)
    waiting = np.zeros(exchanges.num_rows, np.bool_)
    if fetches.num_rows and exchanges.num_rows:
        at = locate(keys_of(exchanges), keys_of(fetches))
        excess, waiting = np.append(reals(fetches, "excess_ms"), np.nan)[at], at >= 0
    durations = reals(exchanges, "latency_ms") - np.nan_to_num(reals(exchanges, "queued_ms"))
    for word in ("timeout", "data", "rebalance"):
        waiting |= np.asarray(_is(exchanges, "hold", word))
    slow = np.where(~np.isnan(excess), excess, durations)
    slow = np.where(waiting & np.isnan(excess), np.nan, slow)
    known = np.flatnonzero(~np.isnan(slow))
    rows = known[np.lexsort((known, -slow[known]))][:OUTLIERS]
    picked = exchanges.take(pa.array(rows))
    columns = {
        "exchange_id": picked["exchange_id"],
        "at": instants(begun(picked)),
        **{name: picked[name] for name in ("api", "api_version", "client_id", "broker", "latency_ms", "queued_ms",
                                           "broker_ms")},
        "excess_ms": figures(excess[rows]),
        "slow_ms": figures(slow[rows]),
        **{name: picked[name] for name in ("hold", "error", "request_file", "request_frame", "response_file",
                                           "response_frame")},
        "wireshark": pa.array([exchange_filter(row) for row in picked.to_pylist()], pa.string()),
    }  # fmt: skip
    return pa.table(columns)


def throughput(exchanges: pa.Table, every: float) -> pa.Table:
    """Per bucket and API (the busiest by bytes, the others together): at, api, exchanges, request_bytes,
    response_bytes, seconds."""
    table = latency(exchanges, None, ("api",), every)
    sums = table.group_by("api", use_threads=False).aggregate([("request_bytes", "sum"), ("response_bytes", "sum")])
    size = pc.add(sums["request_bytes_sum"], sums["response_bytes_sum"])
    busiest = sums.append_column("size", size).sort_by([("size", "descending")])["api"].slice(0, SERIES)
    name = pc.if_else(pc.is_in(table["api"], busiest.combine_chunks()), table["api"], OTHERS)
    columns = ["exchanges", "request_bytes", "response_bytes"]
    out = (
        with_columns(table, {"api": name.combine_chunks()})
        .group_by(["at", "api"], use_threads=False)
        .aggregate([(column, "sum") for column in columns])
        .rename_columns(["at", "api", *columns])
        .sort_by([("at", "ascending"), ("api", "ascending")])
    )
    return with_columns(out, {"seconds": pa.array(np.full(out.num_rows, every))})


def versions(exchanges: pa.Table) -> pa.Table:
    """Which client used which version of which API: client_id, api, api_version, exchanges, errors; at most
    20 LINES."""
    known = exchanges.filter(pc.is_valid(exchanges["api_version"]))
    groups = group(known, ["client_id", "api", "api_version"])
    refused = np.asarray(_is(known, "status", "error"))
    table = pa.table(
        {
            **{name: groups.keys[name] for name in ("client_id", "api", "api_version")},
            "exchanges": pa.array(groups.count()),
            "errors": pa.array(groups.count(refused)),
        }
    )
    return table.slice(0, LINES * 20)


def alive(demand: pa.Table, fetch_sessions: pa.Table, fetches: pa.Table) -> pa.Table:
    """Fetch sessions per broker and bucket of `demand`: broker, at, live, created, evicted, refused, epoch_errors.

    Evicted sessions stand where their loss was told to a client, as the wire shows it."""
    codes = {name: i for i, name in enumerate(dict.fromkeys(demand["broker"].to_pylist()))}
    at = times(demand, "at")
    if not demand.num_rows:
        return with_columns(
            demand.select(["broker", "at", "live", "created"]),
            dict.fromkeys(("evicted", "refused", "epoch_errors"), pa.array([], pa.int64())),
        )
    place = {name: np.flatnonzero(np.array([b == name for b in demand["broker"].to_pylist()])) for name in codes}
    columns = {}
    for column, table, when, flags in (
        ("evicted", fetch_sessions, "closed_at", _is(fetch_sessions, "end_reason", "evicted")),
        ("refused", fetches, "requested_at", _is(fetches, "session_outcome", "refused")),
        ("epoch_errors", fetches, "requested_at", _is(fetches, "session_outcome", "epoch_error")),
    ):
        counts = np.zeros(demand.num_rows, np.int64)
        picked = table.filter(flags)
        instant, brokers = times(picked, when), np.array(picked["broker"].to_pylist(), object)
        for name, rows in place.items():
            mine = instant[(brokers == name) & (instant != NULL_TIME)]
            found = np.clip(np.searchsorted(at[rows], mine, side="right") - 1, 0, len(rows) - 1)
            np.add.at(counts, rows[found], 1)
        columns[column] = pa.array(counts)
    return with_columns(demand.select(["broker", "at", "live", "created"]), columns)


def session_lines(fetch_sessions: pa.Table) -> pa.Table:
    """The sessions to draw: those that ended badly or had most requests, in order of their beginning.

    Columns: session_key, broker, session_id, clients, opened_at, closed_at, left_censored, end_reason, requests,
    first_epoch, last_epoch, epoch_gaps, epoch_repeats, max_partitions, churn, request_bytes,
    full_request_bytes_avoided.
    """
    bad = np.asarray(_is(fetch_sessions, "end_reason", "evicted")) * 2
    bad += np.asarray(pc.greater(pc.add(fetch_sessions["epoch_gaps"], fetch_sessions["epoch_repeats"]), 0)) * 1
    requests = np.asarray(fetch_sessions["requests"])
    rows = np.lexsort((np.arange(len(requests)), -requests, -bad))[:SESSIONS]
    table = fetch_sessions.take(pa.array(rows))
    named = [", ".join(NONE if one is None else one for one in ids or ()) for ids in table["client_ids"].to_pylist()]
    clients = pa.array(named, pa.string())
    table = with_columns(table, {"clients": clients}).select([
        "session_key", "broker", "session_id", "clients", "opened_at", "closed_at", "left_censored", "end_reason",
        "requests", "first_epoch", "last_epoch", "epoch_gaps", "epoch_repeats", "max_partitions", "churn",
        "request_bytes", "full_request_bytes_avoided",
    ])  # fmt: skip
    return table.sort_by([("broker", "ascending"), ("opened_at", "ascending"), ("session_key", "ascending")])


def epochs(fetches: pa.Table, exchanges: pa.Table, lines: pa.Table) -> pa.Table:
    """Fetches of the CHOSEN sessions with most of them: session_key, at, session_epoch, request_kind, epoch_status,
    session_outcome, exchange_id, request_frame. Long sessions are thinned to POINTS; what is not ordinary stays."""
    keys = lines.sort_by([("requests", "descending")])["session_key"].slice(0, CHOSEN)
    mine = fetches.filter(pc.is_in(fetches["session_key"], keys.combine_chunks()))
    groups = group(mine, ["session_key"])
    ordinary = np.asarray(_is(mine, "session_outcome", "continued"))
    order = np.lexsort((times(mine, "requested_at"), groups.code))
    kept: list[npt.NDArray[np.int64]] = []
    edges = np.searchsorted(groups.code[order], np.arange(len(groups) + 1))
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        rows = order[low:high]
        odd = rows[~ordinary[rows]][:POINTS]
        even = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), POINTS)).astype(np.int64))]
        kept.append(np.unique(np.concatenate([odd, even])))
    table = mine.take(pa.array(np.concatenate(kept) if kept else np.zeros(0, np.int64)))
    table = table.sort_by([("session_key", "ascending"), ("requested_at", "ascending")])
    frames = pa.nulls(table.num_rows, pa.int64())
    if table.num_rows:
        at = locate(keys_of(table), keys_of(exchanges))
        frames = exchanges["request_frame"].take(pa.array(at, mask=at < 0)).combine_chunks()
    columns = ["session_key", "requested_at", "session_epoch", "request_kind", "epoch_status", "session_outcome",
               "exchange_id"]  # fmt: skip
    return with_columns(table.select(columns), {"request_frame": frames}).rename_columns(
        ["session_key", "at", *columns[2:], "request_frame"]
    )


def problems(table: pa.Table, lines: Sequence[ProblemLine]) -> pa.Table:
    """Problems by kind, as a summary has them: kind, count, bytes, example, and where that stands: file, frame."""
    kinds, details = (table[name].cast(pa.string()) for name in ("kind", "detail"))
    found = []
    for line in lines:
        same = pc.and_(pc.equal(kinds, line.kind), pc.equal(pc.fill_null(details, ""), line.example))
        at = pc.index(pc.fill_null(same, False), True).as_py()
        place = {name: table[name][at].as_py() if at >= 0 else None for name in ("file", "frame")}
        found.append({"kind": line.kind, "count": line.count, "bytes": line.bytes, "example": line.example} | place)
    columns = [("kind", pa.string()), ("count", pa.int64()), ("bytes", pa.int64()), ("example", pa.string()),
               ("file", pa.string()), ("frame", pa.int64())]  # fmt: skip
    return pa.Table.from_pylist(found, schema=pa.schema(columns))


def begun(exchanges: pa.Table) -> Int64s:
    """When each began, in us since the epoch: an orphan response by its own first byte."""
    begun = times(exchanges, "request_first_at")
    found: Int64s = np.where(begun == NULL_TIME, times(exchanges, "response_first_at"), begun)
    return found


def _is(table: pa.Table, column: str, word: str) -> pa.Array:
    """Whether a text column says that word; null is no."""
    values = one(table, column)
    if values is None:
        return pa.array(np.zeros(table.num_rows, np.bool_))
    return pc.fill_null(pc.equal(values.cast(pa.string()), word), False)

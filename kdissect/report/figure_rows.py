"""The rows behind the report's figures: tables of the contract in, small tables out.

The drawing is bounded by constants here, however large the capture: counts per bucket of time and step of latency,
lists cut where they stop telling anything. Everything is counted in Arrow and numpy; nothing here makes one Python
object per exchange but for the few that are listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.exchange_keys import keys_of, locate
from kdissect.analysis.grouping import Float64s, figures, group
from kdissect.arrays.arrow import NULL_TIME, Flags, Int64s, instants, ints, one, reals, times, with_columns
from kdissect.report.counted import OTHERS, Counted, amounts, count_flags, stretched, summed
from kdissect.summary import ProblemLine
from kdissect.tables.wireshark import exchange_filter

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
STEPS_OF_LINES = 3000
"""Rows that tell what a list has by stretch of time: some 20 kB in the page."""
NONE = "(none)"


def latency_cells(exchanges: pa.Table) -> tuple[pa.Table, Int64s]:
    """Rows that the heat map and quantiles of a stretch count. For each answered exchange: api, client_id, long_poll
    (1: the broker waited as asked), step and up (of latency, rounded down and up), exchanges, errors; and when it
    began."""
    durations, start = reals(exchanges, "latency_ms"), begin_times(exchanges)
    known = ~np.isnan(durations) & (start != NULL_TIME)
    steps = find_steps(durations[known])
    found = exchanges.select(["api", "client_id"]).filter(pa.array(known))
    columns = {
        "long_poll": count_flags(np.asarray(is_word(exchanges, "hold", "timeout"))[known]),
        "step": pa.array(np.floor(steps).astype(np.int64)),
        "up": pa.array(np.ceil(steps).astype(np.int64)),
        "exchanges": count_flags(np.ones(len(steps), np.bool_)),
        "errors": count_flags(np.asarray(is_word(exchanges, "status", "error"))[known]),
    }
    return with_columns(found, columns), start[known]


def find_steps(durations: Float64s) -> Float64s:
    """The step of each duration (ms), and the part of the step; a microsecond at least."""
    steps: Float64s = np.log10(np.maximum(durations, 1e-3)) * STEPS
    return steps


def step_edges(step: Int64s) -> dict[str, pa.Array]:
    """Where steps begin and end: columns from_ms and to_ms."""
    low = step.astype(np.float64)
    return {"from_ms": figures(10.0 ** (low / STEPS)), "to_ms": figures(10.0 ** ((low + 1) / STEPS))}


def heat(of_all: Counted, of_apis: Counted, of_clients: Counted, every: float) -> pa.Table:
    """Exchanges per bucket of time and step of latency: of all, of the busiest APIs and of the busiest clients.

    Columns: series ("" for all, else an API or a client), name, long_poll (the broker waited as asked), at, until,
    from_ms, to_ms, exchanges. The counts are by long_poll and step, with api or client_id before them.
    """
    parts: list[pa.Table] = []
    room = CELLS
    for kind, counted in (("", of_all), ("api", of_apis), ("client_id", of_clients)):
        cells, bucket, width = counted.by_time(every)
        codes, names = np.zeros(cells.num_rows, np.int64), [""]
        if kind:
            groups = group(cells, [kind])
            codes, names = groups.code, groups.keys[kind].to_pylist()
            busiest = np.argsort(-groups.total(reals(cells, "exchanges")), kind="stable")[:SERIES].tolist()
        for code in busiest if kind else [0]:
            mine = np.flatnonzero(codes == code)
            room -= len(mine)
            if room < 0:
                return pa.concat_tables(parts)
            name = NONE if names[code] is None else names[code]
            parts.append(
                pa.table(
                    {
                        "series": pa.array([kind] * len(mine), pa.string()),
                        "name": pa.array([name] * len(mine), pa.string()),
                        "long_poll": pa.array(ints(cells, "long_poll")[mine] > 0),
                        "at": instants(bucket[mine] * width),
                        "until": instants((bucket[mine] + 1) * width),
                        **step_edges(ints(cells, "step")[mine]),
                        "exchanges": pa.array(ints(cells, "exchanges")[mine]),
                    }
                )
            )
    return pa.concat_tables(parts)


def by_api_and_client(quantiles: pa.Table) -> pa.Table:
    """Quantiles per API and client (`Quantiles.table`), the slowest p99 first; at most LINES rows, those with most
    exchanges."""
    columns = [
        "api", "client_id", "exchanges", "errors", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms", "broker_p50_ms",
        "broker_p99_ms", "excess_p50_ms", "excess_p99_ms", "excess_max_ms", "throttled_ms", "per_second",
    ]  # fmt: skip
    most = quantiles.sort_by([("exchanges", "descending")]).slice(0, LINES)
    return most.sort_by([("p99_ms", "descending"), ("exchanges", "descending")]).select(columns)


def by_api(quantiles: pa.Table) -> pa.Table:
    """Quantiles per API, those with most exchanges first."""
    columns = ["api", "exchanges", "errors", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms", "broker_p50_ms",
               "broker_p99_ms"]  # fmt: skip
    answered = quantiles.filter(pc.greater(quantiles["answered"], 0))
    return answered.sort_by([("exchanges", "descending")]).select(columns)


PARTS = (
    "waited as asked", "until data came", "beyond what was asked", "broker", "replication", "rebalance", "throttled",
    "unknown", "queued", "network", "transfer",
)  # fmt: skip
"""What the time of an exchange is made of, as `time_parts` tells them apart."""


def spent(exchanges: pa.Table, fetches: pa.Table) -> pa.Table:
    """The parts of each exchange's time: api, client_id, exchanges (1), and milliseconds of each of PARTS.

    A fetch's `broker_ms` is the wait that it agreed to, and `excess_ms` beyond. Where the excess is not known it counts
    as "until data came" for hold=data, as unknown where it is not known whether it waited as asked, else as the
    broker's. A ShareFetch that waited as long as it asked for has beyond that what is not `agreed_ms`. A throttled,
    replicating or rebalancing wait has its own name.
    """
    held = np.nan_to_num(reals(exchanges, "throttled_ms"))
    broker = reals(exchanges, "broker_ms") - held
    excess = np.full(exchanges.num_rows, np.nan)
    if fetches.num_rows and exchanges.num_rows:
        excess = np.append(reals(fetches, "excess_ms"), np.nan)[locate(keys_of(exchanges), keys_of(fetches))]
    polled = np.asarray(is_word(exchanges, "hold", "timeout")) & np.isnan(excess)
    excess = np.where(polled, broker - reals(exchanges, "agreed_ms"), excess)
    known = ~np.isnan(excess)
    words = {
        word: np.asarray(is_word(exchanges, "hold", word)) for word in ("data", "throttled", "replication", "rebalance")
    }
    rest = ~known
    values: dict[str, Float64s] = dict.fromkeys(PARTS, np.zeros(exchanges.num_rows))
    values["waited as asked"] = np.where(known, np.maximum(broker - excess, 0), 0)
    values["beyond what was asked"] = np.where(known, np.maximum(excess, 0), 0)
    for word, part in (("data", "until data came"), ("throttled", "throttled"), ("replication", "replication"),
                       ("rebalance", "rebalance")):  # fmt: skip
        values[part] = np.where(rest & words[word], broker, 0)
        rest = rest & ~words[word]
    values["throttled"] = values["throttled"] + held
    unknown = rest & unexplained(exchanges)
    values["unknown"] = np.where(unknown, broker, 0)
    values["broker"] = np.where(rest & ~unknown, broker, 0)
    values["queued"] = reals(exchanges, "queued_ms")
    values["network"] = reals(exchanges, "network_ms")
    values["transfer"] = np.nan_to_num(reals(exchanges, "request_transfer_ms")) + np.nan_to_num(
        reals(exchanges, "response_transfer_ms")
    )
    sums = {part: amounts(column) for part, column in values.items()}
    count = {"exchanges": count_flags(np.ones(exchanges.num_rows, np.bool_))}
    return with_columns(exchanges.select(["api", "client_id"]), count | sums)


def time_parts(counted: Counted, every: float) -> pa.Table:
    """Where the time went, per API, client and stretch of time: api, client_id, part (of PARTS), at, until, exchanges,
    total_ms. Of at most LINES pairs of API and client, those that took longest. `counted`: rows of `spent`."""
    found, bucket, width = counted.by_time(every)
    pairs = group(found, ["api", "client_id"])
    every_part = sum((pairs.total(reals(found, part)) for part in PARTS), np.zeros(len(pairs)))
    listed = np.zeros(len(pairs), np.bool_)
    listed[np.argsort(-every_part, kind="stable")[:LINES]] = True
    tables, places = [], []
    for part in PARTS:
        total = reals(found, part)
        rows = np.flatnonzero((total > 0) & listed[pairs.code]) if len(total) else np.zeros(0, np.int64)
        named = {"total_ms": figures(total[rows]), "part": pa.array([part] * len(rows), pa.string())}
        tables.append(with_columns(found.select(["api", "client_id", "exchanges"]).take(pa.array(rows)), named))
        places.append(bucket[rows])
    keys = ["api", "client_id", "part"]
    return stretched(pa.concat_tables(tables), np.concatenate(places), width, keys, ["exchanges", "total_ms"])


def unexplained(exchanges: pa.Table) -> Flags:
    """Fetches that may have been a long poll, or answered by a slow broker: the capture does not show why they were
    answered then."""
    hold = exchanges["hold"].cast(pa.string())
    untold = np.asarray(pc.or_(pc.is_null(hold), pc.fill_null(pc.equal(hold, "unknown"), False)))
    fetches = np.asarray(is_word(exchanges, "api", "Fetch")) | np.asarray(is_word(exchanges, "api", "ShareFetch"))
    found: Flags = untold & fetches
    return found


def hold_rows(exchanges: pa.Table) -> tuple[pa.Table, Int64s]:
    """Exchanges with a `hold`: api, hold, step of `broker_ms`, exchanges (1); and when each began."""
    broker = reals(exchanges, "broker_ms")
    known = np.asarray(pc.is_valid(exchanges["hold"])) & ~np.isnan(broker)
    step = np.floor(np.log10(np.maximum(broker[known], 1e-3)) * STEPS).astype(np.int64)
    table = exchanges.select(["api", "hold"]).filter(pa.array(known))
    columns = {"step": pa.array(step), "exchanges": count_flags(np.ones(len(step), np.bool_))}
    return with_columns(table, columns), begin_times(exchanges)[known]


def holds(counted: Counted, every: float) -> pa.Table:
    """Exchanges with a `hold` by API, hold, step of `broker_ms` and stretch of time: api, hold, at, until, from_ms,
    to_ms, exchanges. `counted`: rows of `hold_rows`."""
    found = counted.rows(every)
    low = ints(found, "step").astype(np.float64)
    ends = {"from_ms": figures(10.0 ** (low / STEPS)), "to_ms": figures(10.0 ** ((low + 1) / STEPS))}
    return with_columns(found, ends).select(["api", "hold", "at", "until", *ends, "exchanges"])


def slowest(exchanges: pa.Table, fetches: pa.Table) -> pa.Table:
    """The OUTLIERS slowest exchanges with `excess_ms` and `slow_ms`. A fetch counts by its `excess_ms` (left out where
    that is not known). Others count by their latency without the time behind the connection's previous request (which
    may be a long poll, and is listed itself where it is slow)."""
    excess = np.full(exchanges.num_rows, np.nan)
    waiting = np.zeros(exchanges.num_rows, np.bool_)
    if fetches.num_rows and exchanges.num_rows:
        at = locate(keys_of(exchanges), keys_of(fetches))
        excess, waiting = np.append(reals(fetches, "excess_ms"), np.nan)[at], at >= 0
    durations = reals(exchanges, "latency_ms") - np.nan_to_num(reals(exchanges, "queued_ms"))
    for word in ("timeout", "data", "rebalance"):
        waiting |= np.asarray(is_word(exchanges, "hold", word))
    slow = np.where(~np.isnan(excess), excess, durations)
    slow = np.where(waiting & np.isnan(excess), np.nan, slow)
    known = np.flatnonzero(~np.isnan(slow))
    rows = known[np.lexsort((known, -slow[known]))][:OUTLIERS]
    picked = exchanges.select([name for name in SLOWEST if name in exchanges.column_names]).take(pa.array(rows))
    return with_columns(picked, {"excess_ms": figures(excess[rows]), "slow_ms": figures(slow[rows])})


SLOWEST = (
    "exchange_id", "request_first_at", "response_first_at", "api", "api_version", "client_id", "broker", "latency_ms",
    "queued_ms", "broker_ms", "hold", "error", "request_file", "request_frame", "response_file", "response_frame",
    "client_ip", "client_port", "broker_ip", "broker_port", "correlation_id",
)  # fmt: skip
"""Columns of `exchanges` that `outliers` reads."""


def outliers(picked: pa.Table) -> pa.Table:
    """Rows of `slowest` as they are listed: exchange_id, at, api, api_version, client_id, broker, latency_ms,
    queued_ms, broker_ms, excess_ms, slow_ms (the order of the list), hold, error. Then request_file, request_frame,
    response_file, response_frame, wireshark (a display filter)."""
    columns = {
        "exchange_id": picked["exchange_id"],
        "at": instants(begin_times(picked)),
        **{name: picked[name] for name in ("api", "api_version", "client_id", "broker", "latency_ms", "queued_ms",
                                           "broker_ms", "excess_ms", "slow_ms", "hold", "error", "request_file",
                                           "request_frame", "response_file", "response_frame")},
        "wireshark": pa.array([exchange_filter(row) for row in picked.to_pylist()], pa.string()),
    }  # fmt: skip
    return pa.table(columns)


def throughput(counted: Counted, every: float) -> pa.Table:
    """Per bucket and API (the busiest by bytes, the others together): at, api, exchanges, request_bytes,
    response_bytes, seconds. `counted`: the three sums by API."""
    found, bucket, width = counted.by_time(every)
    size = reals(found, "request_bytes") + reals(found, "response_bytes")
    groups = group(found, ["api"])
    busiest = groups.keys["api"].take(pa.array(np.argsort(-groups.total(size), kind="stable")[:SERIES]))
    name = pc.if_else(pc.is_in(found["api"], busiest.combine_chunks()), found["api"], OTHERS)
    columns = {"api": name.combine_chunks(), "at": pa.array(np.where(bucket < 0, NULL_TIME, bucket * width))}
    out = summed(with_columns(found, columns), ["at", "api"], counted.sums)
    out = with_columns(out, {"at": instants(ints(out, "at", NULL_TIME))})
    out = with_columns(out, {"seconds": pa.array(np.full(out.num_rows, width / 1e6))})
    return out.sort_by([("at", "ascending"), ("api", "ascending")])


def versions(counted: Counted) -> pa.Table:
    """Clients and the versions of APIs that they used: client_id, api, api_version, exchanges, errors; at most
    20 LINES. `counted`: by client, API and version."""
    return counted.totals().slice(0, LINES * 20).select(["client_id", "api", "api_version", "exchanges", "errors"])


def lines_over_time(counted: Counted, lines: pa.Table, every: float, most: int = STEPS_OF_LINES) -> pa.Table:
    """The rows of a list in a stretch of time: line (its row there, found by the keys counted by), at, until, and
    sums."""
    place = {key: i for i, key in enumerate(zip(*(lines[name].to_pylist() for name in counted.keys), strict=True))}
    found, bucket, width = counted.by_time(every)
    keys = zip(*(found[name].to_pylist() for name in counted.keys), strict=True)
    line = np.array([place.get(key, -1) for key in keys], np.int64)
    listed = line >= 0
    rows = with_columns(found.filter(pa.array(listed)), {"line": pa.array(line[listed])})
    return stretched(rows, bucket[listed], width, ["line"], counted.sums, most)


def problems(lines: Sequence[ProblemLine], places: Mapping[tuple[str, str], tuple[str | None, int | None]]) -> pa.Table:
    """Problems by kind, as a summary has them: kind, count, bytes, example, and where that stands: file, frame.
    `places`: file and frame by kind and example."""
    found = []
    for line in lines:
        file, frame = places.get((line.kind, line.example), (None, None))
        place = {"file": file, "frame": frame}
        found.append({"kind": line.kind, "count": line.count, "bytes": line.bytes, "example": line.example} | place)
    columns = [("kind", pa.string()), ("count", pa.int64()), ("bytes", pa.int64()), ("example", pa.string()),
               ("file", pa.string()), ("frame", pa.int64())]  # fmt: skip
    return pa.Table.from_pylist(found, schema=pa.schema(columns))


def begin_times(exchanges: pa.Table) -> Int64s:
    """When each began, in us since the epoch: an orphan response by its own first byte."""
    begun = times(exchanges, "request_first_at")
    found: Int64s = np.where(begun == NULL_TIME, times(exchanges, "response_first_at"), begun)
    return found


def is_word(table: pa.Table, column: str, word: str) -> pa.Array:
    """Whether a text column says that word; null is no."""
    values = one(table, column)
    if values is None:
        return pa.array(np.zeros(table.num_rows, np.bool_))
    return pc.fill_null(pc.equal(values.cast(pa.string()), word), False)

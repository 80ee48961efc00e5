"""Two captures compared: before and after a change, or the same traffic at two places.

Captures are given as their tables (`exchanges`; `fetches` for excess; `connections` for what clients run). Nothing is
invented: what only one of them has is null on the other side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from kdissect.analysis.change import SURE, with_changes
from kdissect.analysis.cluster_split import clusters_of, known_clusters, with_cluster
from kdissect.analysis.grouping import figures, group
from kdissect.analysis.latency import checked, latency
from kdissect.arrays.arrow import NULL_TIME, Int64s, ints, one, reals, times

Tables = Mapping[str, pa.Table]
COMPARED = ("exchanges", "errors", "p50_ms", "p99_ms", "max_ms", "broker_p50_ms", "broker_p99_ms", "excess_p99_ms")
"""Columns of `latency` that stand side by side."""
MATCHED_BY = ("client_ip", "client_port", "broker_ip", "broker_port", "api_key", "api_version", "correlation_id")
"""What makes two captured exchanges the same one; equal ones are told apart by their order."""


def diff(a: Tables, b: Tables, by: Sequence[str] = ("api",)) -> dict[str, pa.Table]:
    """Everything at once: `latency`, `versions`, `errors`, and `network` (empty when the traffic is not the same)."""
    return {
        "latency": slower(a, b, by),
        "versions": versions(a, b),
        "errors": errors(a, b),
        "network": network(a["exchanges"], b["exchanges"]),
    }


def slower(a: Tables, b: Tables, by: Sequence[str] = ("api",)) -> pa.Table:
    """Figures of `latency` of both captures side by side, and of the time that no client had asked to wait for.

    `by`: as in `latency`; captures of one cluster each are compared by its names, whichever cluster it is. Columns:
    those grouped by; for each of COMPARED `<name>_a` and `<name>_b`; change_p50_ms and change_p99_ms (b - a, null where
    either is missing), ratio_p50. The columns of `kdissect.analysis.change` follow:
    own durations, idle long polls apart, and how sure a change is. Rows whose own durations grew surely come first, the
    largest growth of the median first.
    """
    columns = checked(by)
    if "cluster" not in by and all(len(known_clusters(clusters_of(side))) < 2 for side in (a, b)):
        a, b = ({**side, "exchanges": with_cluster(side["exchanges"], None)} for side in (a, b))
    named = ("fetch_partitions", "fetches", "session_partitions", "record_batches")
    sides = [latency(x["exchanges"], by=by, **{name: x[name] for name in named if name in x}) for x in (a, b)]
    joined = _side_by_side(sides[0], sides[1], columns, COMPARED)
    for name in ("p50_ms", "p99_ms"):
        joined = joined.append_column(
            "change_" + name, figures(reals(joined, name + "_b") - reals(joined, name + "_a"))
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = reals(joined, "p50_ms_b") / reals(joined, "p50_ms_a")
    joined = joined.append_column("ratio_p50", figures(np.where(np.isfinite(ratio), ratio, np.nan)))
    joined = with_changes(joined, a, b, columns)
    grown = np.nan_to_num(reals(joined, "change_own_ms"), nan=-np.inf)
    sure = np.nan_to_num(reals(joined, "p_value"), nan=1.0) < SURE
    return joined.take(pa.array(np.lexsort((-grown, ~(sure & (grown > 0))))))


def versions(a: Tables, b: Tables) -> pa.Table:
    """Clients that use other API versions: client_id, api, versions_a, versions_b (lists); only where they differ."""
    sides = []
    for tables in (a, b):
        groups = group(tables["exchanges"], ["client_id", "api", "api_version"])
        found: dict[tuple[str | None, str | None], list[int]] = {}
        for row in groups.keys.to_pylist():
            if row["api_version"] is not None:
                found.setdefault((row["client_id"], row["api"]), []).append(row["api_version"])
        sides.append(found)
    keys = sorted(sides[0].keys() | sides[1].keys(), key=lambda key: (str(key[0]), str(key[1])))
    rows = [(key, sides[0].get(key), sides[1].get(key)) for key in keys]
    rows = [row for row in rows if row[1] != row[2]]
    numbers = pa.list_(pa.int32())
    return pa.table(
        {
            "client_id": pa.array([key[0] for key, _, _ in rows], pa.string()),
            "api": pa.array([key[1] for key, _, _ in rows], pa.string()),
            "versions_a": pa.array([one for _, one, _ in rows], numbers),
            "versions_b": pa.array([two for _, _, two in rows], numbers),
        }
    )


def errors(a: Tables, b: Tables) -> pa.Table:
    """Errors by API: api, error, count_a, count_b, those that grew most first; counts are exchanges."""
    sides = []
    for tables in (a, b):
        exchanges = tables["exchanges"]
        failed = exchanges.filter(pa.array(ints(exchanges, "error_code", 0) != 0))
        groups = group(failed, ["api", "error"])
        sides.append(groups.keys.append_column("count", pa.array(groups.count())))
    joined = _side_by_side(sides[0], sides[1], ["api", "error"], ("count",))
    counts = [ints(joined, name, 0) for name in ("count_a", "count_b")]
    for name, values in zip(("count_a", "count_b"), counts, strict=True):
        joined = joined.set_column(joined.schema.get_field_index(name), name, pa.array(values))
    return joined.take(pa.array(np.argsort(counts[0] - counts[1], kind="stable")))


def _side_by_side(a: pa.Table, b: pa.Table, keys: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """Full outer join of two tables with one row per key each; null keys are equal to each other."""
    both = pa.concat_tables([table.select(list(keys)) for table in (a, b)], promote_options="permissive")
    if keys:
        groups = group(both, keys)
        code, size = groups.code, len(groups)
    else:
        code, size = np.zeros(a.num_rows + b.num_rows, np.int64), min(1, a.num_rows + b.num_rows)
    out = {name: groups.keys[name] for name in keys}
    for suffix, table, mine in (("_a", a, code[: a.num_rows]), ("_b", b, code[a.num_rows :])):
        at = np.full(size, -1, np.int64)
        at[mine] = np.arange(table.num_rows)
        for name in columns:
            out[name + suffix] = table[name].take(pa.array(at, mask=at < 0))
    return pa.table(out)


def match(a: pa.Table, b: pa.Table) -> tuple[Int64s, Int64s]:
    """Rows of two `exchanges` tables that are the same exchange, captured twice: (rows of a, rows of b).

    Exchanges are matched by addresses, API, version and correlation id, within equal ones by their order. Where the
    captures have different numbers of equal ones (correlation ids that repeat, with losses) none is matched. Addresses
    have to be the same at both places: behind address translation nothing matches.
    """
    both = pa.concat_tables([table.select(list(MATCHED_BY)) for table in (a, b)], promote_options="permissive")
    code = group(both, MATCHED_BY).code
    size = int(code.max(initial=-1)) + 1
    codes = code[: a.num_rows], code[a.num_rows :]
    counts = [np.bincount(mine, minlength=size) for mine in codes]
    same = counts[0] == counts[1]
    rows = []
    for table, mine in zip((a, b), codes, strict=True):
        known = one(table, "api_key")
        fit = same[mine] & (ints(table, "api_key") >= 0) if known is not None else np.zeros(len(mine), np.bool_)
        kept = np.flatnonzero(fit)
        begun = times(table, "request_first_at")
        rows.append(kept[np.lexsort((begun[kept], mine[kept]))])
    return rows[0], rows[1]


def network(a: pa.Table, b: pa.Table) -> pa.Table:
    """Network time between two places where the same traffic was captured, per client and broker.

    For an exchange that both saw, the place with the longer way round is nearer to the client. `broker_ms` begins when
    the request is complete and ends when the response begins, so its difference is the round trip between the two
    places. The difference of `latency_ms` has also what transfer took longer. No clocks are compared, only durations.

    Columns: client_ip, client_id, broker, exchanges (matched), nearer_to_client ("a" or "b", by most of them; null
    where both are as near), round_trip_p50_ms, round_trip_p99_ms, round_trip_max_ms, latency_p50_ms (difference),
    clock_offset_ms. The last one is the median of b's request times less a's, less half the round trip towards the
    broker: an estimate of how b's clock runs against a's.
    """
    left, right = match(a, b)
    first, second = a.take(pa.array(left)), b.take(pa.array(right))
    trip = reals(first, "broker_ms") - reals(second, "broker_ms")
    longer = reals(first, "latency_ms") - reals(second, "latency_ms")
    begun = times(first, "request_last_at"), times(second, "request_last_at")
    known = (begun[0] != NULL_TIME) & (begun[1] != NULL_TIME) & ~np.isnan(trip)
    offset = np.where(known, (begun[1] - begun[0]) / 1000.0 - trip / 2, np.nan)
    groups = group(first, ["client_ip", "client_id", "broker"])
    leaning = groups.total(np.sign(trip))
    nearer = ["a" if one > 0 else "b" if one < 0 else None for one in leaning.tolist()]
    sign = np.where(leaning < 0, -1.0, 1.0)[groups.code]
    median, late, most = groups.quantiles(trip * sign, [0.5, 0.99, 1.0])
    return pa.table(
        {
            **{name: groups.keys[name] for name in ("client_ip", "client_id", "broker")},
            "exchanges": pa.array(groups.count()),
            "nearer_to_client": pa.array(nearer, pa.string()),
            "round_trip_p50_ms": figures(median),
            "round_trip_p99_ms": figures(late),
            "round_trip_max_ms": figures(most),
            "latency_p50_ms": figures(groups.quantiles(longer * sign, [0.5])[0]),
            "clock_offset_ms": figures(groups.quantiles(offset, [0.5])[0]),
        }
    )

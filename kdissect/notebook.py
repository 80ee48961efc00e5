"""Charts for notebooks: tables of kdissect in, Altair charts out.

Every function takes tables of the contract (Arrow, pandas, polars, anything with the Arrow PyCapsule interface), and
returns an Altair chart that can be changed further. Tables may come from a capture just read, from Parquet, or from
Spark, collected. The figures are worked out by `kdissect.analysis`; times are UTC, durations milliseconds. Rows go into
the chart itself, so that a saved notebook needs no other file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.grouping import group
from kdissect.analysis.latency import DIMENSIONS, latency
from kdissect.analysis.sessions.slots import slot_demand
from kdissect.arrays.arrow import NULL_TIME, ints, reals, times
from kdissect.installed_copy import install_command
from kdissect.problems import UsageError

try:
    import altair as alt
except ImportError:
    raise ImportError(f"kdissect.notebook needs altair: {install_command('notebook')}") from None

__all__ = ["epochs", "heat_map", "quantiles", "session_timeline", "slots", "throughput", "waits"]

Chart = Any
"""An `altair.TopLevelMixin`; Altair ships its own types only from version to version."""
SECOND = 1_000_000
"""In microseconds."""
BUCKETS = 80
"""Buckets of time in a chart whose caller names no length: about as many as a screen's width shows apart."""
DECADE = 8
"""Bands of latency for each power of ten in a heat map: a third wider from one to the next."""
MOST_ROWS = 4000
"""Rows that go into one chart at most: browsers stay quick and saved notebooks small."""
PARTS = ("long poll", "throttled", "queued", "broker", "transfer", "not known")
"""What a fetch's time went into, in the order in which the bars are stacked."""
PART_COLOURS = ("#9ecae1", "#fdae6b", "#bcbddc", "#d62728", "#a1d99b", "#d9d9d9")
ENDS = ("open", "closed", "empty", "replaced", "evicted")
END_COLOURS = ("#3182bd", "#74c476", "#c7e9c0", "#bcbddc", "#d62728")
UNITS = {"_ms": "milliseconds", "_bytes": "bytes"}
"""Endings of columns' names, and the units that they stand for."""
WIDTH = 640


def heat_map(exchanges: Any, column: str = "latency_ms", every: float | None = None) -> Chart:
    """How many exchanges took how long, over time: a column of `exchanges` or `fetches` in milliseconds.

    `every`: length of a bucket in seconds. Rows without a value are left out. Raises UsageError when there is no such
    column.
    """
    table = _arrow(exchanges)
    if column not in table.column_names:
        raise UsageError(f"there is no column {column!r} in this table")
    begun, values = _begin_instants(table), reals(table, column)
    seen = (begun != NULL_TIME) & (values > 0)
    width = _width(begun[seen], every)
    bands = np.floor(np.log10(values[seen]) * DECADE).astype(np.int64)
    cells, counts = np.unique(np.stack([begun[seen] // width, bands], 1), axis=0, return_counts=True)
    rows = [
        {
            "at": bucket * width / 1000, "until": (bucket + 1) * width / 1000, "from": _rounded(10 ** (band / DECADE)),
            "to": _rounded(10 ** ((band + 1) / DECADE)), "count": count,
        }
        for (bucket, band), count in zip(cells.tolist(), counts.tolist(), strict=True)
    ]  # fmt: skip
    scale = alt.Scale(type="log", nice=False)
    return (
        _chart(rows)
        .mark_rect()
        .encode(
            x=_time("at"),
            x2="until:T",
            y=alt.Y("from:Q", scale=scale, title=f"{_words(column)} (log scale)"),
            y2="to:Q",
            color=alt.Color("count:Q", scale=alt.Scale(type="log", scheme="blues"), title="rows"),
            tooltip=[_tip("from:Q", "from, milliseconds"), _tip("to:Q", "to, milliseconds"), _tip("count:Q", "rows")],
        )
        .properties(width=WIDTH, height=220)
    )


def quantiles(
    exchanges: Any, by: str = "api", every: float | None = None, shares: Sequence[str] = ("p50_ms", "p99_ms")
) -> Chart:
    """Quantiles of latency over time, a line for each value of `by` (see `kdissect.analysis.latency.DIMENSIONS`; not
    topic) and a chart for each of `shares` (columns of `latency`). A line breaks where a bucket has no rows.

    Raises UsageError for an unknown grouping.
    """
    table = _arrow(exchanges)
    begun = _begin_instants(table)
    seconds = _width(begun[begun != NULL_TIME], every) / SECOND
    figures = latency(table, by=[by], every=seconds)
    begins, names = figures["at"].to_pylist(), _names(figures, by)
    rows = [
        {"at": _ms(at), "group": name, "quantile": share.removesuffix("_ms"), "ms": _rounded(ms)}
        for share in shares
        for at, name, ms in zip(begins, names, figures[share].to_pylist(), strict=True)
        if at is not None and ms is not None
    ]
    _number_stretches(rows, ("group", "quantile"), seconds)
    return (
        _chart(rows)
        .mark_line(point=alt.OverlayMarkDef(size=14), strokeWidth=1)
        .encode(
            x=_time("at"),
            y=alt.Y("ms:Q", scale=alt.Scale(type="log", nice=False), title="milliseconds (log scale)"),
            color=alt.Color("group:N", title=_words(by)),
            detail="stretch:N",
            tooltip=[_tip("group:N", _words(by)), "quantile:N", _tip("ms:Q", "milliseconds")],
        )
        .properties(width=WIDTH, height=130)
        .facet(row=alt.Row("quantile:N", title=None, sort=[share.removesuffix("_ms") for share in shares]))
    )


def waits(fetches: Any, by: str = "client_id", top: int = 12) -> Chart:
    """The time of fetches by what it went into, a bar for each value of a column. Its parts are the long poll that the
    client asked for, throttling, waiting behind its own earlier requests, the broker (`excess_ms`) and the transfer of
    the response. The last part is what cannot be known.

    The `top` groups with the most time are drawn. Raises UsageError when there is no such column.
    """
    table = _arrow(fetches)
    if by not in table.column_names:
        raise UsageError(f"there is no column {by!r} in this table")
    groups = group(table, [by])
    names = [_text(value) for value in groups.keys[by].to_pylist()]
    parts = split(table)
    sums = {part: np.bincount(groups.code, values, len(groups)) for part, values in parts.items()}
    first = np.argsort(-sum(sums.values()), kind="stable")[:top].tolist()
    rows = [
        {"group": names[i], "part": part, "order": order, "seconds": _rounded(float(sums[part][i]) / 1000)}
        for i in first
        for order, part in enumerate(PARTS)
        if sums[part][i] > 0
    ]
    return (
        _chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("seconds:Q", title="seconds in all fetches"),
            y=alt.Y("group:N", sort=[names[i] for i in first], title=_words(by)),
            color=alt.Color("part:N", scale=alt.Scale(domain=PARTS, range=PART_COLOURS), title="time went into"),
            order="order:Q",
            tooltip=[_tip("group:N", _words(by)), "part:N", "seconds:Q"],
        )
        .properties(width=WIDTH)
    )


def split(fetches: pa.Table) -> dict[str, npt.NDArray[np.float64]]:
    """Milliseconds of each fetch by PARTS; a part that is not there is 0. They add up to `latency_ms`, less what the
    request itself took to arrive."""
    broker, excess = reals(fetches, "broker_ms"), reals(fetches, "excess_ms")
    queued, whole = reals(fetches, "queued_ms"), reals(fetches, "latency_ms")
    hold = np.array([value or "" for value in fetches["hold"].to_pylist()], dtype=object)
    beyond = np.where(np.isnan(excess), 0.0, excess)
    agreed = np.where(np.isnan(broker), 0.0, broker) - beyond
    polled, throttled = np.isin(hold, ["timeout", "data"]), hold == "throttled"
    known = polled | throttled | (~np.isnan(excess))
    rest = whole - broker - queued
    return {
        "long poll": np.where(polled, agreed, 0.0),
        "throttled": np.where(throttled, agreed, 0.0),
        "queued": np.where(np.isnan(queued), 0.0, queued),
        "broker": beyond,
        "transfer": np.where(np.isnan(rest), 0.0, np.maximum(rest, 0.0)),
        "not known": np.where(known, 0.0, agreed),
    }


def session_timeline(fetch_sessions: Any) -> Chart:
    """Fetch sessions as bars from their first to their last instant, a chart for each broker, coloured by how they
    ended. Sessions that were there before the capture have a dashed outline. At most MOST_ROWS, those with the most
    requests."""
    table = _arrow(fetch_sessions)
    opened, closed = times(table, "opened_at"), times(table, "closed_at")
    known = np.concatenate([opened[opened != NULL_TIME], closed[closed != NULL_TIME]])
    end = int(known.max()) if len(known) else 0
    busiest = np.argsort(-ints(table, "requests", 0), kind="stable")[:MOST_ROWS]
    columns = ("session_key", "broker", "session_id", "client_ids", "requests", "end_reason", "left_censored")
    rows = [
        {
            **{name: row[name] for name in ("session_key", "requests", "end_reason", "left_censored")},
            "broker": _text(row["broker"]), "clients": ", ".join(_text(name) for name in row["client_ids"] or []),
            "session": str(row["session_id"]), "from": int(opened[i]) / 1000,
            "to": (end if closed[i] == NULL_TIME else int(closed[i])) / 1000,
        }
        for i, row in zip(busiest.tolist(), table.select(columns).take(pa.array(busiest)).to_pylist(), strict=True)
    ]  # fmt: skip
    drawn = (
        alt.Chart()
        .mark_bar(height=6, stroke="black", strokeWidth=0.6)
        .encode(
            x=_time("from"),
            x2="to:T",
            y=alt.Y("session_key:N", sort=alt.EncodingSortField("from", op="min"), axis=None),
            color=alt.Color("end_reason:N", scale=alt.Scale(domain=ENDS, range=END_COLOURS), title="end"),
            strokeDash=alt.StrokeDash(
                "left_censored:N", scale=alt.Scale(domain=[False, True], range=[[1, 0], [3, 2]]), title="seen late"
            ),
            tooltip=[_tip("session_key:N", "session"), "clients:N", "requests:Q", _tip("end_reason:N", "end")],
        )
        .properties(width=WIDTH, height=alt.Step(9))
    )
    return drawn.facet(row=alt.Row("broker:N", title="broker"), data=_data(rows)).resolve_scale(y="independent")


def slots(fetch_sessions: Any, every: float | None = None, cache: int | None = None) -> Chart:
    """Fetch sessions alive at once by broker over time: the session cache slots that its clients need.

    `cache`: slots that each broker has (`max.incremental.fetch.session.cache.slots`), drawn as a line.
    """
    demand = slot_demand(_arrow(fetch_sessions), every, by_shard=False)
    columns = (demand[name].to_pylist() for name in ("at", "broker", "live"))
    rows: list[dict[str, Any]] = []
    for at, broker, live in zip(*columns, strict=True):
        if not rows or (rows[-1]["broker"], rows[-1]["live"]) != (_text(broker), live):
            rows.append({"at": _ms(at), "broker": _text(broker), "live": live})
    ends = {row["broker"] for row in rows}
    rows += [{**[row for row in rows if row["broker"] == name][-1], "at": _ms(max(demand["at"].to_pylist()))}
             for name in sorted(ends)]  # fmt: skip
    lines = (
        _chart(rows)
        .mark_line(interpolate="step-after")
        .encode(x=_time("at"), y=alt.Y("live:Q", title="sessions alive"), color=alt.Color("broker:N", title="broker"))
    )
    if cache is not None:
        lines += (
            _chart([{"cache": cache}]).mark_rule(strokeDash=[4, 4]).encode(y=alt.Y("cache:Q", title="sessions alive"))
        )
    return lines.properties(width=WIDTH, height=160)


def epochs(fetches: Any, session_key: str) -> Chart:
    """The fetches of one session by time and epoch. A straight climb is a session as it should be, and a point off the
    line is a repeat or a gap. The colour says what the broker made of it.

    Of more than MOST_ROWS fetches those that went on are thinned out. Raises UsageError when no fetch names it.
    """
    table = _arrow(fetches)
    mine = table.filter(pa.compute.equal(table["session_key"], session_key))
    if not mine.num_rows:
        raise UsageError(f"no fetch belongs to the session {session_key!r}")
    names = ("exchange_id", "requested_at", "session_epoch", "session_outcome", "epoch_status", "client_id",
             "request_kind")  # fmt: skip
    every = 1 + mine.num_rows // MOST_ROWS
    rows = [
        {
            "at": _ms(row["requested_at"]), "epoch": row["session_epoch"], "exchange": row["exchange_id"],
            "outcome": row["session_outcome"] or "no response", "status": row["epoch_status"] or "",
            "client": _text(row["client_id"]), "kind": row["request_kind"],
        }
        for i, row in enumerate(mine.select(names).to_pylist())
        if row["requested_at"] is not None and (i % every == 0 or row["session_outcome"] != "continued")
    ]  # fmt: skip
    return (
        _chart(rows)
        .mark_point(filled=True, size=30)
        .encode(
            x=_time("at"),
            y=alt.Y("epoch:Q", title="epoch of the request"),
            color=alt.Color("outcome:N", title="outcome"),
            shape=alt.Shape("kind:N", title="request"),
            tooltip=["exchange:N", "client:N", "epoch:Q", "kind:N", "status:N", "outcome:N"],
        )
        .properties(width=WIDTH, height=200, title=f"session {session_key}")
    )


def throughput(exchanges: Any, by: str = "api", every: float | None = None) -> Chart:
    """Bytes per second of requests and of responses over time, stacked by `by` (as in `quantiles`), counted at the
    request's begin."""
    table = _arrow(exchanges)
    begun = _begin_instants(table)
    seconds = _width(begun[begun != NULL_TIME], every) / SECOND
    figures = latency(table, by=[by], every=seconds)
    begins, names = figures["at"].to_pylist(), _names(figures, by)
    rows: list[dict[str, Any]] = []
    for side in ("request", "response"):
        height: dict[float, int] = {}
        for at, name, size in zip(begins, names, figures[f"{side}_bytes"].to_pylist(), strict=True):
            if at is None or not size:
                continue
            begin, rate = _ms(at), round(size / seconds)
            low = height.get(begin, 0)
            height[begin] = low + rate
            rows.append({"at": begin, "until": begin + seconds * 1000, "group": name, "side": f"{side}s",
                         "rate": rate, "low": low, "high": low + rate})  # fmt: skip
    return (
        _chart(rows)
        .mark_rect()
        .encode(
            x=_time("at"),
            x2="until:T",
            y=alt.Y("low:Q", title="bytes per second", axis=alt.Axis(format="~s")),
            y2="high:Q",
            color=alt.Color("group:N", title=_words(by)),
            tooltip=[_tip("group:N", _words(by)), alt.Tooltip("rate:Q", format=",", title="bytes per second")],
        )
        .properties(width=WIDTH, height=110)
        .facet(row=alt.Row("side:N", title=None))
        .resolve_scale(y="independent")
    )


def _arrow(table: Any) -> pa.Table:
    """Any table as an Arrow table. polars gives texts as views, which Arrow itself cannot do much with."""
    if isinstance(table, pa.Table):
        return table
    arrow = pa.table(table)
    plain = [field.with_type(pa.string()) if str(field.type) == "string_view" else field for field in arrow.schema]
    return arrow.cast(pa.schema(plain))


def _begin_instants(table: pa.Table) -> npt.NDArray[np.int64]:
    """When each row began, microseconds: the request, or the response where the request was not captured."""
    if "request_first_at" not in table.column_names:
        return times(table, "requested_at")
    begun = times(table, "request_first_at")
    return np.where(begun == NULL_TIME, times(table, "response_first_at"), begun)


def _width(starts: npt.NDArray[np.int64], every: float | None) -> int:
    """Microseconds of a bucket of time. Raises UsageError for one that is no length."""
    if every is not None:
        if not every > 0:
            raise UsageError("time buckets must be longer than nothing, such as 1 (second)")
        return max(1, round(every * SECOND))
    return max(1000, (int(starts.max()) - int(starts.min())) // BUCKETS) if len(starts) else SECOND


def _tip(field: str, title: str) -> Any:
    return alt.Tooltip(field, title=title)


def _number_stretches(rows: list[dict[str, Any]], keys: Sequence[str], seconds: float) -> None:
    """Gives each row a `stretch`: a number that grows where more than a bucket of `seconds` lies between rows of the
    same `keys`. A line through one stretch crosses no time without rows."""
    last: dict[tuple[Any, ...], tuple[float, int]] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        key = tuple(row[name] for name in keys)
        at, stretch = last.get(key, (row["at"], 0))
        stretch += row["at"] - at > 1.5 * seconds * 1000  # buckets are whole: the next one, or a later one
        row["stretch"] = stretch
        last[key] = row["at"], stretch


def _words(column: str) -> str:
    """A column's name as an axis says it."""
    for ending, unit in UNITS.items():
        if column.endswith(ending):
            return f"{column.removesuffix(ending).replace('_', ' ')} in {unit}"
    return column.replace("_", " ")


def _data(rows: Sequence[Mapping[str, Any]]) -> Any:
    return alt.Data(values=list(rows))


def _chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    return alt.Chart(_data(rows))


def _time(name: str) -> Any:
    """Every label says the time of day: Vega's own format leaves out what it takes for known, `.500` after `.500`."""
    whole, part = (f"utcFormat(datum.value, '{form}')" for form in ("%H:%M:%S", "%H:%M:%S.%L"))
    axis = alt.Axis(labelExpr=f"utcmilliseconds(datum.value) ? {part} : {whole}", labelOverlap=True, labelSeparation=8)
    return alt.X(f"{name}:T", scale=alt.Scale(type="utc"), title="time (UTC)", axis=axis)


def _ms(at: Any) -> float:
    return float(at.timestamp() * 1000)


def _rounded(value: float) -> float:
    """Four significant digits: more cannot be seen, and make notebooks large."""
    return float(f"{value:.4g}")


def _names(figures: pa.Table, by: str) -> list[str]:
    """The names of the rows of `latency` by one dimension, with their clusters where there are several."""
    names = [_text(value) for value in figures[DIMENSIONS[by]].to_pylist()]
    if "cluster" not in figures.column_names or len(figures["cluster"].unique()) < 2:
        return names
    return [f"{name} ({_text(cluster)})" for name, cluster in zip(names, figures["cluster"].to_pylist(), strict=True)]


def _text(value: object) -> str:
    return "(none)" if value is None else str(value)

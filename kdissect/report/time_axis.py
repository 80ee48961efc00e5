"""The rows of the page's time axis and of its network panel: what happened when, by whose time; how TCP fared."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.grouping import Float64s, figures, group
from kdissect.arrays.arrow import NULL_TIME, instants, ints, reals, times, with_columns
from kdissect.report.rows import STEPS, begun, by_api_and_client, unexplained
from kdissect.report.stretches import stretched

OWNERS = ("waited as asked", "broker", "unknown", "queued", "transfer")
"""Whose time a bucket's latencies were, together: waits that were asked for, brokers, the request before, transfer."""
WAITS = ("timeout", "data", "rebalance", "throttled")
ERRORS = 200
"""Exchanges with an error that are listed, those that came first."""
TROUBLED = 100
"""Connections that the network panel lists, those in trouble first."""


def time_axis(exchanges: pa.Table, every: float) -> pa.Table:
    """Per bucket of time: at, exchanges, errors, resent (exchanges of which bytes were sent again before they were
    acknowledged), and for each of OWNERS its milliseconds; buckets without exchanges have no row."""
    start = times(exchanges, "request_first_at")
    known = start != NULL_TIME
    width = max(1, round(every * 1e6))
    at, place = np.unique(start[known] // width * width, return_inverse=True)
    table = exchanges.filter(pa.array(known))
    waits = np.asarray(pc.fill_null(pc.is_in(table["hold"].cast(pa.string()), pa.array(WAITS)), False))
    unknown = unexplained(table)
    broker = np.nan_to_num(reals(table, "broker_ms"))
    transfer = np.nan_to_num(reals(table, "request_transfer_ms")) + np.nan_to_num(reals(table, "response_transfer_ms"))
    parts: dict[str, Float64s] = {
        "waited as asked": np.where(waits, broker, 0.0),
        "broker": np.where(waits | unknown, 0.0, broker),
        "unknown": np.where(unknown, broker, 0.0),
        "queued": np.nan_to_num(reals(table, "queued_ms")),
        "transfer": transfer,
    }
    resent = [np.nan_to_num(reals(table, f"{side}_resent_ms")) > 0 for side in ("request", "response")]
    failed = np.asarray(pc.fill_null(pc.equal(table["status"].cast(pa.string()), "error"), False))
    return pa.table(
        {
            "at": instants(at),
            "exchanges": pa.array(np.bincount(place, minlength=len(at))),
            "errors": pa.array(np.bincount(place, failed, len(at)).astype(np.int64)),
            "resent": pa.array(np.bincount(place, resent[0] | resent[1], len(at)).astype(np.int64)),
            **{
                name: figures(np.bincount(place, np.maximum(values, 0), len(at)).astype(np.float64))
                for name, values in parts.items()
            },
        }
    )


def failures(exchanges: pa.Table) -> pa.Table:
    """Exchanges with an error, the first ERRORS in order of time: exchange_id, at, api, api_version, client_id, broker,
    error, latency_ms, request_frame, response_frame, request_file, response_file."""
    failed = exchanges.filter(pc.fill_null(pc.equal(exchanges["status"].cast(pa.string()), "error"), False))
    names = ["exchange_id", "request_first_at", "api", "api_version", "client_id", "broker", "error", "latency_ms",
             "request_frame", "response_frame", "request_file", "response_file"]  # fmt: skip
    found = failed.select(names).sort_by([("request_first_at", "ascending")]).slice(0, ERRORS)
    return found.rename_columns(["exchange_id", "at", *names[2:]])


def network(connections: pa.Table) -> pa.Table:
    """Kafka connections by how TCP fared, those in trouble first, at most TROUBLED: connection_id, client_id, client,
    broker, rtt_ms, retransmitted_bytes, missing_bytes, out_of_order_packets, zero_window_ms, end_reason, bytes, and
    when it was there: opened_at, closed_at."""
    kafka = connections.filter(pc.fill_null(connections["is_kafka"], False))
    reset = np.asarray(pc.fill_null(pc.equal(kafka["end_reason"].cast(pa.string()), "rst"), False))
    lost = ints(kafka, "retransmitted_bytes", 0) + ints(kafka, "missing_bytes", 0)
    stalled = np.nan_to_num(reals(kafka, "zero_window_ms"))
    order = np.lexsort((-ints(kafka, "bytes", 0), -lost, -stalled, ~reset))[:TROUBLED]
    found = kafka.take(pa.array(order))
    client = [f"{ip}:{port}" for ip, port in zip(found["client_ip"].to_pylist(), found["client_port"].to_pylist(),
                                                 strict=True)]  # fmt: skip
    names = ("rtt_ms", "retransmitted_bytes", "missing_bytes", "out_of_order_packets", "zero_window_ms", "end_reason",
             "bytes")  # fmt: skip
    return pa.table(
        {
            "connection_id": found["connection_id"],
            "client_id": found["client_id"],
            "client": pa.array(client, pa.string()),
            "broker": found["broker"],
            **{name: found[name] for name in names},
            "opened_at": found["started_at"],
            "closed_at": found["ended_at"],
        }
    )


def latency_steps(exchanges: pa.Table, fetches: pa.Table, every: float) -> pa.Table:
    """Answered exchanges of the pairs that `by_api_and_client` lists, by stretch of time and step of latency: line (its
    row there), at, until, to_ms, exchanges, errors."""
    lines = by_api_and_client(exchanges, fetches)
    place = {(row["api"], row["client_id"]): i for i, row in enumerate(lines.to_pylist())}
    pairs = group(exchanges, ["api", "client_id"])
    named = zip(pairs.keys["api"].to_pylist(), pairs.keys["client_id"].to_pylist(), strict=True)
    line = np.array([place.get(pair, -1) for pair in named] or [-1], np.int64)[pairs.code]
    durations, start = reals(exchanges, "latency_ms"), begun(exchanges)
    known = (line >= 0) & ~np.isnan(durations) & (start != NULL_TIME)
    width = max(1, round(every * 1e6))
    failed = np.asarray(pc.fill_null(pc.equal(exchanges["status"].cast(pa.string()), "error"), False))
    table = pa.table(
        {
            "line": pa.array(line[known]),
            "step": pa.array(np.ceil(np.log10(np.maximum(durations[known], 1e-3)) * STEPS).astype(np.int64)),
            "exchanges": pa.array(np.ones(int(known.sum()), np.int64)),
            "errors": pa.array(failed[known].astype(np.int64)),
        }
    )
    found = stretched(table, start[known] // width, width, ["line", "step"], ["exchanges", "errors"])
    step = ints(found, "step").astype(np.float64)
    return with_columns(found, {"to_ms": figures(10.0 ** (step / STEPS))}).select(
        ["line", "at", "until", "to_ms", "exchanges", "errors"]
    )

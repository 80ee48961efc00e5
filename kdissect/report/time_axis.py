"""The rows of the page's time axis and of its network panel: what happened when, by whose time; how TCP fared."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.grouping import Float64s, figures
from kdissect.arrays.arrow import NULL_TIME, Int64s, instants, ints, reals, times, with_columns
from kdissect.report.counted import Counted, amounts, count_flags, stretched
from kdissect.report.figure_rows import STEPS, is_word, unexplained

OWNERS = ("waited as asked", "broker", "unknown", "queued", "transfer")
"""Whose time a bucket's latencies were, together: waits that were asked for, brokers, the request before, transfer."""
WAITS = ("timeout", "data", "rebalance", "throttled")
ERRORS = 200
"""Exchanges with an error that are listed, those that came first."""
TROUBLED = 100
"""Connections that the network panel lists, those in trouble first."""


def moments(exchanges: pa.Table) -> tuple[pa.Table, Int64s]:
    """The counts of the axis for each exchange with a request: exchanges (1), errors, resent, and for each of OWNERS
    its milliseconds; and when it began."""
    start = times(exchanges, "request_first_at")
    known = start != NULL_TIME
    table = exchanges.filter(pa.array(known))
    waits = np.asarray(pc.fill_null(pc.is_in(table["hold"].cast(pa.string()), pa.array(WAITS)), False))
    unknown = unexplained(table)
    broker = np.nan_to_num(reals(table, "broker_ms"))
    transfer = np.nan_to_num(reals(table, "request_transfer_ms")) + np.nan_to_num(reals(table, "response_transfer_ms"))
    parts: dict[str, Float64s] = {
        "waited as asked": np.where(waits, broker, 0.0),
        "broker": np.where(waits | unknown, 0.0, broker),
        "unknown": np.where(unknown, broker, 0.0),
        "queued": reals(table, "queued_ms"),
        "transfer": transfer,
    }
    resent = [np.nan_to_num(reals(table, f"{side}_resent_ms")) > 0 for side in ("request", "response")]
    columns = {
        "exchanges": count_flags(np.ones(table.num_rows, np.bool_)),
        "errors": count_flags(np.asarray(is_word(table, "status", "error"))),
        "resent": count_flags(resent[0] | resent[1]),
        **{name: amounts(values) for name, values in parts.items()},
    }
    return pa.table(columns), start[known]


def time_axis(counted: Counted, every: float) -> pa.Table:
    """Per bucket of time: at, exchanges, errors, resent (exchanges whose bytes were sent again before they were
    acknowledged), and for each of OWNERS its milliseconds. Buckets without exchanges have no row. `counted`: rows of
    `moments`."""
    found, bucket, width = counted.by_time(every)
    return with_columns(found, {"at": instants(bucket * width)}).select(["at", *counted.sums])


FAILED = ("exchange_id", "request_first_at", "api", "api_version", "client_id", "broker", "error", "latency_ms",
          "request_frame", "response_frame", "request_file", "response_file")  # fmt: skip
"""Columns of `exchanges` that `failures` lists."""


def failures(exchanges: pa.Table) -> pa.Table:
    """Exchanges with an error, the first ERRORS in order of time: columns of FAILED."""
    failed = exchanges.select(FAILED).filter(is_word(exchanges, "status", "error"))
    return failed.sort_by([("request_first_at", "ascending")]).slice(0, ERRORS)


def troubled(connections: pa.Table) -> pa.Table:
    """Kafka connections, those that fared worst by TCP first, at most TROUBLED."""
    kafka = connections.filter(pc.fill_null(connections["is_kafka"], False))
    reset = np.asarray(is_word(kafka, "end_reason", "rst"))
    lost = ints(kafka, "retransmitted_bytes", 0) + ints(kafka, "missing_bytes", 0)
    stalled = np.nan_to_num(reals(kafka, "zero_window_ms"))
    return kafka.take(pa.array(np.lexsort((-ints(kafka, "bytes", 0), -lost, -stalled, ~reset))[:TROUBLED]))


def network(connections: pa.Table) -> pa.Table:
    """Connections (`troubled`) as they are listed: connection_id, client_id, client, broker, rtt_ms,
    retransmitted_bytes, missing_bytes, out_of_order_packets, zero_window_ms, end_reason, bytes, and when it was there:
    opened_at, closed_at."""
    ends = zip(connections["client_ip"].to_pylist(), connections["client_port"].to_pylist(), strict=True)
    client = [f"{ip}:{port}" for ip, port in ends]
    names = ("rtt_ms", "retransmitted_bytes", "missing_bytes", "out_of_order_packets", "zero_window_ms", "end_reason",
             "bytes")  # fmt: skip
    return pa.table(
        {
            "connection_id": connections["connection_id"],
            "client_id": connections["client_id"],
            "client": pa.array(client, pa.string()),
            "broker": connections["broker"],
            **{name: connections[name] for name in names},
            "opened_at": connections["started_at"],
            "closed_at": connections["ended_at"],
        }
    )


def latency_steps(counted: Counted, lines: pa.Table, every: float) -> pa.Table:
    """Answered exchanges of the pairs that `by_api_and_client` lists, by stretch of time and step of latency: line (its
    row there), at, until, to_ms, exchanges, errors. `counted`: by api, client_id and up."""
    place = {pair: i for i, pair in enumerate(zip(lines["api"].to_pylist(), lines["client_id"].to_pylist(),
                                                  strict=True))}  # fmt: skip
    found, bucket, width = counted.by_time(every)
    pairs = zip(found["api"].to_pylist(), found["client_id"].to_pylist(), strict=True)
    line = np.array([place.get(pair, -1) for pair in pairs], np.int64)
    listed = line >= 0
    table = pa.table({"line": pa.array(line), "up": found["up"], "exchanges": found["exchanges"],
                      "errors": found["errors"]}).filter(pa.array(listed))  # fmt: skip
    made = stretched(table, bucket[listed], width, ["line", "up"], ["exchanges", "errors"])
    ends = {"to_ms": figures(10.0 ** (ints(made, "up").astype(np.float64) / STEPS))}
    return with_columns(made, ends).select(["line", "at", "until", "to_ms", "exchanges", "errors"])

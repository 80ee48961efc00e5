"""Figures about fetch sessions: what each broker's cache went through, and which clients fill it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.cluster_split import each_cluster
from kdissect.analysis.grouping import Groups, group
from kdissect.analysis.sessions.session_rules import END_REASONS
from kdissect.analysis.sessions.slots import slot_demand
from kdissect.arrays.arrow import Coder, Flags, equal, ints

OUTCOMES = {
    "refused": "refused",
    "lost": "evicted_or_unknown",
    "epoch_errors": "epoch_error",
    "topic_id_errors": "topic_id_error",
}
"""Columns that count fetches by `session_outcome`."""


def brokers(fetches: pa.Table, fetch_sessions: pa.Table) -> pa.Table:
    """One row per broker of a cluster with fetches that may have a session, those with most sessions first.

    Columns: broker and cluster; sessions (rows of `fetch_sessions`), created (whose creation was captured),
    left_censored, peak_live; closed, replaced, empty, evicted, open (how they ended). The column peak_live counts as
    `slot_demand` does: an evicted session until its client learned of it, and none that no client used during the
    capture. Then refused (requests for one that got none), lost (answers that a session is not known), epoch_errors,
    topic_id_errors; requests, churn (partitions added and forgotten), request_bytes, full_request_bytes_avoided.

    Reads of fetches: broker, session_outcome, cluster; of fetch_sessions everything but the lists.
    """
    tables = {"fetches": fetches, "fetch_sessions": fetch_sessions}
    made = each_cluster(tables, lambda part: _brokers(part["fetches"], part["fetch_sessions"]))
    return made.sort_by([("sessions", "descending"), ("broker", "ascending"), ("cluster", "ascending")])


def _brokers(fetches: pa.Table, fetch_sessions: pa.Table) -> pa.Table:
    """The brokers of one cluster, in no order."""
    asked = fetches.filter(pa.array(~np.asarray(_sessionless(fetches)), pa.bool_()))
    sides = pa.concat_tables(
        [asked.select(["broker"]), fetch_sessions.select(["broker"])], promote_options="permissive"
    )
    both = group(sides, ["broker"])
    size = len(both)
    fetch_code, code = both.code[: asked.num_rows], both.code[asked.num_rows :]

    def count(flags: npt.NDArray[np.bool_], codes: npt.NDArray[np.int64] = code) -> pa.Array:
        return pa.array(np.bincount(codes[flags], minlength=size).astype(np.int64))

    def total(name: str) -> pa.Array:
        weights = np.maximum(ints(fetch_sessions, name, 0), 0)
        return pa.array(np.bincount(code, weights=weights, minlength=size).astype(np.int64))

    censored = ints(fetch_sessions, "left_censored", 0) > 0
    peak = dict.fromkeys(both.keys["broker"].to_pylist(), 0)
    for row in slot_demand(fetch_sessions, every=None, by_shard=False).to_pylist():
        peak[row["broker"]] = max(peak[row["broker"]], row["live"])
    columns = {
        "broker": both.keys["broker"].cast(pa.string()),
        "sessions": count(np.ones(len(code), np.bool_)),
        "created": count(~censored),
        "left_censored": count(censored),
        "peak_live": pa.array([peak[name] for name in both.keys["broker"].to_pylist()], pa.int64()),
        **{reason: count(equal(fetch_sessions, "end_reason", reason)) for reason in END_REASONS},
        **{name: count(equal(asked, "session_outcome", word), fetch_code) for name, word in OUTCOMES.items()},
        **{name: total(name) for name in ("requests", "churn", "request_bytes", "full_request_bytes_avoided")},
    }
    return pa.table(columns)


def creators(fetches: pa.Table) -> pa.Table:
    """One row per client and broker of a cluster that asked for sessions or used them, those with most creations first.

    Columns: broker, client_id, cluster; created, refused; reused (incremental fetches that were accepted); ended
    (sessions that the client closed or replaced, or that became empty). Then left_open (created - ended, not below 0:
    they hold their slots until they are evicted), lost (answers that a session is not known), epoch_errors,
    first_exchange_id (of its creations, null without any). A client whose `reused` is 0 and `created` is not never
    reuses its sessions.

    Reads exchange_id, broker, client_id, request_kind, session_outcome, cluster.
    """
    return creators_of(each_cluster({"fetches": fetches}, lambda part: _sums(part["fetches"])))


def _sums(fetches: pa.Table) -> pa.Table:
    """The sums of the events of one cluster by broker and client, with first_exchange_id."""
    rows = events(fetches)
    groups: Groups = group(rows, ["broker", "client_id"])
    first = groups.first(ints(rows, "created") > 0)
    found = {name: groups.keys[name].cast(pa.string()) for name in ("broker", "client_id")}
    sums = ("created", "refused", "reused", "ended", "lost", "epoch_errors")
    found |= {name: pa.array(groups.total(ints(rows, name)).astype(np.int64)) for name in sums}
    names = rows["exchange_id"].cast(pa.string()).take(pa.array(first, mask=first < 0))
    return pa.table({**found, "first_exchange_id": names})


def events(fetches: pa.Table) -> pa.Table:
    """The session events of fetches that may have a session, a row each. Columns: exchange_id, broker, client_id, and 0
    or 1 for created, refused, reused, ended, lost, epoch_errors (see `creators`, which reads the same columns)."""
    rows = fetches.filter(pa.array(~np.asarray(_sessionless(fetches)), pa.bool_()))
    created = equal(rows, "session_outcome", "created")
    flags = {
        "created": created,
        "refused": equal(rows, "session_outcome", "refused"),
        "reused": equal(rows, "session_outcome", "continued"),
        "ended": equal(rows, "session_outcome", "closed") | (created & equal(rows, "request_kind", "replace")),
        "lost": equal(rows, "session_outcome", "evicted_or_unknown"),
        "epoch_errors": equal(rows, "session_outcome", "epoch_error"),
    }
    columns = {name: rows[name] for name in ("exchange_id", "broker", "client_id")}
    return pa.table({**columns, **{name: pa.array(one.astype(np.int64)) for name, one in flags.items()}})


def creators_of(sums: pa.Table) -> pa.Table:
    """`creators` out of sums of `events` by cluster, broker and client, with first_exchange_id."""
    left = np.maximum(ints(sums, "created") - ints(sums, "ended"), 0)
    names = ["broker", "client_id", "created", "refused", "reused", "ended", "left_open", "lost", "epoch_errors",
             "first_exchange_id", "cluster"]  # fmt: skip
    found = sums.append_column("left_open", pa.array(left)).select(names)
    keys = ((name, "ascending") for name in ("broker", "client_id", "cluster"))
    return found.sort_by([("created", "descending"), *keys])


def _sessionless(fetches: pa.Table) -> Flags:
    coder = Coder()
    kind = coder.column(fetches, "request_kind")
    flags: Flags = (kind < 0) | (kind == coder.codes.get("sessionless", -2))
    return flags

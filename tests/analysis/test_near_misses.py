"""Rules at their edge: tables that just fire one, and the same with one thing less, which must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kdissect
from kdissect.analysis.findings import findings
from kdissect.summary.account import account
from kdissect.tables.builder import filtered
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.declaration.readers import FINDINGS
from kdissect.tables.where import parse
from tests.analysis.wire import made
from tests.conftest import ROOT

SECOND = 1_000_000
START = 1_790_000_000 * SECOND
Rows = dict[str, list[dict[str, Any]]]


def found_in(tables: Rows, kind: str) -> list[dict[str, Any]]:
    """The findings of a kind."""
    found = findings({name: made(name, rows) for name, rows in tables.items()}).findings
    return [row for row in found.to_pylist() if row["id"] == kind]


def told(tables: Rows, kind: str) -> list[str]:
    """Severities of the findings of a kind."""
    return [row["severity"] for row in found_in(tables, kind)]


def exchange(n: int, at: float, **more: Any) -> dict[str, Any]:
    moment = START + round(at * SECOND)
    return {
        "exchange_id": f"{1:016x}:{n}", "connection_id": f"{1:016x}", "client_id": "c", "broker": "1", "status": "ok",
        "request_first_at": moment, "response_first_at": moment, "error_code": 0,
    } | more  # fmt: skip


def leaders(
    refused_for: float, previous: int | None = 1, client_id: str | None = "c", status: str = "error"
) -> Rows:  # fmt: skip
    refusals = [
        exchange(
            n,
            at,
            api_key=0,
            api="Produce",
            status=status,
            error_code=6,
            error="NOT_LEADER_OR_FOLLOWER",
            client_id=client_id,
        )
        for n, at in enumerate((0.0, refused_for))
    ]
    row = {"at": START, "topic": "t", "partition": 0, "leader": 2, "leader_epoch": 5, "previous": previous}
    return {"leaders": [row], "exchanges": refusals}


def commits(count: int, seconds: float, step: int) -> Rows:
    rows = [
        {"exchange_id": f"{1:016x}:{n}", "at": START + round(n * seconds / (count - 1) * SECOND), "group_id": "g",
         "client_id": "c", "topic": "t", "partition": 0, "offset": n * step, "error_code": 0}
        for n in range(count)
    ]  # fmt: skip
    return {"offset_commits": rows}


def lags(*values: int, throttle: float = 0.0, late: float = 0.0, stable: int = 0, apart: float = 1.0) -> Rows:
    """A consumer's lags in a partition that grows by a hundred records between two of its fetches, each with a commit.
    The last stable offset lies `stable` records before the end."""
    fetches, partitions, committed = [], [], []
    for n, lag in enumerate(values):
        at, end, number = START + round(n * apart * SECOND), 1000 + 100 * n, {"exchange_id": f"{1:016x}:{n}"}
        fetches.append(number | {
            "client_id": "c", "requested_at": at, "response_first_at": at, "throttle_ms": throttle, "excess_ms": late,
            "isolation_level": 1, "is_follower": False,
        })  # fmt: skip
        partitions.append(number | {
            "topic": "t", "partition": 0, "high_watermark": end, "last_stable_offset": end - stable, "lag": lag,
        })  # fmt: skip
        committed.append(number | {
            "at": at, "group_id": "g", "client_id": "c", "topic": "t", "partition": 0, "offset": end - lag, "lag": lag,
            "high_watermark": end, "error_code": 0,
        })  # fmt: skip
    return {"offset_commits": committed, "fetches": fetches, "fetch_partitions": partitions}


FALLING = (0, 100, 200, 300, 400, 500)
"""Lags of a consumer that reads nothing more."""
BACK = (0, 100, 200, 300, 400, 0)
OFTEN_BACK = (0, 100, 200, 300, 250, 400, 320, 500)
FROM_BEFORE = (1000, 1050, 1100, 1150, 1200, 1250)


def lags_in_turn(second_reads: bool = False, partitions: tuple[int, ...] = (0, 1)) -> Rows:
    """A consumer that stopped reading; it asks for each of the partitions every other second, and another one keeps up
    with both. `second_reads`: it reads partition 1 on."""
    fetches, rows = [], []
    for n in range(8):
        at, end = START + n * SECOND, 1000 + 100 * n
        for client, owned in (("c", [n % 2]), ("keeps-up", [0, 1])):
            number = {"exchange_id": f"{1 + (client == 'c'):016x}:{n}"}
            fetches.append(number | {
                "client_id": client, "requested_at": at, "response_first_at": at, "throttle_ms": 0.0, "excess_ms": 0.0,
                "isolation_level": 0, "is_follower": False,
            })  # fmt: skip
            for partition in owned:
                reads = client != "c" or (second_reads and partition == 1)
                if partition in partitions:
                    rows.append(number | {"topic": "t", "partition": partition, "high_watermark": end,
                                          "last_stable_offset": end, "lag": 0 if reads else 100 * n})  # fmt: skip
    return {"fetches": fetches, "fetch_partitions": rows}


def owed(rows: Rows, since: float) -> Rows:
    """The same client asked another broker at a second, and never got that answer."""
    asked = {"exchange_id": f"{9:016x}:1", "client_id": "c", "requested_at": START + round(since * SECOND),
             "response_first_at": None, "broker": "2", "is_follower": False}  # fmt: skip
    return rows | {"fetches": [*rows["fetches"], asked]}


def not_come(rows: Rows, copies: int) -> Rows:
    """The same client asked another broker at the first second, was answered, and asked it no more. Segments of its
    connection were sent again so many times."""
    at = START + SECOND
    asked = {"exchange_id": f"{9:016x}:1", "client_id": "c", "requested_at": at, "response_first_at": at,
             "broker": "2", "is_follower": False}  # fmt: skip
    way = connection(9, -1, 60, client_id="c", packets=10_000, lost_segments=copies, retransmitted_bytes=copies * 1000)
    return rows | {"fetches": [*rows["fetches"], asked], "connections": [way]}


def on_its_way(rows: Rows, took_s: float) -> Rows:
    """A request of the same client was on its way for so long, from the first second on."""
    back = START + round(took_s * SECOND)
    long = exchange(7, 0.0, api_key=8, api="OffsetCommit", latency_ms=1000 * took_s, request_last_at=START,
                    network_ms=1000 * took_s, network_kind="ack", broker_ms=0.0, queued_ms=0.0, response_first_at=back,
                    response_last_at=back, request_transfer_ms=0.0, response_transfer_ms=0.0)  # fmt: skip
    return rows | {"exchanges": [long], "connections": [connection(1, -1, 60, client_id="c")]}


def unfinished(rows: Rows, begun: float) -> Rows:
    """An answer to the same client began at a second, and its rest never came."""
    at = START + round(begun * SECOND)
    answer = exchange(7, begun - 0.1, api_key=1, api="Fetch", status="partial", latency_ms=None, request_last_at=at,
                      network_ms=1.0, network_kind="ack", broker_ms=1.0, queued_ms=0.0, response_first_at=at,
                      request_transfer_ms=0.0)  # fmt: skip
    return rows | {"exchanges": [answer], "connections": [connection(1, -1, 60, client_id="c")]}


def behind_losses(rows: Rows, lost: int) -> Rows:
    """The network between the client's host and the broker's loses segments."""
    ways = [connection(n, -1, 60, client_id="c", packets=1000, lost_segments=lost, retransmitted_bytes=lost * 1000)
            for n in (1, 2)]  # fmt: skip
    return rows | {"connections": ways}


def commits_until(
    last: int = 5, fetched: float = 15.5, step: float = 1.0, ended: float = 60.0, still: tuple[float, float] = (0, 0)
) -> Rows:
    """A consumer that commits until its `last` commit, `step` seconds apart, and fetches 4 records a second until
    `fetched`, none between two seconds."""
    committed = [
        {"exchange_id": f"{1:016x}:{100 + n}", "at": START + round(n * step * SECOND), "group_id": "g",
         "client_id": "c", "topic": "t", "partition": 0, "offset": n, "lag": 0, "high_watermark": n, "error_code": 0}
        for n in range(last + 1)
    ]  # fmt: skip
    fetches, partitions, offset = [], [], 1000
    for n in range(round(2 * fetched) + 1):
        number, at = {"exchange_id": f"{2:016x}:{n}"}, START + n * SECOND // 2
        offset += 0 if still[0] <= n / 2 <= still[1] else 2
        fetches.append(number | {"client_id": "c", "requested_at": at, "response_first_at": at, "is_follower": False})
        partitions.append(number | {"topic": "t", "partition": 0, "high_watermark": offset, "lag": 0})
    return {"offset_commits": committed, "fetches": fetches, "fetch_partitions": partitions,
            "connections": [connection(1, 0, ended, client_id="c")]}  # fmt: skip


def polls(pause: float, resent: float = 0.0, size: int = 100, begun: bool = True, refused: float | None = None) -> Rows:
    """Six fetches of a consumer; after the fifth's answer it pauses. That answer was sent again for `resent` ms. Its
    connection began in the capture, if it had `begun`. At the second `refused` its host was refused a connection."""
    at = [0.1 * n for n in range(5)] + [0.41 + pause]
    fetches = [
        {"exchange_id": f"{1:016x}:{n}", "client_id": "c", "requested_at": START + round(when * SECOND),
         "response_first_at": START + round((when + 0.01) * SECOND), "record_bytes": size, "throttle_ms": 0.0,
         "is_follower": False}
        for n, when in enumerate(at)
    ]  # fmt: skip
    return {
        "fetches": fetches,
        "exchanges": [exchange(4, at[4], api_key=1, api="Fetch", response_resent_ms=resent)],
        "connections": [
            {"connection_id": f"{1:016x}", "client_id": "c", "client_ip": "10.0.0.1", "start_seen": begun},
            *([] if refused is None else [{
                "connection_id": f"{2:016x}", "client_ip": "10.0.0.1", "started_at": START + round(refused * SECOND),
                "start_seen": True, "bytes": 0, "end_reason": "rst", "rtt_ms": None,
            }]),
        ],
    }  # fmt: skip


def lacking(rows: Rows, client: str | None = None, start: float = -1.0, end: float = 60.0, connection: int = 9) -> Rows:
    """The rows with a connection from 10.0.0.1 that lacks bytes, from `start` to `end`. `client`: its id, if known."""
    row = {"connection_id": f"{connection:016x}", "client_id": client, "client_ip": "10.0.0.1", "is_kafka": True,
           "start_seen": True, "missing_bytes": 1, "started_at": START + round(start * SECOND),
           "ended_at": START + round(end * SECOND)}  # fmt: skip
    return {**rows, "connections": [*rows["connections"], row]}


def answered_unseen(rows: Rows, at: float) -> Rows:
    """The rows with an answer on the first connection whose request was not captured."""
    first = rows["connections"][0]
    orphan = exchange(0, at, exchange_id=f"{first['connection_id']}:r0", connection_id=first["connection_id"],
                      client_id=first["client_id"], status="orphan", request_first_at=None)  # fmt: skip
    return {**rows, "exchanges": [*rows["exchanges"], orphan]}


def polls_and_stops(pause: float, lost: int = 0) -> Rows:
    """A consumer that polls all the time and pauses once while it has records; it sends nothing else meanwhile."""
    at = [0.05 * n for n in range(200)] + [9.96 + pause + 0.05 * n for n in range(200)]
    exchanges = [exchange(n, when, api_key=1, api="Fetch", latency_ms=1.0) for n, when in enumerate(at)]
    fetches = [
        {"exchange_id": row["exchange_id"], "client_id": "c", "requested_at": row["request_first_at"],
         "response_first_at": row["response_first_at"], "record_bytes": 100, "throttle_ms": 0.0, "is_follower": False}
        for row in exchanges
    ]  # fmt: skip
    connection = {"connection_id": f"{1:016x}", "client_id": "c", "client_ip": "10.0.0.1", "start_seen": True,
                  "lost_segments": lost}  # fmt: skip
    return {"exchanges": exchanges, "fetches": fetches, "connections": [connection]}


def rebalance(second: int, waited: float) -> Rows:
    """Two generations of a group: `second` is the number of the later one."""
    events, exchanges = [], []
    for n, (generation, member, at) in enumerate(((1, "a", 0.0), (second, "b", 5.0))):
        for k, (name, key, more) in enumerate((("join", 11, 0.0), ("sync", 14, waited))):
            number = 2 * n + k
            answered = START + round((at + more) * SECOND)
            one = exchange(number, at, api_key=key, api=name, response_first_at=answered)
            exchanges.append(one)
            events.append({
                "exchange_id": one["exchange_id"], "at": one["request_first_at"], "group_id": "g", "member_id": member,
                "client_id": member, "protocol": "classic", "generation": generation, "event": name, "error_code": 0,
            })  # fmt: skip
    return {"groups": events, "exchanges": exchanges}


def locks(refused: int) -> Rows:
    row = {"session_key": "1/g/m/1", "broker": "1", "group_id": "g", "member_id": "m", "opened_at": START,
           "refused": refused, "lock_ms": 2000.0}  # fmt: skip
    return {"share_sessions": [row]}


def closed(status: str, api_key: int = 1, reason: str = "fin", closer: str | None = None) -> Rows:
    connection = {"connection_id": f"{1:016x}", "client_id": "c", "client_ip": "10.0.0.1", "is_kafka": True,
                  "end_reason": reason, "closed_by": closer, "start_seen": True, "exchanges": 3}  # fmt: skip
    lonely = exchange(0, 0.0, api_key=api_key, api="Fetch", status=status, response_first_at=None)
    return {"exchanges": [lonely], "connections": [connection]}


def addresses(*ips: str) -> Rows:
    rows = [{"connection_id": f"{n:016x}", "client_id": "c", "client_ip": ip, "is_kafka": True, "start_seen": True}
            for n, ip in enumerate(ips)]  # fmt: skip
    return {"connections": rows}


def late(seen: bool) -> Rows:
    return {"connections": [{"connection_id": f"{1:016x}", "client_ip": "10.0.0.1", "is_kafka": True,
                             "start_seen": seen}]}  # fmt: skip


def one_way(count: int, exchanges: int) -> Rows:
    tables = late(True)
    tables["connections"][0]["exchanges"] = exchanges
    lonely = [exchange(n, n, api_key=1, api="Fetch", status="one_way", response_first_at=None) for n in range(count)]
    return tables | {"exchanges": lonely}


def snapped(packets: float) -> Rows:
    return {"capture_quality": [{"capture": "c", "measure": "snapped_packets", "value": packets}]}


def without_acks(connections: float) -> Rows:
    return {"capture_quality": [{"capture": "c", "measure": "connections_without_acks", "value": connections}]}


def of_payload(rows: Rows, bare: int = 0) -> Rows:
    """The same in a capture that has packets with payload only; so many of its connections have others, too."""
    connections = [one | {"capture": "c"} for one in rows["connections"]]
    counts = {"kafka_connections": len(connections), "connections_without_bare_acks": len(connections) - bare}
    quality = [{"capture": "c", "measure": name, "value": float(value)} for name, value in counts.items()]
    return rows | {"connections": connections, "capture_quality": quality}


def of_one_direction(rows: Rows) -> Rows:
    """The same in a capture without answers: two requests on each connection."""
    connections = [one | {"exchanges": 2} for one in rows["connections"]]
    lonely = [
        exchange(n, 0.0, exchange_id=f"{one['connection_id']}:{n}", connection_id=one["connection_id"],
                 status="one_way", response_first_at=None)
        for one in connections for n in range(2)
    ]  # fmt: skip
    ids = {one["exchange_id"] for one in lonely}
    more = [one | {"status": "one_way"} for one in rows["exchanges"] if one["exchange_id"] not in ids]
    alike = [next((one | other for other in rows["exchanges"] if other["exchange_id"] == one["exchange_id"]), one)
             | {"status": "one_way"} for one in lonely]  # fmt: skip
    return rows | {"connections": connections, "exchanges": [*alike, *more]}


def followers(waited: float) -> Rows:
    row = {"exchange_id": f"{1:016x}:0", "broker": "1", "client_id": "p", "requested_at": START,
           "response_first_at": START + round(waited * 1000), "replication_ms": waited, "waited_for": [2]}  # fmt: skip
    return {"produces": [row]}


def stopped(
    pause: float,
    apart: float = 0.0,
    others: bool = True,
    lost: int = 0,
    throttle: float = 0.0,
    rhythm: float = 0.1,
    answered: float = 0.5,
) -> Rows:
    """Two clients of one host that send a request each `rhythm` seconds and pause after 5 s; the second one goes on
    `apart` seconds later. A third one of another host goes on, where there are `others`. A request of a fourth one, of
    their host, is answered `answered` seconds after 5 s."""
    exchanges, connections = [], []
    names = ("a", "b", "x") if others else ("a", "b")
    for n, name in enumerate(names):
        begins = [5.0 + pause + apart * n] if name != "x" else [5.0]
        at = [k * rhythm for k in range(round(5.0 / rhythm))] + [begins[0] + k * rhythm for k in range(50)]
        for k, when in enumerate(at):
            exchanges.append(
                exchange(k, when, exchange_id=f"{n:016x}:{k}", connection_id=f"{n:016x}", client_id=name, api_key=1,
                         api="Fetch", latency_ms=1.0, throttle_ms=throttle)
            )  # fmt: skip
        connections.append({
            "connection_id": f"{n:016x}", "client_id": name, "client_ip": "10.0.0.2" if name == "x" else "10.0.0.1",
            "lost_segments": lost, "retransmitted_bytes": 100 * lost, "is_kafka": True, "start_seen": True,
            "started_at": START - SECOND, "ended_at": START + 60 * SECOND,
        })  # fmt: skip
    fourth = f"{len(names):016x}"
    exchanges.append(
        exchange(0, 4.8, exchange_id=f"{fourth}:0", connection_id=fourth, client_id="r", api_key=1, api="Fetch",
                 response_first_at=START + round((5.0 + answered) * SECOND))
    )  # fmt: skip
    connections.append(connections[0] | {"connection_id": fourth, "client_id": "r", "lost_segments": 0})
    return {"exchanges": exchanges, "connections": connections}


def unheard(copies: int, lost: int = 0, wait: float = 1.1) -> Rows:
    """Two clients that pause for 3 s, and two others of their host. Each of these is answered meanwhile. Its answer
    is sent again `copies` times, its next request comes `wait` seconds later. `lost`: segments of other connections."""
    rows = stopped(3.0, lost=lost)
    for n, name in ((11, "y"), (12, "z")):
        mine = f"{n:016x}"
        for k, at in enumerate((4.8, 6.0 + wait)):
            rows["exchanges"].append(
                exchange(k, at, exchange_id=f"{mine}:{k}", connection_id=mine, client_id=name, api_key=1, api="Fetch",
                         response_first_at=START + round((at + 1.2 if k == 0 else at) * SECOND))
            )  # fmt: skip
        rows["connections"].append(
            rows["connections"][0]
            | {"connection_id": mine, "client_id": name, "lost_segments": copies, "retransmitted_bytes": 100 * copies}
        )
    return rows


def left(until: float) -> Rows:
    """A member that leaves its group without a reason. Its connection has packets until so many seconds later, and none
    that closes it."""
    rows = [
        {"exchange_id": f"{1:016x}:{n}", "at": START + round(at * SECOND), "group_id": "g", "member_id": "m",
         "client_id": "c", "protocol": "classic", "event": event, "error_code": 0}
        for n, (at, event) in enumerate(((0.0, "join"), (10.0, "leave")))
    ]  # fmt: skip
    others = connection(2, 0.0, 60.0, client_id="d")
    return {"groups": rows, "connections": [connection(1, 0.0, 10.0 + until, client_id="c"), others]}


def behind_a_quota(throttle: float) -> Rows:
    """A Produce request that took 2 s. The answer before it muted its connection for so many ms at its begin."""
    first = exchange(0, 0.0, api_key=0, api="Produce", latency_ms=1.0, throttle_ms=throttle)
    later = START + 2 * SECOND
    second = exchange(1, 0.0, api_key=0, api="Produce", latency_ms=2000.0, response_first_at=later, throttle_ms=0.0)
    return {"exchanges": [first, second], "connections": [connection(1, 0.0, 60.0)]}


def late_answer(status: str) -> Rows:
    """A request that took 11 s, of whose answer all is there or but the beginning."""
    one = exchange(0, 0.0, api_key=3, api="Metadata", latency_ms=11_000.0, status=status)
    return {"exchanges": [one], "connections": [connection(1, 0.0, 60.0)]}


def standing(*begins: float, replication: float | None = 0.0, **more: Any) -> Rows:
    """A broker that answers two producers' requests at once, but nothing for 2 s from each of these instants on. It
    acknowledges what it gets meanwhile. `replication`: for how many ms requests are known to wait for followers."""
    exchanges, produces = [], []
    for n in (1, 2):
        instants = [(float(at), float(at)) for begin in begins for at in (begin, begin + 2.5)]
        instants += [(begin + 0.1 + 0.4 * n, begin + 2.0) for begin in begins]
        for k, (asked, answered) in enumerate(sorted(instants)):
            name, took = f"{n:016x}:{k}", 1000 * (answered - asked)
            at, until = (START + round(moment * SECOND) for moment in (asked, answered))
            exchanges.append(
                exchange(k, asked, exchange_id=name, connection_id=name[:16], client_id=f"p{n}",
                         request_last_at=at, response_first_at=until, latency_ms=took, network_ms=0.1,
                         network_kind="ack", broker_ms=took, replication_ms=replication,
                         **{"api_key": 0, "api": "Produce", **more})
            )  # fmt: skip
            produces.append({
                "exchange_id": name, "connection_id": name[:16], "broker": "1", "client_id": f"p{n}", "acks": -1,
                "requested_at": at, "response_first_at": until, "latency_ms": took, "replication_ms": replication,
            })  # fmt: skip
    return {"exchanges": exchanges, "produces": produces}


def at_a_standstill(brokers: int = 2, between: bool = False, lost: float = 0.1, seconds: float = 3.0) -> Rows:
    """Two producers ask each of these brokers at 1.02 s, and are answered `seconds` later, in the midst of quick
    exchanges. `between`: meanwhile another client sends requests that get no answer. `lost`: the network's time, ms."""
    back = 1.0 + seconds
    rows: Rows = {"exchanges": [], "produces": [], "fetches": [], "connections": []}
    for number in range(2 * brokers):
        name, about = f"{number:016x}", {"broker": str(number // 2 + 1), "client_id": f"p{number % 2}"}
        for k, at in enumerate((1.01, 1.02, 1.03, back + 0.01, back + 0.03)):
            begin, end = (START + round(moment * SECOND) for moment in (at, back + 0.02 if k == 1 else at))
            took = (end - begin) / 1000
            waited = {"request_last_at": begin, "response_first_at": end, "latency_ms": took, "broker_ms": took - lost}
            one = exchange(k, at, exchange_id=f"{name}:{k}", connection_id=name, api_key=0, api="Produce",
                           network_ms=lost, network_kind="ack", **about, **waited)  # fmt: skip
            rows["exchanges"].append(one)
            if k == 1:
                id_of = {"exchange_id": one["exchange_id"], "connection_id": name, "latency_ms": took, **about}
                rows["produces"].append(
                    id_of | {"acks": 1, "replication_ms": took, "requested_at": begin, "response_first_at": end}
                )
                rows["fetches"].append(id_of | {"excess_ms": took, "requested_at": begin, "response_first_at": end})
        rows["connections"].append(
            {"connection_id": name, "client_id": about["client_id"], "broker": about["broker"], "is_kafka": True,
             "started_at": START, "ended_at": START + 6 * SECOND}
        )  # fmt: skip
    for k in range(1, round(seconds / 0.5) if between else 0):
        sent = exchange(k, 1.0 + 0.5 * k, exchange_id=f"{99:016x}:{k}", connection_id=f"{99:016x}", client_id="x",
                        broker="9", api_key=0, api="Produce", status="no_response", response_first_at=None)  # fmt: skip
        rows["exchanges"].append(sent)
    return rows


def unmeasured(rows: Rows) -> Rows:
    """The same, and no acknowledgement separates the network from the broker."""
    connections = [connection(n, -1.0, 20.0) for n in (1, 2)]
    changed = [one | {"network_ms": None, "network_kind": None} for one in rows["exchanges"]]
    return rows | {"exchanges": changed, "connections": connections}


def behind_polls(rows: Rows) -> Rows:
    """The same, and what takes long lies behind another request of its connection, such as a long poll."""
    return rows | {"exchanges": [one | {"queued_ms": one["latency_ms"]} for one in rows["exchanges"]]}


def started_again(rows: Rows) -> Rows:
    """The same, and every connection of the two clients ends before the pause."""
    ends = [one | {"ended_at": START + 5 * SECOND} if one["client_id"] != "x" else one for one in rows["connections"]]
    return rows | {"connections": ends}


def alone(
    pause: float, copies: int = 0, resumed: int = 50, rhythm: float = 0.1, closed: bool = False, metadata: bool = True
) -> Rows:  # fmt: skip
    """A consumer that asks for metadata, fetches each `rhythm` seconds, pauses after 5 s, and fetches `resumed` times
    more."""
    rows = stopped(pause, rhythm=rhythm)
    rows["exchanges"] = [one for one in rows["exchanges"] if one["client_id"] in ("a", "x")]
    mine = [one for one in rows["exchanges"] if one["client_id"] == "a"]
    if metadata:
        asked = exchange(900, 0.0, exchange_id=f"{0:016x}:900", connection_id=f"{0:016x}", client_id="a", api_key=3)
        rows["exchanges"].append(asked | {"api": "Metadata"})
    mine = mine[: len(mine) - 50 + resumed]
    rows["fetches"] = [
        {"exchange_id": one["exchange_id"], "client_id": "a", "is_follower": False, "record_bytes": 0,
         "requested_at": one["request_first_at"], "response_first_at": one["response_first_at"]}
        for one in mine
    ]  # fmt: skip
    for one in rows["connections"]:
        if one["client_id"] == "a":
            one |= {"lost_segments": copies, "retransmitted_bytes": 100 * copies}
    if closed:
        rows["connections"].append(rows["connections"][0] | {"ended_at": START + 6 * SECOND})
    return rows


def quiet(
    pause: float, before: int = 50, after: int = 5, others: float = 0.1, rhythm: float = 0.1, **more: Any
) -> Rows:
    """A producer that writes each `rhythm` seconds, once after `others`, so often before a pause and after it."""
    rows = alone(pause, **more)
    waits = [others, *[rhythm] * (before - 2), pause, *[rhythm] * (after - 1)]
    at = [5.0 - sum(waits[: before - 1])]
    for wait in waits:
        at.append(at[-1] + wait)
    mine = [
        exchange(k, when, exchange_id=f"{0:016x}:{k}", connection_id=f"{0:016x}", client_id="a", api_key=0,
                 api="Produce", latency_ms=1.0)
        for k, when in enumerate(at)
    ]  # fmt: skip
    asked = [one | {"request_first_at": mine[0]["request_first_at"], "response_first_at": mine[0]["request_first_at"]}
             for one in rows["exchanges"] if one["api_key"] == 3]  # fmt: skip
    other = [one for one in rows["exchanges"] if one["client_id"] == "x"]
    return rows | {"exchanges": [*asked, *mine, *other], "fetches": []}


def beside_one_that_waits(rows: Rows) -> Rows:
    """The same, and the other client pauses at the same time, behind a request without an answer."""
    asked = START + 5 * SECOND
    other = [one for one in rows["exchanges"] if one["client_id"] == "x" and one["request_first_at"] < asked]
    last = max(one["request_first_at"] for one in other)
    more = [
        exchange(800 + k, 7.1 + k / 10, exchange_id=f"{2:016x}:{800 + k}", connection_id=f"{2:016x}", client_id="x")
        for k in range(5)
    ]
    missing = [one | {"response_first_at": None} if one["request_first_at"] == last else one for one in other]
    return rows | {"exchanges": [one for one in rows["exchanges"] if one["client_id"] == "a"] + missing + more}


def stopping(
    clients: str = "ab", apart: float = 0.0, back: float | None = None, elsewhere: float = 10.0, stay: int = 0,
    refused: bool = False, asked: float = 4.0, closers: tuple[str | None, ...] = ("broker", None),
) -> Rows:  # fmt: skip
    """Connections of `clients` to broker 2 that end after 5 s, `apart` seconds one after the other, closed by `closers`
    first; each client goes on with broker 1 until `elsewhere`. Broker 2 serves a connection again `back` seconds later,
    or refuses one."""
    connections: list[dict[str, Any]] = []
    exchanges: list[dict[str, Any]] = []

    def connect(name: str, port: int, begin: float, end: float, reason: str, asked: float | None) -> None:
        number = len(connections)
        connections.append({
            "connection_id": f"{number:016x}", "client_id": name, "client_ip": "10.0.0.1", "broker_ip": "10.0.0.9",
            "broker_port": port, "broker": str(port), "is_kafka": asked is not None, "end_reason": reason,
            "exchanges": 5 if asked is not None else 0, "bytes": 0 if asked is None else 900, "start_seen": True,
            "started_at": START + round(begin * SECOND), "ended_at": START + round(end * SECOND),
        })  # fmt: skip
        if asked is not None:
            exchanges.append(
                exchange(number, asked, exchange_id=f"{number:016x}:0", connection_id=f"{number:016x}", client_id=name)
            )

    for n, name in enumerate(clients):
        connect(name, 2, 0.0, 5.0 + n * apart, "fin", asked)
        connections[-1]["closed_by"] = closers[n % len(closers)]
        connect(name, 1, 0.0, 80.0, "open", elsewhere)
    for _ in range(stay):
        connect("stays", 2, 0.0, 80.0, "open", 4.0)
    if back is not None:
        connect("a", 2, 5.0 + back, 80.0, "open", 6.0 + back)
    if refused:
        connect("a", 2, 6.0, 6.0, "rst", None)
    return {"exchanges": exchanges, "connections": connections}


def fenced() -> Rows:
    """A request with an outdated epoch, of a producer that the capture met in its middle."""
    refused = exchange(1, 1.0, api_key=26, api="EndTxn", status="error", error_code=47)
    return {"exchanges": [refused], "connections": [connection(1, 0.0, 9.0, client_id="c", start_seen=False)]}


def ended_late(other: str = "p9", connection: int = 2, code: int = 51) -> Rows:
    """A transaction that is over when its producer comes to end it: another one asked for its transactional id."""
    asked = [
        exchange(0, 0.0, api_key=22, api="InitProducerId", client_id="p1"),
        exchange(1, 1.0, api_key=22, api="InitProducerId", client_id=other, connection_id=f"{connection:016x}",
                 status="error", error_code=code),
        exchange(2, 1.1, api_key=26, api="EndTxn", client_id="p1", status="error", error_code=48),
    ]  # fmt: skip
    ids = [
        {"exchange_id": row["exchange_id"], "transactional_id": "tx", "producer_id": producer, "producer_epoch": 0}
        for row, producer in zip(asked, (7, -1), strict=False)
    ]
    return {"exchanges": asked, "producer_ids": ids}


def met_in_its_middle(rows: Rows, before: float) -> Rows:
    """The same in a capture that began so many seconds before, when the client's connection was there."""
    begun = {"start_seen": False, "started_at": START - round(before * SECOND)}
    return rows | {"connections": [one | begun for one in rows["connections"]]}


def nameless(rows: Rows) -> Rows:
    """The same, and the capture has no client's id."""
    return {name: [one | {"client_id": None} for one in some] for name, some in rows.items()}


def asking(count: int, apart: float, api_key: int = 3, ended: float | None = None) -> Rows:
    """A producer that writes once, and asks for metadata so many times; a connection of its host ends."""
    rows = [exchange(0, 0.0, api_key=0, api="Produce")]
    rows += [exchange(n + 1, 1.0 + n * apart, api_key=3, api="Metadata") for n in range(count)]
    rows.append(exchange(90, 1.0 + apart * count / 2, api_key=api_key, api="other"))
    connection = {"connection_id": f"{1:016x}", "client_id": "c", "client_ip": "10.0.0.1", "start_seen": True,
                  "end_reason": "open" if ended is None else "fin",
                  "ended_at": None if ended is None else START + round(ended * SECOND)}  # fmt: skip
    return {"exchanges": rows, "connections": [connection]}


def without_leader(
    count: int = 4, apart: float = 0.7, api_key: int = 0, refused: float | None = 0.5, lost: float | None = None,
    other: float | None = None,
) -> Rows:  # fmt: skip
    """A client of an API asks for metadata so many times. Its host is refused, a connection of it ends, or one of
    another client of that host; seconds."""
    rows = [exchange(0, 0.0, api_key=api_key, api="Produce" if api_key == 0 else "Fetch", client_id="a")]
    rows += [exchange(n + 1, 1.0 + n * apart, api_key=3, api="Metadata", client_id="a") for n in range(count)]
    connections = [connection(1, 0.0, 60.0)]
    if refused is not None:
        connections.append(
            connection(2, refused, refused, client_id=None, is_kafka=False, exchanges=0, bytes=0, rtt_ms=None,
                       end_reason="rst", broker="3")
        )  # fmt: skip
    if lost is not None:
        connections.append(connection(3, 0.0, lost, end_reason="fin", broker="3"))
    if other is not None:
        connections.append(connection(4, 0.0, other, end_reason="fin", broker="3", client_id="b"))
    return {"exchanges": rows, "connections": connections}


def unanswered(ms: float, kind: str = "silence", connections: int = 2) -> Rows:
    """Requests that nothing acknowledged for so long."""
    rows = [
        exchange(0, 1.0, exchange_id=f"{n:016x}:0", connection_id=f"{n:016x}", network_ms=ms, network_kind=kind)
        for n in range(connections)
    ]
    ends = {"client_id": "c", "client_ip": "10.0.0.1", "broker_ip": "10.0.0.9", "start_seen": True}
    return {"exchanges": rows, "connections": [ends | {"connection_id": f"{n:016x}"} for n in range(connections)]}


def late_in_a_gap(*answered: tuple[float, float], gap_ms: float = 5000.0) -> Rows:
    """The network to one broker was gone from the first second on. Another broker answered fetches of the same client
    at these seconds, so many ms beyond the agreed wait."""
    rows, other = unanswered(gap_ms), f"{9:016x}"
    way = connection(9, 0.0, 20.0, client_id="c", client_ip="10.0.0.1", broker_ip="10.0.0.8", broker="2")
    fetches = [
        {"exchange_id": f"{other}:{n}", "connection_id": other, "client_id": "c", "broker": "2", "excess_ms": excess,
         "requested_at": START, "response_first_at": START + round(at * SECOND)}
        for n, (at, excess) in enumerate(answered)
    ]  # fmt: skip
    return rows | {"fetches": fetches, "connections": [*rows["connections"], way]}


def writes(slow: float, usual: float, count: int = 50, acks: int = 1, slow_quartile: float | None = None) -> Rows:
    """Produce requests to two topics, with the broker's own time of each."""
    produces, batches, producers = [], [], []
    for n, (topic, ms) in enumerate((("s", slow), ("u", usual))):
        for k in range(count):
            name = f"{n + 1:016x}:{k}"
            quick = slow_quartile is not None and topic == "s" and k < count / 3
            produces.append({
                "exchange_id": name, "connection_id": name[:16], "broker": "1", "client_id": "p", "acks": acks,
                "requested_at": START + k, "response_first_at": START + k, "broker_ms": slow_quartile if quick else ms,
            })  # fmt: skip
            batches.append({"exchange_id": name, "topic": topic, "partition": 0, "producer_id": -1, "crc": k})
            producers.append({"exchange_id": name, "topic": topic, "partition": 0, "producer_id": 7, "sent_at": START})
    return {"produces": produces, "record_batches": batches[:count], "producers": producers[count:]}


def connection(n: int, begin: float, end: float, **more: Any) -> dict[str, Any]:
    """A connection of client a, by its times in seconds."""
    return {
        "connection_id": f"{n:016x}", "client_id": "a", "client_ip": "10.0.0.1", "broker_ip": "10.0.0.9",
        "broker_port": 9092, "broker": "1", "is_kafka": True, "start_seen": True, "exchanges": 5, "bytes": 1000,
        "rtt_ms": 1.0, "started_at": START + round(begin * SECOND), "ended_at": START + round(end * SECOND),
        "end_reason": "open", "zero_window_ms": 0.0, "retransmitted_bytes": 0,
    } | more  # fmt: skip


def brief_connections(count: int = 20, refused: int = 9) -> Rows:
    """Connections of client a that live 0.1 s, of which some end at a refused login."""
    brief = [connection(n, float(n), n + 0.1, end_reason="fin", exchanges=2) for n in range(count)]
    logins = [
        exchange(
            n, n + 0.05, connection_id=f"{n:016x}", client_id="a", api_key=36, api="SaslAuthenticate", error_code=58
        )
        for n in range(refused)
    ]
    return {"connections": brief, "exchanges": logins}


def joined_again(count: int, apart: float, clients: int = 1) -> Rows:
    """A member that joins for the first time so many times, or as many clients by turns."""
    refused = {"api_key": 11, "api": "JoinGroup", "status": "error", "error_code": 79, "error": "MEMBER_ID_REQUIRED"}
    return {"exchanges": [exchange(n, n * apart, client_id=f"c{n % clients}", **refused) for n in range(count)]}


def asked_in_vain(
    version: int, api_key: int = 1, closed_by: str = "broker", broker: str = "1", status: str = "unanswered",
    oldest_fetch: int = 4,
) -> Rows:  # fmt: skip
    """A request that ends its connection, and the versions that broker 1 has of Fetch and Produce."""
    asked = exchange(0, 1.0, api_key=api_key, api=("Produce", "Fetch")[api_key], api_version=version, broker=broker,
                     status=status, response_first_at=None)  # fmt: skip
    offered = [
        {"broker": "1", "api_key": key, "api": api, "min_version": least, "max_version": most}
        for key, api, least, most in ((0, "Produce", 0, 13), (1, "Fetch", oldest_fetch, 18))
    ]
    return {
        "exchanges": [asked],
        "connections": [connection(1, 0.0, 2.0, closed_by=closed_by, end_reason="fin")],
        "api_versions": offered,
    }


def reset_connections(
    count: int = 3, owners: str = "ab", apart: float = 0.1, back: float = 1.0, answered: int = 2, stay: int = 0,
    refused: float | None = None, own_end: bool = False, trip: float | None = 1.0, begun: float = 0.0,
) -> Rows:  # fmt: skip
    """Connections of `owners` that are reset from second 10 on, `apart` seconds from one another. Their clients are
    `back` so many seconds later and send `answered` requests, whose round trip is `trip` (None: no answer is in the
    capture); `stay` more connections of client a stay open."""
    rows = [
        connection(n, begun + n * apart, 10.0 + n * apart, client_id=owners[n % len(owners)], end_reason="rst")
        for n in range(count)
    ]
    rows += [
        connection(20 + n, 10 + back, 60, client_id=name, exchanges=answered, rtt_ms=trip)
        for n, name in enumerate(owners)
    ]
    rows += [connection(30 + n, 0, 60) for n in range(stay)]
    if refused is not None:
        rows.append(connection(40, refused, refused, client_id=None, is_kafka=False, exchanges=0, bytes=0, rtt_ms=None,
                               end_reason="rst"))  # fmt: skip
    late = exchange(7, 9.9, connection_id=f"{0:016x}", abandoned=own_end)
    return {"connections": rows, "exchanges": [late]}


def closed_window(
    closed: float, took: float | None, side: str = "response", throttle: float = 0.0, resent: int = 0, lost: int = 0
) -> Rows:
    """A message that took so many ms to get through, or never ended, on a connection whose window was closed."""
    times = {f"{name}_{which}_at": START for name in ("request", "response") for which in ("first", "last")}
    one = exchange(0, 0.0, api_key=1, api="Fetch", **times) | {f"{side}_transfer_ms": took, f"{side}_frame": 9}
    if took is None:
        one |= {"status": "partial", f"{side}_last_at": None}
    more = exchange(1, 0.0, api_key=0, api="Produce", throttle_ms=throttle, **times)
    owner = connection(1, 0, 60, zero_window_ms=closed, retransmitted_bytes=resent, lost_segments=lost)
    return {"exchanges": [one, more], "connections": [owner]}


def in_line(turn: float) -> Rows:
    """Five requests that took 2 s, all but `turn` ms of it behind earlier ones, and one whose bytes had to wait."""
    rows = closed_window(1000.0, 2000.0, "request")
    late = {"latency_ms": 2000.0, "queued_ms": 2000.0 - turn, "broker_ms": turn, "network_ms": 0.0}
    ends = {"request_last_at": START, "response_last_at": START + 2 * SECOND}
    after = [exchange(n, 0.0, api_key=3, api="Metadata", **late, **ends) for n in range(2, 7)]
    return rows | {"exchanges": [*rows["exchanges"], *after]}


def refused_port(attempts: int, kafka_at: float, last: float = 5.0, client: str = "a", ip: str = "10.0.0.1") -> Rows:
    """A port of which nothing is known refuses; a client at `ip` speaks Kafka to another port from `kafka_at` on."""
    rows = [
        connection(n, last, last, client_id=None, is_kafka=False, exchanges=0, bytes=0, rtt_ms=None, end_reason="rst",
                   broker_port=9090, broker="10.0.0.9:9090") for n in range(attempts)
    ]  # fmt: skip
    return {"connections": [*rows, connection(50, kafka_at, 60, client_id=client, client_ip=ip)]}


def scanned(ports: int, kafka: bool = True, hosts: int = 1, clients: int = 1) -> Rows:
    """So many ports refuse in a second; the client's address speaks Kafka elsewhere."""
    found = refused_port(ports, 5.5)["connections"]
    for n, row in enumerate(found[:ports]):
        row |= {"broker_port": 9090 + n, "broker_ip": f"10.0.1.{n % hosts}", "broker": f"10.0.1.{n % hosts}:{9090 + n}"}
        row |= {
            "client_ip": f"10.0.0.{1 + n % clients}",
            "connection_id": f"{100 + n:016x}",
            "started_at": START + round((5.0 + n / ports) * SECOND),
        }
    return {"connections": found if kafka else found[:ports]}


def refused_on(*seconds: float, kafka_at: float) -> Rows:
    """A port refuses at these seconds, and a client of that host gets in elsewhere at one."""
    rows = [refused_port(1, kafka_at, last=second)["connections"][0] | {"connection_id": f"{n:016x}"}
            for n, second in enumerate(seconds)]  # fmt: skip
    return {"connections": [*rows, *refused_port(0, kafka_at)["connections"]]}


def twice(
    late: str = "ok",
    again: str = "ok",
    ordinal: int = 5,
    crc: int = 7,
    connection: int = 2,
    producer: int = -1,
    client: str = "c",
    sent: float = 2.0,
) -> Rows:
    """A Produce request that was given up, answered `late`, and one that holds the same batch."""
    answer = {"response_first_at": None, "error_code": None} if late == "unanswered" else {"abandoned": True}
    first = exchange(200, 0.0, api_key=0, api="Produce", status=late) | answer
    second = exchange(ordinal, sent, api_key=0, api="Produce", status=again, client_id=client, abandoned=False)
    second |= {"exchange_id": f"{connection:016x}:{ordinal}", "connection_id": f"{connection:016x}"}
    same = {"topic": "t", "partition": 0, "magic": 2, "producer_id": producer, "leader_epoch": -1, "records": 3,
            "compressed_bytes": 90, "first_timestamp": START, "max_timestamp": START}  # fmt: skip
    batches = [same | {"exchange_id": one["exchange_id"], "crc": number}
               for one, number in ((first, 7), (second, crc))]  # fmt: skip
    return {"exchanges": [first, second], "record_batches": batches}


def batches(sent: str, got: str, count: int = 3, sequence: int = 0, producer: int = 3000) -> Rows:
    """As many batches, sent in one codec and read in another."""
    rows, asked, answered = [], [], []
    for n in range(count):
        same = {"topic": "t", "partition": n, "magic": 2, "producer_id": producer, "producer_epoch": 0, "records": 5,
                "base_sequence": sequence, "base_offset": 0, "last_offset": 4, "is_transactional": False}  # fmt: skip
        ids = [f"{side:016x}:{n}" for side in (1, 2)]
        rows += [same | {"exchange_id": name, "codec": codec} for name, codec in zip(ids, (sent, got), strict=True)]
        asked.append({"exchange_id": ids[0], "sent_at": START, "topic": "t", "partition": n, "producer_id": producer})
        answered.append({"exchange_id": ids[1], "requested_at": START, "client_id": "r"})
    return {"record_batches": rows, "producers": asked, "fetches": answered}


def formats(old: int, present: int, offset: int = 32) -> Rows:
    """Records that two clients read: a run that holds offset 32 in one format, a batch of `offset` in another."""
    rows = [
        {"exchange_id": f"{n:016x}:0", "topic": "t", "partition": 0, "magic": magic, "base_offset": first,
         "last_offset": last, "codec": "none", "producer_id": -1}
        for n, (magic, first, last) in enumerate(((old, 30, 40), (present, offset, offset + 3)))
    ]  # fmt: skip
    fetches = [{"exchange_id": row["exchange_id"], "requested_at": START, "client_id": f"c{n}"}
               for n, row in enumerate(rows)]  # fmt: skip
    return {"record_batches": rows, "fetches": fetches}


def far(
    way: float, whole: float, count: int = 20, kind: str = "handshake", others: int = 20, rtt: float = 30.0
) -> Rows:
    """Requests of which the network takes so much, on a connection with as many others."""
    connection = {"connection_id": f"{1:016x}", "client_id": "c", "broker": "1", "is_kafka": True, "rtt_ms": rtt,
                  "rtt_kind": kind, "exchanges": count + others, "start_seen": True}  # fmt: skip
    rows = [exchange(n, n, network_ms=way, latency_ms=whole) for n in range(count)]
    return {"connections": [connection], "exchanges": rows}


def resent(count: int, each: float, asked: int = 100) -> Rows:
    connection = {"connection_id": f"{1:016x}", "client_id": "c", "broker": "1", "is_kafka": True, "start_seen": True,
                  "exchanges": asked, "packets": 1000, "lost_segments": 12}  # fmt: skip
    rows = [exchange(n, n, request_resent_ms=each, response_resent_ms=0.0) for n in range(count)]
    return {"connections": [connection], "exchanges": rows}


def resent_or_not(kind: str) -> Rows:
    """Nothing tells whether the copies of requests were needed."""
    tables = resent(5, 0.0)
    more = {"request_resent_ms": None, "network_ms": 200.0, "network_kind": kind}
    return tables | {"exchanges": [row | more for row in tables["exchanges"]]}


def far_client(way: float, took: float, count: int = 20, seen: bool = True, api_key: int = 0) -> Rows:
    """Requests as the broker's end has them, of a client that is so far away, and as many that wait for followers."""
    connection = {"connection_id": f"{1:016x}", "client_id": "c", "broker": "1", "is_kafka": True, "rtt_ms": 0.01,
                  "rtt_kind": "ack", "client_rtt_ms": way, "exchanges": 2 * count, "start_seen": seen}  # fmt: skip
    rows = [
        exchange(n, n, api_key=api_key, network_ms=0.01, latency_ms=took if n < count else 10.0 * way)
        for n in range(2 * count)
    ]
    return {"connections": [connection], "exchanges": rows}


def longer_way_to_clients(
    soon: int = 3, gap: float = 3.9, late: int = 4, apart: float = 0.6, connections: int = 2, trip: float = 20.0,
    seen: bool = True, api_key: int = 1, ahead: bool = False,
) -> Rows:  # fmt: skip
    """Fetches of some connections as the broker's end has them: so many ask `gap` ms after an answer, then one after
    another `apart` s. `ahead`: one is sent before the answer to that before it."""
    exchanges, rows = [], []
    for number in range(1, connections + 1):
        at, own = 0.0, {"connection_id": f"{number:016x}", "api_key": api_key}
        for n in range(soon + late + 1):
            name, end = {"exchange_id": f"{number:016x}:{n}"}, START + round((at + 0.5) * SECOND)
            rows.append(exchange(n, at, network_kind="ack", network_ms=0.01, response_last_at=end) | own | name)
            at += 0.5 + (gap / 1000 if n < soon else apart)
        if ahead:
            rows[-1]["request_first_at"] = rows[-2]["request_first_at"] + 1000
        exchanges += rows
        rows = []
    some = [
        {"connection_id": f"{number:016x}", "client_id": "c", "broker": "1", "is_kafka": True, "rtt_ms": 0.01,
         "rtt_min_ms": 0.01, "rtt_kind": "ack", "client_rtt_ms": trip, "start_seen": seen}
        for number in range(1, connections + 1)
    ]  # fmt: skip
    return {"connections": some, "exchanges": exchanges}


def copies(
    count: int = 10, packets: int = 500, size: int = 16, connections: int = 2, closed: float = 0.0,
    broker_ip: str = "10.0.0.2",
) -> Rows:  # fmt: skip
    """Connections of one host, on each of which so many segments were sent again."""
    some = [
        {"connection_id": f"{number:016x}", "client_id": "c", "broker": "1", "client_ip": "10.0.0.1", "is_kafka": True,
         "broker_ip": broker_ip, "lost_segments": count, "retransmitted_bytes": size * count, "packets": packets,
         "zero_window_ms": closed, "start_seen": True}
        for number in range(1, connections + 1)
    ]  # fmt: skip
    return {"connections": some, "exchanges": []}


def silent(seconds: float, code: int = 25, between: bool = False, missing: int = 0) -> Rows:
    """A heartbeat that is refused so long after the one before it; one in between that got no answer; bytes that were
    not captured."""
    first = exchange(0, 0.0, api_key=12, api="Heartbeat")
    second = exchange(1, seconds, api_key=12, api="Heartbeat", status="error", error_code=code, error="X")
    third = exchange(2, 1.0, api_key=12, api="Heartbeat", status="unanswered", error_code=None, response_first_at=None)
    connection = {"connection_id": f"{1:016x}", "client_id": "c", "missing_bytes": missing, "start_seen": True}
    return {"exchanges": [first, second, *([third] if between else [])], "connections": [connection]}


def without(seconds: float, owned: int = 0) -> Rows:
    """A member of a KIP-848 group that is told so many partitions, and one more so long after."""
    rows = [
        {"exchange_id": f"{1:016x}:{n}", "at": START + round(at * SECOND), "group_id": "g", "member_id": "m",
         "client_id": "c", "protocol": "consumer", "event": "consumer_heartbeat", "error_code": 0,
         "assigned_partitions": [{"topic": "t", "topic_id": None, "partitions": list(range(count))}]}
        for n, (at, count) in enumerate(((0.0, owned), (seconds, owned + 1)))
    ]  # fmt: skip
    return {"groups": rows}


FIRES: list[tuple[str, str, Callable[[], Rows], list[Callable[[], Rows]]]] = [
    ("leader_moved", "medium", lambda: leaders(1.0), [lambda: leaders(1.0, None), lambda: leaders(1.0, 2)]),
    ("leader_moved", "low", lambda: leaders(0.9), []),
    ("short_connections", "low", brief_connections,
     [lambda: brief_connections(19), lambda: brief_connections(refused=10)]),
    ("leader_moved", "info", lambda: leaders(0.9, client_id="ReplicaFetcherThread-0-1"), []),
    ("stale_leader", "low", lambda: leaders(0.9, client_id=None), []),
    ("stale_leader", "info", lambda: leaders(0.9, client_id=None, status="partial"), []),
    ("slow_followers", "info", lambda: followers(1000.0), [lambda: followers(999.0)]),
    ("slow_followers", "medium", lambda: followers(10_000.0), []),
    ("commit_per_record", "low", lambda: commits(100, 4.9, 1),
     [lambda: commits(99, 4.0, 1), lambda: commits(100, 5.1, 1), lambda: commits(100, 4.9, 2)]),
    ("commits_fall_behind", "medium", lambda: lags(*FALLING),
     [lambda: lags(*FALLING[:-1]), lambda: lags(*BACK), lambda: lags(*OFTEN_BACK), lambda: lags(*FROM_BEFORE),
      lambda: lags(*FALLING, apart=0.4), lambda: lags(*FALLING, throttle=1.0), lambda: lags(*FALLING, late=500.0),
      lambda: lags(*FALLING, stable=1), lambda: owed(lags(*FALLING), 0.5),
      lambda: on_its_way(lags(*FALLING), 5.0), lambda: behind_losses(lags(*FALLING), 20),
      lambda: unfinished(lags(*FALLING), 1.0)]),
    ("commits_stopped", "medium", commits_until,
     [lambda: commits_until(last=4), lambda: commits_until(fetched=14.5), lambda: commits_until(step=2.2, fetched=21.5),
      lambda: commits_until(ended=15.0), lambda: commits_until(still=(5.0, 8.0)),
      lambda: commits_until(still=(12.5, 60.0))]),
    ("growing_lag", "medium", lags_in_turn,
     [lambda: lags_in_turn(second_reads=True), lambda: lags_in_turn(partitions=(0,))]),
    ("growing_lag", "medium", lambda: owed(lags(*FALLING), 4.0), []),
    ("growing_lag", "medium", lambda: not_come(lags(*FALLING), 3), [lambda: not_come(lags(*FALLING), 4)]),
    ("growing_lag", "medium", lambda: on_its_way(lags(*FALLING), 1.0), []),
    ("growing_lag", "medium", lambda: unfinished(lags(*FALLING), 4.0), []),
    ("growing_lag", "medium", lambda: behind_losses(lags(*FALLING), 1), []),
    ("growing_lag", "medium", lambda: lags(*FALLING),
     [lambda: lags(*FALLING[:-1]), lambda: lags(*BACK), lambda: lags(*OFTEN_BACK), lambda: lags(*FROM_BEFORE),
      lambda: lags(*FALLING, apart=0.4), lambda: lags(*FALLING, throttle=1.0), lambda: lags(*FALLING, late=500.0),
      lambda: lags(*FALLING, stable=500), lambda: owed(lags(*FALLING), 0.5),
      lambda: on_its_way(lags(*FALLING), 5.0), lambda: behind_losses(lags(*FALLING), 20),
      lambda: unfinished(lags(*FALLING), 1.0)]),
    ("batches_written_twice", "medium", twice,
     [lambda: twice(crc=8), lambda: twice(producer=3000), lambda: twice(again="error"), lambda: twice(connection=1),
      lambda: twice(client="d"), lambda: twice(sent=-1.0), lambda: twice(ordinal=100),
      lambda: twice(late="error")]),
    ("batches_written_twice", "low", lambda: twice(late="unanswered"), []),
    ("rebalances", "info", lambda: rebalance(2, 9.9), [lambda: rebalance(1, 9.9), lambda: rebalance(3, 9.9)]),
    ("rebalances", "low", lambda: rebalance(2, 10.0), []),
    ("share_locks_ran_out", "medium", lambda: locks(1), [lambda: locks(0)]),
    ("requests_cut_off", "info", lambda: closed("unanswered"),
     [lambda: closed("pending"), lambda: closed("no_response"), lambda: closed("unanswered", reason="open"),
      lambda: closed("unanswered", 36)]),
    ("login_cut_off", "medium", lambda: closed("unanswered", 36),
     [lambda: closed("unanswered"), lambda: closed("ok", 36)]),
    ("several_addresses", "info", lambda: addresses("10.0.0.1", "10.0.0.2"),
     [lambda: addresses("10.0.0.1", "10.0.0.1")]),
    ("capture_began_late", "info", lambda: late(False), [lambda: late(True)]),
    ("capture_one_way", "info", lambda: one_way(2, 2), [lambda: one_way(1, 1), lambda: one_way(2, 3)]),
    ("recompressed", "low", lambda: batches("gzip", "zstd"),
     [lambda: batches("gzip", "gzip"), lambda: batches("gzip", "zstd", 2), lambda: batches("gzip", "zstd", sequence=31),
      lambda: batches("gzip", "zstd", producer=-1)]),
    ("converted_down", "info", lambda: formats(1, 2),
     [lambda: formats(2, 2), lambda: formats(1, 1), lambda: formats(1, 2, 64)]),
    ("mostly_round_trip", "low", lambda: far(20.0, 40.0),
     [lambda: far(19.9, 30.0), lambda: far(20.0, 40.1), lambda: far(20.0, 40.0, 19), lambda: far(20.0, 40.0, others=21),
      lambda: far(20.0, 40.0, kind="bound"), lambda: far(20.0, 40.0, rtt=19.9)]),
    ("mostly_round_trip", "low", lambda: far_client(20.0, 20.0),
     [lambda: far_client(19.9, 10.0), lambda: far_client(20.0, 20.1), lambda: far_client(20.0, 20.0, 19),
      lambda: far_client(20.0, 20.0, seen=False), lambda: far_client(20.0, 20.0, api_key=1)]),
    ("round_trip_rose", "medium", longer_way_to_clients,
     [lambda: longer_way_to_clients(2), lambda: longer_way_to_clients(gap=4.1), lambda: longer_way_to_clients(late=3),
      lambda: longer_way_to_clients(connections=1),
      lambda: longer_way_to_clients(trip=19.9), lambda: longer_way_to_clients(seen=False),
      lambda: longer_way_to_clients(api_key=0), lambda: longer_way_to_clients(ahead=True)]),
    ("segments_lost", "low", copies,
     [lambda: copies(9), lambda: copies(packets=501), lambda: copies(size=15), lambda: copies(20, connections=1),
      lambda: copies(closed=200.0), lambda: copies(broker_ip="10.0.0.1"), lambda: of_payload(copies()),
      lambda: of_one_direction(copies())]),
    ("segments_lost", "low", lambda: resent(5, 199.0),
     [lambda: resent(4, 250.0), lambda: resent(5, 0.0), lambda: resent(5, 300.0, 501)]),
    ("segments_lost", "medium", lambda: resent(5, 200.0), []),
    ("segments_lost", "medium", lambda: resent_or_not("resent"), [lambda: resent_or_not("bound")]),
    ("member_without_partitions", "info", lambda: without(1.0), [lambda: without(0.9), lambda: without(1.0, 1)]),
    ("member_without_partitions", "low", lambda: without(10.0), []),
    ("member_thrown_out", "medium", lambda: silent(6.0),
     [lambda: silent(5.9), lambda: silent(6.0, 27), lambda: silent(6.5, between=True),
      lambda: silent(6.0, missing=9)]),
    ("producer_fenced", "high", fenced, [lambda: {**fenced(), "exchanges": []}]),
    ("producer_fenced", "high", ended_late, [lambda: ended_late("p1", 1), lambda: ended_late(code=53)]),
    ("producer_fenced", "high", lambda: ended_late("p1"), []),
    ("client_paused", "info", lambda: polls(1.1),
     [lambda: polls(0.99), lambda: polls(1.1, 101.0), lambda: polls(1.1, size=0), lambda: polls(1.1, refused=0.9)]),
    ("client_paused", "info", lambda: polls(1.1, refused=0.4),
     [lambda: lacking(polls(1.1), "c"), lambda: lacking(polls(1.1)), lambda: lacking(polls(1.1), "c", 1.5),
      lambda: answered_unseen(polls(1.1), 0.9)]),
    ("client_paused", "info", lambda: lacking(polls(1.1), "c", end=0.4), []),
    ("client_paused", "info", lambda: lacking(polls(1.1), "d"), []),
    ("client_paused", "info", lambda: answered_unseen(polls(1.1), 1.6), []),
    ("client_paused", "medium", lambda: polls(3.0), []),
    ("client_paused", "info", lambda: polls(3.0, begun=False), []),
    ("client_paused", "low", lambda: polls_and_stops(2.0), []),
    ("client_paused", "info", lambda: polls_and_stops(1.9), []),
    ("client_paused", "info", lambda: polls_and_stops(2.0, lost=3), []),
    ("clients_paused_together", "medium", lambda: stopped(1.1),
     [lambda: stopped(0.85), lambda: stopped(1.5, apart=0.3), lambda: stopped(1.5, throttle=2000.0),
      lambda: stopped(1.5, rhythm=0.5), lambda: stopped(1.5, lost=3), lambda: stopped(1.5, lost=1),
      lambda: stopped(1.1, answered=0.09), lambda: stopped(1.1, answered=0.91)]),
    ("clients_paused_together", "medium", lambda: stopped(1.1, others=False),
     [lambda: lacking(stopped(1.1), "a"), lambda: lacking(stopped(1.1)), lambda: answered_unseen(stopped(1.1), 5.5)]),
    ("clients_paused_together", "medium", lambda: lacking(stopped(1.1), "x"), []),
    ("clients_paused_together", "medium", lambda: answered_unseen(stopped(1.1), 4.5), []),
    ("consumer_silent", "medium", lambda: alone(2.1),
     [lambda: alone(1.8), lambda: alone(2.1, copies=4), lambda: alone(2.1, resumed=4), lambda: alone(2.1, rhythm=0.3),
      lambda: alone(2.1, closed=True), lambda: alone(2.1, metadata=False)]),
    ("consumer_silent", "medium", lambda: alone(2.1, copies=3),
     [lambda: lacking(alone(2.1), "a"), lambda: answered_unseen(alone(2.1), 5.5)]),
    ("producer_silent", "low", lambda: quiet(2.1, 20),
     [lambda: quiet(1.9), lambda: quiet(2.1, 19), lambda: quiet(2.1, after=4), lambda: quiet(2.1, copies=4),
      lambda: quiet(2.1, closed=True), lambda: quiet(4.5, others=0.5), lambda: quiet(2.1, rhythm=0.27),
      lambda: quiet(2.1, metadata=False), lambda: beside_one_that_waits(quiet(2.1))]),
    ("producer_silent", "low", lambda: quiet(4.5, others=0.39),
     [lambda: lacking(quiet(2.1), "a"), lambda: answered_unseen(quiet(2.1), 5.5)]),
    ("broker_stopped", "medium", stopping,
     [lambda: stopping("a"), lambda: stopping("aa"), lambda: stopping(apart=0.3), lambda: stopping(back=1.9),
      lambda: stopping(elsewhere=5.5), lambda: stopping(stay=1), lambda: stopping(refused=True),
      lambda: stopping(asked=-56.0), lambda: stopping(closers=("broker", "client")),
      lambda: nameless(stopping())]),
    ("broker_stopped", "medium", lambda: stopping(back=2.1), []),
    ("network_silent", "high", lambda: stopped(1.5, lost=4),
     [lambda: stopped(1.5, lost=3), lambda: lacking(lacking(stopped(1.5, lost=4), "a"), "b", connection=10),
      lambda: lacking(stopped(1.5, lost=4))]),
    ("network_silent", "high", lambda: unheard(3),
     [lambda: unheard(2), lambda: unheard(3, lost=1), lambda: unheard(3, wait=0.3)]),
    ("network_silent", "high", lambda: unanswered(1000.0),
     [lambda: unanswered(999.0), lambda: unanswered(1000.0, "handshake"), lambda: unanswered(1000.0, "proven")]),
    ("network_silent", "medium", lambda: unanswered(1000.0, connections=1), []),
    ("metadata_in_vain", "medium", lambda: asking(4, 0.7),
     [lambda: asking(3, 0.9), lambda: asking(2, 1.4), lambda: asking(3, 1.6), lambda: asking(4, 0.7, api_key=0),
      lambda: asking(4, 0.7, ended=2.0), lambda: of_payload(asking(4, 0.7)),
      lambda: met_in_its_middle(asking(4, 0.7), 8.9)]),
    ("metadata_in_vain", "medium", lambda: met_in_its_middle(asking(4, 0.7), 9.0), []),
    ("metadata_in_vain", "medium", lambda: of_payload(asking(4, 0.7), bare=1), []),
    ("no_leader", "medium", without_leader,
     [lambda: without_leader(refused=None), lambda: without_leader(refused=None, other=0.5),
      lambda: without_leader(refused=9.0), lambda: without_leader(2, 1.4), lambda: without_leader(3, 1.6),
      lambda: without_leader(api_key=10)]),
    ("no_leader", "medium", lambda: without_leader(api_key=1, refused=None, lost=0.5),
     [lambda: without_leader(api_key=1, refused=None, lost=9.0)]),
    ("no_leader", "medium", lambda: without_leader(80, 0.03), []),
    ("slow_topic", "low", lambda: writes(10.0, 5.0),
     [lambda: writes(9.9, 1.0), lambda: writes(10.0, 5.1), lambda: writes(10.0, 5.0, count=49),
      lambda: writes(10.0, 5.0, acks=-1), lambda: writes(10.0, 5.0, slow_quartile=6.0)]),
    ("clients_paused_together", "medium", lambda: stopped(1.1), [lambda: started_again(stopped(1.1))]),
    ("connections_reset", "medium", reset_connections,
     [lambda: reset_connections(count=2), lambda: reset_connections(owners="a"), lambda: reset_connections(apart=0.6),
      lambda: reset_connections(back=10.5), lambda: reset_connections(answered=1), lambda: reset_connections(stay=3),
      lambda: reset_connections(refused=10.5), lambda: reset_connections(own_end=True),
      lambda: reset_connections(trip=None), lambda: reset_connections(begun=8.1)]),
    ("connections_reset", "medium", lambda: reset_connections(begun=8.0), []),
    ("unsupported_version", "high", lambda: asked_in_vain(3), [lambda: asked_in_vain(4), lambda: asked_in_vain(18),
      lambda: asked_in_vain(3, closed_by="client"), lambda: asked_in_vain(3, broker="2"),
      lambda: asked_in_vain(3, status="pending"), lambda: asked_in_vain(3, 0)]),
    ("unsupported_version", "high", lambda: asked_in_vain(19), []),
    ("passing_error", "low", lambda: joined_again(7, 5.0), []),
    ("passing_error", "info", lambda: joined_again(6, 5.0), []),
    ("passing_error", "info", lambda: joined_again(7, 5.1), []),
    ("passing_error", "info", lambda: joined_again(14, 2.6, clients=2), []),
    ("unsupported_version", "high", lambda: asked_in_vain(2, 0), [lambda: asked_in_vain(2, 0, oldest_fetch=0)]),
    ("member_left", "medium", lambda: left(3.0), [lambda: left(2.9)]),
    ("broker_stalled", "high", lambda: standing(0.0),
     [lambda: standing(0.0, api_key=1, api="Fetch"), lambda: behind_polls(standing(0.0))]),
    ("broker_stalled", "info", lambda: unmeasured(standing(0.0)), []),
    ("broker_stalled", "info", at_a_standstill, [lambda: behind_polls(at_a_standstill())]),
    ("broker_stalled", "info", lambda: at_a_standstill(brokers=1), []),
    ("broker_stalled", "high", lambda: at_a_standstill(brokers=1, between=True), []),
    ("slow_requests", "info", lambda: behind_a_quota(1100.0), [lambda: behind_a_quota(1300.0)]),
    ("slow_requests", "medium", lambda: late_answer("ok"), []),
    ("slow_requests", "info", lambda: late_answer("partial"), []),
    ("window_closed", "medium", lambda: closed_window(1000.0, 2000.0),
     [lambda: closed_window(999.0, 1000.0), lambda: closed_window(1000.0, 2001.0),
      lambda: closed_window(1000.0, 199.0)]),
    ("window_closed", "medium", lambda: closed_window(1000.0, None), [lambda: closed_window(999.0, None)]),
    ("window_closed", "medium", lambda: closed_window(1000.0, 2000.0, "request", throttle=1.0), []),
    ("window_closed", "medium", lambda: in_line(199.0), []),
    ("network_stall", "medium", lambda: closed_window(999.0, 1000.0, resent=1),
     [lambda: closed_window(1000.0, 1000.0, resent=1), lambda: closed_window(999.0, 1000.0),
      lambda: of_payload(closed_window(999.0, 1000.0, resent=1)),
      lambda: of_one_direction(closed_window(999.0, 1000.0, resent=1))]),
    ("connections_refused", "low", lambda: refused_port(1, 7.0), [lambda: refused_port(2, 7.1)]),
    ("connections_refused", "medium", lambda: refused_port(3, 7.1),
     [lambda: refused_port(3, 7.1, ip="10.0.0.2"), lambda: refused_port(3, 7.0, client="broker-1-fetcher-0")]),
    ("connections_refused", "medium", lambda: refused_on(5.0, 10.0, 15.0, 20.0, kafka_at=20.5), []),
    ("connections_refused", "low", lambda: refused_on(10.0, 15.0, 20.0, kafka_at=20.5), []),
    ("capture_cut_short", "info", lambda: snapped(1.0), [lambda: snapped(0.0)]),
    ("capture_without_acks", "info", lambda: without_acks(1.0), [lambda: without_acks(0.0)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "severity", "fires", "misses"), FIRES, ids=[f"{one[0]}-{one[1]}" for one in FIRES])
def test_a_rule_fires_and_a_near_miss_does_not(
    kind: str, severity: str, fires: Callable[[], Rows], misses: list[Callable[[], Rows]]
) -> None:
    assert told(fires(), kind) == [severity]
    for miss in misses:
        assert told(miss(), kind) == []


@pytest.mark.parametrize(
    ("rows", "severities", "said"),
    [
        (scanned(20), ["low"] * 20, "Port 9090 of 10.0.1.0 refused 1 connection"),
        (scanned(21), ["low"], "21 ports of 10.0.1.0 refused 21 connections from 10.0.0.1."),
        (scanned(2000, hosts=50), ["low"], "2,000 ports of 50 hosts refused 2,000 connections from 10.0.0.1."),
        (scanned(42, clients=2), ["low"], "21 ports of 10.0.1.0 refused 21 connections from 10.0.0.1."),
        (scanned(40, clients=2), ["low"] * 20, "Port 9090 of 10.0.1.0 refused 1 connection"),
        (scanned(20, kafka=False), ["high"] * 20, "Port 9090 of 10.0.1.0 refused 1 connection"),
        (scanned(30, kafka=False, clients=2), ["low"], "30 ports of 10.0.1.0 refused 30 connections from 10.0.0.1 and"),
    ],
)
def test_a_scan_is_one_finding(rows: Rows, severities: list[str], said: str) -> None:
    """More than 20 ports that refused one client of Kafka, or anybody where nothing speaks Kafka. Each finding goes
    over all connections, so there are few."""
    table = made("connections", rows["connections"])
    found = [one for one in findings({"connections": table}).findings.to_pylist() if one["id"] == "connections_refused"]
    assert [one["severity"] for one in found] == severities
    assert said in found[0]["text"]
    assert sum(one["count"] for one in found) <= table.num_rows
    for one in found:
        assert filtered("connections", table, parse(one["filter"], SCHEMAS["connections"])).num_rows == one["count"]


@pytest.mark.parametrize(("lost", "cause"), [(1, "unknown"), (2, "network")])
def test_a_message_that_stood_still_was_lost_only_where_as_much_was_sent_again(lost: int, cause: str) -> None:
    """In 1,400 ms TCP sends a segment again three times: after 200, 600 and 1,400 ms."""
    tables = {name: made(name, rows) for name, rows in closed_window(0.0, 1400.0, resent=100, lost=lost).items()}
    (one,) = findings(tables).findings.filter(pc.field("id") == "network_stall").to_pylist()
    assert one["cause"] == cause
    assert ("sent again" in one["text"]) == (cause == "network")


@pytest.mark.parametrize(("turn", "cause"), [(199.0, "unknown"), (200.0, "broker")])
def test_a_broker_is_no_cause_where_requests_wait_for_earlier_ones_of_their_connection(turn: float, cause: str) -> None:
    tables = {name: made(name, rows) for name, rows in in_line(turn).items()}
    causes = {one["id"]: (one["cause"], one["text"]) for one in findings(tables).findings.to_pylist()}
    assert causes["window_closed"][0] == causes["slow_requests"][0] == cause
    assert causes["window_closed"][1].startswith(
        "Client a sent more than" if cause == "unknown" else "Broker 1 stopped"
    )
    assert ("went by behind earlier" in causes["slow_requests"][1]) == (cause == "unknown")


def test_whom_a_produce_waited_for_is_said() -> None:
    """A partition's new leader waited for the broker that had led it: half a second and more, at most 942 ms."""
    path = ROOT / "captures" / "stories" / "leader_move.pcap.zst"
    found = kdissect.open(path, slow=0.5).table("findings", where="id = 'slow_followers'").to_pylist()
    rows = kdissect.open(path).table("produces", where="replication_ms >= 500").to_pylist()
    (one,) = found
    assert (one["cause"], one["broker"], one["client_id"], one["count"]) == ("follower", "3", "p9", len(rows))
    assert "the longest 942 ms" in one["text"]
    followers = {node for row in rows for node in row["waited_for"] or ()}
    assert followers
    assert all(f"broker {node} (" in one["text"] for node in followers)


def test_what_was_written_twice_lies_at_two_offsets() -> None:
    """What the late answer says is so: readers got the batch at two offsets."""
    capture = kdissect.open(ROOT / "captures" / "stories" / "slow_broker.pcap.zst")
    (one,) = capture.table("findings", where="id = 'batches_written_twice'").to_pylist()
    assert "1 of them was written twice" in one["text"]
    batches = capture.table("record_batches", columns=["exchange_id", "crc", "base_offset", "leader_epoch"]).to_pylist()
    first = {row["crc"] for row in batches if row["exchange_id"] == "19fab8f363c8486a:58"}
    assert len({row["base_offset"] for row in batches if row["crc"] in first and row["leader_epoch"] >= 0}) == 2


UNKNOWN: tuple[dict[str, Any], ...] = (
    {"abandoned": True},
    {"status": "unanswered", "response_first_at": None, "error_code": None},
    {"status": "one_way", "response_first_at": None},
    {"status": "error", "error_code": 87, "error": None},
    {"status": "error", "error_code": 35, "error": "UNSUPPORTED_VERSION"},
    {"latency_ms": 90_000.0, "throttle_ms": 500.0, "request_resent_ms": 9_000.0, "response_resent_ms": 9_000.0},
)


@pytest.mark.parametrize("more", UNKNOWN)
@pytest.mark.parametrize("nameless", [{}, {"client_id": None}])
def test_what_is_known_of_some_requests_only_is_said_of_these(more: dict[str, Any], nameless: dict[str, Any]) -> None:
    """Damaged requests have no API that anybody knows, and perhaps no client."""
    rows = [exchange(n, 1.0 * n, **more) for n in range(6)]
    for row in rows[::2]:
        row |= {"api_key": 999, "api": None} | nameless
    for row in rows[1::2]:
        row |= {"api_key": 1, "api": "Fetch"}
    connection = closed("ok")["connections"][0]
    found = findings({"exchanges": made("exchanges", rows), "connections": made("connections", [connection])}).findings
    assert not any("None" in row["text"] for row in found.to_pylist())
    if more == {"abandoned": True}:
        assert told({"exchanges": rows}, "requests_given_up")


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ({"latency_ms": 900.0, "broker_ms": 900.0}, "client"),
        ({"latency_ms": 3000.0, "broker_ms": 2900.0, "network_ms": 100.0}, "broker"),
        ({"latency_ms": 3000.0, "broker_ms": 100.0, "network_ms": 2900.0}, "network"),
        ({"latency_ms": 3000.0, "broker_ms": 1500.0, "network_ms": 1500.0}, "unknown"),
    ],
)
def test_what_had_the_time_of_slow_answers_made_a_client_give_them_up(parts: dict[str, float], cause: str) -> None:
    def given_up(**api: Any) -> dict[str, Any]:
        rows = [exchange(n, 1.0 * n, abandoned=True, **api, **parts) for n in range(3)]
        tables = {"exchanges": made("exchanges", rows), "connections": made("connections", closed("ok")["connections"])}
        (one,) = (row for row in findings(tables).findings.to_pylist() if row["id"] == "requests_given_up")
        return one

    one = given_up(api_key=8, api="OffsetCommit")
    assert one["cause"] == cause
    assert f"The slowest took {'900 ms' if cause == 'client' else '3.0 s'}." in one["text"]
    assert given_up(api_key=1, api="Fetch")["cause"] == "client"  # a long poll


@pytest.mark.parametrize(
    ("topics", "said"), [(["a", "a"], "Produce was for a."), (["a", "b"], None)], ids=["one_topic", "several"]
)
def test_an_error_of_a_request_names_its_topic_if_it_had_one(topics: list[str], said: str | None) -> None:
    refused = exchange(0, 0.0, api_key=0, api="Produce", error_code=10, error="MESSAGE_TOO_LARGE")
    batches = [
        {"exchange_id": refused["exchange_id"], "topic": topic, "partition": n, "sent_at": START, "producer_id": 7}
        for n, topic in enumerate(topics)
    ]
    tables = {"exchanges": made("exchanges", [refused]), "producers": made("producers", batches)}
    (one,) = (row for row in findings(tables).findings.to_pylist() if row["id"] == "records_refused")
    assert one["topic"] == (topics[0] if said else None)
    assert ("Produce was for" in one["text"]) == (said is not None)
    assert said is None or one["text"].endswith(said)


def test_silences_of_a_broker_in_a_row_are_one_finding() -> None:
    rows = findings({name: made(name, of) for name, of in standing(0.0, 5.0, 30.0).items()}).findings.to_pylist()
    first, last = (row for row in rows if row["id"] == "broker_stalled")
    assert "answered nothing twice from" in first["text"]
    assert "for up to 1.5 s" in first["text"]
    assert (first["count"], last["count"]) == (4, 2)
    assert "answered nothing for" in last["text"]
    assert {first["cause"], last["cause"]} == {"broker"}


@pytest.mark.parametrize(
    ("replication", "stalled", "late"),
    [
        (0.0, "broker", "broker"),
        (700.0, "broker", "unknown"),
        (800.0, "unknown", "follower"),
        (None, "unknown", "unknown"),
    ],
)
def test_a_wait_for_followers_that_is_known_leaves_the_rest_to_the_broker(
    replication: float | None, stalled: str, late: str
) -> None:
    rows = findings({name: made(name, of) for name, of in standing(0.0, replication=replication).items()}).findings
    (stall,) = (row for row in rows.to_pylist() if row["id"] == "broker_stalled")
    assert stall["cause"] == stalled
    (slow,) = (row for row in rows.to_pylist() if row["id"] == "slow_requests")
    assert slow["cause"] == late


@pytest.mark.parametrize(("closer", "cause"), [("broker", "security"), ("client", "unknown"), (None, "unknown")])
def test_a_login_that_ended_is_the_brokers_only_if_it_closed_first(closer: str | None, cause: str) -> None:
    tables = closed("unanswered", 36, closer=closer)
    rows = findings({name: made(name, of) for name, of in tables.items()}).findings.to_pylist()
    (one,) = (row for row in rows if row["id"] == "login_cut_off")
    assert one["cause"] == cause
    assert (" closed " in one["headline"]) == (closer == "broker")
    assert ("The client closed" in one["text"]) == (closer == "client")


def test_a_fetch_that_another_broker_answered_late_in_a_gap_is_not_that_brokers() -> None:
    assert not told(late_in_a_gap((6.2, 5000.0)), "slow_fetches")
    assert not told(late_in_a_gap((6.2, 5000.0), (5.9, 4700.0)), "slow_fetches")
    assert told(late_in_a_gap((6.2, 5000.0), (3.0, 0.0)), "slow_fetches")
    assert told(late_in_a_gap((6.2, 5000.0), gap_ms=2500.0), "slow_fetches")


@pytest.mark.parametrize(("taken", "known"), [
    ({"network_ms": 5000.0, "network_kind": "bound"}, False),
    ({"network_ms": None, "network_kind": None, "broker_ms": 5000.0}, False),
    ({"network_ms": None, "network_kind": None, "broker_ms": 5000.0, "agreed_ms": 4500.0}, True),
    ({"network_ms": None, "network_kind": None, "broker_ms": 5000.0, "throttled_ms": 4500.0}, True),
    ({"network_ms": None, "network_kind": None, "broker_ms": 5000.0, "replication_ms": 4500.0}, True),
    ({"network_ms": 5000.0, "network_kind": "handshake"}, True),
])  # fmt: skip
def test_a_fetch_is_late_for_its_broker_only_where_the_network_is_known(taken: dict[str, Any], known: bool) -> None:
    """Where the network may have been gone, a late answer may have been lost on its way."""
    rows = late_in_a_gap((6.2, 5000.0))
    rows["exchanges"] = [one | taken for one in rows["exchanges"]]
    assert bool(told(rows, "slow_fetches")) == known


def test_a_move_heads_the_errors_that_follow_from_it() -> None:
    rows = findings({name: made(name, of) for name, of in leaders(0.5).items()}).findings.to_pylist()
    (incident,) = account(rows)
    assert incident.headline["id"] == "leader_moved"
    assert [row["id"] for row in incident.consequences] == ["stale_leader"]


def test_a_move_does_not_head_the_broker_that_stopped() -> None:
    """A broker that is stopped hands its partitions over before it closes its connections."""
    gone = stopping(elsewhere=12.0)
    moves = leaders(0.5)
    late = [
        row | {"request_first_at": row["request_first_at"] + 5 * SECOND, "broker": "2"} for row in moves["exchanges"]
    ]
    move = [row | {"at": START + 5 * SECOND, "leader": 1, "previous": 2} for row in moves["leaders"]]
    tables = gone | {"leaders": move, "exchanges": [*gone["exchanges"], *late]}
    rows = findings({name: made(name, of) for name, of in tables.items()}).findings.to_pylist()
    assert "leader_moved" in {row["id"] for row in rows}
    assert "broker_stopped" in {one.headline["id"] for one in account(rows)}


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        ({0: 90}, []),
        ({0: 130, 1: 90, 3: 120}, [("high", "2 shards of broker 1 need more slots for fetch sessions", 250)]),
        ({1: 101}, [("medium", "1 shard of broker 1 needs more slots for fetch sessions", 101)]),
        (dict.fromkeys(range(8), 120), [
            ("medium", "broker 1 needs more slots for fetch sessions", 960),
            ("medium", "8 shards of broker 1 need more slots for fetch sessions", 960)]),
        (dict.fromkeys(range(8), 130), [("high", "broker 1 needs more slots for fetch sessions", 1040)]),
    ],
)  # fmt: skip
def test_shards_are_told_of_where_the_broker_has_slots_enough(
    shards: dict[int, int], said: list[tuple[str, str, int]]
) -> None:
    """A broker that has too few in all needs no list of its shards."""
    rows = [
        {"session_key": f"{shard}-{n}", "broker": "1", "shard": shard, "opened_at": START, "closed_at": None}
        for shard, count in shards.items() for n in range(count)
    ]  # fmt: skip
    found = findings({"fetch_sessions": made("fetch_sessions", rows)}).findings.to_pylist()
    slots = [row for row in found if row["id"] == "session_slots"]
    assert [(row["severity"], row["headline"], row["count"]) for row in slots] == said


def known_by_id(tables: Rows, topic_id: str, connection: int | None = None, **more: Any) -> Rows:
    """The same rows of a topic without a name; on another connection, if one is given."""

    def put(row: dict[str, Any]) -> dict[str, Any]:
        own = {"topic": None, "topic_id": topic_id} | more if "topic" in row else {}
        return row | own | ({"exchange_id": f"{connection:016x}{row['exchange_id'][16:]}"} if connection else {})

    return {name: [put(row) for row in rows] for name, rows in tables.items()}


def joined(*parts: Rows) -> Rows:
    return {name: [row for part in parts for row in part.get(name, [])] for name in parts[0]}


@pytest.mark.parametrize("kind", ["growing_lag", "commits_fall_behind"])
def test_topics_without_a_name_fall_behind_on_their_own(kind: str) -> None:
    falls, keeps_up = known_by_id(lags(*FALLING), "A"), known_by_id(lags(*[0] * len(FALLING)), "B", 5)
    (found,) = found_in(joined(falls, keeps_up), kind)
    assert "of topic A." in found["text"]
    assert "topic_id = 'A'" in found["filter"]
    assert (found["topic"], found["count"]) == (None, len(FALLING))
    held = known_by_id(lags(*[0] * len(FALLING), stable=100), "B", 5)
    assert told(joined(falls, held), kind) == ["medium"]


def test_topics_without_a_name_are_filled_to_their_limit_on_their_own() -> None:
    full = {"record_bytes": 10, "partition_max_bytes": 10}
    one, other = (known_by_id(lags(*FALLING), name, n, **full) for n, name in enumerate("AB", 1))
    assert told(joined(one, other), "limited_by_partition_max_bytes") == []
    (found,) = found_in(joined(one, known_by_id(one, "A", 7)), "limited_by_partition_max_bytes")
    assert "topic A " in found["text"]


def test_what_a_client_fetched_of_another_topic_without_a_name_is_not_what_it_commits() -> None:
    assert told(known_by_id(commits_until(), "A"), "commits_stopped") == ["medium"]
    mixed = known_by_id(commits_until(), "A")
    mixed["fetch_partitions"] = [row | {"topic_id": "B"} for row in mixed["fetch_partitions"]]
    assert told(mixed, "commits_stopped") == []


@pytest.mark.parametrize(
    ("story", "kind", "topic"),
    [("tiny", "recompressed", "s16"), ("fsync", "slow_topic", "s19"), ("slow_broker", "batches_written_twice", "s1x")],
)
def test_a_topic_without_a_name_is_called_by_its_id(story: str, kind: str, topic: str) -> None:
    tables = dict(kdissect.open(ROOT / "captures" / "stories" / f"{story}.pcap.zst").tables(FINDINGS.tables))
    by_name = [row for row in findings(tables).findings.to_pylist() if row["id"] == kind and row["topic"] == topic]
    assert by_name
    for name, table in tables.items():
        if {"topic", "topic_id"} <= set(table.column_names):
            ids = pa.array([None if one is None else f"id of {one}" for one in table["topic"].to_pylist()], pa.string())
            nameless = table.set_column(table.column_names.index("topic_id"), "topic_id", ids)
            nulls = pa.nulls(table.num_rows, pa.string())
            tables[name] = nameless.set_column(table.column_names.index("topic"), "topic", nulls)
    by_id = [row for row in findings(tables).findings.to_pylist() if row["id"] == kind and "id of" in row["text"]]
    told = [(row["text"].replace(topic, f"id of {topic}"), row["count"], None) for row in by_name]
    assert [(row["text"], row["count"], row["topic"]) for row in by_id] == told


def test_a_reader_of_old_versions_and_one_that_knows_ids_read_the_same_topic() -> None:
    tables = formats(1, 2)
    tables["record_batches"][1]["topic_id"] = "T"
    assert told(tables, "converted_down") == ["info"]
    assert told(known_by_id(formats(1, 2), "T"), "converted_down") == ["info"]


@pytest.mark.parametrize(("ended", "until"), [(60.0, 6.0), (3.0, 3.0), (None, 6.0)])
def test_a_client_is_throttled_until_its_last_window_ends(ended: float | None, until: float) -> None:
    rows = [exchange(n, at, throttle_ms=4000.0) for n, at in enumerate((0.0, 2.0))]
    ways = [] if ended is None else [connection(1, -1, ended, client_id="c")]
    (found,) = found_in({"exchanges": rows, "connections": ways}, "throttled_client")
    assert [round(found[name].timestamp() * SECOND) - START for name in ("first_at", "last_at")] == [0, until * SECOND]


@pytest.mark.parametrize(
    ("reason", "advised"), [("consumer poll timeout has expired.", True), ("the consumer is being closed", False)]
)
def test_who_left_in_order_is_given_no_advice(reason: str, advised: bool) -> None:
    row = {"exchange_id": f"{1:016x}:1", "at": START, "group_id": "g", "client_id": "c", "event": "leave"}
    (found,) = found_in({"groups": [row | {"reason": reason}]}, "member_left")
    assert (found["advice"] is not None) == advised


@pytest.mark.parametrize(
    ("topic_id", "partition", "others", "cause"),
    [("I", 1, (), "unknown"), (None, 1, (), "client"), ("J", 1, (), "client"), ("I", 2, (), "client"),
     ("I", 1, ("misspelt",), "client")],
)  # fmt: skip
def test_a_topic_that_was_there_is_missed_through_no_fault_of_a_client(
    topic_id: str | None, partition: int, others: tuple[str, ...], cause: str
) -> None:
    """Its id comes from an answer. Not of a name alone, an id that no answer tells, a partition that it never had, or
    next to a topic that no answer describes."""
    refused = exchange(0, 0.0, api_key=1, api="Fetch", status="error", error_code=3, error="UNKNOWN_TOPIC_OR_PARTITION")
    asked = {"exchange_id": refused["exchange_id"], "topic": "t", "topic_id": topic_id, "partition": partition}
    known = [{"topic_id": "I", "topic": "t", "partitions": 2, "source": "Metadata"}]
    known += [{"topic": name, "source": "Metadata"} for name in others]
    found = found_in(
        {"exchanges": [refused], "fetch_partitions": [asked | {"error_code": 3}], "topics": known}, "missing_topic"
    )
    assert [row["cause"] for row in found] == [cause]
    assert ("deleted since" in found[0]["text"]) == (cause == "unknown")

"""Finders state the rows that they look at: findings need no other rows, and every stated filter is needed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import kdissect
from kdissect.analysis import findings as found
from kdissect.analysis.findings import FINDERS, LIMITS, findings, select_evidence
from kdissect.analysis.findings.evidence import union_ms
from kdissect.analysis.findings.finders import Finder, Seen, finder
from kdissect.analysis.findings.row_filters import failed, without_producer_id
from kdissect.analysis.grouping import merge_spans, overlapping_spans, runs_with_gaps
from kdissect.arrays.arrow import NULL_TIME
from kdissect.tables.declaration.model import DeclarationError
from kdissect.tables.declaration.readers import FINDINGS
from tests.analysis import test_delivery_findings as of_deliveries
from tests.analysis import test_near_misses as edges
from tests.analysis.wire import made
from tests.conftest import CAPTURES

Tables = dict[str, pa.Table]
RECORDED = (
    "downconv_282.pcap", "field_loss5.pcap", "k4_session_eviction.pcap", "k4_slow_and_throttled.pcap",
    "k4_transactions.pcap", "raw_errors.pcap", "raw_zerowindow.pcap", "sasl_logins.pcap", "sweep_0110.pcap",
    *(f"rules/{path.name}" for path in sorted((CAPTURES / "rules").glob("*.zst"))),
    *(f"stories/{path.name}" for path in sorted((CAPTURES / "stories").glob("*.pcap.zst"))),
    "lab/cut_down_sarama_client.pcap.zst", "lab/broker_suspended_kafkajs.pcap.zst",
    "lab/members_come_librdkafka.pcap.zst", "lab/slower_way_sarama_client.pcap.zst",
    "lab/no_poll_librdkafka.pcap.zst", "lab/unknown_topic_java.pcap.zst",
)  # fmt: skip
BUSY = {
    f"{name}.pcap" for name in ("k4_session_eviction", "k4_slow_and_throttled", "k4_transactions", "field_loss5",
                                "sweep_0110")
}  # fmt: skip
"""Recordings with exchanges that no finder looks at. Of a few exchanges each may be the first in its slot of time."""
BY_NAME = {one.name: one for one in FINDERS}


@cache
def recorded(name: str) -> Tables:
    return dict(kdissect.open(CAPTURES / name).tables(list(FINDINGS.tables)))


def looked(one: Finder, tables: Tables) -> list[Any]:
    return Seen(tables, LIMITS).find(one)


@pytest.mark.parametrize("name", RECORDED)
def test_findings_need_the_stated_rows_alone(name: str) -> None:
    """Rows that no finder states may be gone, and rows may be chosen part by part."""
    tables = recorded(name)
    chance = np.random.default_rng(1)
    fewer = {}
    for table, rows in tables.items():
        cuts = [0, *sorted(chance.integers(0, rows.num_rows + 1, 3).tolist()), rows.num_rows]
        parts = [rows.slice(a, b - a) for a, b in pairwise(cuts)]
        fewer[table] = pa.concat_tables([select_evidence(table, part) for part in parts])
    if name in BUSY:
        assert fewer["exchanges"].num_rows < tables["exchanges"].num_rows
    assert findings(fewer).findings.equals(findings(tables).findings)


def registered(producer: int) -> edges.Rows:
    """A producer that was given an id."""
    one = edges.exchange(900, 0.0, api_key=22, api="InitProducerId", client_id="p")
    ids = {"exchange_id": one["exchange_id"], "producer_id": producer, "producer_epoch": 0}
    return {"exchanges": [one], "producer_ids": [ids]}


def silence(max_wait_ms: int) -> edges.Rows:
    """A broker that answers two fetches after two seconds; another one answers meanwhile."""
    late = [
        edges.exchange(n, 3.0 + n / 100, api_key=1, api="Fetch", connection_id=f"{n:016x}", latency_ms=2000.0,
                       request_last_at=edges.START + 3 * edges.SECOND, response_first_at=edges.START + 5 * edges.SECOND)
        for n in range(2)
    ]  # fmt: skip
    quick = [
        edges.exchange(10 + n, at, api_key=3, api="Metadata", broker=broker, latency_ms=1.0,
                       request_last_at=edges.START + round(at * edges.SECOND))
        for n, (broker, at) in enumerate((("1", 2.9), ("2", 4.0), ("1", 5.1)))
    ]  # fmt: skip
    fetches = [{"exchange_id": row["exchange_id"], "max_wait_ms": max_wait_ms, "broker": "1"} for row in late]
    return {"exchanges": [*late, *quick], "fetches": fetches}


def risen() -> edges.Rows:
    """Two connections on which the round trip rose, and a request that took so long."""
    rows = [
        {"connection_id": f"{n:016x}", "client_id": "c", "broker": "1", "is_kafka": True, "rtt_min_ms": 1.0,
         "rtt_ms": 40.0, "rtt_kind": "proven", "start_seen": True}
        for n in range(2)
    ]  # fmt: skip
    return {"connections": rows, "exchanges": [edges.exchange(0, 1.0, network_ms=40.0)]}


def lasting(seconds: float) -> list[dict[str, Any]]:
    """A connection of that length."""
    return [{"connection_id": f"{1:016x}", "client_id": "c", "broker": "1", "client_ip": "10.0.0.1", "start_seen": True,
             "started_at": edges.START, "ended_at": edges.START + round(seconds * edges.SECOND)}]  # fmt: skip


def slow_write() -> edges.Rows:
    """A Produce with acks=1 that took half of the time that its client is there."""
    one = edges.exchange(0, 0.0, api_key=0, api="Produce", latency_ms=3000.0, broker_ms=3000.0,
                         network_ms=0.0)  # fmt: skip
    asked = {"exchange_id": one["exchange_id"], "acks": 1, "latency_ms": 3000.0, "client_id": "c", "broker": "1"}
    return {"exchanges": [one], "produces": [asked], "connections": lasting(6)}


def answered_late(rows: edges.Rows, at: float, until: float) -> edges.Rows:
    """A request in the midst of others is answered after the pause, in the midst of other answers."""
    changed = list(rows["exchanges"])
    for n, name in enumerate(sorted({row["client_id"] for row in changed} - {"x"})):
        number = int(changed[0]["connection_id"], 16) + n
        ids = [{"connection_id": f"{number:016x}", "exchange_id": f"{number:016x}:{900 + k}"} for k in range(5)]
        about = {"client_id": name, "api_key": 1, "api": "Fetch", "latency_ms": 1.0}
        changed += [edges.exchange(0, at + k / 100, **ids[k], **about) for k in (1, 3)]
        changed.append(
            edges.exchange(0, at + 0.02, **ids[2], **about | {"latency_ms": 3000.0})
            | {"response_first_at": edges.START + round((until + 0.02) * edges.SECOND)}
        )
        changed += [edges.exchange(0, until + k / 100, **ids[k], **about) for k in (0, 4)]
    return rows | {"exchanges": changed}


def among(one: dict[str, Any], rows: edges.Rows, at: float) -> edges.Rows:
    """An exchange that is neither the first nor the last in its slot of time."""
    before, after = (edges.exchange(number, when) for number, when in ((800, at), (801, at + 0.05)))
    later = {name: one[name] + 20_000 for name in ("request_first_at", "response_first_at")}
    return rows | {"exchanges": [before, one | later, after]}


def moved(one: dict[str, Any], by: int) -> dict[str, int]:
    """The instants of an exchange, so many microseconds later."""
    return {name: one[name] + by for name in ("request_first_at", "response_first_at")}


def others() -> Iterator[edges.Rows]:
    """What neither recordings nor edges show."""
    first, again = edges.exchange(0, 0.0), edges.exchange(1, 0.5, api_key=11, api="JoinGroup")
    yield {"fetches": [{"exchange_id": first["exchange_id"], "broker": "1", "client_id": "c", "excess_ms": 2000.0}]}
    yield {"connections": [{"connection_id": f"{1:016x}", "broker_ip": "10.0.0.1", "broker_port": 9092, "bytes": 0,
                            "end_reason": "rst", "start_seen": True}]}  # fmt: skip
    yield from map(silence, (0, 3000))
    mute = silence(0)
    answer = mute["exchanges"][2]
    others_of_client = [answer | {"exchange_id": f"{9:016x}:{n}", "broker": "3"} | moved(answer, by)
                        for n, by in enumerate((10_000, 50_000))]  # fmt: skip
    yield mute | {  # an answer lies in the midst of those of another broker
        "exchanges": [one | moved(one, 30_000) if one is answer else one for one in mute["exchanges"]]
        + others_of_client
    }
    member = {"member_id": "m", "client_id": "c", "event": "share_heartbeat", "group_id": "g", "at": edges.START}
    yield edges.locks(1) | {"groups": [member]}
    yield among(again, edges.polls(3.0), 0.5)
    resent = edges.polls(1.1, 101.0)
    yield among(resent["exchanges"][0], resent, 0.4)
    batch = {
        "exchange_id": first["exchange_id"],
        "producer_id": 7,
        "topic": "t",
        "partition": 0,
        "sent_at": edges.START,
    }
    late = first | {"api_key": 0, "api": "Produce", "abandoned": True, "latency_ms": 3000.0, "network_ms": 0.0}
    unread = {"connection_id": first["connection_id"], "zero_window_ms": 2500.0}
    yield {"exchanges": [late | {"response_transfer_ms": 3000.0}], "connections": [unread]}
    yield {"producers": [batch | {"sequence": "repeat"}]}
    alone = [batch | {"sent_at": edges.START + n * 4000, "base_sequence": n, "last_sequence": n} for n in range(500)]
    yield registered(7) | {"producers": alone}
    yield {"fetches": [{"exchange_id": first["exchange_id"], "client_id": "c", "session_outcome": "epoch_error"}]}
    yield registered(3000) | edges.batches("gzip", "zstd")
    lost = edges.resent(5, 200.0)
    yield lost | {"exchanges": [row | {"request_resent_ms": 0.0, "response_resent_ms": 200.0}
                                for row in lost["exchanges"]]}  # fmt: skip
    yield risen()
    yield slow_write()
    muted = edges.exchange(0, 0.0, throttle_ms=5000.0)
    yield {"exchanges": [muted], "connections": lasting(2)}
    late = {"exchange_id": first["exchange_id"], "broker": "1", "client_id": "c", "excess_ms": 3000.0,
            "response_first_at": edges.START + 3 * edges.SECOND}  # fmt: skip
    yield {"fetches": [late], "connections": lasting(6)}
    quota = edges.behind_a_quota(1300.0)
    muting, muted_one = quota["exchanges"]
    plain = muting | {"throttle_ms": 0.0, "connection_id": f"{2:016x}"}
    yield quota | {  # the answer that names the quota lies in the midst of others
        "exchanges": [muted_one, muting | moved(muting, 20_000)]
        + [plain | {"exchange_id": f"{2:016x}:{n}"} | moved(muting, by) for n, by in ((7, 10_000), (8, 40_000))]
    }
    gone = edges.exchange(1, 0.02, network_ms=3000.0, network_kind="silence", response_first_at=None)
    yield {  # its request lies in the midst of others
        "fetches": [late | {"connection_id": first["connection_id"]}], "connections": lasting(6),
        "exchanges": [first, gone, edges.exchange(2, 0.05)],
    }  # fmt: skip
    followers = edges.followers(3000.0)
    yield {"produces": [followers["produces"][0] | {"client_id": "c"}], "connections": lasting(6)}
    vain = edges.asking(4, 0.7)
    yield vain | {
        "exchanges": [*vain["exchanges"], edges.exchange(800, 1.71, api_key=3, api="Metadata"),
                      edges.exchange(700, 1.75, api_key=3, api="Metadata"),
                      edges.exchange(801, 1.79, api_key=3, api="Metadata")]
    }  # fmt: skip
    steady = edges.alone(2.1)
    about = {"connection_id": f"{0:016x}", "client_id": "a", "api_key": 1, "api": "Fetch", "latency_ms": 1.0}
    yield steady | {  # the request for metadata lies in the midst of others
        "exchanges": [*(one | {"request_first_at": edges.START + 40_000, "response_first_at": edges.START + 40_000}
                        if one["api_key"] == 3 else one for one in steady["exchanges"]),
                      *(edges.exchange(0, at, exchange_id=f"{0:016x}:{at}", **about) for at in (0.03, 0.05))]
    }  # fmt: skip
    yield edges.of_payload(edges.copies())
    yield answered_late(edges.stopped(2.0), 4.9, 8.0)
    yield answered_late(edges.polls_and_stops(3.0), 9.9, 14.0)
    yield answered_late(edges.alone(3.0), 4.9, 9.0)
    yield stood_still()
    yield edges.at_a_standstill()
    yield edges.at_a_standstill(between=True)
    yield answered_in_part(edges.alone(3.0), 4.2)
    yield answered_in_part(edges.stopped(2.0), 4.2)
    yield answered_in_part(edges.polls_and_stops(3.0), 9.2)
    passed = {"deliveries": [*of_deliveries.BEFORE, *of_deliveries.BEHIND, *of_deliveries.OTHER]}
    yield passed
    yield passed | {"connections": [{"connection_id": f"{1:016x}", "missing_bytes": 1}]}
    yield passed | {
        "groups": [{"exchange_id": f"{2:016x}:1", "event": "join", "group_id": "g", "at": of_deliveries.MEANWHILE}]
    }
    yield {"deliveries": of_deliveries.stamped("p", 40.0)}


def stood_still() -> edges.Rows:
    """A broker answers nothing for 3 s; two Produce requests with acks=1 are due, which wait for no follower."""
    rows = [edges.exchange(0, 0.0, connection_id="a", broker="1", client_id="c", api_key=0, latency_ms=1.0)]
    for n, (name, at) in enumerate((("a", 0.5), ("b", 1.2))):
        rows.append(
            edges.exchange(
                n + 1, at, connection_id=name, broker="1", client_id="c", api_key=0, api="Produce", network_ms=0.1,
                network_kind="ack", latency_ms=3000.0, request_last_at=edges.START + round(at * edges.SECOND),
                response_first_at=edges.START + 3 * edges.SECOND + 700_000,
            )
        )  # fmt: skip
    rows[0]["request_last_at"] = rows[0]["request_first_at"]
    return {"exchanges": rows, "produces": [{"exchange_id": row["exchange_id"], "acks": 1, "latency_ms": 3000.0}
                                            for row in rows]}  # fmt: skip


def answered_in_part(rows: edges.Rows, at: float) -> edges.Rows:
    """A response of each client begins in the midst of others, and never ends."""
    changed = list(rows["exchanges"])
    for n, name in enumerate(sorted({row["client_id"] for row in changed} - {"x"})):
        for k, more in enumerate(({}, {"status": "partial"}, {})):
            moment = at + (k + 1) / 100
            changed.append(
                edges.exchange(
                    950 + k, moment, exchange_id=f"{n:016x}:{950 + k}", client_id=name, api_key=1, api="Fetch", **more
                )
            )
    return rows | {"exchanges": changed}


@cache
def cases() -> tuple[Seen, ...]:
    """Tables that findings are found in, as finders see them: rules at their edge, and recorded ones."""
    rows = [case() for _, _, fires, misses in edges.FIRES for case in (fires, *misses)]
    edge = ({name: made(name, given) for name, given in case.items()} for case in [*rows, *others()])
    return tuple(Seen(tables, LIMITS) for tables in (*edge, *map(recorded, RECORDED)))


@pytest.mark.parametrize("name", BY_NAME)
def test_every_stated_filter_is_needed(name: str) -> None:
    """Without one of its filters, or one of its tables, a finder finds something else in at least one case."""
    one = BY_NAME[name]
    needed = {(table, at) for table, filters in one.rows.items() for at in range(max(1, len(filters)))}
    for seen in cases():
        for table, at in sorted(needed):
            filters = one.rows[table]
            less = filters[:at] + filters[at + 1 :] or (none,)
            if seen.select(table, less).num_rows == seen.select(table, filters).num_rows:
                continue  # the same rows: fewer filters keep none that all of them drop
            if seen.find(one._replace(rows={**one.rows, table: less})) != seen.find(one):
                needed.discard((table, at))
    assert not needed


def none(table: pa.Table, limits: Any) -> Any:
    return pa.array([False] * table.num_rows)


def test_a_finder_that_reads_a_table_without_stating_its_rows() -> None:
    @finder(connections=failed)
    def curious(tables: Any, limits: Any) -> list[Any]:
        return [tables["exchanges"]]

    with pytest.raises(DeclarationError, match="finder curious does not state which rows of 'exchanges'"):
        looked(curious, recorded(RECORDED[0]))
    with pytest.raises(DeclarationError, match="looks at table 'nothing'"):
        finder(nothing=failed)(lambda tables, limits: [])


def test_a_finder_that_reads_a_column_which_no_reader_declares() -> None:
    """Such a column is not there, in small captures as in large ones, where it was not read."""

    @finder(exchanges=())
    def hasty(tables: Tables, limits: Any) -> list[Any]:
        return [tables["exchanges"]["correlation_id"]]

    assert "correlation_id" not in FINDINGS.tables["exchanges"]
    with pytest.raises(KeyError, match="correlation_id"):
        looked(hasty, recorded(RECORDED[0]))


def test_runs_in_which_something_is_far_behind() -> None:
    code, at = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3]), np.array([1, 2, 9, 20, 22, 1, 6, 12, 90])
    assert runs_with_gaps(code, at, 5) == [(0, 3), (5, 8)]
    assert runs_with_gaps(code, at, 7) == [(0, 3)]
    assert runs_with_gaps(code, at, 8) == []
    assert runs_with_gaps(code[:0], at[:0], 1) == []


def test_spans_that_hang_together() -> None:
    begin, end = np.array([20, 0, 5, 10, 30]), np.array([25, 10, 7, 12, 31])
    order, first = overlapping_spans(begin, end)
    assert [part.tolist() for part in np.split(order, first[1:])] == [[1, 2, 3], [0], [4]]
    assert [column.tolist() for column in merge_spans(begin, end)] == [[0, 20, 30], [12, 25, 31]]
    assert union_ms(begin * 1000, end * 1000) == 18.0
    assert union_ms(np.array([NULL_TIME, 5000, 7000]), np.array([9000, 5000, 6000])) == 0.0
    assert [len(column) for column in overlapping_spans(begin[:0], end[:0])] == [0, 0]


def test_a_finder_that_fails_is_a_problem_and_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def broken(tables: Any, limits: Any) -> list[Any]:
        raise OverflowError("Python int too large to convert to C long")

    tables = recorded("raw_errors.pcap")
    whole = findings(tables).findings
    monkeypatch.setattr(found, "FINDERS", (Finder("broken", broken, {}), *FINDERS))
    looked_for = findings(tables)
    assert looked_for.findings.equals(whole)
    [row] = looked_for.problems.to_pylist()
    assert (row["kind"], row["where"]) == ("finder_failed", "broken")
    assert "OverflowError" in row["detail"]
    capture = kdissect.open(CAPTURES / "raw_errors.pcap")
    assert "finder_failed" in [line.kind for line in capture.summary().problems]
    assert "finder_failed" in capture.tables(["problems", "findings"])["problems"]["kind"].to_pylist()
    capture.save(tmp_path)
    assert "finder_failed" in pq.read_table(tmp_path / "problems.parquet")["kind"].to_pylist()


def test_batches_without_a_producer_id_are_those_that_were_sent_whatever_leader_epoch_a_library_writes() -> None:
    epochs = set()
    for library in ("aiokafka", "kafkajs", "librdkafka", "sarama"):
        tables = recorded(f"lab/healthy_{library}.pcap.zst")
        batches = tables["record_batches"].filter(pc.is_valid(tables["record_batches"]["crc"]))
        sent = pc.is_in(batches["exchange_id"], tables["produces"]["exchange_id"].combine_chunks())
        kept = without_producer_id(batches, LIMITS)
        assert pc.all(pc.or_(kept, pc.invert(sent))).as_py()
        assert pc.sum(kept).as_py() <= 1.1 * pc.sum(sent).as_py()  # of those that were read back, first ones alone
        epochs |= set(batches.filter(sent)["leader_epoch"].to_pylist())
    assert epochs == {-1, 0}

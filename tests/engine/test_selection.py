"""Filters by client, broker and topic against what is found in the unfiltered tables by other means."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kdissect
from kdissect.problems import UsageError
from kdissect.schema import index
from kdissect.tables.selection import places, read_address
from tests.oracle.material import CAPTURES

CLASSIC = CAPTURES / "k4_java_classic.pcap"
FETCHES = {"Fetch", "ShareFetch", "ShareAcknowledge"}


KNOWN_FROM_OTHERS = ["broker", "hold"]
"""What other clients' messages tell: node ids, and that data was there when a fetch came."""


def same(left: pa.Table, right: pa.Table) -> bool:
    return bool(left.num_rows) and left.drop_columns(KNOWN_FROM_OTHERS).equals(right.drop_columns(KNOWN_FROM_OTHERS))


def of(table: pa.Table, column: str, *values: Any) -> pa.Table:
    return table.filter(pc.is_in(table[column], value_set=pa.array(values)))


def test_client_id() -> None:
    everything = kdissect.open(CLASSIC).table("exchanges")
    chosen = kdissect.open(CLASSIC, client="jc-static").table("exchanges")
    assert chosen.num_rows == 60
    assert same(chosen, of(everything, "client_id", "jc-static"))
    both = kdissect.open(CLASSIC, client=["jc-static", "jc-assign"])
    assert same(both.table("exchanges"), of(everything, "client_id", "jc-static", "jc-assign"))
    assert set(both.table("connections")["client_id"].to_pylist()) == {"jc-static", "jc-assign"}
    assert set(both.table("fetches")["client_id"].to_pylist()) == {"jc-static", "jc-assign"}


def test_client_address_is_the_asking_end() -> None:
    """127.0.0.1 is both ends of every connection, so packets say nothing: only the role does."""
    everything = kdissect.open(CLASSIC).table("connections")
    port = everything["client_port"][5].as_py()
    chosen = kdissect.open(CLASSIC, client=f"127.0.0.1:{port}").table("connections")
    assert chosen["connection_id"].equals(of(everything, "client_port", port)["connection_id"])
    assert kdissect.open(CLASSIC, client="127.0.0.1:19092").table("connections").num_rows == 0


@pytest.mark.parametrize("text", ["2", "127.0.0.1:19092"])
def test_broker(text: str) -> None:
    everything = kdissect.open(CLASSIC).table("exchanges")
    assert same(kdissect.open(CLASSIC, broker=text).table("exchanges"), of(everything, "broker_port", 19092))


@pytest.mark.parametrize("captures", [[CLASSIC], [CLASSIC, CAPTURES / "base_tiny.pcap"]])
def test_a_node_id_that_only_other_spans_of_time_tell(captures: list[Path]) -> None:
    span: dict[str, Any] = {"start": "2026-11-21T02:26:45", "end": "2026-11-21T02:26:50"}
    by_id, by_address = (kdissect.open(captures, broker=one, **span) for one in (1, "127.0.0.1:19091"))
    everything = kdissect.open(CLASSIC).table("connections")
    assert of(everything, "broker_port", 19091)["broker"].unique().to_pylist() == ["1"]
    found = by_id.table("exchanges")
    assert found.num_rows > 0
    assert found.equals(by_address.table("exchanges"))
    with pytest.raises(UsageError, match="those known are 1, 2, 3"):
        kdissect.open(captures, broker=9, **span).table("exchanges")


def test_all_kinds_must_hold() -> None:
    everything = kdissect.open(CLASSIC).table("exchanges")
    chosen = kdissect.open(CLASSIC, client="jc-static", broker=[1, 3]).table("exchanges")
    expected = of(of(everything, "client_id", "jc-static"), "broker", "1", "3")
    assert 0 < chosen.num_rows == expected.num_rows
    assert chosen["exchange_id"].equals(expected["exchange_id"])


def texts(value: Any) -> Iterator[str]:
    """Every text anywhere in a message, but for messages inside its bytes."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            if not name.endswith("_decoded"):
                yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def naming(capture: Path, *names: str) -> set[str]:
    """Exchanges with a message in which one of these texts stands anywhere."""
    opened = kdissect.open(capture)
    found = set()
    for api in set(opened.table("exchanges")["api"].to_pylist()) - {None}:
        for side in ("request", "response"):
            for row in opened.messages(api, side).to_pylist():
                if set(names) & set(texts(row)):
                    found.add(row["exchange_id"])
    return found


@pytest.mark.parametrize(
    ("capture", "topic"), [("k4_java_classic", "jc-data"), ("k4_share_group", "sg-data"), ("era_2_4_1", None)]
)
def test_topic(capture: str, topic: str | None) -> None:
    """Every exchange in which the topic's name or id stands anywhere, and fetches after one that names it."""
    path = CAPTURES / f"{capture}.pcap"
    topics = kdissect.open(path).table("topics")
    name = topic if topic in topics["topic"].to_pylist() else topics["topic"].drop_null()[0].as_py()
    ids = [one for one in of(topics, "topic", name)["topic_id"].to_pylist() if one]
    expected = naming(path, name, *ids)
    chosen = kdissect.open(path, topic=name).table("exchanges", ["exchange_id", "api", "connection_id"]).to_pylist()
    found = {row["exchange_id"] for row in chosen}
    assert expected
    assert expected <= found
    sessions = {row["connection_id"] for row in chosen if row["api"] in FETCHES and row["exchange_id"] in expected}
    for row in chosen:
        if row["exchange_id"] not in expected:
            assert row["api"] in FETCHES
            assert row["connection_id"] in sessions


def test_rows_of_topics() -> None:
    """Tables that name topics have rows of the topic alone."""
    everything, chosen = kdissect.open(CLASSIC), kdissect.open(CLASSIC, topic="jc-data")
    for name in ("fetch_partitions", "list_offsets", "record_batches", "session_partitions", "topics"):
        table = everything.table(name)
        expected = table.filter(pc.equal(table["topic"], "jc-data"))
        assert chosen.table(name).equals(expected), name
        assert 0 < expected.num_rows < table.num_rows or name in ("record_batches", "list_offsets")
    filtered = chosen.table("fetch_partitions", where="partition = 0")
    assert set(filtered["partition"].to_pylist()) == {0}
    whole = chosen.tables(["exchanges", "fetch_partitions"])
    assert set(whole["fetch_partitions"]["topic"].to_pylist()) == {"jc-data"}


def test_topic_places() -> None:
    """Places are read off the layouts: no message with a list of topics is without one."""
    found = {(place.key, place.side) for place in places()}
    for key, api in index.load().apis.items():
        for side in range(2):
            if any(path[-1].lower().startswith("topic") for path, _ in api.message(side).walk()):
                assert (key, side) in found, (api.name, side)


def test_messages_and_pieces() -> None:
    chosen = kdissect.open(CLASSIC, client="jc-static")
    ids = set(chosen.table("exchanges", where="api = 'Fetch'")["exchange_id"].to_pylist())
    assert ids == set(chosen.messages("Fetch", "request")["exchange_id"].to_pylist())
    rows = sum(batch.num_rows for batch in chosen.batches("fetches"))
    assert rows == len(ids)
    summary = chosen.summary()
    assert summary.exchanges == 60
    assert [client.client_id for client in summary.clients] == ["jc-static"]


def test_a_pipe() -> None:
    data = CLASSIC.read_bytes()
    everything = kdissect.open(io.BytesIO(data)).table("exchanges", where="broker_port = 19092")
    chosen = kdissect.open(io.BytesIO(data), broker="127.0.0.1:19092").table("exchanges")
    assert 0 < chosen.num_rows == everything.num_rows
    assert kdissect.open(io.BytesIO(data), topic="jc-data").table("exchanges").num_rows > 0
    with pytest.raises(UsageError, match="a pipe is read once"):
        kdissect.open(io.BytesIO(data), broker=2).table("exchanges")


def test_bad_values() -> None:
    for settings, message in (
        ({"client": "10.0.0.300"}, "is no address"),
        ({"client": "10.0.0.1:99999"}, "no port between"),
        ({"broker": "abc"}, "is no broker"),
        ({"topic": ""}, "a topic has a name"),
    ):
        with pytest.raises(UsageError, match=message):
            kdissect.open(CLASSIC, **settings)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="those known are 1, 2, 3"):
        kdissect.open(CLASSIC, broker="9").table("exchanges")


def test_addresses() -> None:
    assert read_address("10.1.2.3") == (0, 0xFFFF << 32 | 0x0A010203, -1)
    assert read_address("10.1.2.3:9092") == (0, 0xFFFF << 32 | 0x0A010203, 9092)
    assert read_address("[2001:db8::1]:9092") == (0x20010DB8 << 32, 1, 9092)
    assert read_address("2001:db8::1") == (0x20010DB8 << 32, 1, -1)
    assert read_address("orders-service") is None

"""The five parts of an exchange's latency: over every recorded capture, and against what the brokers logged."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import kdissect
from tests.oracle.request_log import read

CAPTURES = Path(__file__).resolve().parents[2] / "captures"
ENDINGS = (".pcap", ".pcapng", ".pcap.gz", ".pcap.zst", ".pcap.lz4")
NO_CAPTURE = {"field_empty.pcap", "field_half_header.pcap", "field_wrong_magic.pcap"}
ALL = sorted(path.name for path in CAPTURES.iterdir() if path.name.endswith(ENDINGS) and path.name not in NO_CAPTURE)
SAMPLE = (
    "base_short.pcap", "field_two_interfaces.pcapng", "field_duplicates.pcap", "field_loss5.pcap",
    "field_midstream.pcap", "raw_errors.pcap", "field_jittered.pcap", "field_reordered.pcap",
    "field_simple_packets.pcapng",
)  # fmt: skip
PARTS = ("request_transfer_ms", "network_ms", "queued_ms", "broker_ms", "response_transfer_ms")
INSTANTS = ("request_first_at", "request_last_at", "response_first_at", "response_last_at")
QUIET = ("k4_fetch_sessions_raw", "k4_java_classic", "k4_transactions")
"""Captures on one host, whose round trip is some microseconds, with the brokers' logs."""
TIMES = re.compile(r"(?:requestQueue|local|remote|responseQueue)Time(?:Ms)?\W+([\d.]+)")
"""What a broker logs of its own: waiting to be handled, handling, waiting for others, waiting to be sent."""
LOGGED = sorted(
    path.name.removesuffix(".requests.log.zst")
    for path in CAPTURES.glob("*.requests.log.zst")
    if (CAPTURES / path.name.replace(".requests.log.zst", ".pcap")).exists()
)


def numbers(table: pa.Table, name: str) -> npt.NDArray[np.float64]:
    return np.asarray(table[name].to_numpy(), np.float64)


def the_parts_add_up(name: str) -> None:
    table = kdissect.open(CAPTURES / name).table("exchanges", columns=["latency_ms", *PARTS, *INSTANTS])
    latency = numbers(table, "latency_ms")
    parts = np.stack([numbers(table, part) for part in PARTS], axis=1)
    assert not (parts < 0).any()
    known = np.all([np.asarray(table[instant].is_valid()) for instant in INSTANTS], axis=0)
    wrong = np.abs(np.nansum(parts, axis=1) - latency)[known & (latency >= 0)] > 0.002
    assert not wrong.any()


@pytest.mark.parametrize("name", SAMPLE)
def test_the_parts_of_an_exchange_add_up_and_none_is_negative(name: str) -> None:
    the_parts_add_up(name)


@pytest.mark.whole
@pytest.mark.parametrize("name", ALL)
def test_the_parts_add_up_in_every_capture(name: str) -> None:
    the_parts_add_up(name)


def against_the_log(names: list[str]) -> tuple[int, int, npt.NDArray[np.float64]]:
    """Answered exchanges of captures of one host, how many of them with more than 1 ms of network, and the absolute
    difference of `broker_ms` and what the broker logged (ms)."""
    rows, blamed, errors = 0, 0, []
    columns = ["client_ip", "client_port", "correlation_id", "network_ms", "broker_ms"]
    for name in names:
        logged: dict[object, list[float]] = {}
        for entry in read(CAPTURES / f"{name}.requests.log.zst"):
            times = [float(took) for took in TIMES.findall(entry.line)]
            if len(times) == 4:
                logged.setdefault((entry.client, entry.correlation_id), []).append(sum(times))
        table = kdissect.open(CAPTURES / f"{name}.pcap").table("exchanges", columns=columns)
        found: dict[object, list[float]] = {}
        for row in table.filter(table["broker_ms"].is_valid()).to_pylist():
            rows += 1
            blamed += (row["network_ms"] or 0) > 1
            key = ((row["client_ip"], row["client_port"]), row["correlation_id"])
            found.setdefault(key, []).append(row["broker_ms"])
        for key, took in found.items():
            if len(took) == 1 == len(logged.get(key, ())):
                errors.append(abs(took[0] - logged[key][0]))
    return rows, blamed, np.array(errors)


def test_on_one_host_the_network_takes_next_to_nothing() -> None:
    rows, blamed, errors = against_the_log(list(QUIET))
    assert rows > 500
    assert blamed <= rows / 1000
    assert len(errors) > rows / 2
    assert np.median(errors) <= 0.3
    assert np.quantile(errors, 0.95) <= 2


@pytest.mark.whole
def test_on_one_host_the_network_takes_next_to_nothing_in_all_captures() -> None:
    rows, blamed, errors = against_the_log(LOGGED)
    assert rows > 15_000
    assert blamed <= rows / 1000
    assert np.median(errors) <= 0.3


DELAYED_AT = datetime(2026, 11, 22, 1, 10, 20, 205_000, tzinfo=UTC)
"""When the way to the broker took 80 ms more, and a moment for what was under way."""


def both_ends() -> list[tuple[dict[str, object], dict[str, object]]]:
    """Exchanges after the change as the client's capture has them, and as the broker's has: of a producer that waits
    for each answer, one that does not, and a consumer."""
    key = ("client_port", "broker_port", "exchange_id")
    columns = [*key, "client_id", "request_first_at", "network_ms", "queued_ms", "broker_ms"]
    ends = []
    for name in ("client", "broker"):
        rows = (
            kdissect.open(CAPTURES / "stories" / f"net_delay_{name}.pcap.zst")
            .table("exchanges", columns=columns)
            .to_pylist()
        )
        ends.append({(row["client_port"], row["broker_port"], row["exchange_id"].split(":")[1]): row for row in rows})
    client, broker = ends
    return [
        (row, broker[place])
        for place, row in client.items()
        if row["client_id"] in ("p30", "p30b", "c30")
        and row["request_first_at"] > DELAYED_AT
        and None not in (row["broker_ms"], broker[place]["broker_ms"])
    ]


def test_a_network_that_became_slow_is_not_the_brokers() -> None:
    pairs = both_ends()
    assert len(pairs) > 700
    errors = np.array([abs(here["broker_ms"] - there["broker_ms"]) for here, there in pairs])  # type: ignore[operator]
    assert np.median(errors) <= 0.6
    assert np.mean(errors <= 2) >= 0.85
    assert np.quantile(errors, 0.95) <= 8
    queued = [sum(end["queued_ms"] for end in ends) for ends in zip(*pairs, strict=True)]  # type: ignore[misc]
    assert abs(queued[0] - queued[1]) <= queued[1] / 10

"""What the live view shows of a snapshot, as texts: the tables with their columns, the lines above them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kdissect.cli.printing.grid import Header
from kdissect.cli.printing.words import count, milliseconds, number_of, size

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """A column: its header, its text of a line, and what it is sorted by."""

    key: str
    header: Header
    text: Callable[[Line], str]


def _ms(key: str, title: str, drop: int = 0) -> Shown:
    return Shown(key, Header(title, right=True, drop=drop), lambda line: milliseconds(line.get(key)))


def _count(key: str, title: str, drop: int = 0) -> Shown:
    return Shown(key, Header(title, right=True, drop=drop), lambda line: count(line.get(key)) if line.get(key) else "")


def rate(value: float) -> str:
    """Something a second, in three digits."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}" if value else "0"


NAME = {
    name: Shown("name", Header(title), lambda line: str(line["name"]))
    for name, title in (("brokers", "Broker"), ("clients", "Client"), ("topics", "Topic"), ("apis", "API"))
}
RATE = Shown("rate", Header("a second", right=True), lambda line: rate(line["rate"]))
BYTES = Shown("bytes_s", Header("bytes/s", right=True, drop=6), lambda line: size(line["bytes_s"]))
RECORDS = Shown("records_s", Header("records/s", right=True, drop=3), lambda line: rate(line["records_s"]))
TIMES = (
    _ms("latency_p50_ms", "p50", 2), _ms("latency_p99_ms", "p99"), _ms("broker_p50_ms", "broker p50", 5),
    _ms("broker_p99_ms", "broker p99", 1), _ms("agreed_p99_ms", "agreed p99", 4),
    _ms("network_p99_ms", "network p99", 7), _ms("queued_p99_ms", "queued p99", 8),
    _ms("transfer_p99_ms", "transfer p99", 9), _ms("replication_p99_ms", "followers p99", 9),
)  # fmt: skip
ERRORS = _count("errors", "errors")
WAITING = Shown(
    "waiting_ms", Header("waiting", right=True, drop=2),
    lambda line: f"{line['waiting']} for {milliseconds(line['waiting_ms'])}" if line.get("waiting") else "",
)  # fmt: skip
VIEWS: Mapping[str, Sequence[Shown]] = {
    "brokers": (NAME["brokers"], RATE, *TIMES, ERRORS, WAITING, _count("sessions", "sessions", 3), BYTES),
    "clients": (NAME["clients"], RATE, *TIMES, ERRORS, WAITING, _count("lag", "lag", 1), BYTES),
    "topics": (NAME["topics"], RATE, RECORDS, *TIMES, ERRORS, _count("lag", "lag"), BYTES),
    "apis": (NAME["apis"], RATE, *TIMES, ERRORS, WAITING, BYTES),
}


def head(snapshot: Mapping[str, Any], name: str) -> list[str]:
    """The lines above the tables: what is watched, and how much of it is known."""
    when = (snapshot["at"] or "nothing yet").replace("T", " ")[:19]
    first = [name, when, number_of(snapshot["exchanges"], "exchange"), number_of(snapshot["errors"], "error")]
    first.append(number_of(snapshot["connections"], "connection"))
    return ["  ".join(first), "  ".join(known(snapshot))]


def known(snapshot: Mapping[str, Any]) -> list[str]:
    """How much of the traffic is known: packets, drops, sampling, bytes missing."""
    dropped = snapshot["dropped_packets"]
    out = [number_of(snapshot["packets"], "packet")]
    out.append("drops unknown" if dropped is None else f"{number_of(dropped, 'packet')} dropped by the kernel")
    if snapshot["missing_bytes"]:
        out.append(f"{size(snapshot['missing_bytes'])} missing")
    if snapshot["left_out_segments"]:
        share = snapshot["left_out_segments"] / max(1, snapshot["segments"])
        out.append(f"SAMPLED: {snapshot['share']:.0%} of connections; {share:.1%} of segments left out")
    if snapshot["behind_s"] >= 1:
        out.append(f"BEHIND by {snapshot['behind_s']:.1f} s")
    if snapshot["standing_still"]:
        out.append("STANDS STILL: broker " + ", ".join(snapshot["standing_still"]))
    if snapshot["ended"]:
        out.append("ended")
    return out


def cells(view: str, line: Line) -> list[str]:
    """The texts of a line, in the order of its view's columns."""
    return [shown.text(line) for shown in VIEWS[view]]


def found(finding: Mapping[str, Any]) -> str:
    """A finding in one line."""
    at = (finding["at"] or "").replace("T", " ")[11:19]
    return f"{at}  {finding['severity']:<6}  {finding['text']}"

"""Texts of the live view, made of a snapshot: the tables with their columns, the lines above them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len

from kdissect.analysis.findings.evidence import equals, literal
from kdissect.cli.printing.grid import Header, fit
from kdissect.cli.printing.words import count, milliseconds, number_of, size
from kdissect.escaping import visible
from kdissect.live.labels import UNKNOWN

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


def waited_for(line: Line) -> str:
    """The cause that deliveries waited for most, with its share of their time."""
    return f"{line['waited_for']} ({line['waited_share']:.0%})" if line["waited_for"] else ""


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
STATE = Shown(
    "waiting_ms", Header("waiting", right=True, drop=2),
    lambda line: f"gone for {milliseconds(line['gone_ms'])}" if line["gone"] else WAITING.text(line),
)  # fmt: skip
"""Of a broker: since when it is gone, else who waits for it."""
DELIVERIES = "deliveries"
"""The view that is empty unless deliveries are counted."""
SEVERITIES = ("high", "medium", "low", "info")
STATES = frozenset({"standstill", "answers_again", "waits_no_more", "gone", "back"})
"""Findings that say how a broker is now: the latest of each broker holds."""
OVERDUE_MS = 1000.0
"""Exchanges that took so long show that a broker stood still."""
LEAST_NAME = 12
"""Cells that the name of what is watched keeps, however narrow the terminal is."""
INDENT = " " * 18
"""In front of further lines of a finding: below its text."""
VIEWS: Mapping[str, Sequence[Shown]] = {
    "brokers": (NAME["brokers"], RATE, *TIMES, ERRORS, STATE, _count("sessions", "sessions", 3), BYTES),
    "clients": (NAME["clients"], RATE, *TIMES, ERRORS, WAITING, _count("lag", "lag", 1), BYTES),
    "topics": (NAME["topics"], RATE, RECORDS, *TIMES, ERRORS, _count("lag", "lag"), BYTES),
    "apis": (NAME["apis"], RATE, *TIMES, ERRORS, WAITING, BYTES),
    "deliveries": (
        Shown("topic", Header("Topic"), lambda line: str(line["topic"])),
        Shown("group", Header("Group"), lambda line: str(line["group"])),
        RATE,
        _ms("delivery_p50_ms", "p50", 2),
        _ms("delivery_p99_ms", "p99"),
        Shown("waited_for", Header("waited for", drop=1), waited_for),
        _count("untimed", "no time", 4),
        BYTES,
    ),
}


def head(snapshot: Mapping[str, Any], name: str, width: int | None = None) -> list[str]:
    """The lines above the tables: what is watched, and how much of it is known. In so many cells (None: any number) the
    clock and the counts stay, and the name of what is watched keeps its end."""
    when = (snapshot["at"] or "nothing yet").replace("T", " ")[:19]
    rest = [when, number_of(snapshot["exchanges"], "exchange"), number_of(snapshot["errors"], "error")]
    rest.append(number_of(snapshot["connections"], "connection"))
    name = visible(name)
    if width is not None:
        while len(rest) > 1 and _room(rest, width) < min(cell_len(name), LEAST_NAME):
            rest.pop()
        while cell_len(name) > max(2, _room(rest, width)):
            name = ".." + name.removeprefix("..")[1:]
    return ["  ".join([name, *rest]), "  ".join(coverage(snapshot))]


def _room(texts: Sequence[str], width: int) -> int:
    """Cells that are left in front of these texts."""
    return width - sum(2 + len(text) for text in texts)


def coverage(snapshot: Mapping[str, Any]) -> list[str]:
    """How much of the traffic is known: packets, drops, sampling, bytes missing."""
    dropped = snapshot["dropped_packets"]
    out = []
    if snapshot["gone"]:
        out.append("GONE: broker " + ", ".join(snapshot["gone"]))
    if snapshot["standing_still"]:
        out.append("STANDS STILL: broker " + ", ".join(snapshot["standing_still"]))
    if snapshot["behind_s"] >= 1:
        out.append(f"BEHIND by {snapshot['behind_s']:.1f} s")
    if snapshot["left_out_segments"]:
        share = snapshot["left_out_segments"] / max(1, snapshot["segments"])
        out.append(f"SAMPLED: {snapshot['share']:.0%} of connections; {share:.1%} of segments left out")
    out.append(number_of(snapshot["packets"], "packet"))
    out.append("drops unknown" if dropped is None else f"{number_of(dropped, 'packet')} dropped by the kernel")
    if snapshot["missing_bytes"]:
        out.append(f"{size(snapshot['missing_bytes'])} missing")
    if snapshot["ended"]:
        out.append("ended")
    return out


def busy(view: str, line: Line) -> bool:
    """Whether a line of a table has anything to show next to its name. A broker that was ever met always has: that
    nothing happens there is news."""
    if view == "brokers" and line["exchanges"] and line["name"] != UNKNOWN:
        return True
    told = ("rate", "records_s", "errors", "waiting", "lag", "sessions", "gone", "standing_still")
    return any(line.get(key) for key in told)


def quiet(names: int, how: str) -> str:
    """The line below a table that leaves names out; `how`: what shows them."""
    return f"{names} more {'is' if names == 1 else 'are'} quiet: {how}"


def cells(view: str, line: Line) -> list[str]:
    """The texts of a line, in the order of its view's columns."""
    return [shown.text(line) for shown in VIEWS[view]]


def finding_line(finding: Mapping[str, Any]) -> str:
    """A finding in one line."""
    at = (finding["at"] or "").replace("T", " ")[11:19]
    return f"{at:<8}  {finding['severity']:<6}  {finding['text']}"


def causes(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """One finding a cause: without those that another one explains, and of each broker's states the latest, which also
    stands for findings whose cause is that broker. The worst first, and of equal ones the latest."""
    kept: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for number, one in enumerate(findings):
        if not one.get("explained_by"):
            kept[("state", one["broker"]) if one["id"] in STATES else (number,)] = one
    said = {key for key in kept if key[0] == "state"}
    shown = [one for key, one in kept.items() if key in said or not _is_said(one, said)]
    latest_first = sorted(shown, key=lambda one: one["at"] or "", reverse=True)
    return sorted(latest_first, key=lambda one: SEVERITIES.index(one["severity"]))


def _is_said(finding: Mapping[str, Any], said: Set[tuple[Any, ...]]) -> bool:
    """Whether the state of its broker says it already."""
    return finding.get("cause") == "broker" and ("state", finding["broker"]) in said


@dataclass(frozen=True, slots=True)
class NewsLine:
    """A line of text about a finding. `number`: its place among those that were asked for, -1 for what is left out."""

    number: int
    severity: str
    text: str


def wrapped(findings: Sequence[Mapping[str, Any]], width: int, most: int) -> list[NewsLine]:
    """Lines of findings, at most `most`. Each finding has one; lines that are left go to long texts, the first ones
    first. The last line says how many findings have none."""
    if most < 1:
        return []
    left_out = max(0, len(findings) - most)
    if left_out:
        findings, most = findings[: max(0, most - 1)], most - 1
    spare = most - len(findings)
    lines = []
    for number, one in enumerate(findings):
        all_of_it = textwrap.wrap(visible(finding_line(one)), max(30, width), subsequent_indent=INDENT)
        taken = min(len(all_of_it), 1 + spare)
        spare -= taken - 1
        rest = " ".join([all_of_it[taken - 1], *(line.strip() for line in all_of_it[taken:])])
        lines += [NewsLine(number, one["severity"], fit(text, width)) for text in [*all_of_it[: taken - 1], rest]]
    return [*lines, NewsLine(-1, "info", fit(f"{left_out + 1} more findings: f", width))] if left_out else lines


def explainable(finding: Mapping[str, Any], number: int, now: str | None) -> dict[str, Any] | None:
    """A finding of the view as a row of `findings` that `why` explains, with its number in the list; None where it is
    about no broker's traffic (sampling). A broker's state lasts until `now`."""
    if finding.get("table"):
        return {**finding, "number": number}
    if finding["broker"] is None:
        return None
    mine = equals("broker", finding["broker"])
    gone = finding["id"] in ("gone", "back")
    return {
        "number": number, "id": finding["id"], "severity": finding["severity"], "cause": "broker",
        "headline": finding["text"].partition(": ")[0], "text": finding["text"], "first_at": finding["at"],
        "last_at": finding["at"] if gone else now, "broker": finding["broker"],
        "table": "connections" if gone else "exchanges",
        "filter": mine if gone else f"{mine} and request_first_at >= {literal(finding['at'])} and "
        f"(response_first_at is null or latency_ms >= {OVERDUE_MS})",
    }  # fmt: skip

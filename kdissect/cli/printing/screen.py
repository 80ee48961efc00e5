"""The first screen: one answer first, then who, what and how slow, then how good the capture is, then where to go next.

A pure function from a `Summary` to lines. Every block has its share of `LINES`; one that needs less leaves its rest to
the others, in the order in which they stand. Sentences wrap, tables drop columns.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Sequence

from rich.text import Text

from kdissect.cli.printing import words
from kdissect.cli.printing.grid import Header, grid
from kdissect.summary import Summary

LINES = 50
"""Most lines of the screen by default: what a tall terminal shows at once."""
STYLES = {"high": "bold red", "medium": "yellow", "low": "cyan", "info": "dim"}
MEANINGS = {
    "missing_bytes": "bytes that were sent and never captured",
    "resynchronised": "the next frame's place was lost and found again",
    "not_resynchronised": "the next frame's place was lost for good",
    "bad_length": "a length prefix that no Kafka frame can have",
    "unfinished_frame": "the stream ended inside a frame",
    "orphan_response": "a response whose request was not captured",
    "body_misfit": "a body does not fit its API and version",
    "unknown_version": "a version newer than known",
    "unknown_api": "an API that is not known",
    "conflicting_retransmission": "a retransmission differs from the first copy",
    "snapped": "cut by the capture's snap length",
    "ambiguous": "more than one layout fits",
    "buffer_limit": "more waiting data than the limit allows",
    "bad_header": "a request header that cannot be read",
    "tls": "encrypted, not decrypted",
    "capture": "the capture file is cut or damaged",
    "records": "a record batch or record is not right",
    "timestamp": "a timestamp outside years 1-9999",
    "not_kafka": "another protocol",
}
"""What each kind of problem is, in a few words."""


MEASURES = {
    "missing_bytes": ("", "", "of the Kafka streams never captured."),
    "dropped_packets": ("", "packet", "dropped by the capturing program."),
    "snapped_packets": ("", "packet", "cut by the snap length."),
    "cut_short": ("", "", "of the files cut short."),
    "damaged_places": ("", "damaged place", "in the files."),
    "clock_steps_back": ("The clock stepped back ", "time", ""),
    "duplicated_packets": ("", "packet", "captured more than once."),
    "connections_without_start": ("", "Kafka connection", "began before the capture."),
}
"""Measures of `capture_quality` that the screen mentions when they are not zero, worst first: what stands before the
figure, the noun that is counted, what stands behind."""


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A part of the screen: fixed lines, then rows of which as many are shown as there is room for."""

    title: str
    head: list[Text]
    rows: list[Text]
    share: int
    """Rows shown even when the screen is full."""
    more: str
    """What to say of the rows left out; `{}` is their number."""
    most: int = 1000
    least: int = 0
    """Rows that it keeps over blocks which have fewer, when the screen is full."""


def render(
    summary: Summary,
    target: Sequence[str],
    width: int,
    *,
    top: int | None = None,
    local: bool = False,
    filtered: bool = False,
) -> list[Text]:
    """The lines of the first screen, at most `LINES` unless `top` asks for that many rows a block.

    `target` is how the captures are named on the command line, quoted, for the commands that the screen proposes.
    `filtered`: only a part of what was captured was asked for.
    """
    header = _header(summary, width, local)
    blocks = [
        block
        for block in (
            _findings(summary, width),
            _latencies(summary, width, filtered),
            _errors(summary, width),
            _clients(summary, width),
            _brokers(summary, width),
            _sessions(summary, width),
            _quality(summary, width),
            _problems(summary, width),
        )
        if block.head or block.rows
    ]
    steps = _next_steps(summary, target)
    footer = _footer(steps)
    if top is not None:
        rows = [min(len(block.rows), top) for block in blocks]
    else:
        least = sum(1 + len(block.head) + (block.rows != []) for block in blocks)
        while len(steps) > 1 and len(header) + least + 1 + _wrapped(footer, width) > LINES:
            del steps[-2]  # narrow terminals wrap commands; the last, which keeps everything, stays
            footer = _footer(steps)
        rows = _shares(blocks, LINES - len(header) - _wrapped(footer, width) - 1)
    lines = list(header)
    for block, shown in zip(blocks, rows, strict=True):
        lines += [Text(), *block.head, *block.rows[:shown]]
        if len(block.rows) > shown:
            lines.append(Text("  " + block.more.format(words.count(len(block.rows) - shown)), "dim"))
    return [*lines, Text(), *footer]


def _footer(steps: Sequence[str]) -> list[Text]:
    return [Text("Next", "bold"), *(_indented(Text(step), 2) for step in steps)]


def _shares(blocks: list[Block], room: int) -> list[int]:
    """Rows of each block so that all blocks, their heads and blank lines take at most `room` lines."""
    wanted = [min(len(block.rows), block.most) for block in blocks]

    def taken(shown: list[int]) -> int:
        return sum(
            1 + len(block.head) + rows + (len(block.rows) > rows) for block, rows in zip(blocks, shown, strict=True)
        )

    shown = [min(want, block.share) for block, want in zip(blocks, wanted, strict=True)]
    grown = True
    while grown:
        grown = False
        for i, want in enumerate(wanted):
            if shown[i] < want:
                tried = [*shown[:i], shown[i] + 1, *shown[i + 1 :]]
                if taken(tried) <= room:
                    shown, grown = tried, True
    while taken(shown) > room and any(shown):
        longest = max(range(len(shown)), key=lambda i: (shown[i] - blocks[i].least, shown[i]))
        if shown[longest] == 0:
            longest = max(range(len(shown)), key=lambda i: shown[i])
        shown[longest] -= 1
    return shown


def _wrapped(lines: list[Text], width: int) -> int:
    return sum(max(1, -(-line.cell_len // width)) for line in lines)


def _indented(text: Text, blanks: int) -> Text:
    return Text(" " * blanks) + text


def _sentence(text: str, width: int, indent: int = 2, style: str = "") -> list[Text]:
    wrapped = textwrap.wrap(text, max(20, width - indent), break_on_hyphens=False) or [""]
    return [Text(" " * indent + line, style) for line in wrapped]


def _header(summary: Summary, width: int, local: bool) -> list[Text]:
    names = ", ".join(summary.captures[:3]) + (
        f" and {len(summary.captures) - 3} more" if len(summary.captures) > 3 else ""
    )
    lines = [Text(names or "capture", "bold", no_wrap=True)]
    if summary.started_at is not None and summary.ended_at is not None:
        length = (summary.ended_at - summary.started_at).total_seconds() * 1000
        when = words.span(summary.started_at, summary.ended_at, local=local)
        lines += _sentence(f"{when} ({words.milliseconds(length)})", width, 0)
    facts = [
        words.number_of(summary.packets, "packet")
        + (f" ({words.size(summary.bytes)})" if summary.bytes is not None else "")
        if summary.packets is not None
        else "",
        words.number_of(summary.connections, "connection")
        + (
            f" ({words.count(summary.kafka_connections)} Kafka)"
            if summary.kafka_connections != summary.connections
            else ""
        ),
        words.number_of(len(summary.brokers), "broker"),
        words.number_of(len(summary.clients), "client"),
        words.number_of(summary.exchanges, "exchange"),
    ]
    lines += _sentence(", ".join(fact for fact in facts if fact), width, 0)
    return lines


def _findings(summary: Summary, width: int) -> Block:
    rows: list[Text] = []
    for finding in summary.findings:
        severity = finding["severity"]
        text = textwrap.wrap(finding["text"], max(20, width - 10), break_on_hyphens=False) or [""]
        first = Text("  ")
        first.append(f"{severity:<7} ", STYLES.get(severity, ""))
        first.append(text[0])
        rows.append(_joined([first, *(Text(" " * 10 + line) for line in text[1:])]))
    flat = [line for row in rows for line in row.split("\n")]
    title = Text("Findings", "bold")
    if summary.findings_of is not None:
        title.append(f" (of the first {words.number_of(summary.findings_of, 'exchange')}; --table findings has all)")
    return Block("Findings", [title] if flat else [], flat, 8, "{} more lines: --table findings", 16, 5)


def _joined(lines: list[Text]) -> Text:
    return Text("\n").join(lines)


def _latencies(summary: Summary, width: int, filtered: bool) -> Block:
    if not summary.latencies:
        nothing = "No Kafka exchange in what was asked for." if filtered else "No Kafka exchange in this capture."
        return Block("APIs", [Text(nothing, "bold")], [], 0, "")
    title = {"api": "API", "client": "Client", "broker": "Broker", "version": "API"}[summary.by]
    polls = any(line.long_polls for line in summary.latencies)
    headers = [
        Header(title, style="cyan"),
        Header("count", right=True),
        Header("versions", drop=3),
        Header("p50", right=True),
        Header("p95", right=True, drop=4),
        Header("p99", right=True, drop=1),
        Header("max", right=True, drop=2),
        *([Header("long poll", right=True, drop=5)] if polls else []),
        Header("errors", right=True, style="red"),
    ]
    rows = [
        [
            line.name,
            words.count(line.exchanges),
            words.versions(line.versions),
            *(words.milliseconds(value) for value in (line.p50, line.p95, line.p99, line.max)),
            *([f"{line.long_polls / line.exchanges:.0%}" if line.long_polls else ""] if polls else []),
            words.count(line.errors) if line.errors else "",
        ]
        for line in summary.latencies
    ]
    lines = grid(headers, rows, width)
    return Block("APIs", lines[:1], lines[1:], 6, "{} more: --top N", least=3)


def _errors(summary: Summary, width: int) -> Block:
    headers = [Header("Error", style="red"), Header("count", right=True), Header("from")]
    rows = [[line.error, words.count(line.count), line.name] for line in summary.errors]
    lines = grid(headers, rows, width)
    return Block("Errors", lines[:1] if rows else [], lines[1:], 2, "{} more: --table exchanges", 6)


def _clients(summary: Summary, width: int) -> Block:
    headers = [
        Header("Client", style="cyan"),
        Header("software", drop=1),
        Header("from", drop=3),
        Header("group", drop=4),
        Header("conns", right=True, drop=2),
        Header("exchanges", right=True),
        Header("errors", right=True, style="red"),
    ]
    rows = [
        [
            "(none)" if client.client_id is None else client.client_id or '""',
            " ".join(filter(None, (client.software, client.version))),
            _some(client.addresses),
            _some(client.groups),
            words.count(client.connections),
            words.count(client.exchanges),
            words.count(client.errors) if client.errors else "",
        ]
        for client in summary.clients
    ]
    if not any(row[3] for row in rows):
        headers, rows = _without(headers, rows, 3)
    lines = grid(headers, rows, width)
    return Block("Clients", lines[:1] if rows else [], lines[1:], 3, "{} more: --table connections", 12)


def _without(headers: list[Header], rows: list[list[str]], column: int) -> tuple[list[Header], list[list[str]]]:
    return headers[:column] + headers[column + 1 :], [row[:column] + row[column + 1 :] for row in rows]


def _some(items: list[str]) -> str:
    return items[0] + (f" +{len(items) - 1}" if len(items) > 1 else "") if items else ""


def _brokers(summary: Summary, width: int) -> Block:
    headers = [
        Header("Broker", style="cyan"),
        Header("address", drop=2),
        Header("conns", right=True, drop=1),
        Header("exchanges", right=True),
    ]
    rows = [
        [broker.broker, _some(broker.addresses), words.count(broker.connections), words.count(broker.exchanges)]
        for broker in summary.brokers
    ]
    lines = grid(headers, rows, width)
    return Block("Brokers", lines[:1] if rows else [], lines[1:], 2, "{} more: --table connections", 8)


def _sessions(summary: Summary, width: int) -> Block:
    headers = [
        Header("Fetch sessions", style="cyan"),
        Header("seen", right=True),
        Header("created", right=True, drop=2),
        Header("evicted", right=True),
        Header("open", right=True, drop=3),
        Header("peak", right=True),
        Header("requests", right=True, drop=1),
    ]
    rows = [
        [
            f"broker {line.broker}",
            *(map(words.count, (line.sessions, line.created, line.evicted, line.open, line.peak, line.requests))),
        ]
        for line in summary.sessions
    ]
    lines = grid(headers, rows, width)
    return Block("Sessions", lines[:1] if rows else [], lines[1:], 2, "{} more: kdissect sessions", 6)


def _quality(summary: Summary, width: int) -> Block:
    unfinished = {k: n for k, n in summary.statuses.items() if k not in ("ok", "error", "no_response")}
    parts = [f"{words.count(n)} {status.replace('_', ' ')}" for status, n in unfinished.items()]
    others = [f"{words.count(n)} {name}" for name, n in summary.protocols.items()]
    sentences = []
    if summary.exchanges:
        whole = summary.exchanges - sum(unfinished.values())
        sentences.append(
            f"{words.count(whole)} of {words.number_of(summary.exchanges, 'exchange')} read whole"
            + (f" ({', '.join(parts)})" if parts else "")
            + "."
        )
    measured = {
        measure: sum(row["value"] or 0 for row in summary.quality if row["measure"] == measure) for measure in MEASURES
    }
    sentences += [_measured(measure, value) for measure, value in measured.items() if value]
    sealed = summary.protocols.get("tls")
    if sealed:
        tried = any(problem.kind == "tls" and "not decrypted" in problem.example for problem in summary.problems)
        sentences.append(
            f"{words.number_of(sealed, 'TLS connection')} not decrypted"
            + (" with the keys given: --table problems says why." if tried else
               ": --keylog FILE reads those whose keys were logged and whose handshake was captured.")
        )  # fmt: skip
    if others:
        sentences.append(f"Connections of other protocols: {', '.join(others)}.")
    if summary.silent:
        sentences.append(f"{words.number_of(summary.silent, 'connection')} carried no data.")
    lines = _sentence(" ".join(sentences), width) if sentences else []
    return Block("Quality", [Text("Quality", "bold"), *lines] if lines else [], [], 0, "")


def _measured(measure: str, value: float) -> str:
    before, noun, behind = MEASURES[measure]
    if measure.endswith("_bytes"):
        figure = words.size(value)
    else:
        figure = words.number_of(int(value), noun) if noun else words.count(int(value))
    return f"{before}{figure} {behind}".rstrip(" .") + "."


def _problems(summary: Summary, width: int) -> Block:
    headers = [
        Header("Not read or not right", style="yellow"),
        Header("count", right=True),
        Header("bytes", right=True, drop=1),
        Header("meaning", drop=2),
    ]
    rows = [
        [
            problem.kind,
            words.count(problem.count),
            words.size(problem.bytes) if problem.bytes else "",
            MEANINGS.get(problem.kind, problem.example),
        ]
        for problem in summary.problems
    ]
    lines = grid(headers, rows, width)
    return Block("Problems", lines[:1] if rows else [], lines[1:], 2, "{} more kinds: --table problems", 8)


def _next_steps(summary: Summary, target: Sequence[str]) -> list[str]:
    """Commands that can be pasted, made of this capture's own ids, most telling first."""
    named = " ".join(target)
    steps = []
    slowest = max(
        (line for line in summary.latencies if line.slowest_ms is not None),
        key=lambda line: line.slowest_ms or 0.0,
        default=None,
    )
    if slowest is not None and slowest.slowest is not None and slowest.slowest_ms is not None:
        steps.append(f"kdissect show {named} {summary.short_id(slowest.slowest)}")
        steps.append(f'kdissect {named} --table exchanges --where "latency_ms >= {_floor(slowest.slowest_ms / 2)}"')
    if summary.statuses.get("error"):
        steps.append(f"kdissect {named} --table exchanges --where \"status = 'error'\"")
    if summary.problems:
        steps.append(f"kdissect {named} --table problems")
    steps.append(f"kdissect {named} -o tables/")
    return steps


def _floor(value: float) -> str:
    """A round number not above the value, with two significant digits."""
    digits = 1 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{math.floor(value * 10**digits) / 10**digits:g}"

"""The blocks of the first screen: each a head, rows, and how much of it is worth showing."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

from kdissect.cli.printing import words
from kdissect.cli.printing.accounts import INDENT, chosen_lines
from kdissect.cli.printing.grid import Header, fit, grid, grid_by_cluster
from kdissect.cli.printing.next_steps import PIPE
from kdissect.cli.printing.sparkline import CELLS, sparkline
from kdissect.escaping import visible
from kdissect.summary import Summary
from kdissect.summary.lead import READ_SHARE, unread_sentence

SEEN_FROM = 80
"""Columns from which rate and latency are drawn over time."""
KNOWN_SHARE = 0.95
"""Where fewer could be judged, there may be more errors than were counted; a few are always still under way."""
LATE_MS = 1000.0
"""Of the 99th percentile of deliveries: what people call late, see `Limits.slow_ms`."""
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
    "trailing_bytes": "a request has bytes behind its last field",
    "answer_first": "a response stands before its request",
    "unproved": "may be responses, but nothing there is sure to be Kafka",
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
    "connections_without_acks": ("", "Kafka connection", "without TCP's bare acknowledgements."),
    "connections_without_start": ("", "Kafka connection", "began before the capture."),
}
"""Measures of `capture_quality` that the screen mentions when they are not zero, worst first: what stands before the
figure, the noun that is counted, what stands behind."""


class Block(NamedTuple):
    """A part of the screen: fixed lines, then as many rows as there is room for."""

    head: list[Text]
    rows: list[list[Text]]
    """Lines of each row."""
    share: int
    """Rows shown even when the screen is full."""
    more: str = ""
    """What to say of the rows left out; `{}` is their number."""
    most: int = 1000
    least: int = 0
    """Rows that it keeps over blocks which have fewer, when the screen is full."""
    leaves: int = 0
    """How soon the whole block is left out of a screen that is too full (0 never)."""
    spare: bool = False
    """It takes only room that all others leave when they have their share."""
    beyond: int = 0
    """How many more rows there are, which no screen has room for."""

    @property
    def total(self) -> int:
        """All rows that there are."""
        return len(self.rows) + self.beyond

    def lines(self, rows: int, width: int) -> int:
        """Lines of a terminal that so many rows take, with the blank line before them and what is said of the rest."""
        texts = [*self.head, *(line for row in self.rows[:rows] for line in row)]
        return 1 + sum(max(1, -(-text.cell_len // width)) for text in texts) + (rows < self.total)

    def at_most(self, rows: int, width: int) -> int:
        """So many rows, or all where the line that says what is left out would take as much room as these."""
        rows = min(rows, len(self.rows))
        return len(self.rows) if self.lines(len(self.rows), width) <= self.lines(rows, width) else rows

    def fewer(self, rows: int, width: int) -> int:
        """The next smaller number of rows that takes fewer lines."""
        return next((n for n in range(rows - 1, 0, -1) if self.lines(n, width) < self.lines(rows, width)), 0)


def sentence(text: str, width: int, indent: int = 2, style: str = "") -> list[Text]:
    """A sentence in lines of the width."""
    return [Text(" " * indent + line, style) for line in words.wrapped(text, width - indent)]


def _table(lines: list[Text], count: int, share: int, more: str, least: int, leaves: int = 0) -> Block:
    """A table's block. `lines`: its titles and the first of its `count` rows."""
    rows = [[line] for line in lines[1:]]
    return Block(lines[:1] if rows else [], rows, share, more, 1000, least, leaves, beyond=count - len(rows))


MOST_FINDINGS = 16
"""Lines of findings, however many are above low: a third of the screen."""


def findings(summary: Summary, target: Sequence[str], width: int, room: int | None, local: bool = False) -> Block:
    """The findings, a numbered line each; why nothing is known where the answers could not be read.

    `room`: lines that there are for it, None for any number."""
    title = Text("Findings", "bold")
    named, whole = " ".join(target), summary.findings_of is None
    if summary.findings_of is not None:
        title.append(f" (of the first {words.number_of(summary.findings_of, 'exchange')})")
    unknown = unread_sentence(summary)
    mark = Text.assemble("    ", ("?", "bold yellow"), " " * (INDENT - 5))
    lines = [(mark if i == 0 else Text(" " * INDENT)) + one
             for i, one in enumerate(sentence(unknown, width - INDENT, 0) if unknown else [])]  # fmt: skip
    free = None if room is None else room - 1 - len(lines)
    told, hidden = chosen_lines(summary.findings, width, free, local=local, numbered=whole)
    most = min(MOST_FINDINGS, width // 5)  # other blocks need more lines on narrow terminals, too
    if room is not None and len(told) > most:
        told, hidden = told[:most], hidden + len(told) - most
    if (told or hidden or not whole) and PIPE not in target:
        if not whole:
            hints = [f"  of all: kdissect timeline {named}", "  of all: kdissect timeline"]
        elif hidden:
            more = f"  {words.count(hidden)} more: kdissect timeline"
            hints = [f"{more} {named}", more]
        else:
            hints = [f"  evidence: kdissect why {named} N"]
        fitting = next((one for one in hints if title.cell_len + len(one) <= width), "")
        title.append(fitting, "not bold dim")
    return Block([title, *lines, *told] if lines or told or hidden or not whole else [], [], 0)


SPENT = {
    "broker_ms": "brokers", "replication_ms": "followers", "transaction_ms": "transactions", "throttled_ms": "quotas",
    "network_ms": "network", "agreed_ms": "waits as asked", "own_ms": "its own", "silent_ms": "stood still",
    "gone_ms": "not connected", "unknown_ms": "unknown", "idle_ms": "idle",
}  # fmt: skip
"""What a client's time went into, in a word or two."""
SPENT_FROM_MS = 100.0
"""A client that was there for less is not worth a sentence on its time."""
SPENT_SHARE = 0.01
"""Of the time, below which a part of it is not worth a word."""
NAMED = 36
"""Cells of a client id in a sentence."""
FIRST_OF_SESSIONS = 4
"""The first column of brokers that fetch sessions fill."""


def budget(summary: Summary, width: int) -> Block:
    """Where the time of the client in most trouble went, in a line of 80 columns: the largest parts, idle last."""
    row = summary.budget
    spent = {} if row is None else {name: row[name] for name in SPENT if row[name] >= SPENT_SHARE * row["wall_ms"] > 0}
    if row is None or row["wall_ms"] < SPENT_FROM_MS or width < SEEN_FROM or not spent.keys() - {"idle_ms"}:
        return Block([], [], 0)
    order = sorted(spent, key=lambda name: (name == "idle_ms", -spent[name]))
    parts = [f"{SPENT[name]} {words.milliseconds(spent[name])}" for name in order]
    name = fit(visible(row["subject"]), NAMED)
    said = f"Time of client {name}, {words.milliseconds(row['wall_ms'])}: {parts[0]}"
    for part in parts[1:]:
        said += f", {part}" if len(said) + len(part) + 3 <= width else ""
    return Block(sentence(f"{said}.", width, 0), [], 0)


def both_ends(summary: Summary, width: int) -> list[Text]:
    """The captures that saw the same exchanges, the time between them, and how their clocks stand."""
    if not summary.both_ends:
        return []
    row = max(summary.both_ends, key=lambda one: one["exchanges"])
    first, second = (fit(visible(row[name]), NAMED) for name in ("first", "second"))
    offset = -row["offset_ms"]
    clock = f"{words.milliseconds(abs(offset))} {'ahead' if offset > 0 else 'behind'}"
    apart = row["up_ms"] + row["down_ms"] > 0  # not so between copies of one file
    lead, near = ("Both ends", " (nearer the client)") if apart else ("Twice", "")
    said = (
        f"{lead}: {words.number_of(row['exchanges'], 'exchange')} seen by {first}{near} and {second}, "
        f"counted once: {words.milliseconds(row['up_ms'])} up, {words.milliseconds(row['down_ms'])} down; the "
        f"second's clock is {clock} (to {words.milliseconds(row['uncertainty_ms'])})."
    )
    others = len(summary.both_ends) - 1
    more = f" --table clock_offsets has {words.number_of(others, 'other pair')}." if others else ""
    return sentence(said + more, width, 0)


def calm_sentence(summary: Summary, *, filtered: bool, local: bool) -> str:
    """The first sentence where no finding is an incident: how many exchanges, how they ended, the slowest."""
    if not summary.exchanges:
        return "No Kafka exchange in what was asked for." if filtered else "No Kafka exchange in this capture."
    errors = sum(line.errors for line in summary.latencies)
    unanswered = summary.statuses.get("unanswered", 0)
    counts = ((summary.exchanges, "exchange"), (errors, "error"), (unanswered, "unanswered request"))
    facts = [words.number_of(count, noun) for count, noun in counts]
    slowest = max((one for one in summary.clients if one.slowest_ms is not None), key=lambda one: one.slowest_ms or 0.0,
                  default=None)  # fmt: skip
    text = f"No incident found in {', '.join(facts)}"
    if slowest is not None and slowest.slowest_at is not None:
        name = "(none)" if slowest.client_id is None else visible(slowest.client_id) or '""'
        text += (
            f"; the longest wait was {words.milliseconds(slowest.slowest_ms)} "
            f"({fit(name, NAMED)}, {words.time_of_day(slowest.slowest_at, local=local)})"
        )
    return f"{text}."


def _errors_of(errors: int, judged: int, exchanges: int) -> str:
    """How many errors; `?` where that is unknown, `3+` where there may be more."""
    if errors and judged < KNOWN_SHARE * exchanges:
        return f"{words.count(errors)}+"
    if exchanges and judged < READ_SHARE * exchanges:
        return "?"
    return words.count(errors) if errors else ""


def latencies(summary: Summary, width: int, most: int, *, filtered: bool, said: str = "") -> Block:
    """How slow, by what was asked for: a line each, at most so many. `said`: what stands above it, not to be said
    again."""
    if not summary.latencies:
        nothing = "No Kafka exchange in what was asked for." if filtered else "No Kafka exchange in this capture."
        if summary.protocols.get("tls") and not filtered:
            nothing = "No Kafka exchange could be read in this capture."
        return Block([] if nothing == said else sentence(nothing, width, 0, "bold"), [], 0)
    title = {"api": "API", "client": "Client", "broker": "Broker", "version": "API"}[summary.by]
    polls = any(line.long_polls for line in summary.latencies)
    headers = [
        Header(title, style="cyan"),
        Header("count", right=True),
        Header("versions", drop=6),
        Header("p50", right=True, drop=4),
        Header("p95", right=True, drop=5),
        Header("p99", right=True, drop=2),
        Header("max", right=True, drop=3),
        *([Header("long poll", right=True, drop=1)] if polls else []),
        Header("errors", right=True, style="red"),
    ]
    rows = [
        [
            line.name,
            words.count(line.exchanges),
            words.versions(line.versions),
            *(words.milliseconds(value) for value in (line.p50, line.p95, line.p99, line.max)),
            *([f"{line.long_polls / line.exchanges:.0%}" if line.long_polls else ""] if polls else []),
            _errors_of(line.errors, line.judged, line.exchanges),
        ]
        for line in summary.latencies[:most]
    ]
    lines = list(grid_by_cluster(headers, rows, [line.cluster for line in summary.latencies], width))
    return _table(lines, len(summary.latencies), 6, "{} more: --top N", 3)


def pace(summary: Summary, width: int, *, local: bool, plain: bool) -> Block:
    """The rate of exchanges and the slowest of them over time."""
    pace = summary.pace
    if pace is None or width < SEEN_FROM or len(pace.exchanges) < 2:
        return Block([], [], 0)
    cells = min(CELLS, width - 50, len(pace.exchanges))
    edges = [len(pace.exchanges) * i // cells for i in range(cells + 1)]
    spans = list(itertools.pairwise(edges))
    counts = [sum(pace.exchanges[a:b]) for a, b in spans]
    slowest = [max(pace.slowest_ms[a:b]) for a, b in spans]

    def at(cell: int) -> str:
        return words.time_of_day(pace.begin_us + int(edges[cell] * pace.width_ms * 1000), local=local)

    busiest, worst = counts.index(max(counts)), slowest.index(max(slowest))
    span = words.milliseconds(len(pace.exchanges) * pace.width_ms / cells)
    lines: list[tuple[str, Sequence[float], str]] = [
        ("rate", counts, f"up to {words.count(counts[busiest])} in {span}, at {at(busiest)}")
    ]
    if slowest[worst] > 0:
        lines.append(("slowest", slowest, f"up to {words.milliseconds(slowest[worst])}, at {at(worst)}"))
    shown = [
        Text.assemble((f"{label:<8}", "dim"), (sparkline(values, cells, plain=plain), "cyan"), "  ", said)
        for label, values, said in lines
    ]
    return Block(shown, [], 0)


def errors(summary: Summary, width: int, most: int) -> Block:
    """Errors by name and API, the most frequent first, at most so many."""
    headers = [Header("Error", style="red"), Header("count", right=True), Header("from")]
    rows = [[line.error, words.count(line.count), line.name] for line in summary.errors[:most]]
    lines = list(grid_by_cluster(headers, rows, [line.cluster for line in summary.errors], width))
    return _table(lines, len(summary.errors), 2, "{} more: --table exchanges", 2, leaves=1)


def clients(summary: Summary, width: int, most: int, *, local: bool) -> Block:
    """Clients, those in trouble first, at most so many."""
    headers = [
        Header("Client", style="cyan"),
        Header("software", drop=4),
        Header("from", drop=5),
        Header("group", drop=3),
        Header("conns", right=True, drop=6),
        Header("exchanges", right=True),
        Header("slowest", right=True, drop=1),
        Header("at", drop=2),
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
            words.milliseconds(client.slowest_ms),
            "" if client.slowest_at is None else words.time_of_day(client.slowest_at, local=local),
            _errors_of(client.errors, client.judged, client.exchanges),
        ]
        for client in summary.clients[:most]
    ]
    for column in (7, 3, 1):
        if not any(row[column] for row in rows):
            headers, rows = _without(headers, rows, column)
    return _table(grid(headers, rows, width), len(summary.clients), 4, "{} more: --table connections", 3)


def _without(headers: list[Header], rows: list[list[str]], column: int) -> tuple[list[Header], list[list[str]]]:
    return headers[:column] + headers[column + 1 :], [row[:column] + row[column + 1 :] for row in rows]


def _some(items: list[str]) -> str:
    return items[0] + (f" +{len(items) - 1}" if len(items) > 1 else "") if items else ""


def topics(summary: Summary, width: int, most: int) -> Block:
    """Topics, at most so many: who writes and reads them, and how many records the reader that is furthest behind has
    before it."""
    headers = [
        Header("Topic", style="cyan"),
        Header("partitions", right=True, drop=3),
        Header("written", right=True),
        Header("by", drop=1),
        Header("read", right=True),
        Header("by", drop=2),
        Header("behind", right=True),
    ]
    found = summary.topics or []
    rows = [
        [
            line.topic,
            words.count(line.partitions),
            "" if line.written_bytes is None else words.size(line.written_bytes),
            _some(["(none)" if one is None else one for one in line.writers]),
            "" if line.read_bytes is None else words.size(line.read_bytes),
            _some(["(none)" if one is None else one for one in line.readers]),
            "" if line.read_bytes is None else words.count(line.behind),
        ]
        for line in found[:most]
    ]
    lines = list(grid_by_cluster(headers, rows, [line.cluster for line in found], width))
    block = _table(lines, len(found), 1, "{} more: kdissect traffic", 0)
    return block._replace(spare=True)


def deliveries(summary: Summary, width: int, most: int) -> Block:
    """How long records took to their readers, and what they waited for, by topic and reader, at most so many. Where all
    took less than LATE_MS, they are shown only if there is room."""
    sample = "" if summary.deliveries_of is None else f" (first {words.count(summary.deliveries_of)} batches)"
    headers = [
        Header("Records of", style="cyan"),
        Header("to"),
        Header("batches", right=True, drop=2),
        Header("p50", right=True),
        Header("p99", right=True),
        Header("max", right=True, drop=1),
        Header("waited for" + sample),
    ]
    rows = [
        [
            line.topic or "-",
            line.reader or "-",
            words.count(line.deliveries),
            *(words.milliseconds(ms) for ms in (line.p50_ms, line.p99_ms, line.max_ms)),
            f"{line.waited_for} ({line.waited_share:.0%})",
        ]
        for line in summary.deliveries[:most]
    ]
    lines = list(grid_by_cluster(headers, rows, [line.cluster for line in summary.deliveries], width))
    block = _table(lines, len(summary.deliveries), 2, "{} more: kdissect hops", 1, leaves=3)
    return block._replace(spare=all(line.p99_ms < LATE_MS for line in summary.deliveries))


def brokers(summary: Summary, width: int, most: int) -> Block:
    """Brokers, at most so many, with what became of their fetch sessions; with their cluster, if there are several."""
    headers = [
        Header("Broker", style="cyan"),
        Header("address", drop=2),
        Header("conns", right=True, drop=1),
        Header("exchanges", right=True),
        Header("fetch sessions", right=True, drop=3),
        Header("created", right=True, drop=5),
        Header("evicted", right=True, drop=4),
        Header("open", right=True, drop=6),
        Header("at once", right=True, drop=7),
    ]
    of = {(line.cluster, line.broker): line for line in summary.sessions}
    rows = []
    for broker in summary.brokers[:most]:
        line = of.pop((broker.cluster, broker.broker), None)
        figures = (line.sessions, line.created, line.evicted, line.open, line.peak) if line else ()
        rows.append(
            [broker.broker, _some(broker.addresses),
             words.count(broker.connections), words.count(broker.exchanges),
             *([words.count(figure) if figure else "" for figure in figures] or [""] * 5)]
        )  # fmt: skip
    if not any(row[FIRST_OF_SESSIONS] for row in rows):
        headers, rows = headers[:FIRST_OF_SESSIONS], [row[:FIRST_OF_SESSIONS] for row in rows]
    lines = list(grid_by_cluster(headers, rows, [broker.cluster for broker in summary.brokers], width))
    return _table(lines, len(summary.brokers), 3, "{} more: --table connections", 3, leaves=2)


def quality(summary: Summary, width: int) -> Block:
    """How much of the capture was read, in sentences."""
    unfinished = {k: n for k, n in summary.statuses.items() if k not in ("ok", "error", "no_response")}
    parts = [f"{words.count(n)} {status.replace('_', ' ')}" for status, n in unfinished.items()]
    others = [f"{words.count(n)} {name}" for name, n in summary.protocols.items() if name != "tls"]
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
    sentences += _explained(summary)
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
    lines = sentence(" ".join(sentences), width) if sentences else []
    return Block([Text("Quality", "bold"), *lines] if lines else [], [], 0)


def _explained(summary: Summary) -> list[str]:
    """Rows that look like trouble and are none."""
    of = {line.kind: line for line in summary.explained}
    late = []
    if "orphan_response" in of:
        late.append(words.number_of(of["orphan_response"].count, "answer") + " to requests sent before it")
    if "resynchronised" in of:
        late.append(f"{words.size(of['resynchronised'].bytes or 0)} of frames that started before")
    told = [f"The capture has only the end of what was under way: {', '.join(late)}."] if late else []
    if "records" in of:
        told.append(words.number_of(of["records"].count, "record set") + " padded by down-conversion: nothing is lost.")
    return told


def _measured(measure: str, value: float) -> str:
    before, noun, behind = MEASURES[measure]
    if measure.endswith("_bytes"):
        figure = words.size(value)
    else:
        figure = words.number_of(int(value), noun) if noun else words.count(int(value))
    return f"{before}{figure} {behind}".rstrip(" .") + "."


def problems(summary: Summary, width: int) -> Block:
    """Problems by kind: bytes and messages that could not be read."""
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
    return _table(grid(headers, rows, width), len(rows), 2, "{} more kinds: --table problems", 1, leaves=3)

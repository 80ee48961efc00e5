"""`show`: one exchange as a tree, as Wireshark users know it: offset, bytes, field, type, value, meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from kdissect.cli.printing import words
from kdissect.cli.printing.grid import Header, fit, gridded
from kdissect.escaping import visible

if TYPE_CHECKING:
    import pyarrow as pa

    from kdissect.engine.extracts.showing import Shown

HEX_BYTES = 8
"""Bytes of a field shown in hexadecimal; the rest is in `value`."""
FIELDS = 1000
"""Fields that are Python's values at a time."""
INDENT = 14
"""Columns of a terminal in front of what stands behind a label."""
HEADER = "header."
"""Paths of a header's fields have this; they stand beside those of the body."""


def render(view: Shown, width: int, *, local: bool = False) -> Iterator[Text]:
    """Lines of one exchange: what it is, its times, then both messages byte by byte."""
    row = view.exchange
    version = "" if row["api_version"] is None else f" v{row['api_version']}"
    yield Text(f"{row['exchange_id']}  {row['api']}{version}  {row['status']}", "bold")
    for label, value in _facts(row, view.owners, local):
        for i, line in enumerate(words.wrapped(value, width - INDENT)):
            yield Text.assemble((f"  {'' if i else label:<12}", "dim"), line)
    for note in view.notes:
        yield Text.assemble(("  note        ", "dim"), note)
    for side, explained, data in (
        ("Request", view.request, view.request_data),
        ("Response", view.response, view.response_data),
    ):
        yield Text()
        if explained is None:
            yield Text(f"{side}: not captured", "bold")
            continue
        yield Text(f"{side}, {words.number_of(len(data), 'byte')}", "bold")
        yield from _message(explained, data, width)
        if side == "Request" and view.implied is not None and view.session is not None:
            yield from _implied(view.session, view.implied, width)


def _implied(session: Mapping[str, Any], partitions: pa.Table, width: int) -> Iterator[Text]:
    """Partitions that an incremental fetch covers without naming them, a line a topic."""
    count = session["implied_partitions"]
    yield Text()
    number = "how many partitions is not known" if count is None else words.number_of(count, "partition")
    head = f"Implied by session {session['session_key']}: {number}"
    yield from (Text(line, "bold") for line in words.wrapped(head, width))
    if count is None:
        note = "its set was not captured from the beginning, or this request was not accepted; known members:"
        yield from (Text(f"  {line}", "dim") for line in words.wrapped(note, width - 2))
    numbers: dict[str, list[int]] = {}
    for row in partitions.to_pylist():
        numbers.setdefault(row["topic"] or row["topic_id"] or "?", []).append(row["partition"])
    for topic, found in numbers.items():
        lines = words.wrapped(f"{visible(topic)}: {words.ranges(sorted(found))}", width - 4)
        yield from (Text(f"  {'  ' if i else ''}{line}") for i, line in enumerate(lines))


PARTS = {
    "request": "request_transfer_ms", "network": "network_ms", "queued": "queued_ms", "broker": "broker_ms",
    "response": "response_transfer_ms",
}  # fmt: skip
"""The parts of a latency and their columns; null ones are no part."""


def _facts(row: Mapping[str, Any], owners: Mapping[str, float], local: bool) -> Iterator[tuple[str, str]]:
    yield "client", f"{_end(row, 'client')}  {row['client_id'] if row['client_id'] is not None else '(no client id)'}"
    yield "broker", f"{_end(row, 'broker')}  {row['broker'] or ''}".rstrip()
    yield "correlation", str(row["correlation_id"])
    yield "requested", words.moment(row["request_first_at"], local=local)
    if row["latency_ms"] is not None:
        parts = [
            f"{name} {words.milliseconds(row[column])}" for name, column in PARTS.items() if row[column] is not None
        ]
        yield "latency", f"{words.milliseconds(row['latency_ms'])}  ({' + '.join(parts)})"
        whose = [f"{owner} {words.milliseconds(spent)}" for owner, spent in owners.items()]
        if whose:
            yield "whose time", ", ".join(whose)
    if row["network_ms"] is not None:
        yield "network", f"measured by: {row['network_kind']}" if row["network_kind"] else "not measured"
    elif row["broker_ms"] is not None:
        yield "network", "not measured: the broker's part holds it"
    again = [f"{side} {words.milliseconds(row[f'{side}_resent_ms'])}" for side in ("request", "response")
             if row[f"{side}_resent_ms"]]  # fmt: skip
    if again:
        yield "sent again", ", ".join(again)
    for name in ("throttled", "agreed", "replication"):
        if row[f"{name}_ms"]:
            yield name, f"{words.milliseconds(row[f'{name}_ms'])} of the broker's part"
    if row["throttle_ms"]:
        yield "throttle", f"{words.milliseconds(row['throttle_ms'])} from this answer on"
    if row.get("hold"):
        yield "hold", row["hold"]
    if row["error"]:
        yield "error", f"{row['error']} ({row['error_code']})"
    for side in ("request", "response"):
        if row[f"{side}_frame"] is not None:
            yield f"{side}", f"frame {row[f'{side}_frame']} of {row[f'{side}_file']}"


def _end(row: Mapping[str, Any], side: str) -> str:
    ip = row[f"{side}_ip"] or "?"
    return f"{f'[{ip}]' if ':' in ip else ip}:{row[f'{side}_port']}"


def _message(explained: pa.Table, data: bytes, width: int) -> Iterator[Text]:
    headers = [
        Header("offset", right=True, style="dim"),
        Header("bytes", drop=2, style="dim"),
        Header("field", style="cyan"),
        Header("type", drop=1, style="dim"),
        Header("value"),
        Header("meaning", drop=3, style="green"),
    ]
    return gridded(headers, _cells(explained, data), width)


def _cells(explained: pa.Table, data: bytes) -> Iterator[Sequence[str]]:
    """A row for each run of bytes, as `headers` of a message name them."""
    for field in (field for batch in explained.to_batches(max_chunksize=FIELDS) for field in batch.to_pylist()):
        path, offset, length = field["path"], field["offset"], field["length"]
        depth = path.count(".") + path.count("[") - path.count(HEADER)
        name = path.rsplit(".", 1)[-1]
        raw = data[offset : offset + length] if offset is not None and length else b""
        shown = raw[:HEX_BYTES].hex(" ") + (" .." if len(raw) > HEX_BYTES else "")
        if field.get("hidden"):
            shown = "(hidden)"
        value = "" if field["value"] is None else str(field["value"])
        yield (
            "" if offset is None else f"{offset}",
            shown,
            "  " * min(depth, 12) + name,
            field["type"] or "",
            fit(visible(value), 80),
            field["meaning"] or "",
        )

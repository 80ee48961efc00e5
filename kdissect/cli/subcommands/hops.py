"""`hops`: a record's way from its producer to its readers, and what records wait for by topic and reader."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from kdissect.cli.opening import CHOSEN, open_capture
from kdissect.cli.options import (
    LARGEST,
    engine_options,
    jobs_option,
    memory_option,
    output_options,
    reveal_option,
    selection_options,
    timings_option,
    written_as,
)
from kdissect.cli.printing import terminal
from kdissect.problems import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from kdissect.engine.capture import Capture

POSITION = re.compile(r"(?P<topic>[^:@]+):(?P<partition>[0-9]{1,10})@(?P<offset>[0-9]{1,19})")
FRAMES = ("exchange_id", "request_frame", "response_frame")
MOST = 20
"""Deliveries that are printed, if --limit says nothing: more than a terminal shows."""
RANK = ("is_follower", "topic", "partition", "base_offset", "cluster", "delivered_at")


@click.command(short_help="A record's way from its producer to its readers, hop by hop.")
@click.argument("words", nargs=-1, metavar="CAPTURE... [TOPIC:PARTITION@OFFSET]")
@click.option("--demo", is_flag=True, help="Use the capture that ships with kdissect.")
@click.option("--key", metavar="TEXT", help="The records with this key (needs --reveal).")
@click.option("--producer", metavar="ID", help="The slowest records of this producer: client id or producer id.")
@click.option("--limit", type=click.IntRange(1, LARGEST), metavar="N", help=f"Print N deliveries at most ({MOST}).")
@reveal_option
@selection_options
@output_options
@timings_option
@jobs_option
@memory_option
@engine_options
def hops(
    words: tuple[str, ...], demo: bool, key: str | None, producer: str | None, limit: int | None, reveal: bool,
    form: str | None, csv_safe: bool, output: str | None, **settings: Any,
) -> None:  # fmt: skip
    """Print what a record waited for on its way from its producer to each reader, a line a hop, with frames to open.

    The star marks what it waited for. Without a record it prints a line for each topic and reader: how long deliveries
    took, and what took most of their time. The rows are those of the table `deliveries`.
    """
    from kdissect.cli.printing import table_rows, waterfall

    if key is not None and not reveal:
        raise UsageError("--key looks at the keys of records: it needs --reveal")
    named = list(words)
    position = named.pop() if named and POSITION.fullmatch(named[-1]) and not os.path.exists(named[-1]) else None
    if sum(one is not None for one in (position, key, producer)) > 1:
        raise UsageError("name a record by TOPIC:PARTITION@OFFSET, by --key or by --producer, by one of them")
    table_rows.refuse_binary(written_as(form, output), output)
    capture = open_capture(named, demo=demo, **settings)
    capture.not_input(output)
    everything = position is None and key is None and producer is None
    table = capture.analysis.deliveries() if everything else _chosen(capture, position, key, producer)
    table = table if limit is None and (everything or output) else table.slice(0, limit or MOST)
    if form not in (None, "table") or output is not None:
        table_rows.write(table.schema, table.to_batches(), written_as(form, output), output, csv_safe=csv_safe)
    elif everything:
        chosen = any(settings[name] for name in CHOSEN)
        where = "what was asked for" if chosen else "this capture, as far as it can be read"
        empty = f"No record was given to a reader in {where}."
        lines = [*waterfall.summary_lines(table, terminal.width())] if table.num_rows else [Text(empty)]
        if (settings["client"] or settings["broker"]) and table["p50_ms"].null_count:
            left_out = "  -: not known, for --client and --broker leave out what producers sent; try --topic"
            lines.append(Text(left_out, "dim"))
        elif table.num_rows and table["p50_ms"].null_count == table.num_rows:
            lines.append(
                Text("  -: not known: no Produce request of any of these records was found with its times", "dim")
            )
        terminal.page(lines)
    else:
        rows = table.to_pylist()
        asked = {row[name] for row in rows for name in ("produce_exchange_id", "fetch_exchange_id")} - {None}
        terminal.page(waterfall.waterfall(rows, _frames(capture, asked), terminal.width()))


def _frames(capture: Capture, exchange_ids: set[str]) -> dict[str, dict[str, Any]]:
    """Rows of `exchanges` with their frames, by id."""
    wanted = ", ".join(f"'{one}'" for one in sorted(exchange_ids))
    found = capture.table("exchanges", FRAMES, f"exchange_id in ({wanted})")
    return {row["exchange_id"]: row for row in found.to_pylist()}


def _chosen(capture: Capture, position: str | None, key: str | None, producer: str | None) -> pa.Table:
    """The deliveries that were asked for: consumers first, of a producer the slowest first. Raises UsageError."""
    if producer is not None:
        quoted = producer.replace("'", "''")
        where = f"producer_client_id = '{quoted}'"
        if producer.isdecimal() and len(producer) < 19:
            where = f"({where} or producer_id = {producer})"
        found = capture.table("deliveries", None, where)
        if not found.num_rows:
            raise UsageError(f"no delivered record of producer {producer!r} in this capture")
        return found.sort_by([("is_follower", "ascending"), ("delivery_ms", "descending")])
    places = _keyed(capture, key) if key is not None else [_place(position or "")]
    where = " or ".join(
        "(topic = '{}' and partition = {} and base_offset <= {} and last_offset >= {})".format(
            topic.replace("'", "''"), partition, offset, offset
        )
        for topic, partition, offset in places
    )
    found = capture.table("deliveries", None, where)
    if not found.num_rows:
        raise UsageError(_why_none(capture, places))
    return found.sort_by([(name, "ascending") for name in RANK])


def _place(position: str) -> tuple[str, int, int]:
    parts = POSITION.fullmatch(position)
    assert parts is not None
    return parts["topic"], int(parts["partition"]), int(parts["offset"])


def _keyed(capture: Capture, key: str) -> list[tuple[str, int, int]]:
    """Topic, partition and offset of the records with this key that readers were given. Raises UsageError."""
    import pyarrow.compute as pc

    records = capture.table("records", ["exchange_id", "topic", "partition", "offset", "key"], reveal=True)
    records = records.filter(pc.equal(records["key"], key.encode()))
    sent = set(capture.table("produces", ["exchange_id"])["exchange_id"].to_pylist()) if records.num_rows else set()
    found = {
        (row["topic"], row["partition"], row["offset"])
        for row in records.to_pylist()
        if row["exchange_id"] not in sent and row["topic"] is not None  # a request counts offsets from 0
    }
    if not found:
        raise UsageError(f"no reader was given a record with the key {key!r} in this capture")
    return sorted(found)[:MOST]


def _why_none(capture: Capture, places: list[tuple[str, int, int]]) -> str:
    """Why the record has no delivery, with all that is known of it."""
    topic, partition, offset = places[0]
    quoted = topic.replace("'", "''")
    named = f"{topic}:{partition}@{offset}"
    batches = capture.table(
        "record_batches", ["is_control"],
        f"topic = '{quoted}' and partition = {partition} and base_offset <= {offset} and last_offset >= {offset}",
    )  # fmt: skip
    if True in batches["is_control"].to_pylist():
        return f"{named} is no record: it marks the end of a transaction (a control batch)"
    stored = capture.table(
        "produce_partitions", ["exchange_id", "base_offset", "records"],
        f"topic = '{quoted}' and partition = {partition} and base_offset <= {offset} and error_code = 0",
    )  # fmt: skip
    for row in stored.to_pylist():
        if row["base_offset"] >= 0 and offset < row["base_offset"] + (row["records"] or 0):
            named = f"{named}, which {row['exchange_id']} wrote,"
            break
    return f"no reader was given {named} in this capture"

"""How good a capture is: the rows of `capture_quality`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kdissect.engine.inputs import Packets, Segments
from kdissect.kafka.completed import Connections, Quality
from kdissect.kafka.streams.ledger import Ledger
from kdissect.net.packets import KINDS
from kdissect.tables.selection import Selected


def measures(
    number: int, capture: Packets, scanner: Segments, ledger: Ledger, selected: Selected | None = None
) -> Iterator[Quality]:
    """Facts about each file of a capture, then about its connections, those selected."""
    yield from file_measures(capture, scanner)
    table = ledger.connections
    mine = table.capture == number
    if selected is not None:
        mine &= selected.connections(table)
    yield from connection_measures(capture.name, table, mine)


def file_measures(capture: Packets, scanner: Segments) -> Iterator[Quality]:
    """Facts about each file of a capture."""
    name = capture.name
    for index, report in enumerate(capture.reports):
        file = report.name
        yield Quality(name, file, "packets", float(report.packets), report.format or None)
        yield Quality(name, file, "captured_bytes", float(report.captured_bytes))
        yield Quality(name, file, "original_bytes", float(report.original_bytes))
        if report.timed:
            yield Quality(name, file, "span_ms", (report.last - report.first) / 1e6)
        yield Quality(name, file, "link_types", float(len(report.link_types)), ", ".join(report.link_types) or None)
        yield Quality(name, file, "snap_length", float(report.snap_length) if report.snap_length else None)
        yield Quality(name, file, "snapped_packets", float(report.snapped))
        yield Quality(name, file, "dropped_packets", float(report.dropped) if report.dropped >= 0 else None)
        yield Quality(name, file, "clock_steps_back", float(report.clock_steps))
        yield Quality(name, file, "packets_back_in_time", float(report.backwards))
        yield Quality(name, file, "packets_without_time", float(report.untimed))
        yield Quality(name, file, "longer_than_original", float(report.over_original))
        yield Quality(name, file, "damaged_places", float(report.damaged_places))
        yield Quality(name, file, "skipped_bytes", float(report.skipped_bytes))
        yield Quality(
            name, file, "cut_short", float(report.cut), "the file ends inside a packet" if report.cut else None
        )
        for kind, count in zip(KINDS, scanner.kinds[index].tolist(), strict=True):
            yield Quality(name, file, f"{kind}_packets", float(count))


def connection_measures(name: str, table: Connections, mine: npt.NDArray[np.bool_]) -> Iterator[Quality]:
    """Facts about those connections of a capture that `mine` is true for; they add up."""
    kafka = mine & table.is_kafka
    yield Quality(name, None, "connections", float(mine.sum()))
    yield Quality(name, None, "kafka_connections", float(kafka.sum()))
    yield Quality(name, None, "connections_without_start", float((kafka & ~table.start_seen).sum()))
    yield Quality(name, None, "connections_without_acks", float((kafka & table.acks_removed).sum()))
    yield Quality(name, None, "connections_without_bare_acks", float((kafka & table.no_bare_acks).sum()))
    yield Quality(name, None, "missing_bytes", float(table.missing_bytes[kafka].sum()))
    yield Quality(name, None, "retransmitted_bytes", float(table.retransmitted_bytes[kafka].sum()))
    yield Quality(name, None, "duplicated_packets", float(table.duplicated_packets[mine].sum()))
    yield Quality(name, None, "out_of_order_packets", float(table.out_of_order_packets[kafka].sum()))

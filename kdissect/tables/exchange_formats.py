"""The formats of other programs that `exchanges` can be written in: what writes each, and which columns it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from kdissect.tables import trace_events, zeek_log

Writer = Callable[[pa.Schema, Iterable[pa.RecordBatch], BinaryIO, Sequence[Callable[[pa.Array], pa.Array]]], int]


class ExchangeFormat(NamedTuple):
    """A format: its writer, the columns that each row needs, and those written besides if the caller names none (None:
    all)."""

    write: Writer
    required: tuple[str, ...]
    usual: tuple[str, ...] | None = None


EXCHANGE_FORMATS: Mapping[str, ExchangeFormat] = MappingProxyType(
    {
        "zeek": ExchangeFormat(zeek_log.write_zeek, zeek_log.REQUIRED),
        "zeek-json": ExchangeFormat(zeek_log.write_zeek_json, zeek_log.REQUIRED),
        "perfetto": ExchangeFormat(trace_events.write_trace_events, trace_events.REQUIRED, trace_events.SHOWN),
    }
)


def columns_for(form: str, available: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    """The columns to read for this format: those that it needs, then those asked for."""
    found = EXCHANGE_FORMATS[form]
    return list(dict.fromkeys([*found.required, *((found.usual or available) if columns is None else columns)]))

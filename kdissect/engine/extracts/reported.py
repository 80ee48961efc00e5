"""What the report has of single exchanges: their bytes, read in one more pass where the input can be read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kdissect.capture import CaptureSet
from kdissect.engine.extracts.showing import show_several
from kdissect.engine.run import Settings
from kdissect.report.exchange_bytes import bytes_of


def bytes_by_id(
    captures: Sequence[CaptureSet], settings: Settings, exchanges: pa.Table, ids: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """By exchange id, its bytes as `report.exchange_bytes.bytes_of` makes them; `exchanges`: its row is among these
    (exchange_id, api, api_version, status). Empty where an input is a pipe. Keys, values and headers of records and
    credentials are hidden."""
    if not ids or not all(one.regular for capture in captures for one in capture.members):
        return {}
    found = show_several(captures, settings, ids)
    rows = exchanges.select(["exchange_id", "api", "api_version", "status"])
    made = {}
    for row in rows.filter(pc.is_in(rows["exchange_id"], pa.array(list(found), pa.string()))).to_pylist():
        one = found[row["exchange_id"]]
        sides = (("Request", one.request, one.request_data), ("Response", one.response, one.response_data))
        made[row["exchange_id"]] = bytes_of(row, sides, one.notes, row["exchange_id"])
    return made

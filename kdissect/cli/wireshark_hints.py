"""How to find an exchange in Wireshark: commands to paste, and display filters."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kdissect.tables.wireshark import exchange_filter

if TYPE_CHECKING:
    from kdissect.engine.capture import Capture


def frames_of(row: Mapping[str, Any], file: str) -> list[int]:
    """The frames of a file which complete the exchange's messages."""
    return sorted({row[f"{side}_frame"] for side in ("request", "response") if row[f"{side}_file"] == file})


def lines(capture: Capture, row: Mapping[str, Any]) -> Iterator[str]:
    """For each file that has a part of the exchange: a tshark command that prints it, one that opens Wireshark there,
    and the display filters."""
    yield f"# {row['exchange_id']}: {row['api']} with correlation id {row['correlation_id']}"
    port = shlex.quote(f"tcp.port=={row['broker_port']},kafka")
    for file in dict.fromkeys(row[f"{side}_file"] for side in ("request", "response") if row[f"{side}_file"]):
        path = shlex.quote(str(capture.path(row["capture"], file) or file))
        numbers = frames_of(row, file)
        frames = " || ".join(f"frame.number == {number}" for number in numbers)
        yield f"tshark -r {path} -d {port} -Y {shlex.quote(frames)} -O kafka"
        yield f"wireshark -r {path} -d {port} -g {numbers[0]} -Y {shlex.quote(exchange_filter(row))}"
        yield f"# display filter of its frames: {frames}"
    yield f"# display filter of its messages: {exchange_filter(row)}"

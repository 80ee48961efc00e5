"""What tshark says of a capture: each Kafka message it shows, in one pass of `tshark -T fields`, or through pyshark."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

FIELDS = (
    "frame.number", "tcp.srcport", "tcp.dstport", "kafka.len", "kafka.request_key", "kafka.request.version",
    "kafka.correlation_id", "kafka.client_id", "kafka.response_key", "kafka.response.version", "kafka.request_frame",
    "_ws.malformed", "kafka.request_missing",
)  # fmt: skip
JOIN = "\x1f"
"""Between the values of several messages in a frame: no client id has it."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A message as tshark shows it. `request_frame` is set where it paired a response."""

    frame: int
    ports: tuple[int, int]
    size: int
    is_request: bool
    key: int | None
    version: int | None
    correlation_id: int
    client_id: str | None
    request_frame: int | None


def tshark() -> str:
    """Its path; skips the test where it is not installed, but not in CI (`CI=true`)."""
    path = shutil.which("tshark")
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail("tshark is not installed: CI must have it (apt install tshark)")
        pytest.skip("tshark is not installed (apt install tshark)")
    return path


def decode_as(ports: Iterable[int]) -> list[str]:
    """Arguments that make tshark read these ports as Kafka, whatever they are."""
    return [word for port in sorted(ports) for word in ("-d", f"tcp.port=={port},kafka")]


def decrypt(keys: Path, ports: Iterable[int]) -> list[str]:
    """Arguments that make tshark read these ports as Kafka through TLS, with a key log."""
    out = ["-o", f"tls.keylog_file:{keys}"]
    for port in sorted(ports):
        out += ["-d", f"tcp.port=={port},tls", "-d", f"tls.port=={port},kafka"]
    return out


def shown(path: Path, ports: Iterable[int], *options: str) -> tuple[list[Shown], set[int]]:
    """Messages that tshark shows whole, and the frames in which it gave up on something (malformed, unknown).

    `options` go before everything else, in place of reading `ports` as Kafka.
    """
    fields = [word for field in FIELDS for word in ("-e", field)]
    command = [
        tshark(), "-r", str(path), *(options or decode_as(ports)), "-Y", "kafka", "-T", "fields",
        "-E", f"aggregator={JOIN}", *fields,
    ]  # fmt: skip
    text = subprocess.run(command, capture_output=True, check=True).stdout.decode("utf-8", "replace")
    messages: list[Shown] = []
    trouble: set[int] = set()
    for line in text.split("\n"):
        if line:
            messages += _messages(line.split("\t"), trouble)
    return messages, trouble


def _messages(cells: list[str], trouble: set[int]) -> Iterator[Shown]:
    frame, ports = int(cells[0]), (int(cells[1]), int(cells[2]))
    sizes, keys, versions, ids, clients, answered, answers, asked = (
        cell.split(JOIN) if cell else [] for cell in cells[3:11]
    )
    if cells[11] or cells[12] or len(sizes) != len(ids):
        trouble.add(frame)
    if keys and len(keys) == len(versions) == len(ids) == len(sizes):
        several = clients if len(clients) == len(keys) else [None] * len(keys)  # type: ignore[list-item]
        for size, key, version, number, client in zip(sizes, keys, versions, ids, several, strict=True):
            yield Shown(frame, ports, int(size), True, int(key), int(version), int(number), client, None)
    elif answered and len(answered) == len(ids) == len(asked) == len(sizes):
        for size, key, version, number, request in zip(sizes, answered, answers, ids, asked, strict=True):
            yield Shown(frame, ports, int(size), False, int(key), int(version), int(number), None, int(request))
    else:
        trouble.add(frame)


def hinted(path: Path, ports: Iterable[int]) -> list[tuple[int, bool, int, bool]]:
    """All that tshark shows as a Kafka message at all, also where it gave up on it: the client's port, whether it is a
    request, the correlation id, and whether the API is told."""
    names = ("tcp.srcport", "tcp.dstport", "kafka.correlation_id", "kafka.request_key", "kafka.response_key")
    fields = [word for name in names for word in ("-e", name)]
    command = [
        tshark(), "-r", str(path), *decode_as(ports), "-Y", "kafka", "-T", "fields", "-E", f"aggregator={JOIN}", *fields
    ]  # fmt: skip
    found = []
    for line in subprocess.run(command, capture_output=True, check=True).stdout.decode("utf-8", "replace").splitlines():
        source, target, ids, asked, answered = line.split("\t")
        is_request = int(target) in ports
        keys = (asked or answered).split(JOIN)
        for place, number in enumerate(ids.split(JOIN) if ids else []):
            told = place < len(keys) and keys[place] != ""
            found.append((int(source if is_request else target), is_request, int(number), told))
    return found

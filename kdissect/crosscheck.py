"""A second opinion: tshark, run through pyshark, on the same capture.

Compared are requests (frame, API key, version, correlation id, size) and pairs of requests and responses (both frames).
Where the two differ, the reason is named if it is known. Known are the versions that tshark's dissector ends at, and
messages that it takes for malformed though they are not (each checked against brokers' own request logs).
"""

from __future__ import annotations

import asyncio
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdissect.installed_copy import install_command
from kdissect.problems import UsageError
from kdissect.schema import index

if TYPE_CHECKING:
    import pyarrow as pa

KNOWS = {
    0: 8, 1: 11, 2: 5, 3: 9, 4: 4, 5: 2, 6: 6, 7: 3, 8: 8, 9: 7, 10: 3, 11: 7, 12: 4, 13: 4, 14: 5, 15: 5, 16: 3, 17: 1,
    18: 3, 19: 5, 20: 4, 21: 1, 22: 3, 23: 3, 24: 1, 25: 1, 26: 1, 27: 0, 28: 3, 29: 2, 30: 2, 31: 2, 32: 2, 33: 1,
    34: 1, 35: 1, 36: 2, 37: 2, 38: 2, 39: 2, 40: 2, 41: 2, 42: 2, 43: 2, 44: 1, 45: 0, 46: 0, 47: 0,
}  # fmt: skip
"""API key -> newest version that tshark 4.0 decodes. Newer requests it shows by their header, and never pairs."""

MALFORMED = {
    0: "Produce v0-2: tshark takes null keys and compressed message sets of magic 0 and 1 for malformed",
    1: "Fetch v0-3: tshark takes null keys and compressed message sets of magic 0 and 1 for malformed",
    6: "UpdateMetadata: tshark reads the live brokers as more replicas",
    19: "CreateTopics: tshark takes the configurations for replica assignments",
    37: "CreatePartitions: tshark loses its place in the assignments",
    43: "ElectLeaders: tshark takes the next topic for partitions",
    45: "AlterPartitionReassignments v0: tshark loses its place in the topics",
    46: "ListPartitionReassignments v0: tshark loses its place where the topics are null",
}
"""API key -> what tshark 4.0 calls malformed though it is not. It drops the pair, and what follows in that packet."""

BEHIND = "behind a message in the same packet that tshark gave up on"
REPEATED = "the correlation id was used more than once: tshark takes the latest request with it, answered or not"
TOKEN = "a bare SASL token after SaslHandshake v0, which tshark reads as a request"
INCOMPLETE = "bytes of the message are missing"
NO_REASON = "no reason known"


@dataclass(frozen=True, slots=True)
class Seen:
    """A message as tshark shows it. `request_frame` is set where it paired a response."""

    frame: int
    is_request: bool
    key: int
    version: int
    correlation_id: int
    size: int
    request_frame: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that only one of the two shows."""

    what: str
    """request or pair."""
    shown_by: str
    """kdissect or tshark."""
    frame: int
    key: int | None
    version: int | None
    correlation_id: int
    reason: str


@dataclass(slots=True)
class Crosscheck:
    """The result of a comparison. `beyond`: pairs by (API key, version) that tshark has no layout for."""

    tshark: str
    requests: int = 0
    """Requests that both show alike."""
    pairs: int = 0
    beyond: Counter[tuple[int, int]] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    @property
    def unexplained(self) -> list[Difference]:
        """Differences without a known reason."""
        return [one for one in self.differences if one.reason == NO_REASON]


def crosscheck(path: str | Path, exchanges: pa.Table, ports: Iterable[int]) -> Crosscheck:
    """Compare `exchanges` of one capture file with what tshark shows of it; it reads `ports` as Kafka.

    Raises UsageError where pyshark or tshark is missing, or tshark cannot read the file.
    """
    messages, trouble, version = _read_with_tshark(Path(path), sorted(set(ports)))
    rows = exchanges.to_pylist()
    out = Crosscheck(version)
    ids = Counter((row["connection_id"], row["correlation_id"]) for row in rows)
    repeated = {number for (_, number), n in ids.items() if n > 1}
    _requests(out, rows, messages, trouble)
    _pairs(out, rows, messages, trouble, repeated)
    out.differences.sort(key=lambda one: (one.reason != NO_REASON, one.frame))
    return out


def _requests(out: Crosscheck, rows: Sequence[dict[str, Any]], messages: Sequence[Seen], trouble: set[int]) -> None:
    theirs = Counter(
        (m.frame, m.key if m.key >= 0 else None, m.version, m.correlation_id, m.size) for m in messages if m.is_request
    )
    ours = Counter(
        (r["request_frame"], r["api_key"], r["api_version"], r["correlation_id"], r["request_bytes"] - 4)
        for r in rows
        if r["status"] != "orphan" and r["request_last_at"] is not None
    )
    partial = {r["request_frame"] for r in rows if r["status"] == "partial"}
    newest = max(index.load().apis)
    out.requests = (theirs & ours).total()
    for (frame, key, version, number, _), n in (theirs - ours).items():
        known = TOKEN if key is not None and key > newest else INCOMPLETE if frame in partial else NO_REASON
        out.differences += [Difference("request", "tshark", frame, key, version, number, known)] * n
    for (frame, key, version, number, _), n in (ours - theirs).items():
        known = INCOMPLETE if frame in partial else BEHIND if frame in trouble else NO_REASON
        out.differences += [Difference("request", "kdissect", frame, key, version, number, known)] * n


def _pairs(
    out: Crosscheck, rows: Sequence[dict[str, Any]], messages: Sequence[Seen], trouble: set[int], repeated: set[int]
) -> None:
    theirs = Counter(
        (m.frame, m.correlation_id, m.request_frame, m.key, m.version)
        for m in messages
        if not m.is_request and m.request_frame is not None
    )
    whole = [r for r in rows if r["status"] != "orphan" and r["response_last_at"] is not None]
    ours = Counter(
        (r["response_frame"], r["correlation_id"], r["request_frame"], r["api_key"], r["api_version"]) for r in whole
    )
    partial = {r["response_frame"] for r in whole if r["status"] == "partial"}
    out.pairs = (theirs & ours).total()
    for (frame, number, request, key, version), n in (ours - theirs).items():
        if KNOWS.get(key, -1) < version:
            out.beyond[key, version] += n
            continue
        lost = trouble & {frame, request}
        if lost:
            known = MALFORMED.get(key, BEHIND)
        else:
            known = REPEATED if number in repeated else INCOMPLETE if frame in partial else NO_REASON
        out.differences += [Difference("pair", "kdissect", frame, key, version, number, known)] * n
    for (frame, number, _, key, version), n in (theirs - ours).items():
        known = REPEATED if number in repeated else NO_REASON
        out.differences += [Difference("pair", "tshark", frame, key, version, number, known)] * n


def _read_with_tshark(path: Path, ports: Sequence[int]) -> tuple[list[Seen], set[int], str]:
    """Messages that tshark shows whole, the frames in which it gave up on something, and its version."""
    if shutil.which("tshark") is None:
        raise UsageError("crosscheck needs tshark on the PATH: apt install tshark")
    try:
        import pyshark  # noqa: F401  # the first to fail where it is not installed
        from pyshark.tshark.tshark import get_tshark_version
    except ImportError:
        raise UsageError(f"crosscheck needs pyshark: {install_command('crosscheck')}") from None
    messages: list[Seen] = []
    trouble: set[int] = set()

    def look(packet: Any) -> None:
        frame = int(packet.number)
        for layer in packet.layers:
            if layer.layer_name == "kafka":
                found = list(_message(frame, layer))
                messages.extend(found)
                if not found or layer.get_field("request_missing") is not None:
                    trouble.add(frame)
            elif layer.layer_name.startswith("_ws"):
                trouble.add(frame)

    version = str(get_tshark_version())
    crashed = each_packet(path, ports, look)
    if crashed and not messages:  # else the capture is cut short, which tshark exits with an error for
        raise UsageError(f"tshark cannot read {path}: {' '.join(crashed.split())[:200].removeprefix('tshark: ')}")
    return messages, trouble, version


def each_packet(path: Path, ports: Collection[int], look: Callable[[Any], None]) -> str:
    """Call look with each packet that pyshark has of the Kafka messages of a capture; why tshark failed, if it did.

    tshark is waited for before pyshark cleans up. pyshark kills what still runs, and to look whether it runs takes the
    exit code away from the event loop. The loop then says 255 of a tshark that ended well.
    """
    import pyshark
    from pyshark.capture.capture import TSharkCrashException as Crash

    with warnings.catch_warnings(), closing(asyncio.new_event_loop()) as loop:  # pyshark closes none that it makes
        warnings.simplefilter("ignore")  # its event loop handling is of an older Python
        capture = pyshark.FileCapture(
            str(path), decode_as={f"tcp.port=={port}": "kafka" for port in ports}, display_filter="kafka",
            keep_packets=False, eventloop=loop,
        )  # fmt: skip
        try:
            try:
                loop.run_until_complete(capture.packets_from_tshark(look, close_tshark=False))
                for process in capture._running_processes:
                    loop.run_until_complete(process.wait())
            finally:
                capture.close()
        except Crash as error:
            return getattr(capture, "_last_error_line", None) or str(error)
        finally:
            capture._running_processes.clear()  # or it complains once more when it is collected
    return ""


def _message(frame: int, layer: Any) -> Iterator[Seen]:
    def number(name: str) -> int | None:
        value = layer.get_field(name)
        return None if value is None else int(value)

    size, correlation = number("len"), number("correlation_id")
    if size is None or correlation is None:
        return
    key, version = number("request_key"), number("request_version")
    if key is not None and version is not None:
        yield Seen(frame, True, key, version, correlation, size, None)
        return
    key, version = number("response_key"), number("response_version")
    if key is not None and version is not None:
        yield Seen(frame, False, key, version, correlation, size, number("request_frame"))

"""One recording as another cluster would have made it: other addresses, ClusterId, session ids, client ids and topic
ids, the same node ids, topics, groups and times; each text and number as long as before.

Bytes are exchanged for bytes wherever they stand, so nothing here depends on how kdissect reads messages.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import kdissect

METADATA_TOPIC = base64.urlsafe_b64encode(bytes(15) + b"\x01").decode().rstrip("=")
SHORTEST = 4
"""Client ids of fewer characters may stand in other texts, and stay."""


def exchanged(recording: Path) -> dict[bytes, bytes]:
    """What stands for what in the other cluster's recording, all bytes of the same length."""
    tables = kdissect.open(recording).tables(["exchanges", "fetches", "topics"])
    pairs: dict[bytes, bytes] = {b"127.0.0.1": b"127.1.0.1"}
    for cluster in set(tables["exchanges"]["cluster"].to_pylist()) - {None}:
        pairs[cluster.encode()] = cluster[:-1].encode() + b"~"
    for client in set(tables["exchanges"]["client_id"].to_pylist()) - {None}:
        if len(client) >= SHORTEST:
            pairs[client.encode()] = b"~" + client[1:].encode()
    for session in set(tables["fetches"]["response_session_id"].to_pylist()) - {None}:
        if session > 1 << 16:
            pairs[struct.pack(">i", session)] = struct.pack(">i", session ^ 0x00FF)
    for topic in set(tables["topics"]["topic_id"].to_pylist()) - {None, METADATA_TOPIC}:
        raw = base64.urlsafe_b64decode(topic + "==")
        pairs[raw] = bytes([raw[0] ^ 0x55]) + raw[1:]
    return pairs


def write_other_cluster(recording: Path, target: Path) -> None:
    """Write the recording (a little-endian pcap of Ethernet and IPv4) as the other cluster's."""
    pairs = exchanged(recording)
    pattern = re.compile(b"|".join(re.escape(one) for one in sorted(pairs, key=lambda one: -len(one))), re.DOTALL)
    head, *packets = _records(recording.read_bytes())
    with target.open("wb") as out:
        out.write(head)
        for packet in packets:
            addresses = packet[42:50].replace(bytes([127, 0, 0, 1]), bytes([127, 1, 0, 1]))
            payload = pattern.sub(lambda found: pairs[found[0]], packet[50:])
            out.write(packet[:42] + addresses + payload)


def write_together(recordings: list[Path], target: Path) -> None:
    """Write the packets of several recordings into one, in order of time."""
    heads, packets = [], []
    for recording in recordings:
        head, *rest = _records(recording.read_bytes())
        heads.append(head)
        packets += rest
    packets.sort(key=lambda packet: struct.unpack("<II", packet[:8]))
    target.write_bytes(heads[0] + b"".join(packets))


def _records(data: bytes) -> Iterator[bytes]:
    """The file's header, then each packet with its own header of 16 bytes."""
    yield data[:24]
    at = 24
    while at < len(data):
        size = 16 + struct.unpack_from("<I", data, at + 8)[0]
        yield data[at : at + size]
        at += size

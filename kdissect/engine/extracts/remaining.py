"""All readable text of a capture: the texts of messages, read by the schema's walker, and those outside of messages.

Every message that can be walked is taken out of a copy of the capture, in the pass in which `redact` judges the same
messages. Then the rest of the payloads is searched for readable characters. So a text is found whether or not the
dissector knows what it is.
"""

from __future__ import annotations

import ipaddress
import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kdissect.capture import EXTRA, CaptureSet, Member, Window
from kdissect.capture.pcap import PACKET
from kdissect.engine.settings import FEW_PACKETS
from kdissect.kafka.exchanges.frame_bytes import Reader
from kdissect.net.scanner import Scanner
from kdissect.net.segment import FLOW, SEGMENT
from kdissect.rewriting.place_kernels import repeat
from kdissect.rewriting.places import Places
from kdissect.rewriting.verification.readable import Texts, What, distinct_stretches
from kdissect.rewriting.verification.walkedframes import FRAME_MASK, WalkedFrames
from kdissect.tables.identity import address


class Walk:
    """Walks the messages of a capture while `redact` reads it. `path`: a copy of that capture, packet by packet at the
    places that packets have in the redacted one. Bytes of the copy that were read become zeros.

    `texts`: the texts so far; `addresses`: which names and words among them are IP addresses of TCP packets, known once
    the capture has ended."""

    def __init__(self, path: Path) -> None:
        self.texts = Texts()
        self.addresses: frozenset[bytes] = frozenset()
        self._path = path
        with path.open("r+b") as stream:
            self._pages = mmap.mmap(stream.fileno(), 0)
        self._out = np.frombuffer(self._pages, np.uint8)

    def frames(self, reader: Reader, places: Places) -> WalkedFrames:
        """The reader of each finished exchange's frames. `places`: where payloads went, filled by the caller."""
        return WalkedFrames(reader, places, self._out, self.texts)

    def release(self) -> None:
        """Let go of the copy's pages; the file keeps what was written to them."""
        self._pages.madvise(mmap.MADV_DONTNEED)

    def end(self, flows: npt.NDArray[np.int64]) -> None:
        """The capture has ended; `flows`: all of its flows."""
        named = (text for what, text in self.texts.found if what in (What.NAME, What.WORD))
        self.addresses = hosts_among(named, flows)

    def read_rest(self) -> None:
        """Note the readable texts that stand outside of messages."""
        _scan(self._path, self._pages, self._out, self.texts)


def hosts_among(texts: Iterable[bytes], flows: npt.NDArray[np.int64]) -> frozenset[bytes]:
    """The texts that are an address of these flows, as `identity.address` writes it. After a scan of a network there
    are millions of addresses, and messages name few of them: the others do not become texts."""
    halves = {}
    for text in texts:
        try:
            found = ipaddress.ip_address(text.decode())
        except ValueError:
            continue
        value = int(found) if found.version == 6 else 0xFFFF << 32 | int(found)
        half = value >> 64, value & 2**64 - 1
        if address(*half).encode() == text:
            halves[text] = half
    lows = np.array([low for _, low in halves.values()], np.uint64).view(np.int64)
    hosts: set[tuple[int, int]] = set()
    for high, low in ((FLOW.a_high, FLOW.a_low), (FLOW.b_high, FLOW.b_low)):
        some = flows[np.isin(flows[:, low], lows)]
        pairs = zip(some[:, high].tolist(), some[:, low].tolist(), strict=True)
        hosts.update((first % 2**64, last % 2**64) for first, last in pairs)
    return frozenset(text for text, half in halves.items() if half in hosts)


def _scan(path: Path, pages: mmap.mmap, out: npt.NDArray[np.uint8], texts: Texts) -> None:
    """Note readable characters of TCP payloads, and of all of any other packet. Bytes that were sent again have been
    read if their first copy was."""
    capture = CaptureSet("", [Member("", path)])
    window = Window(slots=2)
    window.packets = FEW_PACKETS
    scanner, places = Scanner(capture), Places()
    for block in capture.blocks(window):
        packets = block.packets.copy()  # scanning rewrites the rows of packets in tunnels
        segments = scanner.scan(block)
        before = places.base + places.count
        places.add(segments, np.where(segments[:, SEGMENT.at] < EXTRA, segments[:, SEGMENT.at], -1))
        repeat(out, places.index, max(before - places.base, 0), places.count, places.base)
        first = packets[:, PACKET.at] + block.delta
        last = first + packets[:, PACKET.captured]
        plain = segments[segments[:, SEGMENT.at] < EXTRA]
        row = np.searchsorted(packets[:, PACKET.number], plain[:, SEGMENT.packet] & FRAME_MASK)
        first[row] = plain[:, SEGMENT.at]
        last[row] = plain[:, SEGMENT.at] + plain[:, SEGMENT.len]
        for text, at, count in distinct_stretches(out, first, last):
            texts.add(What.UNREAD, text, int(packets[at, PACKET.number]), count)
        pages.madvise(mmap.MADV_DONTNEED)
    capture.close()

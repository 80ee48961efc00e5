"""All readable text of a capture: the texts of messages, read by the schema's walker, and those outside of messages.

Every message that can be walked is taken out of a copy of the capture; then what is left of the payloads is searched
for readable characters. So a text is found whether or not the dissector knows what it is.
"""

from __future__ import annotations

import ipaddress
import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kdissect.capture import EXTRA, CaptureSet, Member, Window
from kdissect.capture import pcap as r
from kdissect.engine.settings import FEW_PACKETS
from kdissect.kafka.streams.dissector import Dissector
from kdissect.net.scanner import Scanner
from kdissect.net.segment import A_HIGH, A_LOW, AT, B_HIGH, B_LOW, LEN, PACKET
from kdissect.rewriting.place_kernels import repeat
from kdissect.rewriting.places import Places
from kdissect.rewriting.verification.readable import Texts, What, distinct_stretches
from kdissect.rewriting.verification.walkedframes import FRAME_MASK, WalkedFrames
from kdissect.tables.identity import address


def remaining_texts(path: Path) -> tuple[Texts, frozenset[bytes]]:
    """The texts of a pcap or pcapng file, and which names and words among them are IP addresses of its TCP packets. The
    file is a copy that may be changed: what was read of it becomes zeros."""
    texts = Texts()
    with path.open("r+b") as stream:
        capture = CaptureSet("", [Member("", path)])
        pages = mmap.mmap(stream.fileno(), 0)
        out = np.frombuffer(pages, np.uint8)
        addresses = _walk(capture, pages, out, texts)
        capture.close()
        _scan(path, pages, out, texts)
    return texts, addresses


def _walk(capture: CaptureSet, pages: mmap.mmap, out: npt.NDArray[np.uint8], texts: Texts) -> frozenset[bytes]:
    """Walk every message, and write zeros over it; which names and words are addresses of hosts."""
    window = Window.for_size(capture.size)
    window.packets = FEW_PACKETS
    scanner, places = Scanner(capture), Places()
    frames = WalkedFrames(capture, places, out, texts)
    dissector = Dissector(window, frames.decoder.programs())
    frames.dissector = dissector
    for block in capture.blocks(window):
        segments = scanner.scan(block)
        places.add(segments, np.where(segments[:, AT] < EXTRA, segments[:, AT], -1))
        for harvest in dissector.feed(segments, len(scanner.flows)):
            frames.write(harvest.exchanges)
            dissector.used()
        dissector.before_next_block(True)
        pages.madvise(mmap.MADV_DONTNEED)  # what was written stays in the file
    for harvest in dissector.finish():
        frames.write(harvest.exchanges)
        dissector.used()
    named = (text for what, text in texts.found if what in (What.NAME, What.WORD))
    return hosts_among(named, scanner.flows)


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
    for high, low in ((A_HIGH, A_LOW), (B_HIGH, B_LOW)):
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
        places.add(segments, np.where(segments[:, AT] < EXTRA, segments[:, AT], -1))
        repeat(out, places.index, max(before - places.base, 0), places.count, places.base)
        first = packets[:, r.AT] + block.delta
        last = first + packets[:, r.CAPTURED]
        plain = segments[segments[:, AT] < EXTRA]
        row = np.searchsorted(packets[:, r.NUMBER], plain[:, PACKET] & FRAME_MASK)
        first[row] = plain[:, AT]
        last[row] = plain[:, AT] + plain[:, LEN]
        for text, at, count in distinct_stretches(out, first, last):
            texts.add(What.UNREAD, text, int(packets[at, r.NUMBER]), count)
        pages.madvise(mmap.MADV_DONTNEED)
    capture.close()

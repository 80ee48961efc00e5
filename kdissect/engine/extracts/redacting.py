"""`redact`: a capture that can be shown to others.

Rules. Bytes that are not known to be harmless are blanked. Kept are: times and sizes of all packets; TCP headers with
the options that say how a connection works. Of Kafka connections the frames whose bodies fit their layout, with their
numbers and the texts that the schema allows (`kdissect.rewriting.frames`). Of other frames their headers. Addresses of
brokers stay, all others get stand-ins.

Three passes. One over the input finds the brokers. One copies packets with everything blanked into the output, and puts
every finished frame back in its place. One over the output repeats retransmitted bytes and sums TCP checksums. An input
that cannot be read again (compressed) is first written to a temporary file.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from kdissect.capture import EXTRA, CaptureSet, Member, Window
from kdissect.capture.pcap import PACKET
from kdissect.engine.books import Books
from kdissect.engine.bounds.spare_memory import Spare
from kdissect.engine.extracts.scratch_copies import spooled
from kdissect.engine.extracts.unsealed import unsealed
from kdissect.engine.run import Run
from kdissect.engine.settings import FEW_PACKETS, Settings
from kdissect.kafka.streams.dissector import Dissector
from kdissect.net.scanner import Scanner
from kdissect.net.segment import SEGMENT
from kdissect.output import whole_seekable
from kdissect.problems import UsageError
from kdissect.rewriting.addresses import Addresses
from kdissect.rewriting.field_kernels import KINDS
from kdissect.rewriting.frames import Frames, Judge
from kdissect.rewriting.hiding_kernels import sum_segments
from kdissect.rewriting.packet_kernels import BLOCK, PADDING
from kdissect.rewriting.packetfile import PacketFile
from kdissect.rewriting.place_kernels import repeat
from kdissect.rewriting.places import Places
from kdissect.schema.opcodes import CONFIG_NAME, KEEP, KEEP_NAME
from kdissect.tables.identity import address

if TYPE_CHECKING:
    from kdissect.engine.extracts.remaining import Walk

Words = npt.NDArray[np.int64]
SLOTS = 4
"""Window slots: frames that wait longer than 64 MB of input for their end stay blank."""
RELEASE = 3
"""Blocks after which the pages of the output are given back: they would count as this process's memory."""
FILE_MASK = (1 << 40) - 1


@dataclass(frozen=True, slots=True)
class Redacted:
    """The counts of a redacted copy. `lost`: frames that could not be put back, and are blank; `addresses`: how many
    got stand-ins; `kept`: texts that stayed, by kind; `blanked`: texts and record sets that did not; `configurations`:
    how often the value of each stayed; `decrypted`: pairs of endpoints whose TLS connections became plain text."""

    packets: int
    bytes: int
    format: str
    addresses: int
    lost: int
    kept: Mapping[str, int]
    blanked: int
    configurations: Mapping[str, int]
    decrypted: int = 0


def redact(
    captures: Sequence[CaptureSet], settings: Settings, target: str | Path | BinaryIO, rename: Judge | None = None,
    plain: bool = False, walk: Walk | None = None,
) -> Redacted:  # fmt: skip
    """Write a redacted copy of one capture to a path (which appears when it is whole) or an open binary file. `rename`
    gives what stands for a name, with as many bytes; without it names stay. Addresses of brokers stay wherever they
    stand, so those in texts are not given to it.

    `plain`: TLS connections whose keys are given become plain TCP first. `walk` reads all messages too.

    Raises UsageError for several captures, for pipes and where nothing can be decrypted that should be, OutputError.
    """
    if len(captures) > 1:
        raise UsageError("redact one capture at a time")
    capture = captures[0]
    if not capture.regular:
        raise UsageError("a pipe can be read only once, and this needs two passes: save it to a file first")
    with contextlib.ExitStack() as stack:
        if not capture.rereadable:
            capture = stack.enter_context(spooled(capture))
        opened = 0
        if plain:
            capture, opened = stack.enter_context(unsealed(capture, settings))
        found = _brokers(capture, settings)
        addresses, brokers = Addresses(), frozenset(address(*one).encode() for one in found.tolist())
        addresses.keep(found)
        stream = stack.enter_context(whole_seekable(target))
        judge = None if rename is None else lambda name: name if name in brokers else rename(name)
        return replace(_Redaction(capture, addresses, stream, judge, walk).write(), decrypted=opened)


def _brokers(capture: CaptureSet, settings: Settings) -> Words:
    """Addresses of brokers, which stay: int64[n, 2]."""
    books = Books([capture], {}, replace(settings, after=None, before=None))
    for _ in Run(books).completed():
        pass
    table = books.ledger.connections
    kafka = table.is_kafka | (table.exchanges > 0)
    found: Words = np.unique(np.stack([table.broker_hi[kafka], table.broker_lo[kafka]], axis=1), axis=0).view(np.int64)
    return found


class _Redaction:
    """The passes that write."""

    pages: mmap.mmap

    def __init__(
        self, capture: CaptureSet, addresses: Addresses, stream: BinaryIO, rename: Judge | None, walk: Walk | None
    ) -> None:
        self.rename = rename
        self.walk = walk
        self.capture = capture
        self.addresses = addresses
        self.stream = stream
        self.places = Places()
        self.lost = 0
        self._texts = np.zeros(KINDS + 1, np.int64)
        self._configurations: Counter[str] = Counter()
        self._blocks = 0

    def write(self) -> Redacted:
        """Packets and frames, then checksums."""
        reports = self.capture.reports
        packets = sum(report.packets for report in reports)
        room = sum(report.captured_bytes for report in reports) + packets * (BLOCK + PADDING)
        file = PacketFile(self.stream, pcapng=len({i for report in reports for i in report.link_types}) > 1
                          or any(len(report.interfaces) > 1 for report in reports))  # fmt: skip
        interfaces = sum(max(1, len(report.interfaces)) for report in reports)
        room += 64 * (interfaces + 2)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.stream.fileno(), 0, room)  # a full disk is an error now, not a signal later
        else:
            self.stream.truncate(room)
        self.pages = mmap.mmap(self.stream.fileno(), 0)
        out = np.frombuffer(self.pages, np.uint8)
        Spare().give_back()  # each of the three passes takes memory of its own
        self._packets(file, out)
        file.finish()
        size = self.stream.tell()
        self.stream.truncate(size)
        addresses = self.addresses.replaced
        self.places, self.addresses = Places(), Addresses()  # after a scan of a network they are large
        Spare().give_back()
        self._seal(out[:size])
        self.pages.flush()
        self.stream.seek(size)
        form = "pcapng" if file.pcapng else "pcap"
        texts, configurations = self._texts, self._configurations
        kept = {
            "words of the protocol": int(texts[KEEP]), "names": int(texts[KEEP_NAME] + texts[CONFIG_NAME]),
            "values of configurations": configurations.total(),
        }  # fmt: skip
        blanked = int(texts[:KINDS].sum()) - sum(kept.values())
        return Redacted(file.packets, file.bytes, form, addresses, self.lost, kept, blanked, configurations)

    def _packets(self, file: PacketFile, out: npt.NDArray[np.uint8]) -> None:
        capture = self.capture
        window = Window.for_size(capture.size)
        if window.ring > 2:
            window = Window(slots=SLOTS)
        window.packets = FEW_PACKETS
        scanner = Scanner(capture)
        frames: Frames | None = None
        dissector: Dissector | None = None
        readers: list[Frames] = []
        for block in capture.blocks(window):
            if dissector is None or frames is None:
                frames = Frames(capture, self.places, out, self.rename)
                dissector = Dissector(window, frames.decoder.programs())
                readers = [frames] if self.walk is None else [frames, self.walk.frames(capture, self.places)]
                for reader in readers:
                    reader.dissector = dissector
            packets = block.packets.copy()  # scanning rewrites the rows of packets in tunnels
            segments = scanner.scan(block)
            row = np.searchsorted(packets[:, PACKET.number], segments[:, SEGMENT.packet] & FILE_MASK)
            payload = np.full(len(packets), -1, np.int64)
            plain = segments[:, SEGMENT.at] < EXTRA
            payload[row[plain]] = segments[plain, SEGMENT.at] - block.delta - packets[row[plain], PACKET.at]
            place = self._copy(file, window, packets, payload)
            self.stream.flush()
            to = np.where(plain & (payload[row] >= 0), place[row] + payload[row], -1)
            self.places.add(segments, to)
            for harvest in dissector.feed(segments, len(scanner.flows)):
                for reader in readers:
                    reader.write(harvest.exchanges)
                dissector.used()
            dissector.before_next_block(True)
            self._release()
        if dissector is not None and frames is not None:
            for harvest in dissector.finish():
                for reader in readers:
                    reader.write(harvest.exchanges)
                dissector.used()
            if self.walk is not None:
                self.walk.end(scanner.flows)
            self.lost, self._texts, self._configurations = frames.lost, frames.texts, frames.configurations

    def _copy(self, file: PacketFile, window: Window, packets: Words, payload: Words) -> Words:
        """Write packets with everything hidden; where in the output each went. Nothing else ever reaches the disk."""
        places: list[Words] = []

        def hide(records: npt.NDArray[np.uint8], place: Words, position: int) -> None:
            self.addresses.hide(records, packets, place, payload)
            places.append(place + position)

        file.write(window.data, packets, hide)
        return places[0] if places else np.zeros(0, np.int64)

    def _seal(self, out: npt.NDArray[np.uint8]) -> None:
        """Repeat what was sent twice, then sum."""
        self.stream.seek(0)
        again = CaptureSet("", [Member("", file=self.stream)])
        window = Window(slots=2)  # nothing here looks back
        window.packets = FEW_PACKETS
        scanner = Scanner(again)
        places = self.places
        for block in again.blocks(window):
            segments = scanner.scan(block)
            before = places.base + places.count
            places.add(segments, np.where(segments[:, SEGMENT.at] < EXTRA, segments[:, SEGMENT.at], -1))
            repeat(out, places.index, max(before - places.base, 0), places.count, places.base)
            sum_segments(out, block.packets, block.delta)
            self._release()

    def _release(self) -> None:
        """Now and then, let go of the output's pages; the file keeps what was written to them."""
        self._blocks += 1
        if self._blocks % RELEASE == 0:
            self.pages.madvise(mmap.MADV_DONTNEED)
            if self.walk is not None:
                self.walk.release()

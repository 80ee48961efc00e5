"""A capture whose TLS connections are plain TCP, as far as their keys are given: what `redact --plain` begins with.

Rules. One packet stays one packet, with its time, its place and its headers: frame numbers and times of exchanges are
those of the sealed capture. A packet carries the plaintext of the records that it completes, as many as there are, at
sequence numbers that count plaintext from the first one of the connection on. A packet that completes none is an
acknowledgement without data; more than a packet can hold goes into several. An acknowledgement covers the plaintext of
all packets whose bytes it covered. SACK options speak of bytes that are gone and are left out. Checksums are zero:
`redact` computes them.

Packets in tunnels, and connections that could not be decrypted, stay as they are. A 4-tuple with any plaintext is
decrypted from its first packet on, and the part of it that could not be read is left out.
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from kdissect.capture import EXTRA, CaptureSet, Member
from kdissect.capture.pcap import PACKET
from kdissect.engine.extracts.scratch_copies import folder_aside
from kdissect.engine.settings import Settings
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.kafka.streams.dissector import Dissector
from kdissect.kafka.streams.encryption.unsealing import Unsealer
from kdissect.kafka.streams.ledger import Ledger
from kdissect.kernels import structs
from kdissect.net import segment as sg
from kdissect.net.scanner import Scanner
from kdissect.net.segment import SEGMENT
from kdissect.output import scratch
from kdissect.problems import UsageError
from kdissect.rewriting.packetfile import PacketFile
from kdissect.tls.session import Plain

Words = npt.NDArray[np.int64]
NUMBER = (1 << sg.FILE_SHIFT) - 1
OUTERMOST = 40
"""Bytes before an IP header that no tunnel explains: Ethernet with VLANs, SLL2, PPPoE."""
MOST = 0xFFFF
"""Bytes of an IP packet."""
SACK, NOP, END = 5, 1, 0
NO_KEYS = "nothing could be decrypted: --plain needs the keys of TLS connections (--keylog FILE), and their handshakes"


@structs.struct
class Piece:
    """A piece of plaintext."""

    packet: int
    """Number of the packet that completes it."""
    flow: int
    """Flow * 2 + direction."""
    offset: int
    """Its place in the plaintext of its direction."""
    size: int
    """Its bytes."""
    at: int
    """Their place in the file, -1: they are lost."""


PIECE = structs.offsets(Piece)
"""The columns of such rows."""


@contextlib.contextmanager
def unsealed(capture: CaptureSet, settings: Settings) -> Iterator[tuple[CaptureSet, int]]:
    """The capture from a temporary file, and how many of its flows were decrypted. Plaintext lies in files that only
    their owner can read, until the context ends. Raises UsageError where nothing could be decrypted, ScratchFull."""
    with folder_aside() as folder:
        with scratch(), (folder / "plaintext").open("w+b") as plaintext:
            pieces = _pieces(capture, settings, plaintext)
            if not len(pieces):
                raise UsageError(NO_KEYS)
            copies = []
            for i, member in enumerate(capture.members):
                mine = pieces[pieces[:, PIECE.packet] >> sg.FILE_SHIFT == i]
                copies.append(_Copy(folder / str(i), member.name, mine))
            _write(capture, np.unique(pieces[:, PIECE.flow] >> 1), copies, plaintext)
        plain = CaptureSet(capture.name, [Member(copy.name, copy.path) for copy in copies])
        try:
            yield plain, len(np.unique(pieces[:, PIECE.flow] >> 1))
        finally:
            plain.close()


def _pieces(capture: CaptureSet, settings: Settings, plaintext: BinaryIO) -> Words:
    """All plaintext of the capture into a file; its pieces in order of their packets, those of one in theirs."""
    found = array("q")
    reached: dict[tuple[int, int], int] = {}

    def keep(number: int, flow: int, plain: Plain) -> None:
        stream = number, plain.direction
        offset = reached.get(stream, 0)
        reached[stream] = offset + plain.size
        at = -1
        if plain.data is not None:
            at = plaintext.tell()
            plaintext.write(plain.data)
        found.extend((plain.arrival.packet, flow << 1 | plain.direction, offset, plain.size, at))

    ledger = Ledger([capture.name], [capture.files])
    ledger.begin(0)
    decoder = Decoder({}, checked=True)
    window = capture.window()
    programs = decoder.programs()
    dissector = Dissector(window, programs, Unsealer(ledger, settings.keylog, capture.secrets, keep))
    scanner = Scanner(capture)
    for block in capture.blocks(window):
        segments = scanner.scan(block)
        for harvest in dissector.feed(segments, len(scanner.flows)):
            ledger.enter(np.concatenate([dissector.news(), harvest.ended]), scanner.flows)
            dissector.used()
        dissector.before_next_block(True)
    pieces = np.array(found, np.int64).reshape(-1, 5)
    return pieces[np.argsort(pieces[:, PIECE.packet], kind="stable")]


class _Copy:
    """A file of the copy, and the pieces that its packets carry."""

    def __init__(self, path: Path, name: str, pieces: Words) -> None:
        self.path = path
        self.name = name
        self.pieces = pieces
        self.numbers = pieces[:, PIECE.packet] & NUMBER

    def of(self, number: int, stream: int) -> list[list[int]]:
        """Pieces of a packet, in order of their places."""
        first, last = np.searchsorted(self.numbers, [number, number + 1])
        rows: list[list[int]] = self.pieces[first:last].tolist()
        return sorted((row for row in rows if row[PIECE.flow] == stream), key=lambda row: row[PIECE.offset])


def _write(capture: CaptureSet, flows: Words, copies: Sequence[_Copy], plaintext: BinaryIO) -> None:
    """Every file of the capture once more, packets of these flows with plaintext."""
    window = capture.window()
    scanner = Scanner(capture)
    ends: dict[int, _End] = {}
    with contextlib.ExitStack() as stack:
        files = [PacketFile(stack.enter_context(copy.path.open("w+b"))) for copy in copies]
        for block in capture.blocks(window):
            packets = block.packets.copy()  # scanning rewrites the rows of packets in tunnels
            segments = scanner.scan(block)
            if not len(packets):
                continue
            mine = segments[np.isin(segments[:, SEGMENT.flow] >> 1, flows) & (segments[:, SEGMENT.at] < EXTRA)]
            rows = np.searchsorted(packets[:, PACKET.number], mine[:, SEGMENT.packet] & NUMBER)
            made: list[tuple[int, list[bytes]]] = []
            for segment, row in zip(mine.tolist(), rows.tolist(), strict=True):
                at, size = int(packets[row, PACKET.at]), int(packets[row, PACKET.captured])
                packet = bytearray(window.data[at : at + size])
                payload = segment[SEGMENT.at] - block.delta - at
                new = _rewritten(packet, payload, segment, ends, copies[block.file], plaintext)
                if new is not None:
                    made.append((row, new))
            data, packets = _with(window.data[block.start : block.end], packets, block.start, made)
            files[block.file].write(data, packets)
        for file in files:
            file.finish()


def _with(
    data: npt.NDArray[np.uint8], packets: Words, begin: int, new_packets: Sequence[tuple[int, list[bytes]]]
) -> tuple[npt.NDArray[np.uint8], Words]:
    """The packets of a block, some replaced by new ones, and the bytes that they lie in."""
    counts = np.ones(len(packets), np.int64)
    for row, new in new_packets:
        counts[row] = len(new)
    first = np.cumsum(counts) - counts
    out = np.repeat(packets, counts, axis=0)
    out[:, PACKET.at] -= begin
    more = bytearray()
    for row, new in new_packets:
        for i, packet in enumerate(new):
            place = first[row] + i
            out[place, PACKET.at] = len(data) + len(more)
            out[place, PACKET.captured] = out[place, PACKET.original] = len(packet)
            more += packet
    return np.concatenate([data, np.frombuffer(bytes(more), np.uint8)]), out


class _End:
    """One direction of a connection: where its plaintext begins, how far it got, which bytes brought how much."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        """Sequence number of the first byte, sealed or plain."""
        self.plain = 0
        """Plaintext so far."""
        self.sealed = 0
        """Sealed bytes so far."""
        self._marks: list[tuple[int, int]] = [(0, 0)]

    def place(self, number: int) -> int:
        """How many bytes from the beginning on a sequence number is, the nearest to what is known."""
        return self.sealed + ((number - self.begin - self.sealed + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)

    def reach(self, sealed: int, plain: int) -> None:
        """Sealed bytes up to here brought so much plaintext."""
        self.sealed, self.plain = max(self.sealed, sealed), max(self.plain, plain)
        if self._marks[-1] != (self.sealed, self.plain):
            self._marks.append((self.sealed, self.plain))

    def sequence(self, plain: int) -> int:
        """The sequence number of a byte of plaintext."""
        return (self.begin + plain) & 0xFFFFFFFF

    def acknowledged(self, number: int) -> int:
        """The acknowledgement number for the plaintext of all bytes before a sealed sequence number."""
        i = max(bisect_right(self._marks, (self.place(number), 1 << 62)) - 1, 0)
        plain = self._marks[i][1]
        del self._marks[:i]
        return self.sequence(plain)


def _rewritten(
    packet: bytearray, payload: int, segment: Sequence[int], ends: dict[int, _End], copy: _Copy, plaintext: BinaryIO
) -> list[bytes] | None:
    """The packets that stand for one of a decrypted connection; None where it has to stay."""
    places = _headers(packet, payload, segment[SEGMENT.seq])
    if places is None:
        return None
    ip, tcp = places
    stream, flags = segment[SEGMENT.flow], segment[SEGMENT.flags]
    if flags & sg.SYN or stream not in ends:
        ends[stream] = _End((segment[SEGMENT.seq] + bool(flags & sg.SYN)) & 0xFFFFFFFF)
    mine = ends[stream]
    if flags & sg.ACK_FLAG:
        if stream ^ 1 not in ends:
            ends[stream ^ 1] = _End(segment[SEGMENT.ack])
        struct.pack_into(">I", packet, tcp + 8, ends[stream ^ 1].acknowledged(segment[SEGMENT.ack]))
    _without_sacks(packet, tcp + 20, payload)
    data: list[tuple[int, bytes]] = []
    room = MOST - (payload - ip)
    reached = mine.plain
    for _, _, offset, size, at in copy.of(segment[SEGMENT.packet] & NUMBER, stream):
        reached = max(reached, offset + size)
        if at < 0:
            continue
        plaintext.seek(at)
        new = plaintext.read(size)
        if data and data[-1][0] + len(data[-1][1]) == offset and len(data[-1][1]) + size <= room:
            data[-1] = data[-1][0], data[-1][1] + new
        else:
            data.append((offset, new))
    out = []
    for offset, piece in data or [(mine.plain, b"")]:
        number = segment[SEGMENT.seq] if flags & sg.SYN else mine.sequence(offset)
        out.append(_packet(packet, ip, tcp, payload, number, piece))
    if segment[SEGMENT.wire] or flags & sg.FIN:
        fin = bool(flags & sg.FIN)
        mine.reach(mine.place(segment[SEGMENT.seq]) + segment[SEGMENT.wire] + fin, reached + fin)
    return out


def _packet(headers: bytearray, ip: int, tcp: int, payload: int, number: int, data: bytes) -> bytes:
    """A packet with these headers, this sequence number and this payload."""
    made = bytearray(headers[:payload])
    struct.pack_into(">I", made, tcp + 4, number)
    struct.pack_into(">H", made, tcp + 16, 0)
    if made[ip] >> 4 == 4:
        struct.pack_into(">H", made, ip + 2, payload - ip + len(data))
        struct.pack_into(">H", made, ip + 10, 0)
    else:
        struct.pack_into(">H", made, ip + 4, payload - tcp + len(data))
    return bytes(made) + data


def _headers(packet: bytearray, payload: int, number: int) -> tuple[int, int] | None:
    """Where the IP and TCP headers begin that lead to a payload; None where a tunnel or IPv6 options lie around."""
    sizes = range(20, 64, 4)
    sequence = struct.pack(">I", number)
    tcp = next((at for at in (payload - size for size in sizes) if at >= 20 and packet[at + 4 : at + 8] == sequence
                and packet[at + 12] >> 2 & 0x3C == payload - at), None)  # fmt: skip
    if tcp is None or payload > len(packet):
        return None
    for ip in (tcp - size for size in sizes):
        if 0 <= ip <= OUTERMOST and packet[ip] == 0x40 | (tcp - ip) // 4 and packet[ip + 9] == 6:
            return ip, tcp
    ip = tcp - 40
    return (ip, tcp) if 0 <= ip <= OUTERMOST and packet[ip] >> 4 == 6 and packet[ip + 6] == 6 else None


def _without_sacks(packet: bytearray, at: int, end: int) -> None:
    """Put no-operations in the place of SACK options (RFC 2018)."""
    while at < end and packet[at] != END:
        size = 1 if packet[at] == NOP else packet[at + 1] if at + 1 < end else 0
        if size < 1 or (packet[at] != NOP and size < 2) or at + size > end:
            return
        if packet[at] == SACK:
            packet[at : at + size] = bytes([NOP]) * size
        at += size

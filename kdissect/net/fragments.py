"""IP fragments put together again (RFC 791, RFC 8200 section 4.5).

Rules. Pieces belong together by view, addresses, protocol (IPv4) and identification. The first copy of a byte wins. A
packet is whole when its last piece and everything before it has come. It then counts as seen at the time and number of
the piece that completed it, as Wireshark shows it. Pieces cut by a snap length leave a packet that is cut at the first
missing byte. A packet that is not whole after `LIFETIME`, or when the bounds are reached, is dropped and counted.
"""

import dataclasses

LIFETIME = 30_000_000_000
"""ns after which a receiver gives a packet up (Linux: ipfrag_time, 30 s)."""
MAX_PENDING = 4096
"""Unfinished packets kept; with LIFETIME and the bytes below, more are loss or an attack."""
MAX_PENDING_BYTES = 16 << 20
"""Bytes of unfinished packets kept; Linux itself keeps 4 MiB (ipfrag_high_thresh)."""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Packet:
    started: int
    header: bytes = b""  # of the piece at offset 0, up to the fragmented part
    protocol: int = 0  # next header of that piece (IPv6)
    total: int = -1  # length of the fragmented part, once the last piece was seen
    size: int = 0  # bytes kept
    pieces: dict[int, tuple[bytes, int]] = dataclasses.field(
        default_factory=dict
    )  # offset: captured bytes, true length


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Reassembler:
    """Joins fragments. `given_up` counts packets that never became whole; `pending` has unfinished ones by view and
    identity, `kept_bytes` of them in all."""

    given_up: int = 0
    pending: dict[tuple[int, bytes], _Packet] = dataclasses.field(default_factory=dict)
    kept_bytes: int = 0

    def add(self, packet: bytes, view: int, time: int) -> tuple[bytes, int] | None:
        """Add one fragment (from its IP header on, as captured); the whole IP packet and its true length when it is
        complete."""
        piece = _piece_of(packet)
        if piece is None:
            return None
        identity, header, protocol, offset, more, data, length = piece
        key = view, identity
        self._expire(time)
        pending = self.pending.get(key)
        if pending is None:
            pending = self.pending[key] = _Packet(time)
        if offset not in pending.pieces:
            pending.pieces[offset] = data, length
            pending.size += len(data)
            self.kept_bytes += len(data)
        if offset == 0 and not pending.header:
            pending.header, pending.protocol = header, protocol
        if not more:
            pending.total = max(pending.total, offset + length)
        whole = _join(pending)
        if whole is not None:
            self._drop(key)
        return whole

    def finish(self) -> None:
        """No more fragments come: count what is unfinished."""
        self.given_up += len(self.pending)
        self.pending.clear()
        self.kept_bytes = 0

    def _expire(self, time: int) -> None:
        while self.pending:
            key, oldest = next(iter(self.pending.items()))
            old = abs(time - oldest.started) > LIFETIME
            if not old and len(self.pending) < MAX_PENDING and self.kept_bytes < MAX_PENDING_BYTES:
                return
            self.given_up += 1
            self._drop(key)

    def _drop(self, key: tuple[int, bytes]) -> None:
        self.kept_bytes -= self.pending.pop(key).size


def _piece_of(packet: bytes) -> tuple[bytes, bytes, int, int, bool, bytes, int] | None:
    """Identity, header before the fragmented part, protocol, offset, more to come, captured data, true length."""
    if packet[0] >> 4 == 4:
        start = (packet[0] & 15) * 4
        total = int.from_bytes(packet[2:4], "big")
        word = int.from_bytes(packet[6:8], "big")
        identity = packet[12:20] + packet[9:10] + packet[4:6]
        length = (total or len(packet)) - start
        return (
            identity,
            packet[:start],
            packet[9],
            (word & 0x1FFF) * 8,
            bool(word & 0x2000),
            packet[start : start + length],
            length,
        )
    total = 40 + int.from_bytes(packet[4:6], "big")
    at, following, previous = 40, packet[6], 6  # previous: where the header that names `following` does so
    while following != 44:
        if following not in (0, 43, 60, 135, 139, 140, 51) or at + 8 > len(packet):
            return None
        size = (packet[at + 1] + 2) * 4 if following == 51 else (packet[at + 1] + 1) * 8
        previous, following, at = at, packet[at], at + size
    if at + 8 > len(packet):
        return None
    word = int.from_bytes(packet[at + 2 : at + 4], "big")
    header = bytearray(packet[:at])
    header[previous] = packet[at]
    start = at + 8
    identity = packet[8:40] + packet[at + 4 : at + 8]
    return (
        identity,
        bytes(header),
        packet[at],
        word & 0xFFF8,
        bool(word & 1),
        packet[start:total],
        max(total - start, 0),
    )


def _join(pending: _Packet) -> tuple[bytes, int] | None:
    """The packet, if every byte of it is accounted for."""
    if pending.total < 0 or not pending.header:
        return None
    reached = 0
    for offset in sorted(pending.pieces):
        if offset > reached:
            return None
        reached = max(reached, offset + pending.pieces[offset][1])
    if reached < pending.total or len(pending.header) + pending.total > 0xFFFF + 40:
        return None
    out = bytearray(pending.header)
    start = len(out)
    if out[0] >> 4 == 4:
        out[2:4] = min(start + pending.total, 0xFFFF).to_bytes(2, "big")
        out[6:8] = b"\0\0"
    else:
        out[4:6] = min(start - 40 + pending.total, 0xFFFF).to_bytes(2, "big")
    for offset in sorted(pending.pieces):
        data, length = pending.pieces[offset]
        have = len(out) - start
        if offset > have:  # a piece before this one was cut: the packet ends where the bytes do
            break
        out += data[have - offset :]
        if len(data) < length:
            break
    return bytes(out[: start + pending.total]), start + pending.total

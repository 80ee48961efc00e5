"""A capture file being written: pcap with nanoseconds as long as one interface is enough, else pcapng.

Wireshark, tcpdump and everything else read both. Rows are written a block at a time.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from kdissect.capture import CaptureSet, Member
from kdissect.capture.pcap import PACKET
from kdissect.output import scratch, temporary
from kdissect.rewriting.packet_kernels import BLOCK, PADDING, PCAP_RECORD, SECOND, write_records

SNAP_LENGTH = 262_144
"""Written as snap length: Wireshark's and tcpdump's own bound, which says that nothing was cut here."""
LAST_TIME = (1 << 32) * SECOND
"""Times from here on (the year 2106) do not fit pcap."""
SECRETS_TLS = 0x544C534B


Change = Callable[[NDArray[np.uint8], NDArray[np.int64], int], None]


def _places(packets: NDArray[np.int64], pcapng: bool) -> NDArray[np.int64]:
    """Where each packet's bytes begin among their records."""
    size = packets[:, PACKET.captured] if not pcapng else (packets[:, PACKET.captured] + 3) & ~3
    ends: NDArray[np.int64] = np.cumsum(size + (BLOCK if pcapng else PCAP_RECORD))
    return ends - size - (4 if pcapng else 0)


class PacketFile:
    """Writes packet rows to `stream`, which can be sought and read back. `secrets` (TLS key logs) make it pcapng."""

    def __init__(self, stream: BinaryIO, secrets: Sequence[bytes] = (), pcapng: bool = False) -> None:
        self.stream = stream
        self.packets = 0
        self.bytes = 0
        """Captured bytes."""
        self.pcapng = False
        self._interfaces: dict[int, int] = {}
        self._secrets = list(secrets)
        self._written = 0
        self._out: NDArray[np.uint8] = np.empty(0, np.uint8)
        if pcapng:
            self._to_pcapng()

    def write(self, data: NDArray[np.uint8], packets: NDArray[np.int64], change: Change | None = None) -> None:
        """Write packet rows (`kdissect.capture.pcap`) whose bytes are in `data`.

        `change` may change the packets' bytes before they are written: it gets the records, the place of each packet
        in them, and the position of the records in the stream.
        """
        if not len(packets):
            return
        links = np.unique(packets[:, PACKET.link]).tolist()
        late = bool((packets[:, PACKET.time] >= LAST_TIME).any())
        if not self.pcapng and (self._secrets or late or len({*links, *self._interfaces}) > 1):
            self._to_pcapng()
        if self.pcapng:
            self._describe(links)
        elif not self._interfaces:
            self._interfaces[links[0]] = 0
            self._write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, SNAP_LENGTH, links[0] & 0xFFFF))
        number = {link: i for link, i in self._interfaces.items() if link in links}
        interface = np.zeros(len(packets), np.int64)
        for link, i in number.items():
            interface[packets[:, PACKET.link] == link] = i
        size = int(packets[:, PACKET.captured].sum())
        need = size + len(packets) * (BLOCK + PADDING)
        if need > len(self._out):
            self._out = np.empty(need, np.uint8)
        written = write_records(data, packets, interface, self.pcapng, self._out)
        if change is not None:
            change(self._out[:written], _places(packets, self.pcapng), self._written)
        self._write(memoryview(self._out)[:written])
        self.packets += len(packets)
        self.bytes += size

    def finish(self) -> None:
        """Nothing more follows; an empty capture gets its header."""
        if not self._written:
            self._write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, SNAP_LENGTH, 1))
        self.stream.flush()

    def _write(self, data: bytes | memoryview) -> None:
        self.stream.write(data)
        self._written += len(data)

    def _describe(self, links: Sequence[int]) -> None:
        """Interface blocks for those that are new."""
        for link in links:
            if link not in self._interfaces:
                self._interfaces[link] = len(self._interfaces)
                options = struct.pack("<HHB3xHH", 9, 1, 9, 0, 0)  # if_tsresol: 10**-9
                self._block(1, struct.pack("<HHI", link & 0xFFFF, 0, SNAP_LENGTH) + options)

    def _block(self, kind: int, body: bytes) -> None:
        body += bytes(-len(body) % 4)
        size = struct.pack("<I", len(body) + 12)
        self._write(struct.pack("<I", kind) + size + body + size)

    def _to_pcapng(self) -> None:
        """Go on as pcapng; what was written so far is written again."""
        self.pcapng = True
        links = list(self._interfaces)
        self._interfaces.clear()
        with temporary() as before:
            if self._written:
                self.stream.seek(0)
                with scratch():
                    shutil.copyfileobj(self.stream, before, 1 << 20)
                    before.seek(0)
                self.stream.seek(0)
                self.stream.truncate()
            again = bool(self._written)
            self._written = self.packets = self.bytes = 0
            self._block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
            for secret in self._secrets:
                self._block(10, struct.pack("<II", SECRETS_TLS, len(secret)) + secret)
            if again:
                source = CaptureSet("", [Member("", file=before)])
                window = source.window()
                for block in source.blocks(window):
                    block.packets[:, PACKET.link] = links[0]
                    self.write(window.data, block.packets)

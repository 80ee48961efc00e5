"""The format of a capture file by its first bytes: pcap (four magic numbers, both byte orders) or pcapng."""

from typing import NamedTuple

PCAP_MAGICS = {
    0xA1B2C3D4: (16, 1000),  # microseconds
    0xA1B23C4D: (16, 1),  # nanoseconds
    0xA1B2CD34: (24, 1000),  # Kuznetzov's 'modified' pcap: eight more bytes in each record header
}
PCAP_HEADER = 24
PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"


class Format(NamedTuple):
    """How a file's records are laid out. `header`, `tick` (ns per unit), `link_type`, `snap_length`: pcap only."""

    name: str
    big: bool
    header: int = 0
    tick: int = 1
    link_type: int = 0
    snap_length: int = 0

    @property
    def start(self) -> int:
        """Offset of the first record or block."""
        return PCAP_HEADER if self.name == "pcap" else 0


def recognise(head: bytes) -> Format | None:
    """The format of a file that starts with `head` (at least 24 bytes where the file has them); None: not a capture."""
    if head.startswith(PCAPNG_MAGIC):
        magic = head[8:12]
        if magic in (b"\x1a\x2b\x3c\x4d", b"\x4d\x3c\x2b\x1a"):
            return Format("pcapng", big=magic[0] == 0x1A)
        return None
    if len(head) < PCAP_HEADER:
        return None
    for order in ("big", "little"):
        known = PCAP_MAGICS.get(int.from_bytes(head[:4], order))
        if known is not None:
            number = [int.from_bytes(head[at : at + 4], order) for at in (16, 20)]
            return Format("pcap", order == "big", known[0], known[1], number[1] & 0xFFFF, number[0])
    return None

"""Files read for their packets' headers alone: what the index of a capture is made of.

Large packets, which receive and segmentation offload make, are mostly payload that the index has no use for. Their
first bytes are read and the rest is stepped over, where a classic pcap holds plain TCP over Ethernet; everything else
is read whole, and from a record on that may be damaged the rest of the file.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from kdissect.capture.bytestreams import PlainFile, Stream
from kdissect.capture.captureset import Member
from kdissect.capture.magic import PCAP_HEADER, recognise
from kdissect.capture.reader import MAX_RECORD
from kdissect.kernels.kernel import kernel, part
from kdissect.kernels.structs import struct, view
from kdissect.spark.stages.ranges import read

Words = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

ETHERNET = 1
RECORD = 16
"""Bytes of a record's header."""
KEEP = 14 + 60 + 60
"""Bytes of a packet that are read at least: Ethernet's header, and the largest of IPv4 and TCP (IPv6 has 40)."""
PEEK = RECORD + KEEP
LARGE = 1 << 13
"""Captured bytes from which on stepping over is quicker than reading: a call costs what copying some KB costs."""
AHEAD = 1 << 16
"""Bytes read in one go while packets are small."""


@struct
class Skimming:
    """How far a file was looked at."""

    next: int
    """Offset of the next record that was not looked at."""
    upto: int
    """Offset of the first byte that need not be read before it."""
    whole: int
    """1: everything is read from here on."""
    big: int
    """1: numbers are big-endian."""


skimming_at = view(Skimming)


@part
def _word(b: Bytes, o: Any, big: Any) -> Any:
    """Four bytes as a number."""
    value = np.int64(0)
    for i in range(4):
        value = value << 8 | np.int64(b[o + i if big else o + 3 - i])
    return value


@part
def _plain_tcp(b: Bytes, o: Any) -> Any:
    """Whether Ethernet's frame at `o` is TCP in a whole IP packet, with nothing in between."""
    kind = np.int64(b[o + 12]) << 8 | np.int64(b[o + 13])
    if kind == 0x0800:
        whole = b[o + 20] & 0x3F == 0 and b[o + 21] == 0
        return b[o + 14] >> 4 == 4 and b[o + 23] == 6 and whole
    return kind == 0x86DD and b[o + 14] >> 4 == 6 and b[o + 20] == 6


@kernel("i8 i8 i8 u1[:] i8[:] u1[:]")
def _skim(fd: int, begin: int, end: int, out: Bytes, state: Words, scratch: Bytes) -> None:
    """Read what is needed of the file's bytes begin..end, which exist, into `out`, whose other bytes stay as they
    are."""
    at: Any = begin
    room: Any = np.int64(PEEK)
    file = skimming_at(state, 0)
    while at < end:
        stop = end if file.whole else min(max(file.upto, file.next + room), end)
        read(fd, out, at - begin, stop - at, at)
        at = stop
        while not file.whole and file.next + PEEK <= at:
            record = file.next
            b = out
            o: Any = record - begin
            if o < 0:
                read(fd, scratch, 0, PEEK, record)
                b = scratch
                o = np.int64(0)
            captured = _word(b, o + 8, file.big)
            if captured == 0 or captured > MAX_RECORD:
                file.whole = 1
                break
            file.next = record + RECORD + captured
            large = captured >= LARGE and _plain_tcp(b, o + RECORD)
            room = np.int64(PEEK if large else AHEAD)
            file.upto = record + PEEK if large else file.next
        if not file.whole and file.next > at >= file.upto:
            at = min(file.next, end)


class SkimmedFile(PlainFile):
    """A plain file whose large packets are stepped over: the payload's bytes in what it reads mean nothing."""

    _state: Words | None = None

    def readinto(self, target: memoryview) -> int:
        """As `Stream.readinto`."""
        try:
            with self._lock:
                fd = self._open_stream().fileno()
                size = os.fstat(fd).st_size
                if self._state is None:
                    self._state = _begin(os.pread(fd, PCAP_HEADER, 0))
                begin, end = self._at, min(self._at + len(target), max(size, self._at))
                _skim(fd, begin, end, np.frombuffer(target, np.uint8), self._state, np.zeros(PEEK, np.uint8))
        except OSError as error:
            self.problem = f"reading stopped: {error.strerror}"
            return 0
        self._at = end
        return end - begin


def _begin(head: bytes) -> Words:
    form = recognise(head)
    known = form is not None and (form.name, form.header, form.link_type) == ("pcap", RECORD, ETHERNET)
    return np.array([PCAP_HEADER, PCAP_HEADER, not known, form is not None and form.big], np.int64)


class Skimmed(Member):
    """A member whose plain file is skimmed."""

    def open(self) -> Stream:
        """As `Member.open`."""
        opened = Member.open(self)
        if type(opened) is not PlainFile or not hasattr(os, "pread"):
            return opened
        opened.close()
        return SkimmedFile(opened.path)

"""The ring of recent input bytes which every later stage reads from.

Rules.

- The input of a capture set is one logical byte stream: a position in it is a *logical offset* (int64).
- `Window.data` is one uint8 array made of equal slots, filled one after the other, round and round. Each slot holds one
  contiguous range of logical offsets. A record that a slot's end cuts is copied to the front of the next slot, so that
  every record lies in one piece somewhere. The ranges of neighbouring slots may therefore overlap.
- Bytes that exist nowhere in the input in one piece (reassembled IP packets) live in extra slots behind the others,
  with logical offsets from `EXTRA` on. They rotate by themselves, by how much is put there.
- `slots` (int64, one row a slot) holds logical start, logical end and the position in `data` of the logical start; a
  row whose start equals its end is empty. A logical offset is addressable while some row covers it.
- While the next block is read into one slot, others may be worked on through a `View`. It keeps away from the slot that
  is filled next, and has extra slots and room for work of its own.

Memory is reserved, not touched, until bytes arrive.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SLOT_BYTES = 16 << 20
"""Python and Arrow cost some 35 ms a block in a run with all of the analysis, however large the block is: blocks of
16 MiB take a sixth less CPU than those of 8 MiB, and their rows some 90 MB more on their way through all layers."""
WIDE = 3
"""So many times as much a block holds where packets are large: its rows are few however large it is."""
FEW_PACKETS = 1 << 13
"""Packets of a block below which they are: of 2 KiB each, on the average."""
SLOTS = 3
"""Of 48 MiB one slot is read ahead and one worked on: the third looks back further than any TCP receive window that
Linux grants by default (6 MiB per direction). What is needed of older ones is read again, or kept apart."""
EXTRA_BYTES = 2 << 20
"""One extra slot: thirty IP packets of the largest size."""
EXTRA_SLOTS = 12
"""Two blocks' worth: one may be scanned while the one before it is worked on."""
EXTRA = 1 << 56
"""First logical offset of bytes that were put together here: 72 PB, beyond any input."""
APART = 1 << 50
"""So far apart are the logical offsets of what several views put together."""
WORK_BYTES = 64 << 20
"""Room behind the slots in which later stages put frames together that lie in several pieces (untouched memory is
free)."""


class Window:
    """One ring. Parameters in bytes and slots; `slot_bytes` bounds the largest record that can be read. `wide`: blocks
    of large packets may hold so many times that, where their reader says so (`widens`)."""

    def __init__(
        self, slot_bytes: int = SLOT_BYTES, slots: int = SLOTS, extra_bytes: int = EXTRA_BYTES, wide: int = 1
    ) -> None:
        self.slot_bytes = self._taken = slot_bytes
        self.extra_bytes = extra_bytes
        self._widest = slot_bytes * wide
        self.widens = False
        self.count = 0
        """Packets that were found in the current slot."""
        self.work = self._widest * slots + extra_bytes * EXTRA_SLOTS
        """Position in `data` of the room for work, which belongs to no slot."""
        self.limit = self.work + WORK_BYTES
        """Position in `data` of its end."""
        self.packets: int | None = None
        """Most packets of a block, None for as many as a slot holds: rows of small ones take more memory than bytes."""
        self.data: NDArray[np.uint8] = np.empty(self.limit, np.uint8)
        self.slots: NDArray[np.int64] = np.zeros((slots + EXTRA_SLOTS, 3), np.int64)
        self._ring = slots
        self.slots[:slots, 2] = np.arange(slots) * self._widest
        self.slots[slots:, 2] = slots * self._widest + np.arange(EXTRA_SLOTS) * extra_bytes
        self.slots[slots:, :2] = EXTRA
        self.current = slots - 1
        self._first_extra = slots
        self._extra = slots + EXTRA_SLOTS - 1
        self._extra_end = EXTRA

    @classmethod
    def for_size(cls, size: int | None) -> Window:
        """A ring for an input of `size` bytes (None: unknown): small inputs get a ring that holds them whole."""
        if size is None or size + (1 << 16) > SLOT_BYTES:
            return cls(wide=WIDE)
        return cls(slot_bytes=size + (1 << 16) & ~0xFFF, slots=2)

    def views(self, count: int) -> list[View]:
        """So many views. To be called before anything is read, once."""
        room = EXTRA_SLOTS * self.extra_bytes + WORK_BYTES
        self.data = np.empty(0, np.uint8)  # its addresses are used again
        self.data = np.empty(self.limit + count * room, np.uint8)
        return [View(self, number, self.limit + number * room) for number in range(count)]

    def reset(self) -> None:
        """Forget everything, to use the ring for another capture set."""
        self.slots[: self._ring, :2] = 0
        self.slots[self._ring :, :2] = EXTRA
        self.current = self._ring - 1
        self._extra = len(self.slots) - 1
        self._extra_end = EXTRA
        self._taken, self.count = self.slot_bytes, 0

    @property
    def ring(self) -> int:
        """How many of the slots hold input; extra slots follow them."""
        return self._ring

    @property
    def end(self) -> int:
        """Logical offset after the newest byte."""
        return int(self.slots[self.current, 1])

    @property
    def room(self) -> int:
        """Bytes that the current slot can still take."""
        row = self.slots[self.current]
        return self._taken - int(row[1] - row[0])

    def target(self) -> memoryview:
        """The free part of the current slot, to read into."""
        row = self.slots[self.current]
        place = int(row[2] + row[1] - row[0])
        return memoryview(self.data)[place : int(row[2]) + self._taken]

    def grow(self, size: int) -> None:
        """`size` bytes were put into the target."""
        self.slots[self.current, 1] += size

    def position(self, logical: int) -> int:
        """Position in `data` of a logical offset of the current slot."""
        row = self.slots[self.current]
        return int(row[2] + logical - row[0])

    def advance(self, logical: int, start: int, end: int) -> int:
        """Go to the next slot, which starts with the bytes at data[start:end] of logical offset `logical`; its
        position."""
        self.current = (self.current + 1) % self._ring
        self._taken = self._widest if self.widens and self.count < FEW_PACKETS else self.slot_bytes
        self.count = 0
        place = int(self.slots[self.current, 2])
        self.data[place : place + end - start] = self.data[start:end]
        self.slots[self.current, 0] = logical
        self.slots[self.current, 1] = logical + end - start
        return place

    def extra(self, payload: bytes) -> int:
        """Put bytes into the extra region; their logical offset, or -1 when they are larger than an extra slot."""
        size = len(payload)
        if size > self.extra_bytes:
            return -1
        row = self.slots[self._extra]
        if row[1] - row[0] + size > self.extra_bytes or row[0] == row[1]:
            self._extra = self._first_extra + (self._extra + 1 - self._first_extra) % EXTRA_SLOTS
            row = self.slots[self._extra]
            row[0] = row[1] = self._extra_end
        place = int(row[2] + row[1] - row[0])
        self.data[place : place + size] = np.frombuffer(payload, np.uint8)
        logical = int(row[1])
        row[1] += size
        self._extra_end = int(row[1])
        return logical

    def locate(self, logical: int, size: int) -> int:
        """Position in `data` of `size` bytes at a logical offset, -1 when they are not (or no longer) all there."""
        inside = (
            (self.slots[:, 0] <= logical) & (logical + size <= self.slots[:, 1]) & (self.slots[:, 0] < self.slots[:, 1])
        )
        found = np.flatnonzero(inside)
        if not found.size:
            return -1
        row = self.slots[found[0]]
        return int(row[2] + logical - row[0])


class View(Window):
    """One worker's view of a window: its bytes, as they were when `refresh` was called last."""

    def __init__(self, window: Window, number: int, place: int) -> None:
        self.window = window
        self.slot_bytes, self.extra_bytes = window.slot_bytes, window.extra_bytes
        self.data = window.data
        self._ring = window.ring
        self.current = window.current
        own = np.full((EXTRA_SLOTS, 3), EXTRA, np.int64)
        own[:, 2] = place + np.arange(EXTRA_SLOTS) * self.extra_bytes
        self.slots = np.concatenate([window.slots, own])
        self._first_extra = len(window.slots)
        self._extra = len(self.slots) - 1
        self._extra_end = EXTRA + (number + 1) * APART
        self.work = place + EXTRA_SLOTS * self.extra_bytes
        self.limit = self.work + WORK_BYTES

    def refresh(self) -> None:
        """See what the window holds now."""
        self.current = self.window.current
        self.slots[: self._first_extra] = self.window.slots

    def make_way(self) -> None:
        """Do not look any more at the slot that the window fills next."""
        self.slots[(self.current + 1) % self._ring, :2] = 0

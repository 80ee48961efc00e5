"""Addresses and what stands for them in a redacted capture: the host of the tables of `hiding_kernels`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kdissect.arrays.growing import lazy_zeros
from kdissect.kernels.keyed_hash import new_secret
from kdissect.kernels.structs import rows_of
from kdissect.rewriting import hiding_kernels as hiding

SLOTS = 4096
"""At first. `addresses` has a row for every second one, so that chains stay short."""


class Addresses:
    """Stand-ins of addresses by order of appearance; some addresses stay."""

    def __init__(self) -> None:
        self._slots: NDArray[np.int32] = np.full(SLOTS, -1, np.int32)
        self._known: NDArray[np.int64] = lazy_zeros(SLOTS // 2 * hiding.ADDRESS_COLUMNS, np.int64).reshape(
            SLOTS // 2, -1
        )
        self._state: NDArray[np.int64] = np.zeros(hiding.STATE, np.int64)
        self._state[hiding.KEY :] = new_secret()

    def keep(self, addresses: NDArray[np.int64]) -> None:
        """Let IP addresses (int64[n, 2], IPv4 as IPv6 has it) stay; before any is replaced."""
        for high, low in addresses.tolist():
            mapped = high == 0 and low >> 32 == 0xFFFF
            kind = hiding.IPV4 if mapped else hiding.IPV6
            while hiding.row_of(kind, high, low & 0xFFFFFFFF if mapped else low, *self._tables) < 0:
                self._grow()
        rows_of(hiding.Address, self._known)["code"][: self._state[hiding.USED]] &= hiding.ONE - 1
        self._state[: hiding.USED] = 0

    def hide(
        self, records: NDArray[np.uint8], packets: NDArray[np.int64], place: NDArray[np.int64],
        payload: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """As `hiding_kernels.hide`, all packets."""
        first = 0
        while first < len(packets):
            first = int(hiding.hide(records, packets, place, payload, first, *self._tables))
            if first < len(packets):
                self._grow()

    @property
    def replaced(self) -> int:
        """How many IP addresses have a stand-in."""
        return int(self._state[hiding.IPV4] + self._state[hiding.IPV6])

    @property
    def _tables(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        return self._slots, self._known, self._state

    def _grow(self) -> None:
        """Room for twice as many."""
        used = int(self._state[hiding.USED])
        known = lazy_zeros(2 * self._known.size, np.int64).reshape(-1, hiding.ADDRESS_COLUMNS)
        known[:used] = self._known[:used]
        self._known = known
        self._slots = np.full(2 * len(self._slots), -1, np.int32)
        hiding.find_slots(known, used, self._slots, self._state)

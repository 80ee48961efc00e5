"""Numbers of flows in a partition, whose rows come from many files that each counted for themselves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kdissect.kernels.kernel import kernel
from kdissect.kernels.keyed_hash import SECRET, new_secret, scramble, slot
from kdissect.net.segment import FLOW_COLUMNS

Words = npt.NDArray[np.int64]


@kernel("const i8[:,:] i8[:,:] i4[:] i8 i8[:] i8[:] -> i8")
def _number(keys: Words, flows: Words, table: npt.NDArray[np.int32], count: int, numbers: Words, secret: Words) -> int:
    """Numbers of the flows `keys`; new ones are appended to `flows`, which has room. `table` is a hash table of
    numbers, at most half full, its length a power of two; `secret` is that of its hash. Returns how many flows there
    are now."""
    mask = len(table) - 1
    for i in range(len(keys)):
        total = np.int64(0)
        for j in range(FLOW_COLUMNS):
            total += scramble(keys[i, j], secret[j])
        at = slot(total, secret[SECRET - 1], mask)
        while True:
            number = int(table[at])
            if number < 0:
                number = count
                for j in range(FLOW_COLUMNS):
                    flows[number, j] = keys[i, j]
                table[at] = number
                count += 1
                break
            same = True
            for j in range(FLOW_COLUMNS):
                same = same and flows[number, j] == keys[i, j]
            if same:
                break
            at = (at + 1) & mask
        numbers[i] = number
    return count


class Flows:
    """Flows met so far, int64[n, 5]."""

    def __init__(self) -> None:
        self._flows: Words = np.zeros((64, FLOW_COLUMNS), np.int64)
        self._table = np.full(128, -1, np.int32)
        self._count = 0
        self._secret = new_secret()

    @property
    def rows(self) -> Words:
        """The flows by number."""
        return self._flows[: self._count]

    def number(self, keys: Words) -> Words:
        """The numbers of these flows."""
        if self._count + len(keys) > len(self._flows):
            known = self.rows
            size = 1 << int(2 * (len(known) + len(keys))).bit_length()
            self._flows = np.zeros((size, FLOW_COLUMNS), np.int64)
            self._table = np.full(2 * size, -1, np.int32)
            self._count = _number(known, self._flows, self._table, 0, np.empty(len(known), np.int64), self._secret)
        numbers = np.empty(len(keys), np.int64)
        self._count = _number(np.ascontiguousarray(keys), self._flows, self._table, self._count, numbers, self._secret)
        return numbers

"""Kernel over the sequence numbers of idempotent producers (KIP-98).

| batch's epoch and first sequence, against what went before on the partition | becomes | next expected |
| --- | --- | --- |
| nothing went before | first | behind this batch |
| epoch higher | reset | behind this batch |
| epoch lower | fenced | as before |
| sequence as expected | ok | behind this batch |
| sequence ahead (by less than half of all numbers) | gap | behind this batch |
| sequence behind | repeat | as before, or behind this batch where that is further |

Sequence numbers count from 0 to 2^31-1 and on to 0 again (DefaultRecordBatch.incrementSequence).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kdissect.kernels.kernel import kernel

Int64s = npt.NDArray[np.int64]

STATUSES = ("first", "ok", "gap", "repeat", "reset", "fenced")
FIRST, OK, GAP, REPEAT, RESET, FENCED = range(6)
NUMBERS = 1 << 31
"""How many sequence numbers there are."""


@kernel("i8[:] i8[:] i8[:] i8[:] i1[:] i8[:]")
def follow(
    stream: Int64s, epoch: Int64s, first: Int64s, span: Int64s, status: npt.NDArray[np.int8], expected: Int64s
) -> None:
    """Status of each batch and the sequence that was expected (-1: none), in order of time.

    Batches of one stream (partition and producer id) stand together. `span`: how many numbers the batch takes.
    """
    for i in range(stream.shape[0]):
        begins = i == 0 or stream[i] != stream[i - 1]
        behind = (first[i] + span[i]) % NUMBERS
        if begins:
            status[i] = FIRST
            expected[i] = -1
            newest = epoch[i]
            following = behind
        elif epoch[i] != newest:
            status[i] = RESET if epoch[i] > newest else FENCED
            expected[i] = -1
            if epoch[i] > newest:
                newest = epoch[i]
                following = behind
        else:
            expected[i] = following
            ahead = (first[i] - following) % NUMBERS
            if ahead == 0:
                status[i] = OK
                following = behind
            elif ahead < NUMBERS // 2:
                status[i] = GAP
                following = behind
            else:
                status[i] = REPEAT
                beyond = (behind - following) % NUMBERS
                if 0 < beyond < NUMBERS // 2:
                    following = behind

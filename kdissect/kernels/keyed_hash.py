"""A hash with a secret key, for tables of what a capture says.

Senders choose addresses and ports. If the hash were known, they could choose keys that all meet in one slot, and each
search would walk through all of them.

Rules: NH of UMAC (RFC 4418, section 5.2.2) over the 64-bit words of a key, then a multiplication by an odd number. Its
upper bits count. Two keys that were chosen without the secret meet as rarely as random numbers do.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from kdissect.kernels.kernel import part
from kdissect.kernels.structs import Int

WORDS = 5
"""64-bit words of a key that can be hashed: those of a flow."""
SECRET = WORDS + 1
"""Words of a secret: one for each word, and the odd number."""
LOW = (1 << 32) - 1


def new_secret() -> npt.NDArray[np.int64]:
    """A secret, int64[SECRET]. Tables with the same content have the same rows with each secret."""
    secret = np.frombuffer(os.urandom(8 * SECRET), np.int64).copy()
    secret[WORDS] |= 1
    return secret


@part
def scramble(word: Int, secret: Int) -> Int:
    """The part of one word in the sum that `slot` takes."""
    return (((word >> 32) + (secret >> 32)) & LOW) * ((word + secret) & LOW)


@part
def slot(total: Int, odd: Int, mask: Int) -> Int:
    """The slot of a key with this sum in a table of `mask` + 1 slots, a power of two up to 2**31."""
    return ((total * odd) >> 32) & mask

"""Whether bytes are a message: one trial of one layout, for searches."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.kernels.kernel import part
from kdissect.kernels.structs import Bytes
from kdissect.schema.opcodes import BAD_COUNT, OK, SHORT
from kdissect.schema.vm import consumes

FITS = 0
RAN_OUT = 1
"""Everything up to the end of the bytes fits, and more is expected."""
UNREADABLE = -1


class Programs(NamedTuple):
    """The skim programs of every API: which program reads (key, version, side), and where headers become flexible."""

    table: npt.NDArray[np.int32]
    flexible: npt.NDArray[np.int16]
    arrays: Any
    """The `Skim` of `kdissect.schema.vm`."""


@part
def fits(A: Bytes, begin: Any, end: Any, program: Any, sk: Any) -> int:
    """FITS, RAN_OUT or UNREADABLE for `A[begin:end]` against one program."""
    status = consumes(A, begin, end, program, sk)
    if status == OK:
        return FITS
    return RAN_OUT if status in (SHORT, BAD_COUNT) else UNREADABLE

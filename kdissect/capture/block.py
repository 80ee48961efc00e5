"""One block of packets, the unit in which captures are read."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdissect.capture.window import Window


class Block(NamedTuple):
    """Packets that lie in one slot of the window, in the order of the file.

    `packets`: int64[n, 6], columns in `kdissect.capture.pcap`, valid until the next block is asked for. `slot`: row
    of `window.slots`. `start`, `end`: the positions in `window.data` between which the packets lie. logical offset =
    position + `delta`. An idle block (no packets) comes from following an input that is quiet.
    """

    file: int
    window: Window
    slot: int
    start: int
    end: int
    delta: int
    packets: NDArray[np.int64]
    last: bool = False
    """No other block of the capture comes behind it; unsaid where that is not known yet."""

    @property
    def idle(self) -> bool:
        """Whether nothing new came."""
        return len(self.packets) == 0

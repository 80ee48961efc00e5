"""Streams that lose a fifth of their packets: nothing waits for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from kdissect.capture import open_captures
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine.books import Books
from kdissect.engine.run import Run
from kdissect.engine.settings import Settings
from kdissect.kafka.streams.dissector import Dissector
from kdissect.kernels.structs import offsets
from kdissect.tcp.assembly import GAP_PACKETS
from kdissect.tcp.layout import Connection
from tests.bench.garbage import headless, small_segments
from tests.bench.packets import Cycle, write
from tests.bench.workloads import plain

SIZE = 3_000_000
C = offsets(Connection)


class Watched(Run):
    """Keeps the most that waited at the end of any block, on one connection."""

    most: dict[int, int]

    def block_ended(self, number: int, segments: npt.NDArray[np.int64], dissectors: Sequence[Dissector]) -> None:
        super().block_ended(number, segments, dissectors)
        for dissector in dissectors:
            rows = dissector.connections[dissector.M[dissector.connections + C.number] >= 0]
            for word in self.most:
                self.most[word] = max(self.most[word], int(dissector.M[rows + word].max()))


@pytest.mark.parametrize("cycle", [plain, small_segments, headless])
def test_nothing_waits_long(cycle: Callable[[], Cycle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole is given up within twice GAP_PACKETS after it was acknowledged, however many others there are."""
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17, 2))
    made = write(tmp_path / "torn.pcap", cycle(), SIZE, 1, loss=0.2, handshakes=False)
    run = Watched(Books(open_captures(made.path), {"exchanges": ["status"]}, Settings()))
    run.most = {C.requests_open: 0, C.held: 0}
    found = np.concatenate([done.status for done in run.completed()])
    assert len(found) > made.exchanges // 4
    assert max(run.most.values()) <= 2 * GAP_PACKETS

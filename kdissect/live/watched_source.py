"""A source being watched: packets into the ring, rows into the figures, findings as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kdissect.capture.block import Block
from kdissect.engine.bounds.spare_memory import Spare
from kdissect.live.lookout import Explainer, Lookout
from kdissect.live.moment import Moment, Sender
from kdissect.live.ring import SLICES, Ring
from kdissect.live.running_figures import Figures
from kdissect.live.sampling import Load, Sampler
from kdissect.live.source import Source
from kdissect.live.watch import Watch
from kdissect.problems import KdissectError
from kdissect.python_process import can_start_python

T = TypeVar("T")
WAIT_S = 0.5
"""How often it is looked at whether the reader has ended meanwhile."""
LOOK_BACK = SLICES // 2
"""Files of the ring that are searched for findings: half of it, so that none goes away meanwhile."""


class Session:
    """Watches a source, in this thread (`run`) or in one of its own (`start`). Use it as a context.

    `ring`: where the last packets are kept, None for nowhere; `lookout`: who looks for findings in them; `sender`: who
    sends exchanges elsewhere.
    """

    def __init__(
        self, source: Source, figures: Figures, ring: Ring | None = None, lookout: Lookout | None = None,
        sampler: Sampler | None = None, sender: Sender | None = None,
    ) -> None:  # fmt: skip
        self.source = source
        self.figures = figures
        self.ring = ring
        self._lookout = lookout
        self._sampler = sampler or Sampler()
        self._sender = sender
        self._load = Load()
        self._spare = Spare()
        self._thread: threading.Thread | None = None
        self._jobs: list[Callable[[], None]] = []
        """What others want done by the thread that writes the ring."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.stop()
        if self._thread is not None:
            self._thread.join()
        self.source.close()
        if self._lookout is not None:
            self._lookout.close()
        if self.ring is not None:
            self.ring.close()

    def start(self) -> None:
        """Read in a thread of its own; `figures.ended` says when it is over, `figures.error` why."""
        self._thread = threading.Thread(target=self._guarded, name="kdissect-watch", daemon=True)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self.run()
        except KdissectError as error:
            self.figures.error = str(error)
        except Exception as error:  # whatever it is, nothing is watched any more
            self.figures.error = f"watching ended unexpectedly: {type(error).__name__}: {error}"
        finally:
            self.figures.ended = True

    def run(self) -> None:
        """Read to the end. Raises CaptureError."""
        Watch(self.source, self, self._sampler, self._read()).run()
        self.figures.note_deliveries(None)
        if self._lookout is not None:
            members = self.source.capture.members
            own = [member.path for member in members if member.path is not None]
            whole = self.source.patient and len(own) == len(members)
            self._findings(wait=True)
            self._lookout.look(own if whole else self.ring.files()[-LOOK_BACK:] if self.ring is not None else [])
            self._findings(wait=True)
        self.figures.ended = True

    def _read(self) -> dict[str, list[str]]:
        """Tables and columns that the sender and deliveries need."""
        needed = [one.read for one in (self._sender, self.figures.deliveries) if one is not None]
        return {
            name: list(dict.fromkeys(column for read in needed for column in read.get(name, ())))
            for name in dict.fromkeys(name for read in needed for name in read)
        }

    # ---- told by Watch

    def packets(self, block: Block, analysed: int, seen: int) -> None:
        """As `Listener.packets`."""
        if self.ring is not None:
            self.ring.write(block)
        self.figures.packets(block, analysed, seen)

    def tick(self, moment: Moment) -> None:
        """As `Listener.tick`."""
        figures, latest_ns = self.figures, self.source.clock.latest_ns
        behind = 0.0 if moment.quiet else self.source.behind_s(latest_ns)
        with figures.lock:
            if not self.source.waits_for_us:
                self._adapt_share(behind, latest_ns)
            figures.share, figures.behind_s = self._sampler.share, behind
            figures.dropped = self.source.dropped()
            figures.tick(moment)
        figures.note_deliveries(moment)
        if self._sender is not None:
            self._sender.add_rows(moment.settled, self.source.waits_for_us)
        self._spare.give_back()
        self._work()
        if self._lookout is not None:
            self._findings()
            if self._lookout.due and self.ring is not None:
                self._lookout.look(self.ring.files()[-LOOK_BACK:])

    def _adapt_share(self, behind_s: float, latest_ns: int) -> None:
        """Work on fewer connections, or on more of them, by how late packets are."""
        figures = self.figures
        share = self._load.share(behind_s, time.monotonic())
        if share != self._sampler.share:
            self._sampler.share = share
            said = f"behind by {behind_s:.1f} s: " if share < figures.share else ""
            figures.alert(
                "sampling", "medium", latest_ns // 1000,
                f"{said}{share:.0%} of connections are worked on from now on; rates are theirs",
            )  # fmt: skip

    def _findings(self, wait: bool = False) -> None:
        assert self._lookout is not None
        for row in self._lookout.new_findings(wait):
            self.figures.add_finding(row)

    # ---- asked by others

    def save(self, target: str, seconds: float) -> int:
        """Write the last `seconds` of packets as a capture; how many. From any thread. Raises OutputError."""
        ring = self.ring
        return 0 if ring is None else self._done_by_reader(lambda: ring.save(target, seconds))

    def explain(self, finding: Mapping[str, Any], width: int) -> Explainer | None:
        """Begin to find out why a finding is there, with the packets of the ring; None where nothing can: no packet
        came, or no other process may be started. From any thread."""
        files = [] if self.ring is None else self._done_by_reader(self.ring.files)
        if self._lookout is None or not files or not can_start_python():
            return None
        try:  # the oldest file may be taken away meanwhile
            return Explainer(files[len(files) == SLICES :], finding, width)
        except OSError:
            return None

    def _done_by_reader(self, work: Callable[[], T]) -> T:
        """Returns what `work` returns. The thread that reads calls it, if there is one. Raises its KdissectError."""
        if self._thread is None or not self._thread.is_alive():
            return work()
        done = threading.Event()
        result: list[T] = []
        error: list[KdissectError] = []

        def job() -> None:
            try:
                result.append(work())
            except KdissectError as raised:
                error.append(raised)
            finally:
                done.set()

        self._jobs.append(job)
        while not done.wait(WAIT_S):
            if not self._thread.is_alive() and self._jobs:
                self._work()
        if error:
            raise error[0]
        return result[0]

    def _work(self) -> None:
        """Do what others want done."""
        while self._jobs:
            self._jobs.pop(0)()

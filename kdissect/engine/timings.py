"""Where the time of a run goes, by layer: every moment belongs to the layer that was entered last."""

from __future__ import annotations

import threading
import time

import pyarrow as pa

CAPTURE, NET, TCP, KAFKA, TABLES, ANALYSIS, REST = range(7)
WAITING = 7
"""No layer: a thread waits for others, or for work."""
LAYERS = ("capture", "net", "tcp", "kafka", "tables", "analysis", "rest")
DOES = (
    "reads the input, finds packets",
    "takes packets apart, finds segments",
    "reassembles streams, finds frames, pairs them",
    "brings frames together, decodes bodies",
    "makes rows",
    "sessions, holds, findings",
    "start, output, what the caller does",
)


class Timings:
    """Wall-clock and CPU time by layer, and what went through: bytes of input, packets, frames and exchanges.

    CPU time is that of the thread which entered the layer; what Arrow's own threads do meanwhile is not in it.

    Kept by every run at some calls a block, which costs nothing to speak of.
    """

    def __init__(self) -> None:
        self.seconds = [0.0] * len(LAYERS)
        self.cpu_seconds = [0.0] * len(LAYERS)
        self.bytes = self.packets = self.frames = 0
        self.exchanges: int | None = None
        """Those of the clients, brokers and topics that are wanted; None where all are."""
        self._layer = REST
        self._since = time.perf_counter()
        self._thread, self._worked = threading.get_ident(), time.thread_time()

    def at(self, layer: int) -> None:
        """From here on time is that layer's."""
        now, worked, thread = time.perf_counter(), time.thread_time(), threading.get_ident()
        if self._layer != WAITING:
            self.seconds[self._layer] += now - self._since
            if thread == self._thread:
                self.cpu_seconds[self._layer] += worked - self._worked
        self._layer, self._since, self._thread, self._worked = layer, now, thread, worked

    def count_exchanges(self, selected: int | None) -> None:
        """Add these exchanges; None where all are wanted, which are not counted."""
        if selected is not None:
            self.exchanges = (self.exchanges or 0) + selected

    def merge(self, timings: Timings, all_steps: bool = False) -> None:
        """Add what another thread did; seconds of threads that work at the same time add up. `all_steps`: what it did
        besides the layers, too."""
        timings.at(WAITING)
        for layer in range(len(LAYERS) if all_steps else REST):
            self.seconds[layer] += timings.seconds[layer]
            self.cpu_seconds[layer] += timings.cpu_seconds[layer]
        self.packets += timings.packets
        self.frames += timings.frames
        self.count_exchanges(timings.exchanges)

    def table(self) -> pa.Table:
        """One row a layer: layer, seconds, cpu_seconds, share (of all seconds), ns_per_packet, ns_per_frame, mb_per_s
        (of input), does.

        A value that is unknown (no packets, no frames, no time) is null.
        """
        self.at(self._layer)
        whole = sum(self.seconds)

        def each(count: int) -> list[float | None]:
            return [seconds * 1e9 / count if count else None for seconds in self.seconds]

        return pa.table(
            {
                "layer": list(LAYERS),
                "seconds": self.seconds,
                "cpu_seconds": self.cpu_seconds,
                "share": [seconds / whole if whole else None for seconds in self.seconds],
                "ns_per_packet": pa.array(each(self.packets), pa.float64()),
                "ns_per_frame": pa.array(each(self.frames), pa.float64()),
                "mb_per_s": [self.bytes / seconds / 1e6 if seconds > 1e-6 else None for seconds in self.seconds],
                "does": list(DOES),
            }
        )

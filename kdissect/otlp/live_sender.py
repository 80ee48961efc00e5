"""Spans and metrics of traffic that is watched, sent by a thread of its own: watching never waits for a receiver.

A live view has no whole deliveries, so its spans have no links and no parents outside. Exchanges that do not fit into
the queue while the receiver is slow or away are dropped and counted.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from opentelemetry.trace import SpanKind

from kdissect.otlp.durations import DurationCounts
from kdissect.otlp.receivers import Receiver
from kdissect.otlp.sending import BATCH, READ, together
from kdissect.otlp.span_builder import SpanBuilder
from kdissect.problems import JobFailed

MOST_WAITING = 64
"""Parts of rows in the queue: those of a minute, for a live view hands them on once a second."""
METRICS_S = 10.0
"""How often metrics are sent."""
LOOK_S = 0.2
CLOSE_S = 12.0
"""How long the end waits for what is in the queue: a little longer than a request may take by default (10 s)."""

INTERRUPT_S = 3.0


class LiveSender:
    """Sends what `take` is given to a receiver. `tell` is called with a sentence when the receiver fails, once until it
    works again, and when it first rejects spans or data points."""

    read: Mapping[str, Sequence[str]] = READ
    """Columns that the tables given to `take` must have."""

    def __init__(self, receiver: Receiver, tell: Callable[[str], None]) -> None:
        self._arrived = 0
        """Spans that the receiver was sent, those that it rejected among them."""
        self._given = self._sent = 0
        """Exchanges that came, and those whose spans the receiver was sent."""
        self._receiver, self._tell = receiver, tell
        self._queue: queue.Queue[dict[str, pa.Table]] = queue.Queue(MOST_WAITING)
        self._ending = threading.Event()
        self._failing = self._gave_up = self._stopped = self._told_rejections = False
        self._builder, self._durations = SpanBuilder(), DurationCounts()
        self._thread = threading.Thread(target=self._run, name="kdissect-otlp", daemon=True)
        self._thread.start()

    def add_rows(self, settled: Sequence[Mapping[str, pa.Table]], waits: bool) -> None:
        """Rows whose analysis is finished, of one moment. `waits`: the source waits for its reader, so nothing has to
        be dropped as long as the receiver works."""
        for tables in settled:
            part = {name: tables[name] for name in READ if name in tables and tables[name].num_rows}
            self._given += part["exchanges"].num_rows if "exchanges" in part else 0
            if part and not self._gave_up:
                with contextlib.suppress(queue.Full):
                    self._queue.put(part, block=waits)
        self._gave_up = self._gave_up or (waits and self._failing)

    @property
    def spans(self) -> int:
        """Spans that the receiver took."""
        return self._arrived - self._receiver.rejected_spans

    @property
    def rejections(self) -> str:
        """As of `Receiver`."""
        return self._receiver.rejections

    @property
    def lost(self) -> int:
        """Exchanges whose spans did not arrive."""
        return self._given - self._sent

    def close(self) -> None:
        """Sends what is left, for CLOSE_S at most."""
        self._ending.set()
        self._thread.join(CLOSE_S)
        self._stopped = True
        if self._thread.is_alive():
            self._receiver.interrupt()
            self._thread.join(INTERRUPT_S)
        self._receiver.close()

    def _run(self) -> None:
        due = time.monotonic() + METRICS_S
        for tables in together(self._parts()):
            spans, operations, times = self._builder.spans(tables)
            self._durations.add(operations, times)
            for begin in range(0, len(spans), BATCH):
                batch = spans[begin : begin + BATCH]
                if self._deliver(partial(self._receiver.take_spans, batch)):
                    self._arrived += len(batch)
                    self._sent += sum(one.kind is SpanKind.CLIENT for one in batch)
            if time.monotonic() >= due:
                due = time.monotonic() + METRICS_S
                self._send_metrics()
        self._send_metrics()

    def _parts(self) -> Iterator[dict[str, pa.Table]]:
        """The parts in the queue, until the end."""
        while not self._stopped:
            try:
                yield self._queue.get(timeout=LOOK_S)
            except queue.Empty:
                if self._ending.is_set():
                    return

    def _send_metrics(self) -> None:
        metrics = self._durations.metrics(self._builder.resource)
        if metrics is not None:
            self._deliver(partial(self._receiver.take_metrics, metrics))

    def _deliver(self, send: Callable[[], None]) -> bool:
        """Whether it arrived. The first failure is reported, and the first rejection."""
        if self._stopped:
            return False
        try:
            send()
        except JobFailed as error:
            if not self._failing:
                self._tell(f"{error}; exchanges are not sent until it works")
            self._failing = True
            return False
        self._failing = False
        if self._receiver.rejections and not self._told_rejections:
            self._told_rejections = True
            self._tell(f"the OTLP receiver {self._receiver.rejections}")
        return True

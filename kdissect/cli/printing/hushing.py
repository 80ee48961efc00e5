"""Standard error of the programs that are started meanwhile, without the lines that say nothing."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence

from kdissect.escaping import visible


class Hushed:
    """The standard error of programs that were started while this was entered, for as long as they live.

    Lines that begin like one of `noise` are left out. The others are held in `said` until the block has ended, and go
    to our standard error from then on. Where the block raised they stay in `said`, for the message about the error.
    """

    def __init__(self, noise: Sequence[str]) -> None:
        self.said: list[str] = []
        self._noise = tuple(noise)
        self._held = True
        self._over = False
        self._lock = threading.Lock()
        self._ours = -1

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Around what starts programs."""
        sys.stderr.flush()
        self._ours = os.dup(2)
        source, sink = os.pipe()
        os.dup2(sink, 2)
        os.close(sink)
        threading.Thread(target=self._read_lines, args=(source,), daemon=True).start()
        try:
            yield
            with self._lock:
                self._held = False
                for line in self.said:
                    os.write(self._ours, line.encode())
                self.said.clear()
        finally:
            sys.stderr.flush()
            os.dup2(self._ours, 2)

    def over(self) -> None:
        """Nothing of what they write from now on matters: they are about to be ended."""
        with self._lock:
            self._over = True

    def _read_lines(self, source: int) -> None:
        with os.fdopen(source, encoding="utf-8", errors="replace") as lines, contextlib.suppress(OSError):
            for line in lines:
                if line.startswith(self._noise):
                    continue
                line = visible(line.rstrip("\n").expandtabs()) + "\n"
                with self._lock:
                    if self._over:
                        continue
                    if self._held:
                        self.said.append(line)
                    else:
                        os.write(self._ours, line.encode())

"""Captures watched in a made-up time: a replay at any speed, or a pipe that gets each packet when it was captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from kdissect.capture import open_captures
from kdissect.capture.block import Block
from kdissect.capture.window import Window
from kdissect.live.capture_clock import CaptureClock
from kdissect.live.replay import STEP_S, Replay
from kdissect.live.running_figures import Figures
from kdissect.live.source import Source
from kdissect.live.watch import Watch

T = TypeVar("T")


class HostClock:
    """A steady clock that only `sleep` moves, in steps of `STEP_S`. `waking` is called at every step."""

    def __init__(self, waking: Callable[[], None]) -> None:
        self.now = 100.0
        self._waking = waking

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, STEP_S)
        self._waking()


class PacedPipe(Source):
    """Packets come when they were captured, as through a pipe from a tcpdump."""

    def __init__(self, path: Path, pace: Replay, clock: HostClock) -> None:
        (capture,) = open_captures(path)
        super().__init__(capture, follow=True)
        self.clock = CaptureClock(True, host_clock=clock)
        self._pace = pace

    def blocks(self, window: Window) -> Iterator[Block]:
        return self._pace.pieces(self.capture.blocks(window))


def replayed(path: Path, speed: float, clock: HostClock) -> Source:
    """A replay in the time of `clock`."""
    (capture,) = open_captures(path)
    replay = Replay(speed, clock, clock.sleep)
    source = Source(capture, follow=False, replay=replay)
    source.clock = CaptureClock(False, lambda: replay.now_ns, clock)
    return source


def looks(path: Path, speed: float | None, every_s: float, look: Callable[[Figures], T]) -> list[T]:
    """What `look` finds in the figures of a replay at `speed`, or of a paced pipe (None), each `every_s` of the host's
    clock; the last one is of the end."""
    figures = Figures()
    found: list[T] = []

    def waking() -> None:
        if clock.now >= 100.0 + (len(found) + 1) * every_s:
            found.append(look(figures))

    clock = HostClock(waking)
    if speed is None:
        source: Source = PacedPipe(path, Replay(1.0, clock, clock.sleep), clock)
    else:
        source = replayed(path, speed, clock)
    Watch(source, figures).run()
    source.close()
    return [*found, look(figures)]


def prints(path: Path, speed: float | None, every_s: float) -> list[dict[str, Any]]:
    """The snapshots of `looks`."""
    return looks(path, speed, every_s, Figures.snapshot)

"""Files written by a thread of their own, a little behind whoever makes the rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future

BEHIND = 3
"""Calls that wait, at most, unless something else is said."""


class Writing:
    """Calls, one after the other, by a thread of their own where `apart`, a few behind whoever asks for them."""

    def __init__(self, apart: bool, behind: int = BEHIND) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._thread = ThreadPoolExecutor(1, "kdissect-writing") if apart else None
        self._behind = behind
        self._asked: deque[Future[None]] = deque()

    def __enter__(self) -> Writing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def do(self, call: Callable[[], None]) -> None:
        """Call it. Raises what an earlier call raised."""
        if self._thread is None:
            call()
        else:
            self.wait(self._behind)
            self._asked.append(self._thread.submit(call))

    def wait(self, but: int = 0) -> None:
        """Until everything is done, or all but so many calls. Raises what a call raised."""
        while len(self._asked) > but:
            self._asked.popleft().result()

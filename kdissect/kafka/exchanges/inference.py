"""Identifies a response whose request was never captured: the API and version whose layout consumes it exactly.

Every response layout is tried on the whole frame. Where the layouts that fit belong to one API, that is the API; where
a single version fits, that is the version. A response that fits several APIs, as a bare error code does, stays unknown.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kdissect.arrays.arrow import distinct
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.schema import index
from kdissect.schema.apikeys import ApiKey

Words = npt.NDArray[np.int64]
Found = tuple[int, int, int, int, str | None]
"""Key, version (-1 unknown), program, begin of the body, and what fits where several layouts do. -1: none."""

UNSUPPORTED_VERSION = 35
LEAST = 8
"""Bytes of a body that say anything: a throttle time and an error code fit some twenty APIs."""
MOST = 200_000
"""Responses of one capture that are tried, at 370 layouts each: some seconds."""
STEP = 512
"""Responses tried at a time: their trials take some MB."""
NAMED = 4
"""Layouts that a problem row names."""


class Inference:
    """Tries layouts on responses."""

    def __init__(self, decoder: Decoder) -> None:
        table = decoder.table[:, :, 1]
        self.layouts: Words = np.argwhere(table >= 0)
        """(API key, version) of each layout."""
        self.programs = table[table >= 0].astype(np.int32)
        key, version = self.layouts.T
        self._tagged = (version >= decoder.flexible[key, 1]) & (key != ApiKey.API_VERSIONS)
        self._trial = Decoder()
        self._left = MOST
        self._judged: dict[bytes, Found] = {}
        """By the layouts that fit, bodies counted from a frame's begin: hardly more than there are responses with
        different layouts."""

    def infer(self, s: npt.NDArray[np.uint8], begin: Words, end: Words) -> list[Found]:
        """The API and version of the frames at s[begin:end] (behind the length prefix)."""
        out: list[Found] = []
        for first in range(0, len(begin), STEP):
            out += self._tried(s, begin[first : first + STEP], end[first : first + STEP])
        return out

    def _tried(self, s: npt.NDArray[np.uint8], begin: Words, end: Words) -> list[Found]:
        n, layouts = len(begin), len(self.programs)
        long = end - begin >= 4 + LEAST
        long &= np.cumsum(long) <= self._left
        self._left -= int(long.sum())
        plain = long & ~self._tagged[:, None]
        tagged = long & self._tagged[:, None]
        tagged[:, long] &= s[begin[long] + 4] == 0  # tags of a response's header: Kafka has none
        layout, frame = np.nonzero(plain | tagged)
        starts = begin[frame] + 4 + self._tagged[layout]
        decoded = self._trial.decode(s, starts, end[frame], self.programs[layout])
        fits = np.zeros((n, layouts), np.bool_)
        fits[frame, layout] = decoded.status == 0
        alike = np.packbits(fits, axis=1)
        return [self._identify(row.tobytes(), int(at), s) for row, at in zip(alike, begin, strict=True)]

    def _identify(self, fitting: bytes, begin: int, s: npt.NDArray[np.uint8]) -> Found:
        """The API and version of a frame that these layouts fit (a bit each)."""
        judged = self._judged.get(fitting)
        if judged is None:
            judged = self._judged[fitting] = self._judge(fitting)
        key, version, program, header, several = judged
        if program < 0:
            return judged
        at = begin + header
        if key == ApiKey.API_VERSIONS and s[at] == 0 and s[at + 1] == UNSUPPORTED_VERSION:
            # The answer to a version that the broker does not know has version 0's layout (KIP-511).
            return key, -1, -1, -1, "ApiVersions of any version that the broker does not know"
        return key, version, program, at, several

    def _judge(self, bits: bytes) -> Found:
        fitting = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8)))
        if not len(fitting):
            return -1, -1, -1, -1, None
        keys = distinct(self.layouts[fitting, 0])
        key = int(keys[0]) if len(keys) == 1 else -1
        if len(fitting) == 1:
            one = int(fitting[0])
            return key, int(self.layouts[one, 1]), int(self.programs[one]), 4 + int(self._tagged[one]), None
        names = [f"{index.api_name(int(k))} version {v}" for k, v in self.layouts[fitting[:NAMED]].tolist()]
        more = f" and {len(fitting) - NAMED} more" if len(fitting) > NAMED else ""
        return key, -1, -1, -1, f"{', '.join(names)}{more}"

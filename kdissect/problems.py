"""What went wrong, in two families that never mix.

Anything wrong *with the data* is a row of the `problems` table, made from a `Kind` and a place; reading goes on.
Anything that keeps the program from reading at all is an exception of this tree:

    KdissectError
    ├── CaptureError            the input cannot be read as a capture (exit code 1)
    │   ├── CaptureNotFound     no such file, or nothing matches
    │   ├── CaptureUnreadable   permission, I/O error
    │   └── NotACapture         the bytes are no capture format we know
    ├── JobFailed               work was begun and could not be done: a Spark job, a query (exit code 1)
    ├── OutputError             an output cannot be written (`kdissect.output`; exit code 2)
    └── UsageError              a bad argument: unknown table, column, API, exchange id (exit code 2)

Every message is one line that says what to do.
"""

from __future__ import annotations

import enum


class KdissectError(Exception):
    """Base of every exception that kdissect raises on purpose."""


class CaptureError(KdissectError):
    """The input cannot be read as a capture."""


class CaptureNotFound(CaptureError):
    """There is no such file, or no file matches."""


class CaptureUnreadable(CaptureError):
    """The file exists but cannot be read."""


class NotACapture(CaptureError):
    """The bytes are not a capture format that we know."""


class JobFailed(KdissectError):
    """Work that was begun could not be done: a Spark job failed, or a query needs more time or memory than allowed."""


class UsageError(KdissectError):
    """A bad argument: unknown table, column, API, version or exchange id."""


class Kind(enum.IntEnum):
    """Kinds of problem; the name in lower case is `problems.kind`."""

    MISSING_BYTES = 1
    """A hole in a stream: bytes that were sent and never captured."""
    RESYNCHRONISED = 2
    """The place of the next frame was lost and found again; `bytes` were skipped."""
    NOT_RESYNCHRONISED = 3
    """The place of the next frame was lost and not found again before the direction ended."""
    BAD_LENGTH = 4
    """A length prefix that no Kafka frame can have."""
    UNFINISHED_FRAME = 5
    """The direction ended inside a frame."""
    ORPHAN_RESPONSE = 6
    """A response whose request was not captured."""
    BODY_MISFIT = 7
    """A body does not fit the layout of its API and version."""
    UNKNOWN_VERSION = 8
    """A version newer than we know: header only."""
    UNKNOWN_API = 9
    """An API key that we do not know."""
    CONFLICTING_RETRANSMISSION = 10
    """A second copy of the same bytes that differs; the first is kept."""
    SNAPPED = 11
    """Bytes cut off by the capture's snap length."""
    AMBIGUOUS = 12
    """More than one layout fits exactly."""
    BUFFER_LIMIT = 13
    """A limit on carried data was reached; a frame whose bytes were given up is paired and timed, but not decoded."""
    BAD_HEADER = 14
    """A request header that cannot be read."""
    TLS = 15
    """Encrypted, and not decrypted."""
    CAPTURE = 16
    """The capture file itself: cut, damaged, odd."""
    RECORDS = 17
    """A record batch or record that is not right."""
    TIMESTAMP = 18
    """A timestamp outside years 1-9999."""
    CLOCK_STEP = 19
    """The clock that gave packets their times stepped back, or an exchange went on meanwhile."""
    FINDER_FAILED = 20
    """A rule for findings failed on these rows: the others' findings are there. That is a fault of kdissect."""
    TRAILING_BYTES = 21
    """A request has bytes behind its last field. Brokers pass over them, and so does kdissect."""
    ANSWER_FIRST = 23
    """A response stands before its request in the capture: packets are out of order there."""
    UNPROVED = 22
    """What looks like responses, on a connection on which nothing is sure to be Kafka: no exchanges are made of it."""

"""Copies of a capture in temporary files, gone afterwards however the program ends."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kdissect.capture import CaptureSet, Member
from kdissect.capture.bytestreams import Stream
from kdissect.output import ASIDE, scratch

SPOOL = 1 << 20


@contextlib.contextmanager
def folder_aside() -> Iterator[Path]:
    """A folder for temporary files that is gone afterwards, however the program ends. Raises ScratchFull."""
    with scratch() as place:
        folder = tempfile.TemporaryDirectory(prefix="kdissect-", dir=place)
    with folder as name:
        ASIDE.add(name)
        try:
            yield Path(name)
        finally:
            ASIDE.discard(name)


@contextlib.contextmanager
def spooled(capture: CaptureSet) -> Iterator[CaptureSet]:
    """The same capture from temporary files that hold its plain bytes. Raises ScratchFull."""
    with folder_aside() as folder:
        members = []
        piece = bytearray(SPOOL)
        for i, member in enumerate(capture.members):
            path = folder / str(i)
            stream: Stream = member.open()
            with scratch(), path.open("wb") as out:
                while got := stream.readinto(memoryview(piece)):
                    out.write(memoryview(piece)[:got])
            stream.close()
            members.append(Member(member.name, path))
        plain = CaptureSet(capture.name, members)
        try:
            yield plain
        finally:
            plain.close()

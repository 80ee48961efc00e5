"""A copy of a capture whose packets carry comments: every packet as it was, as pcapng."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.capture import CaptureSet
from kdissect.capture.magic import recognise
from kdissect.capture.pcap import PACKET_COLUMNS
from kdissect.engine.settings import Settings
from kdissect.output import whole_seekable
from kdissect.problems import UsageError
from kdissect.rewriting.commentedcopy import CommentedCopy
from kdissect.rewriting.commentedfile import NO_COMMENTS, CommentedFile, Comments

NO_PACKETS = np.empty((0, PACKET_COLUMNS), np.int64)


@dataclass(frozen=True, slots=True)
class Commented:
    """The counts of a written copy. `bytes`: captured bytes, without the records' headers."""

    packets: int
    bytes: int
    comments: int


def rereadable(captures: Sequence[CaptureSet]) -> CaptureSet:
    """The one capture, which can be read twice. Raises UsageError for several and for pipes."""
    if len(captures) > 1:
        raise UsageError("annotate one capture at a time")
    if not captures[0].regular:
        raise UsageError("a pipe can be read only once, and this needs two passes: save it to a file first")
    return captures[0]


def write_commented(
    captures: Sequence[CaptureSet], settings: Settings, comments: pa.Table, target: str | Path | BinaryIO
) -> Commented:
    """Write one capture to a path (which appears when it is whole) or an open binary file. Its packets get `comments`
    (file: string, frame: int64, comment: string, in any order).

    Packets, their times and interfaces are those of the input; a rotated set becomes one file. Of pcapng input every
    block comes along, comments too; a packet without a time gets one where it gets a comment (`insertion_kernels`).
    Raises UsageError for several captures and for pipes, OutputError.
    """
    capture = rereadable(captures)
    by_file = _by_file(comments)
    names = capture.files
    if _copied(capture):
        with whole_seekable(target) as stream:
            return _copy(capture, by_file, settings, stream)
    with whole_seekable(target) as stream:
        file: CommentedFile | None = None
        window = capture.window()
        for block in capture.blocks(window):
            file = file or CommentedFile(stream, capture.secrets)
            file.write_with(window.data, block.packets, by_file.get(names[block.file], NO_COMMENTS))
            if settings.progress is not None:
                settings.progress(window.end, capture.size)
        file = file or CommentedFile(stream)
        file.finish()
    return Commented(file.packets, file.bytes, file.comments)


def _copied(capture: CaptureSet) -> bool:
    """Whether there are blocks to copy: all files are pcapng."""
    for member in capture.members:
        stream = member.open()
        head = bytearray(24)
        got = stream.readinto(memoryview(head))
        stream.close()
        form = recognise(bytes(head[:got]))
        if form is None or form.name != "pcapng":
            return False
    return True


def _copy(capture: CaptureSet, by_file: Mapping[str, Comments], settings: Settings, stream: BinaryIO) -> Commented:
    """All blocks, those between packets too, with comments on packets."""
    window = capture.window()
    file = CommentedCopy(stream)
    done = 0

    def between(until: int) -> None:
        if until > done:
            rest = np.frombuffer(capture.read(done, until - done), np.uint8)
            file.write(rest, 0, len(rest), NO_PACKETS, NO_COMMENTS)

    for block in capture.blocks(window):
        between(block.start + block.delta)
        here = by_file.get(capture.files[block.file], NO_COMMENTS)
        file.write(window.data, block.start, block.end, block.packets, here)
        done = block.end + block.delta
        if settings.progress is not None:
            settings.progress(window.end, capture.size)
    between(window.end)
    file.finish()
    return Commented(file.packets, file.bytes, file.comments)


def _by_file(comments: pa.Table) -> Mapping[str, Comments]:
    """Comments in the order of frames, those of one frame in the order given."""
    out = {}
    for name in pc.unique(comments["file"]).to_pylist():
        mine = comments.filter(pc.equal(comments["file"], name))
        frames = mine["frame"].to_numpy().astype(np.int64)
        order = np.argsort(frames, kind="stable")
        texts = mine["comment"].take(pa.array(order)).combine_chunks().cast(pa.large_binary())
        if isinstance(texts, pa.ChunkedArray):
            texts = pa.concat_arrays(texts.chunks) if texts.num_chunks else pa.array([], pa.large_binary())
        ends = pc.binary_length(texts).to_numpy(zero_copy_only=False)
        joined = b"".join(texts.to_pylist())
        out[name] = Comments(
            frames[order], np.concatenate([[0], np.cumsum(ends, dtype=np.int64)]), np.frombuffer(joined, np.uint8)
        )
    return out

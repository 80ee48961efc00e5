"""`redact --check`: what a capture still says that a redacted one would not.

Two judges. A redacted capture is what `redact` makes of itself: addresses already have their stand-ins, texts are
filler. So the capture is redacted once more into a temporary file, and every packet that differs still says something.
That judge has the blind spots of `redact`. The other one has none of them. The schema's walker reads all messages,
readable text outside of them is searched for, and each text is held against what may stay. Names are judged by the key
file they were replaced with: what is no stand-in of it counts, and names of it are looked for in all bytes.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from kdissect.capture import CaptureSet, Member, Window
from kdissect.capture.pcap import PACKET
from kdissect.engine.bounds.spare_memory import Spare
from kdissect.engine.extracts.redacting import redact
from kdissect.engine.extracts.remaining import Walk
from kdissect.engine.extracts.scratch_copies import folder_aside, spooled
from kdissect.engine.settings import Settings
from kdissect.escaping import visible
from kdissect.output import scratch, temporary
from kdissect.problems import UsageError
from kdissect.rewriting.frames import Judge
from kdissect.rewriting.packetfile import PacketFile
from kdissect.rewriting.standins import StandIns, keeps
from kdissect.rewriting.verification.readable import Texts, What
from kdissect.schema.vocabulary import is_protocol_word

Bytes = npt.NDArray[np.uint8]
SHOWN = 20
"""Places that are named; all are counted."""
TELLING = 4
"""Bytes of a name from which on it is looked for everywhere: shorter ones stand in any capture by chance."""
LONGEST = 60
"""Characters shown of one place."""
PIECE = 1 << 20
"""Bytes of a file that are searched for names at a time."""


@dataclass(frozen=True, slots=True)
class Left:
    """Something that is still there: its frame (as Wireshark counts) and its text, or its bytes in hexadecimal."""

    frame: int
    text: str


@dataclass(frozen=True, slots=True)
class Readable:
    """A text that is still there: its first frame, what it is (`What`), how often it is there, and whether it may
    stay."""

    frame: int
    text: str
    what: str
    count: int
    stays: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check. `frames`: how many say something; `found`: the first of them; `texts`: all readable texts
    that are left but for stand-ins, in order of frames; `further`: how many more there are than anybody reads; `names`:
    whether names were judged; `exact`: whether the file has nothing next to the packets (comments, keys) that was not
    looked at."""

    packets: int
    frames: int
    found: list[Left]
    texts: list[Readable]
    further: int
    names: bool
    exact: bool

    @property
    def clean(self) -> bool:
        """Whether nothing is left that `redact` would replace or that may not stay."""
        return not (self.frames or self.further or any(not one.stays for one in self.texts))


def check(captures: Sequence[CaptureSet], settings: Settings, names: StandIns | None = None) -> Checked:
    """Look for what `redact` would replace in one capture; `names`: of the key file that it was redacted with.

    Raises UsageError for several captures and for pipes.
    """
    if len(captures) > 1:
        raise UsageError("check one capture at a time")
    if not captures[0].regular:
        raise UsageError("a pipe can be read only once, and this needs two passes: save it to a file first")
    with contextlib.ExitStack() as stack:
        capture = captures[0] if captures[0].rereadable else stack.enter_context(spooled(captures[0]))
        folder = stack.enter_context(folder_aside())
        copy, rest = folder / "plain", folder / "rest"
        plain, safe = stack.enter_context(copy.open("w+b")), stack.enter_context(temporary())
        with scratch():
            _copy(capture, plain)
            plain.flush()
            shutil.copyfile(copy, rest)
        exact = len(capture.members) == 1 and _same(capture.members[0], plain)
        if not plain.seek(0, 2):
            return Checked(0, 0, [], [], 0, names is not None, exact)
        again, walk = CaptureSet(capture.name, [Member("", copy)]), Walk(rest)
        redact([again], settings, safe, None if names is None else _judge(names), walk=walk)
        again.close()
        packets, frames, found = _differing(plain, safe)
        if names is not None and not frames:
            found = _anywhere(names, plain)
            frames = len({one.frame for one in found})
        Spare().give_back()  # that was a pass of its own
        walk.read_rest()
        texts = _readable(walk.texts, names, walk.addresses)
        return Checked(packets, frames, found, texts, walk.texts.further, names is not None, exact)


def _readable(texts: Texts, names: StandIns | None, addresses: frozenset[bytes]) -> list[Readable]:
    """The texts that were found, without stand-ins."""
    out = []
    for (what, text), where in texts.found.items():
        if names is not None and _is_stand_in(text, what, names):
            continue
        stays = what == What.VALUE
        if what in (What.NAME, What.WORD):
            stays = names is None or keeps(text) or text in addresses or (what == What.WORD and is_protocol_word(text))
        shown = visible(text.decode("utf-8", "backslashreplace"))
        out.append(Readable(where.frame, shown, what.value, where.count, stays))
    return sorted(out, key=lambda one: (one.frame, one.text))


def _is_stand_in(text: bytes, kind: What, names: StandIns) -> bool:
    """Whether a text is a stand-in; outside of messages with a readable byte on either side, such as its length."""
    if kind in (What.NAME, What.WORD):
        return text in names.taken
    return kind == What.UNREAD and any(one in names.taken for one in (text, text[1:], text[:-1], text[1:-1]))


def _judge(names: StandIns) -> Judge:
    ours = names.taken

    def judge(name: bytes) -> bytes:
        return name if name in ours or keeps(name) or name == b"x" * len(name) else bytes(c ^ 1 for c in name)

    return judge


def _copy(capture: CaptureSet, target: BinaryIO) -> None:
    """The packets as `redact` writes them, unchanged."""
    window = Window(slots=2)
    file: PacketFile | None = None
    for block in capture.blocks(window):
        if file is None:
            several = len({i for report in capture.reports for i in report.link_types}) > 1
            file = PacketFile(target, pcapng=several or any(len(one.interfaces) > 1 for one in capture.reports))
        file.write(window.data, block.packets)
    (file or PacketFile(target)).finish()


def _same(member: Member, plain: BinaryIO) -> bool:
    """Whether a file is byte for byte what its packets make."""
    plain.seek(0)
    with contextlib.closing(member.open()) as stream:
        piece = bytearray(1 << 20)
        while got := stream.readinto(memoryview(piece)):
            if plain.read(got) != piece[:got]:
                return False
    return not plain.read(1)


def _differing(plain: BinaryIO, safe: BinaryIO) -> tuple[int, int, list[Left]]:
    """Packets of a file, how many of them differ in the other one, and what the first of these say. Raises UsageError
    when the files do not have the same size."""
    plain.flush()
    safe.flush()
    pages = [mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) for stream in (plain, safe)]
    before, after = (np.frombuffer(mapped, np.uint8) for mapped in pages)
    if len(before) != len(after):
        raise UsageError("this capture changes its size when it is redacted: it was not redacted by kdissect")
    packets = frames = 0
    found: list[Left] = []
    for number, at, size in _packets(plain):
        packets += len(number)
        differs = np.flatnonzero(_differ(before, after, at, size))
        frames += len(differs)
        for i in differs[: SHOWN - len(found)].tolist():
            found.append(Left(int(number[i]), _said(before, after, int(at[i]), int(size[i]))))
        for mapped in pages:
            mapped.madvise(mmap.MADV_DONTNEED)  # pages of files would count as this process's memory
    return packets, frames, found


def _packets(stream: BinaryIO) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """By block: number, position in the file and size of each packet."""
    stream.seek(0)
    again = CaptureSet("", [Member("", file=stream)])
    for block in again.blocks(Window(slots=2)):
        rows = block.packets
        yield rows[:, PACKET.number].copy(), rows[:, PACKET.at] + block.delta, rows[:, PACKET.captured].copy()


def _differ(
    before: Bytes, after: Bytes, at: npt.NDArray[np.int64], size: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """The packets that differ: they lie at `at`, one behind the other."""
    some = np.flatnonzero(size > 0)
    out = np.zeros(len(at), np.bool_)
    if len(some):
        first, last = int(at[some[0]]), int(at[some[-1]] + size[some[-1]])
        differs = np.append(before[first:last] != after[first:last], False)
        ends = np.stack([at[some], at[some] + size[some]], axis=1).ravel() - first
        out[some] = np.logical_or.reduceat(differs, ends)[::2]
    return out


def _said(before: Bytes, after: Bytes, at: int, size: int) -> str:
    """The longest stretch of a packet that would be replaced."""
    differs = np.flatnonzero(before[at : at + size] != after[at : at + size])
    runs = np.split(differs, np.flatnonzero(np.diff(differs) > 1) + 1)
    longest = max(runs, key=len)
    words = before[at + longest[0] : at + longest[-1] + 1].tobytes()
    text = words[:LONGEST].decode("utf-8", "replace")
    return (
        visible(text) if len(words) >= TELLING and text.isprintable() and "\ufffd" not in text else words[:16].hex(" ")
    )


def _anywhere(names: StandIns, plain: BinaryIO) -> list[Left]:
    """Names of the key file in the bytes of a file, each where it is met first."""
    telling = sorted((name for name in names.pairs if len(name) >= TELLING and name not in names.taken), key=len)
    if not telling:
        return []
    places = _find_names(plain, re.compile(b"|".join(map(re.escape, reversed(telling)))), len(telling[-1]))
    found = []
    for number, at, size in _packets(plain):
        for name, place in places.items():
            i = int(np.searchsorted(at, place, side="right")) - 1
            if i >= 0 and place < at[i] + size[i]:
                found.append(Left(int(number[i]), visible(name.decode("utf-8", "backslashreplace"))))
    return sorted(found, key=lambda one: one.frame)


def _read(stream: BinaryIO, begin: int, size: int) -> bytes:
    stream.seek(begin)
    return stream.read(size)


def _find_names(stream: BinaryIO, pattern: re.Pattern[bytes], longest: int) -> dict[bytes, int]:
    """Offsets of names in a file, each where it is met first: SHOWN of them at most."""
    places: dict[bytes, int] = {}
    begin = 0
    while piece := _read(stream, begin, PIECE + longest):
        following = PIECE
        for match in pattern.finditer(piece):
            if match.start() >= PIECE:
                break
            following = max(following, match.end())
            places.setdefault(match[0], begin + match.start())
            if len(places) == SHOWN:
                return places
        begin += following
    return places

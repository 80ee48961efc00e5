"""From what the user names (paths, globs, directories, open files, `-`) to capture sets.

Rules.

- A capture is recognised by its content. A directory (with the folders in it, hidden ones left alone) or a glob may
  bring in files that are no captures. They are left out, with a problem row each. A file named by itself that is no
  capture is an error.
- A rotated set is one capture: files of one folder whose names are the same but for what rotation puts there. That is
  a number behind the extension (`tcpdump -C`: `a.pcap`, `a.pcap1`), or a date and time before it (`-G` with strftime:
  `a-20260131-2359.pcap`, ISO forms, seconds since the epoch; `dumpcap -b`: `a_00001_20260131235900.pcapng`). Plain
  numbers before the extension do not make a set: `node1.pcap` and `node2.pcap` are two captures.
- The files of a set are ordered by the time of their first packet, then by name.
- `capture` is the file's name; of a set, the common stem (`a.pcap`; for times the part before them). Where two captures
  share a name, it has as much of their folder as distinguishes them; `-` for standard input and for open files without
  a name.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable
from io import TextIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

from kdissect.capture.bytestreams import open_stream
from kdissect.capture.captureset import CaptureSet, Member, refuse
from kdissect.capture.magic import recognise
from kdissect.capture.rotation import Rotation
from kdissect.capture.window import Window
from kdissect.problems import CaptureError, CaptureNotFound, NotACapture, UsageError

COMPRESSED = (".gz", ".zst", ".zstd", ".lz4", ".xz")
"""What compression puts behind a file's name."""
_EXTENSION = r"(?i)^(?P<stem>.*?)(?P<ext>\.(?:pcapng|pcap|ntar|cap|dmp|trc))(?P<count>\d*)$"
_DATE = r"(?:19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d"
_TIME = r"[0-2]\d[-_.:h]?[0-5]\d(?:[-_.:m]?[0-6]\d)?"
_CLOCK = r"[0-2]\d[-_.:h]?[0-5]\d[-_.:m]?[0-6]\d"  # without a date: to the second, or any number would pass
_ZONE = r"(?:Z|[-_. ]?(?:UTC|GMT)|[-+](?:0\d|1[0-4]):?(?:00|15|30|45))"
_RING = r"(?:19|20)\d{12}_\d{5}"  # dumpcap -b nametimenum:2
_WHEN = (
    rf"^(?P<stem>.*?)[-_.]?(?:{_RING}|(?:\d{{5}}[-_])?{_DATE}(?:[-_.T ]*{_TIME}(?:\.\d+)?{_ZONE}?)?"
    rf"|1\d{{9}}|(?<=[-_.]){_CLOCK})$"
)

NO_SOURCE = "{!r} is no capture: give a path, a glob pattern, a directory, an open binary file, or a list of these"
Source = str | os.PathLike[str] | BinaryIO


def plain_name(name: str) -> str:
    """A file's name without what compression puts behind it."""
    end = next((end for end in COMPRESSED if name.lower().endswith(end)), "")
    return name[: len(name) - len(end)]


def stem_of(name: str) -> tuple[str, str] | None:
    """The key under which a file name belongs to a rotated set, and the set's name; None for names that rotation does
    not make.

    A name without a count can be the first of a `-C` set, so it has a key too; it stays alone unless a numbered one
    joins it.
    """
    match = re.match(_EXTENSION, plain_name(name))
    if match is None:
        return None
    stem, ext = match.group("stem"), match.group("ext")
    when = re.match(_WHEN, stem)
    if when is not None:
        start = when.group("stem")
        return f"{start}*{ext}", start or ext.lstrip(".")
    return f"{stem}{ext}", f"{stem}{ext}"


def _stem_key(name: str) -> str | None:
    found = stem_of(name)
    return None if found is None else found[0]


def open_captures(sources: Source | Iterable[Source], growing: bool = False) -> list[CaptureSet]:
    """Capture sets for what the user named, in the order named. `growing`: rotated sets that a directory or a glob
    brings in are being recorded, and have a file more now and then.

    `sources`: a path, a glob pattern, a directory, `-`, an open binary file, or a list of these. Regular files are
    recognised here, pipes and open files when they are read. Raises CaptureNotFound, CaptureUnreadable or NotACapture;
    UsageError for anything else and for an empty name.
    """
    if isinstance(sources, str | os.PathLike) or hasattr(sources, "read"):
        sources = [cast(Source, sources)]
    if not isinstance(sources, Iterable) or isinstance(sources, bytes):
        raise UsageError(NO_SOURCE.format(sources))
    named = _Named()
    for source in sources:
        named.collect(source)
    found = named.members
    if not found:
        raise CaptureNotFound("No capture given. Name a file, a directory or a glob pattern.")
    groups = _group(found, growing and named.folders)
    for _, members in groups:
        _check(members)
    sets = _name(groups)
    sets[0].left_out = named.left_out
    for one in sets if growing and named.folders else ():
        one.later = Rotation(one.members, _stem_key, plain_name, begins)
    return sets


class _Named:
    """The files that were named, each once; and what was named among others and is no capture."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.left_out: list[tuple[str, str]] = []
        """(path, why)."""
        self.folders = False
        """Whether a directory or a glob was among them."""
        self._known: set[str] = set()
        """Real paths of the members: a file counts once, however it was named."""

    def collect(self, source: Any) -> None:
        """Add what one source names."""
        if isinstance(source, TextIOBase):
            raise UsageError(NO_SOURCE.format(source))
        if hasattr(source, "read"):
            name = getattr(source, "name", "-")
            self.members.append(
                Member(spell_name(Path(name).name) if isinstance(name, str) and name[:1] != "<" else "-", file=source)
            )
            return
        text = os.fspath(source) if isinstance(source, str | os.PathLike) else source
        if not isinstance(text, str):
            raise UsageError(NO_SOURCE.format(source))
        if not text:
            raise UsageError("an empty name is no capture; the current directory is .")
        if text == "-":
            self.members.append(Member("-", file=sys.stdin.buffer))
            return
        path = Path(text)
        if path.is_dir():
            complaint = f"{text}: no captures in this directory. Name one that holds pcap or pcapng files."
            self._several(_below(path), complaint)
        elif not path.exists() and any(c in text for c in "*?["):
            from glob import glob

            names = [Path(p) for p in sorted(glob(text, recursive=True)) if Path(p).is_file()]
            if not names:
                raise CaptureNotFound(f"{text}: no file matches. Check the pattern.")
            self._several(names, f"{text}: none of the {len(names)} files that match is a capture.")
        else:
            self._add(path)

    def _several(self, paths: list[Path], complaint: str) -> None:
        self.folders = True
        before = len(self.members)
        some = False
        for path in paths:
            try:
                check(path)
            except CaptureError as error:
                self.left_out.append((str(path), str(error)))
            else:
                some = True
                self._add(path)
        if not some and len(self.members) == before:
            raise CaptureNotFound(complaint)

    def _add(self, path: Path) -> None:
        real = os.path.realpath(path)
        if real not in self._known:
            self._known.add(real)
            self.members.append(Member(spell_name(path.name), path))


def is_utf8(name: str) -> bool:
    """Whether a file's name is text, and not bytes that are no UTF-8 (PEP 383)."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def spell_name(name: str) -> str:
    """A file's name as text that tables can hold: of bytes that are no UTF-8, and of tabs, their numbers."""
    return os.fsencode(name).decode("utf-8", "backslashreplace").replace("\t", "\\x09")


def _below(folder: Path) -> list[Path]:
    """The files of a folder and of those in it, in order; hidden ones and links to folders left out.

    Raises CaptureNotFound where a folder cannot be read.
    """

    def refused(error: OSError) -> None:
        raise CaptureNotFound(f"{error.filename}: the directory cannot be read ({error.strerror}).") from None

    found = []
    for place, folders, names in os.walk(folder, onerror=refused):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(place, name) for name in sorted(names) if not name.startswith(".")]
    return [path for path in found if path.is_file()]


def check(path: Path) -> None:
    """Raise what is wrong with a path as a capture; pipes are believed until they are read."""
    if path.exists() and not path.is_file():
        return
    stream = open_stream(path)
    try:
        head = bytearray(24)
        got = stream.readinto(memoryview(head))
        if recognise(bytes(head[:got])) is None:
            raise refuse(str(path), bytes(head[:got]))
    finally:
        stream.close()


def _check(members: list[Member]) -> None:
    """Raise when none of a set's files is a capture, or one cannot be opened. A file of a set whose recording only just
    started is fine."""
    refused: NotACapture | None = None
    try:
        for member in members:
            if member.path is None:
                return
            try:
                check(member.path)
            except NotACapture as error:
                refused = refused or error
            else:
                return
        if refused is not None:
            raise refused
    finally:
        del refused  # it holds this frame, which would hold it, and with it all callers


def _group(members: list[Member], growing: bool = False) -> list[tuple[str, list[Member]]]:
    """Members put together into rotated sets: (set name, members in order). `growing`: a file alone has the name of
    the set that it may become."""
    if len(members) == 1 and not growing:
        return [(members[0].name, members)]
    groups: dict[tuple[Any, ...], tuple[str, list[Member]]] = {}
    for i, member in enumerate(members):
        stem = stem_of(member.name) if member.path is not None else None
        if member.path is None or stem is None:
            groups[(i,)] = (member.name, [member])
            continue
        groups.setdefault((member.path.resolve().parent, stem[0]), (stem[1], []))[1].append(member)
    out: list[tuple[str, list[Member]]] = []
    for name, group in groups.values():
        if len(group) == 1:
            out.append((name if growing and stem_of(group[0].name) is not None else group[0].name, group))
        elif len({plain_name(m.name) for m in group}) == 1:  # a file and its compressed copies: captures of their own
            out.extend((m.name, [m]) for m in group)
        else:
            out.append((name, _order_members(group)))
    return out


def _order_members(members: list[Member]) -> list[Member]:
    """The files of a set in order, without compressed copies (`tcpdump -z gzip`) of files that are there: they have the
    name and the first packet's time of these. By the name alone it may be an older file of a ring (`-W`)."""
    files: dict[tuple[str, float], Member] = {}
    for (begun, _), member in sorted(((_order(member), member) for member in members), key=lambda one: one[0]):
        files.setdefault((plain_name(member.name), begun), member)
    return list(files.values())


def _order(member: Member) -> tuple[float, list[tuple[int, int | str]]]:
    """First packet's time (a file without packets comes last), then the name with its numbers read as numbers."""
    parts = re.split(r"(\d+)", member.name)
    name: list[tuple[int, int | str]] = [(0, int(p)) if p.isdigit() else (1, p) for p in parts if p]
    return begins(member), name


def begins(member: Member) -> float:
    """Time of a file's first packet in ns since the epoch, infinite when it has none or is no capture."""
    probe = CaptureSet(member.name, [member])
    first = float("inf")
    try:
        for block in probe.blocks(Window(slot_bytes=1 << 18, slots=2), most_packets=1):
            first = int(block.packets[0, 0])
            break
    except NotACapture:
        pass
    finally:
        probe.close()
    return first


def first_packet(member: Member) -> float:
    """As `begins`, infinite also for a file that cannot be read."""
    try:
        return begins(member)
    except (OSError, CaptureError):
        return math.inf


def _name(groups: list[tuple[str, list[Member]]]) -> list[CaptureSet]:
    """Sets with names that differ: folders are put before those that clash, as many as are needed."""
    names = [name for name, _ in groups]
    for depth in range(1, 64):
        clashes = {name for name, count in Counter(names).items() if count > 1}
        if not clashes:
            break
        for i, (name, members) in enumerate(groups):
            path = members[0].path
            if names[i] in clashes and path is not None:
                folders = path.resolve().parent.parts[1:]
                names[i] = "/".join([*map(spell_name, folders[-depth:]), name])
    seen: dict[str, int] = {}
    for i, name in enumerate(names):  # open files can share a name and have no folder
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            names[i] = f"{name}#{seen[name]}"
    return [CaptureSet(name, members) for name, (_, members) in zip(names, groups, strict=True)]

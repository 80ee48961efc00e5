"""What a job left behind for the next one: which capture sets were read, and from which of their files rows are there.

Rules.

- A file is the same as before when its path, size, time of change and the bytes at both of its ends are; of a file in
  remote storage, path, size and time of change. One that has grown there counts as another file.
- A set whose files are all the same is not read again.
- A set goes on when its files of before are all there in their order, the same, and new ones follow; the last of before
  may have grown, when what it had is still there. Its new packets are read, and those connections are decoded again
  that were open at its end before.
- Any other set is read anew, and so is everything when another version of kdissect, other tables or other options made
  what is there.
- A set that has connections in common with others is read anew when what is known of these changes: which of its rows
  stay depends on all sights. Nothing of that changes where no file came or went.
- A set goes on only where payloads can be read again by range (no compressed files, no `payload` transport) and where
  no keys stand in its files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kdissect import __version__
from kdissect.analysis.findings.phrases import many
from kdissect.analysis.sights.both_ends import Clock
from kdissect.engine.settings import Settings
from kdissect.spark.stages.plan import Source

FORM = 5
"""Form of the manifest and of what is kept: counts up when a version could not read what another has left."""
LOOKED_AT = 4096
"""Bytes at either end of a file that tell it from another: packet headers with times, and payload."""


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was when a job began. `begin` and `end` are hashes of its first and last bytes, "" unread."""

    name: str
    path: str
    size: int
    changed: int
    """Time of change, ns."""
    begin: str
    end: str

    @classmethod
    def of(cls, name: str, path: str) -> File:
        """The file as it is now; unreadable ones have no hashes."""
        try:
            found = os.stat(path)
            with open(path, "rb") as stream:
                begin = _hash(stream.read(min(LOOKED_AT, found.st_size)))
                stream.seek(max(0, found.st_size - LOOKED_AT))
                end = _hash(stream.read(min(LOOKED_AT, found.st_size)))
        except OSError:
            return cls(name, path, 0, 0, "", "")
        return cls(name, path, found.st_size, found.st_mtime_ns, begin, end)

    def grown_from(self, before: File) -> bool:
        """Whether it is the file of before with more bytes at its end."""
        if self.path != before.path or self.size <= before.size or not before.begin or not self.begin:
            return False
        with open(self.path, "rb") as stream:
            begin = _hash(stream.read(min(LOOKED_AT, before.size)))
            stream.seek(max(0, before.size - LOOKED_AT))
            return (begin, _hash(stream.read(min(LOOKED_AT, before.size)))) == (before.begin, before.end)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a set in one run's output: all of them in its last part, those of settled connections in earlier ones."""

    generation: str
    number: int
    """The set's number in that run."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One capture set as it was read."""

    files: Sequence[File]
    last: Sequence[int]
    """Number of the last TCP packet of each file, 0 for none."""
    parts: Sequence[Part]
    whole: bool
    """It cannot go on: when it changes it is read anew."""
    common: str = ""
    """A hash of what it had in common with others (`common_connections.fingerprints`); "" for nothing."""
    looks: bool = False
    """Whether what tells its flows to other captures is among its rows."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done for a set: read its files from number `first` on (as many as there are: none), without the
    packets of that file up to `skip`, after the rows of `parts`."""

    files: Sequence[File]
    first: int
    skip: int
    parts: Sequence[Part]

    @property
    def idle(self) -> bool:
        """Nothing of it is read."""
        return self.first >= len(self.files)

    @property
    def anew(self) -> bool:
        """All of it is read."""
        return not self.parts


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is there after a run."""

    number: int = 0
    """How many runs have left something."""
    options: str = ""
    """Fingerprint of everything but captures that rows depend on."""
    sets: Mapping[str, Kept] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each run's output that something is taken from."""
    clocks: Sequence[Clock] = field(default_factory=list)
    """How the clocks of captures stand that have connections in common: they count as they did in that run."""
    views: Sequence[tuple[int, int]] = field(default_factory=list)
    """`Plan.views` of that run."""
    order: Sequence[str] = field(default_factory=list)
    """The captures, as they counted."""

    def text(self) -> str:
        """As JSON."""
        return json.dumps({"form": FORM, **asdict(self)}, indent=1)

    @classmethod
    def read(cls, text: str) -> Manifest:
        """Out of JSON. Raises ValueError for another form, and for what is no manifest."""
        try:
            made = json.loads(text)
            if made["form"] != FORM:
                raise ValueError("another form")
            sets = {name: _restore_kept(**kept) for name, kept in made["sets"].items()}
            sizes = {str(name): int(size) for name, size in made["sizes"].items()}
            clocks = [
                Clock(*map(int, one[:3]), *map(float, one[3:5]), *map(int, one[5:7]), *map(float, one[7:]))
                for one in made["clocks"]
            ]
            views = [(int(view), int(interface)) for view, interface in made["views"]]
            order = [str(name) for name in made["order"]]
            return cls(int(made["number"]), str(made["options"]), sets, sizes, clocks, views, order)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no manifest: {error}") from None

    def work(self, options: str, sources: Sequence[Source], common: Sequence[str]) -> list[Work]:
        """The work for each of these sets. `common`: as in `Kept`, of each."""
        return [self._work(options, *one) for one in zip(sources, common, strict=True)]

    def _work(self, options: str, source: Source, common: str) -> Work:
        if source.remote:
            stamped = zip(source.files, source.stamps, strict=True)
            files = [File(name, path, size, changed, "", "") for (name, path), (size, changed) in stamped]
        else:
            files = [File.of(name, path) for name, path in source.files]
        known = self.sets.get(source.name)
        anew = Work(files, 0, 0, [])
        if known is None or options != self.options or common != known.common:
            return anew
        before = known.files
        if list(before) == files:
            return Work(files, len(files), 0, known.parts)
        if known.whole or not source.ranged or not before or len(files) < len(before):
            return anew
        if list(before[:-1]) != files[: len(before) - 1]:
            return anew
        if before[-1] == files[len(before) - 1]:
            return Work(files, len(before), 0, known.parts)
        if files[len(before) - 1].grown_from(before[-1]):
            return Work(files, len(before) - 1, known.last[-1], known.parts)
        return anew

    def same(self, works: Sequence[Work], sources: Sequence[Source]) -> bool:
        """Whether nothing came and nothing went, so that captures have in common what they had."""
        return [source.name for source in sources] == list(self.order) and all(work.idle for work in works)

    def generations(self) -> set[str]:
        """The outputs of runs that something is still taken from."""
        return {part.generation for kept in self.sets.values() for part in kept.parts}


def fingerprint(columns: Mapping[str, Sequence[str]], settings: Settings) -> str:
    """Of everything but captures that rows depend on."""
    keys = None if settings.keylog is None else hashlib.blake2b(settings.keylog).hexdigest()
    told = (__version__, sorted((name, list(some)) for name, some in columns.items()), settings.after, settings.before)
    return _hash(repr((*told, keys, settings.reading)).encode())


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _restore_kept(files: Any, last: Any, parts: Any, whole: Any, common: Any, looks: Any) -> Kept:
    made = [File(**one) for one in files]
    return Kept(made, [int(n) for n in last], [Part(**one) for one in parts], bool(whole), str(common), bool(looks))


def describe_works(works: Sequence[Work]) -> str:
    """One line: what was taken over and what is read."""
    idle = sum(work.idle for work in works)
    on = [work for work in works if not work.idle and not work.anew]
    anew = [work for work in works if work.anew and not work.idle]
    parts = [f"{idle} of {many(len(works), 'capture')} as decoded before"]
    if on:
        files = sum(len(work.files) - work.first for work in on)
        parts.append(f"{len(on)} with {many(files, 'new file')} and the connections that were open")
    parts.append(f"{len(anew)} decoded whole")
    return ", ".join(parts)

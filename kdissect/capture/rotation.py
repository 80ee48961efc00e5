"""Files that a rotated set gets while it is being recorded.

Rules.

- A file belongs to the set when it lies in the same folder and rotation would name it so (`stem_of`). It counts once it
  holds a packet.
- `tcpdump -W` and `dumpcap -b files:` use names again: a file is another one once it begins later than all that was
  read.
- A compressed copy of a file that was read (`tcpdump -z gzip`) is the same file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from kdissect.capture.captureset import Member
from kdissect.problems import CaptureError


class Rotation:
    """Looks for further files of the set that `members` are; call it for those that got their first packet since the
    last call.

    `stem`: key of the set that a file name belongs to; `bare`: a name without what compression adds; `begins`: time of
    a member's first packet, infinite where it has none.
    """

    def __init__(
        self,
        members: list[Member],
        stem: Callable[[str], str | None],
        bare: Callable[[str], str],
        begins: Callable[[Member], float],
    ) -> None:
        path = members[-1].path
        assert path is not None
        self._folder = path.resolve().parent
        self._stem, self._bare, self._begins = stem, bare, begins
        self._key = stem(path.name)
        self._known: dict[str, int] = {}
        """By name, when the file was written last as far as was looked at."""
        self._latest = -math.inf
        """When the file that begins last begins."""
        self._current = ""
        for member in members:
            self._note(member)

    def _note(self, member: Member) -> None:
        assert member.path is not None
        name = self._bare(member.path.name)
        begun = self._begins(member)
        self._known[name] = _written(member.path)
        self._current = name
        if begun < math.inf:
            self._latest = max(self._latest, begun)

    def __call__(self) -> list[Member]:
        """Members that got their first packet since, in order of it."""
        if self._key is None:
            return []
        found: list[tuple[float, Member]] = []
        try:
            paths = sorted(self._folder.iterdir())
        except OSError:  # the folder went away; what was read stays
            return []
        for path in paths:
            name = self._bare(path.name)
            if name == self._current or path.name.startswith(".") or self._stem(path.name) != self._key:
                continue
            written = _written(path)
            if written < 0 or self._known.get(name) == written:
                continue
            member = Member(path.name, path)
            try:
                begun = self._begins(member)
            except CaptureError:
                continue
            if begun == math.inf:
                continue
            self._known[name] = written
            if begun > self._latest:
                found.append((begun, member))
        found.sort(key=lambda one: one[0])
        for begun, member in found:
            self._latest, self._current = begun, self._bare(member.name)
        return [member for _, member in found]


def _written(path: Path) -> int:
    """When a file was written last, ns; -1 where it is none, or gone."""
    try:
        return path.stat().st_mtime_ns if path.is_file() else -1
    except OSError:
        return -1

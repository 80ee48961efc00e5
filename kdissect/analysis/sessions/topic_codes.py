"""Codes of the topics that fetch sessions name, by name or by id."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kdissect.arrays.arrow import Coder, Growing, Int64s, distinct


@dataclass(slots=True, eq=False, repr=False)
class Topics:
    """Codes of topics as sessions know them: by id (odd codes) where the version has ids, else by name (even codes)."""

    by_name: Coder = field(default_factory=Coder)
    by_id: Coder = field(default_factory=Coder)
    names: Int64s = field(default_factory=lambda: np.full(16, -1, np.int64))
    """Topic code -> code of its name, -1 unknown."""
    name_bytes: Int64s = field(default_factory=lambda: np.zeros(16, np.int64))
    """Topic code -> bytes of the name in a request; 0 for ids."""
    _taken: Growing = field(default_factory=Growing)

    def codes(self, names: Int64s, ids: Int64s) -> Int64s:
        """Topic codes of rows, from the codes of their names and ids (-1: not there)."""
        found = np.where(ids >= 0, 2 * ids + 1, np.where(names >= 0, 2 * names, 2 * self.by_name.code("")))
        need = 2 * max(len(self.by_name.texts), len(self.by_id.texts)) + 2
        old = len(self.names)
        if need > old:
            self.names = np.concatenate([self.names, np.full(2 * need - old, -1, np.int64)])
            self.name_bytes = np.concatenate([self.name_bytes, np.zeros(2 * need - old, np.int64)])
        known = names >= 0
        self.names[found[known]] = names[known]
        for code in distinct(found[(ids < 0)]).tolist():
            self.name_bytes[code] = len(self.by_name.texts[code // 2].encode())
        return found

    def logs(self, names: Int64s, ids: Int64s) -> Int64s:
        """Codes by which watermarks of topics are known: by name where that is known, else by id; -1 for neither."""
        return np.where(names >= 0, 2 * names, np.where(ids >= 0, 2 * ids + 1, -1))

    def of(self, texts: Sequence[tuple[str | None, str | None]]) -> tuple[Int64s, Int64s]:
        """`codes` and `logs` of topics that are given as (name, id)."""
        codes, logs = self._taken.of(texts, self._codes_of)[:, :-1]
        return codes, logs

    def _codes_of(self, texts: Sequence[tuple[str | None, str | None]]) -> Int64s:
        sides = zip(*texts, strict=True) if texts else ((), ())
        names, ids = (
            np.array([-1 if text is None else coder.code(text) for text in side], np.int64)
            for coder, side in zip((self.by_name, self.by_id), sides, strict=True)
        )
        return np.stack([self.codes(names, ids), self.logs(names, ids)])

    def text(self, code: int) -> tuple[str | None, str | None]:
        """(name, id) of a topic code, None where not known or not on the wire."""
        name = int(self.names[code])
        topic = self.by_name.texts[name] if name >= 0 else None
        return topic, self.by_id.texts[code // 2] if code & 1 else None


@dataclass(slots=True, eq=False, repr=False)
class Names:
    """The codes of what rows of fetches name, which sessions and holds share."""

    brokers: Coder = field(default_factory=Coder)
    clients: Coder = field(default_factory=Coder)
    topics: Topics = field(default_factory=Topics)

"""Every known message as it was parsed when the package was built, so that no run reads a hundred files for it.

An installed package brings one file, which is as trusted as its modules: it holds every API, pickled by itself, its
name, and all names. It is there or not; a checkout has none, and parses the `.kmsg` files.
`kdissect.schema.parsed_file` writes the file.
"""

from __future__ import annotations

import marshal
import pickle
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from kdissect.schema.model import Api, Message

BROUGHT = Path(__file__).with_name("messages.bin")
"""What an installed package brings."""


class Parsed(Mapping[int, Api]):
    """All APIs by key, in order of their keys; each is made when it is first asked for."""

    def __init__(self, kept: Mapping[int, tuple[str, bytes]]) -> None:
        self._kept = kept
        self._made: dict[int, Api] = {}

    def __getitem__(self, key: int) -> Api:
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = pickle.loads(self._kept[key][1])
        return found

    def name(self, key: int) -> str:
        """The API's name, which needs no more of it. Raises KeyError for an unknown key."""
        return self._kept[key][0]

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


class Payloads(Mapping[str, Message]):
    """All messages that are no API's, by Kafka's name, made when one is first asked for."""

    def __init__(self, kept: bytes) -> None:
        self._kept = kept
        self._made: dict[str, Message] | None = None

    def _all(self) -> dict[str, Message]:
        if self._made is None:
            self._made = pickle.loads(self._kept)
        return self._made

    def __getitem__(self, name: str) -> Message:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def brought() -> tuple[Parsed, Payloads, dict[str, int]] | None:
    """APIs, other messages and keys by every name of an API, as the package brings them; None in a checkout."""
    try:
        apis, payloads, names = marshal.loads(zlib.decompress(BROUGHT.read_bytes()))
    except OSError:
        return None
    return Parsed(apis), Payloads(payloads), names

"""Every known message as it was parsed when the package was built, so that no run reads a hundred files for it.

An installed package brings one file, which is as trusted as its modules: it holds every API, pickled by itself, its
name, and all names. It is there or not; a checkout has none, and parses the `.kmsg` files.

    python -m kdissect.schema.parsed PATH      writes what a package brings
"""

from __future__ import annotations

import copyreg
import io
import marshal
import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from kdissect.schema.model import Api, Field, Message, Variant, Versions

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
        apis, payloads, names = marshal.loads(BROUGHT.read_bytes())
    except OSError:
        return None
    return Parsed(apis), Payloads(payloads), names


def kept(apis: Mapping[int, Api], payloads: Mapping[str, Message], names: Mapping[str, int]) -> bytes:
    """What a package brings of these."""
    return marshal.dumps(
        ({key: (api.name, _pickled(api)) for key, api in apis.items()}, _pickled(dict(payloads)), dict(names))
    )


def _pickled(value: Any) -> bytes:
    """Pickled so that it is quick to load: by constructors' arguments, those at the end left out that are defaults, and
    what is equal is the same."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    pickler.dispatch_table = copyreg.dispatch_table | dict.fromkeys(
        (Api, Field, Message, Variant, Versions), _arguments
    )
    pickler.dump(_shared(value, {}))
    return file.getvalue()


def _arguments(value: Any) -> tuple[type, tuple[Any, ...]]:
    given = [(one.default, getattr(value, one.name)) for one in fields(value)]
    while given and type(given[-1][0]) is type(given[-1][1]) and given[-1][0] == given[-1][1]:
        given.pop()
    return type(value), tuple(argument for _, argument in given)


def _shared(value: Any, known: dict[Any, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _shared(one, known) for name, one in value.items()}
    if isinstance(value, tuple):
        made: Any = tuple(_shared(one, known) for one in value)
    elif is_dataclass(value) and not isinstance(value, type):
        made = type(value)(*(_shared(getattr(value, one.name), known) for one in fields(value)))
    else:
        made = value
    return known.setdefault((type(made), made), made)


if __name__ == "__main__":
    from kdissect.schema.index import read

    made = read()
    Path(sys.argv[1]).write_bytes(kept(made.apis, made.payloads, made.names))

"""Writes the file of parsed messages that an installed package brings (`kdissect.schema.parsed` reads it).

python -m kdissect.schema.parsed_file PATH
"""

from __future__ import annotations

import copyreg
import io
import marshal
import pickle
import sys
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from kdissect.schema.index import read
from kdissect.schema.model import Api, Field, Message, Variant, Versions


def pack_schemas(apis: Mapping[int, Api], payloads: Mapping[str, Message], names: Mapping[str, int]) -> bytes:
    """These schemas as the bytes that a package contains."""
    whole = ({key: (api.name, _pickled(api)) for key, api in apis.items()}, _pickled(dict(payloads)), dict(names))
    return zlib.compress(marshal.dumps(whole), zlib.Z_BEST_COMPRESSION)


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


def _shared(value: Any, seen: dict[Any, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _shared(one, seen) for name, one in value.items()}
    if isinstance(value, tuple):
        made: Any = tuple(_shared(one, seen) for one in value)
    elif is_dataclass(value) and not isinstance(value, type):
        made = type(value)(*(_shared(getattr(value, one.name), seen) for one in fields(value)))
    else:
        made = value
    return seen.setdefault((type(made), made), made)


if __name__ == "__main__":
    made = read()
    Path(sys.argv[1]).write_bytes(pack_schemas(made.apis, made.payloads, made.names))

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
from pathlib import Path
from typing import Any

from kdissect.schema.index import read
from kdissect.schema.model import Api, Field, Message, Variant, Versions

PARTS = (Api, Field, Message, Variant, Versions)


def pack_schemas(apis: Mapping[int, Api], payloads: Mapping[str, Message], names: Mapping[str, int]) -> bytes:
    """These schemas as the bytes that a package contains."""
    whole = ({key: (api.name, _pickled(api)) for key, api in apis.items()}, _pickled(dict(payloads)), dict(names))
    return zlib.compress(marshal.dumps(whole), zlib.Z_BEST_COMPRESSION)


def _pickled(value: Any) -> bytes:
    """Pickled so that it is quick to load: by constructors' arguments, those at the end left out that are defaults, and
    what is equal is the same."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    pickler.dispatch_table = copyreg.dispatch_table | dict.fromkeys(PARTS, _arguments)
    pickler.dump(_shared(value, {}))
    return file.getvalue()


def _arguments(value: Any) -> tuple[type, tuple[Any, ...]]:
    given, defaults = list(value), value._field_defaults
    for name in reversed(value._fields):
        if name not in defaults or type(defaults[name]) is not type(given[-1]) or defaults[name] != given[-1]:
            break
        given.pop()
    return type(value), tuple(given)


def _shared(value: Any, seen: dict[Any, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _shared(one, seen) for name, one in value.items()}
    if isinstance(value, PARTS):
        made: Any = type(value)(*(_shared(one, seen) for one in value))
    elif isinstance(value, tuple):
        made = tuple(_shared(one, seen) for one in value)
    else:
        made = value
    return seen.setdefault((type(made), made), made)


if __name__ == "__main__":
    made = read()
    Path(sys.argv[1]).write_bytes(pack_schemas(made.apis, made.payloads, made.names))

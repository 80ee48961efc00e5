"""Every layout of every message as a checking program, under dense ids, kept compiled between runs.

A layout is (API key, version, side, variant); variant 0 is the newest release's, others are what the same version
number once meant. Parsing and compiling all of them takes some 40 ms, so an installed package brings the result. In a
checkout it is kept in the user's cache folder, under a digest of the schema and the compiler's version. Where that
folder cannot be written to, or others can, it is compiled again.

    python -m kdissect.schema.library PATH      writes what a package brings
"""

import marshal
import os
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.schema import index
from kdissect.schema import opcodes as k
from kdissect.schema.model import NEVER, REQUEST, RESPONSE, Api, Field
from kdissect.schema.program import COMPILER, ProgramRows, compile_layout

Ints = npt.NDArray[Any]

BROUGHT = Path(__file__).with_name("layouts.bin")
"""What an installed package brings."""
API_KEYS = 128
"""Keys that a layout can have: Kafka's largest is 94 (4.5). Unknown keys are not an error, they have no layout."""
VERSIONS = 32
"""Versions that a layout can have: Kafka's largest is 18 (Fetch)."""
_SHAPES = {"rows": (-1,), "tags": (-1,), "programs": (-1, 4), "identity": (-1, 4), "alternative": (-1,),
           "table": (API_KEYS, VERSIONS, 2), "newest": (API_KEYS, 2), "flexible": (API_KEYS, 2)}  # fmt: skip


class Library(NamedTuple):
    """All layouts, by id. Arrays are int64 where kernels run them (rows, tags, programs), int32 elsewhere.

    `table` [key, version, side]: id of the main layout, -1 none. `identity` [id]: key, version, side, variant.
    `alternative` [id]: id of the next variant, -1 none. `programs` [id]: count address, -1, 0, 0. `newest` [key,
    side]: newest version, -1 none. `flexible` [key, side]: the first version whose header has tags (request header
    v2, response header v1), NEVER for none; ApiVersions responses never have any (KIP-511), so that a client of any
    age reads them.
    """

    rows: Ints
    tags: Ints
    programs: Ints
    identity: Ints
    alternative: Ints
    table: Ints
    newest: Ints
    flexible: Ints


def fields_of(api: Api, side: int, version: int, variant: int) -> tuple[Field, ...]:
    """The fields of one layout: the message's own, or those of the variant-th variant which has this version."""
    message = api.message(side)
    if variant == 0:
        return message.fields
    return [item.fields for item in message.variants if version in item.versions][variant - 1]


def compile_library(apis: Mapping[int, Api]) -> Library:
    """Compile the check programs of all layouts. Keys and versions beyond `API_KEYS` and `VERSIONS` are an error."""
    rows = ProgramRows()
    programs: list[tuple[int, int, int, int]] = []
    identity: list[tuple[int, int, int, int]] = []
    alternative: list[int] = []
    table = np.full(_SHAPES["table"], -1, np.int32)
    newest = np.full(_SHAPES["newest"], -1, np.int32)
    flexible = np.full(_SHAPES["flexible"], NEVER, np.int32)
    for key, api in sorted(apis.items()):
        for side in (REQUEST, RESPONSE):
            message = api.message(side)
            versions = range(message.versions.first, message.versions.last + 1)
            with_tags = [v for v in versions if v in message.flexible and not any(v in h for h, _ in message.headers)]
            flexible[key, side] = with_tags[0] if with_tags else NEVER
            newest[key, side] = message.versions.last
            for version in versions:
                table[key, version, side] = len(programs)
                layouts = 1 + sum(version in item.versions for item in message.variants)
                for variant in range(layouts):
                    fields = fields_of(api, side, version, variant)
                    program = compile_layout(message, side, version, fields, None, rows)
                    programs.append((program.count, -1, 0, 0))
                    identity.append((key, version, side, variant))
                    alternative.append(len(programs) if variant + 1 < layouts else -1)

    def ints(values: Any, name: str) -> Ints:
        return np.array(values, _dtype(name)).reshape(_SHAPES[name])

    return Library(
        ints(rows.rows, "rows"), ints(rows.tags or [0] * k.TAG_STRIDE, "tags"), ints(programs, "programs"),
        ints(identity, "identity"), ints(alternative, "alternative"), table, newest, flexible,
    )  # fmt: skip


def _dtype(name: str) -> type[np.signedinteger[Any]]:
    return np.int64 if name in ("rows", "tags", "programs") else np.int32


@cache
def own_library() -> Library:
    """The library of kdissect's own schema, one for the whole process: an installed package brings it."""
    return _read(BROUGHT) or load_library(index.digest(), lambda: index.load().apis)


def load_library(digest: str, apis: Callable[[], Mapping[int, Api]]) -> Library:
    """The library for a schema with this digest: from the cache, else compiled (only then `apis` is called)."""
    import hashlib

    from kdissect.kernels.cache import private

    name = hashlib.sha256(f"{digest} {COMPILER} {k.STRIDE}".encode()).hexdigest()[:24]
    path = _cache_folder() / f"layouts-{name}.z"
    library = _read(path) if private(path.parent) else None
    if library is None:
        library = compile_library(apis())
        if private(path.parent):
            _write(path, library)
    return library


def _cache_folder() -> Path:
    """The user's cache folder for layouts, by the XDG base directory rules."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "kdissect" / "layouts"


def _read(path: Path) -> Library | None:
    """The library in a cache file; None where there is none or it is damaged, which zlib's checksum shows."""
    try:
        parts: dict[str, bytes] = marshal.loads(zlib.decompress(path.read_bytes()))
        # Copies, because kernels would be compiled once more for read-only arrays.
        return Library(
            **{name: np.frombuffer(parts[name], _dtype(name)).reshape(_SHAPES[name]).copy() for name in _SHAPES}
        )
    except (OSError, zlib.error, ValueError, TypeError, EOFError, KeyError):
        return None


def _write(path: Path, library: Library) -> None:
    """Keep the library for the next run, whole or not at all; a folder that cannot be written is no error."""
    import tempfile

    payload = marshal.dumps({name: getattr(library, name).tobytes() for name in _SHAPES})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(zlib.compress(payload))
        os.replace(file.name, path)
    except OSError:
        return


if __name__ == "__main__":
    from kdissect.schema.index import load

    _write(Path(sys.argv[1]), compile_library(load().apis))

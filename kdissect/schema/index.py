"""Every message that we know: the `.kmsg` files, read once per process, each parsed when it is first asked for.

Reading takes a few milliseconds, parsing all of them about 30. Names are found in any case, with or without
underscores, and by what older releases called the API.
"""

import marshal
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kdissect.problems import UsageError
from kdissect.schema.model import REQUEST, RESPONSE, Api, Field, Message
from kdissect.schema.parsed import Parsed, brought

NEWEST_RELEASE = "4.5"
"""The newest Kafka release whose messages are known."""

SIDES = {"request": REQUEST, "response": RESPONSE}

_HERE = Path(__file__).parent
_API_FILES = _HERE / "api"
_TEXTS = _HERE / "texts.bin"
"""What an installed package brings in place of the folder, which takes ten times the room: `python -m
kdissect.schema.index PATH` writes it."""
_ERRORS = _HERE / "errors.txt"
_NAME = r"(?m)^api \d+ (\w+)$"
_FORMERLY = r"(?m)^formerly (.*)$"


class Apis(Mapping[int, Api]):
    """All APIs by key, in order of their keys; each file is parsed when its API is first asked for."""

    def __init__(self, files: Mapping[int, tuple[str, str]]) -> None:
        self._files = files
        self._parsed: dict[int, Api] = {}

    def __getitem__(self, key: int) -> Api:
        found = self._parsed.get(key)
        if found is None:
            file, text = self._files[key]
            from kdissect.schema.grammar import GrammarError, parse

            found = parse(text, file).api
            if found is None or found.key != key:
                raise GrammarError(f"{file}:1: the file's name says `api {key}`")
            self._parsed[key] = found
        return found

    def name(self, key: int) -> str:
        """The API's name, which needs no parsing. Raises KeyError for an unknown key."""
        found = re.search(_NAME, self._files[key][1])
        return found[1] if found else self[key].name

    def __contains__(self, key: object) -> bool:
        return key in self._files  # without which Mapping would parse the file

    def __iter__(self) -> Iterator[int]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class Index(NamedTuple):
    """All APIs by key, all other messages (headers and payloads) by Kafka's name."""

    apis: Apis | Parsed
    payloads: Mapping[str, Message]
    names: Mapping[str, int]
    """Keys by every name of an API, in lower case without underscores."""

    def find_api(self, api: str | int) -> Api:
        """An API by key or by name. Raises UsageError that names what is alike."""
        key = api if isinstance(api, int) else self.names.get(_plain(api))
        if key is None and str(api).isdigit():
            key = int(api)
        if key is None or key not in self.apis:
            import difflib

            alike = difflib.get_close_matches(_plain(str(api)), self.names, n=1)
            hint = f"; did you mean {self.apis[self.names[alike[0]]].name}?" if alike else ""
            raise UsageError(f"there is no API {api!r}{hint}")
        return self.apis[key]

    def messages(self) -> Iterator[Message]:
        """Every message: requests and responses by key, then headers and payloads."""
        for api in self.apis.values():
            yield api.request
            yield api.response
        yield from self.payloads.values()


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def side_of(direction: str) -> int:
    """REQUEST or RESPONSE for the words "request" and "response". Raises UsageError."""
    side = SIDES.get(direction.lower())
    if side is None:
        raise UsageError(f"a direction is request or response, not {direction!r}")
    return side


@cache
def texts() -> dict[str, bytes]:
    """The text of each `.kmsg` file by its name: from the one file of an installed package, else from the folder."""
    if _TEXTS.exists():
        found: dict[str, bytes] = marshal.loads(zlib.decompress(_TEXTS.read_bytes()))
        return found
    return {path.name: path.read_bytes() for path in sorted(_API_FILES.glob("*.kmsg"))}


@cache
def digest() -> str:
    """A digest of the schema's text: equal digests mean equal layouts."""
    import hashlib

    hashed = hashlib.sha256()
    for name, text in texts().items():
        hashed.update(f"{name}\0{len(text)}\0".encode() + text)
    return hashed.hexdigest()


@cache
def load() -> Index:
    """The index of all files: what an installed package brings, else as `read`."""
    made = brought()
    return read() if made is None else Index(*made)


def read() -> Index:
    """The index of all files, read. Raises GrammarError (file:line) for a line that is not in the grammar."""
    return build({name: text.decode() for name, text in texts().items()})


def build(files: Mapping[str, str]) -> Index:
    """An index of these files, text by file name: `001_fetch.kmsg` holds API 1, one without a number what is no API."""
    from kdissect.schema.grammar import GrammarError, parse

    apis: dict[int, tuple[str, str]] = {}
    payloads: dict[str, Message] = {}
    names: dict[str, int] = {}
    for file, text in sorted(files.items()):
        number, _, name = file.removesuffix(".kmsg").partition("_")
        if not number.isdigit():
            payloads.update(parse(text, file).messages)
            continue
        key = int(number)
        if key in apis:
            raise GrammarError(f"{file}:1: {apis[key][0]} has key {key} already")
        apis[key] = (file, text)
        former = re.search(_FORMERLY, text)
        for other in (name, *(former[1].split(", ") if former else ())):
            if names.setdefault(_plain(other), key) != key:
                raise GrammarError(f"{file}:1: {apis[names[_plain(other)]][0]} is called {other} too")
    return Index(Apis(apis), payloads, names)


def layouts(message: Message, version: int) -> list[tuple[Field, ...]]:
    """The layouts that this version had: the newest release's first, then what the same number once meant."""
    if version not in message.versions:
        return []
    return [message.fields, *(variant.fields for variant in message.variants if version in variant.versions)]


def request_header_version(key: int, version: int) -> int:
    """Version of a request's header: 2 if the body is flexible, else 1, with Kafka's one exception. It is 1 for a key
    that we do not know (versions 1 and 2 agree up to the client id)."""
    api = load().apis.get(key)
    return 1 if api is None else header_version(api.request, REQUEST, version)


def response_header_version(key: int, version: int) -> int:
    """Version of a response's header: 1 if the body is flexible, else 0. ApiVersions always has 0 (KIP-511), so that a
    client of any age can read it."""
    api = load().apis.get(key)
    return 0 if api is None else header_version(api.response, RESPONSE, version)


def header_version(message: Message, side: int, version: int) -> int:
    """Version of the header that a message's body follows: by its own exceptions, else by Kafka's rule."""
    for versions, header in message.headers:
        if version in versions:
            return header
    return (1 if side == REQUEST else 0) + (version in message.flexible)


def api_name(key: int) -> str:
    """Kafka's name of an API key; `key N` when there is none."""
    apis = load().apis
    return apis.name(key) if key in apis else f"key {key}"


@cache
def error_names() -> Mapping[int, str]:
    """All error codes by number: -1 to 136."""
    lines = (line for line in _ERRORS.read_text("ascii").splitlines() if not line.startswith("#"))
    return {int(code): name for code, name in (line.split(" ") for line in lines)}


def error_name(code: int) -> str:
    """Kafka's name of an error code; `error N` when there is none."""
    return error_names().get(code, f"error {code}")


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(zlib.compress(marshal.dumps(texts()), zlib.Z_BEST_COMPRESSION))

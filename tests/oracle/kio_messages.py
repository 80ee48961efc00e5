"""Random messages by kio's encoder, with what they say: the oracle for every layout that kio knows.

    body, says = generate(api_key, side, version, seed)

`says` is in our form: Kafka's names in snake_case, UUIDs in base64url, records and credentials as their lengths.
Seed 0 fills everything, seed 1 is as empty as it can be (nulls, empty arrays, no tags), seed 2 has long arrays and
texts, others are mixed. kio names fields its own way, so its values are matched with Kafka's names by position, tagged
ones by tag; the names come from the facts, not from our schema.

Two releases of kio cover 722 combinations: the one installed beside the tests (Kafka 4.3) and 0.6.2, the last
on Kafka 3.9's messages. The latter is put into a folder of the user's cache and run as `python kio_messages.py`, which
prints its messages; so this file's upper half needs nothing but kio.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import gzip
import hashlib
import importlib
import io
import json
import os
import pkgutil
import random
import shutil
import subprocess
import sys
import tempfile
import types
import typing
import uuid
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

REQUEST, RESPONSE = 0, 1
SEEDS = 20
EVERYTHING, NOTHING, LONG = 0, 1, 2
MOST_MESSAGES = 200
"""Structs in one message: long arrays inside of long arrays grow fast."""
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
TEXTS = ("orders", "é€ ü", "a", "key.with.dots", "sasl.jaas.config", "ssl.key.password", "cleanup.policy")
OPEN_NAMES = ("cleanup.policy",)
"""Of TEXTS those that are configurations whose values may be shown."""
BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


@cache
def classes() -> dict[tuple[int, int, int], type]:
    """kio's classes by API key, side and version."""
    import kio.schema

    out = {}
    for module in pkgutil.walk_packages(kio.schema.__path__, "kio.schema."):
        words = module.name.split(".")
        if len(words) == 5 and words[3][0] == "v" and words[4] in ("request", "response"):
            for value in vars(importlib.import_module(module.name)).values():
                kind = getattr(value, "__type__", None)
                if dataclasses.is_dataclass(value) and value.__module__ == module.name and kind.name == words[4]:
                    out[int(value.__api_key__), int(words[4] == "response"), int(value.__version__)] = value
    return out


@cache
def hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, vars(sys.modules[cls.__module__]))


class Maker:
    """Makes one message, and beside it what it says: a struct as [[untagged values], {tag: value}]."""

    def __init__(self, seed: int, salt: tuple[int, int, int]) -> None:
        self.seed = seed
        self.random = random.Random(hash((seed, *salt)))
        self.left = MOST_MESSAGES

    def struct(self, cls: type) -> tuple[Any, list[Any]]:
        self.left -= 1
        given, plain, tagged = {}, [], {}
        for field in dataclasses.fields(cls):
            tag = field.metadata.get("tag")
            if tag is not None and field.default is not dataclasses.MISSING and self.leave_out():
                given[field.name], value = field.default, self.default(cls, field)
            else:
                given[field.name], value = self.value(hints(cls)[field.name], field.metadata.get("kafka_type"))
            if tag is None:
                plain.append(value)
            else:
                tagged[str(tag)] = value
        return cls(**given), [plain, tagged]

    def leave_out(self) -> bool:
        return self.seed == NOTHING or (self.seed > LONG and self.random.random() < 0.5)

    def default(self, cls: type, field: Any) -> Any:
        if field.default is None and "tuple" in str(hints(cls)[field.name]):
            return None
        return self.said(field.default, hints_kind(field))

    def said(self, value: Any, kind: str | None) -> Any:
        """What a value that kio chose says."""
        if dataclasses.is_dataclass(value):
            plain, tagged = [], {}
            for field in dataclasses.fields(value):
                inner = self.said(getattr(value, field.name), hints_kind(field))
                if field.metadata.get("tag") is None:
                    plain.append(inner)
                else:
                    tagged[str(field.metadata["tag"])] = inner
            return [plain, tagged]
        if isinstance(value, tuple):
            return [self.said(item, kind) for item in value]
        return neutral(value, kind)

    def value(self, hint: Any, kind: str | None) -> tuple[Any, Any]:
        choices = typing.get_args(hint) if isinstance(hint, types.UnionType) or _is_union(hint) else (hint,)
        inner = next(item for item in choices if item is not type(None))
        if len(choices) > 1 and self.leave_null():
            return None, None if typing.get_origin(inner) is tuple else neutral(None, kind)
        if typing.get_origin(inner) is tuple:
            element = typing.get_args(inner)[0]
            made = [self.value(element, kind) for _ in range(self.length())]
            return tuple(item for item, _ in made), [value for _, value in made]
        if kind is None:
            return self.struct(inner)
        value = self.scalar(kind)
        return value, neutral(value, kind)

    def leave_null(self) -> bool:
        return self.seed == NOTHING or (self.seed > LONG and self.random.random() < 0.3)

    def length(self) -> int:
        if self.seed == NOTHING or self.left <= 0:
            return 0
        if self.seed == LONG:
            return 130 if self.random.random() < 0.1 else self.random.choice((1, 2))
        return self.random.choice((1, 2, 3)) if self.seed == EVERYTHING else self.random.choice((0, 1, 2, 5))

    def scalar(self, kind: str) -> Any:
        from kio.schema.errors import ErrorCode

        pick = self.random
        if self.seed == NOTHING and kind in ("string", "bytes", "records"):
            return "" if kind == "string" else b""
        if kind == "string":
            long = self.seed == LONG and pick.random() < 0.03
            return "x" * pick.choice((126, 127, 128, 300, 16384)) if long else pick.choice(TEXTS)
        if kind in ("bytes", "records"):
            return pick.randbytes(20_000 if self.seed == LONG and pick.random() < 0.02 else pick.choice((1, 3, 200)))
        if kind in BITS:
            top = 1 << BITS[kind]
            return pick.choice((pick.randrange(-top, top), pick.randrange(-top, top), -top, top - 1, 5))
        if kind == "uint16":
            return pick.choice((1, 9092, 65535, pick.randrange(65536)))
        if kind == "float64":
            return pick.choice((1.5, -2.25e300, 0.1))
        if kind == "bool":
            return self.seed == EVERYTHING or pick.random() < 0.5
        if kind == "uuid":
            return uuid.UUID(int=pick.randrange(1, 1 << 128))
        if kind == "error_code":
            return pick.choice(list(ErrorCode))
        if kind == "timedelta_i32":
            return MILLISECOND * pick.randrange(-(2**31), 2**31)
        if kind == "timedelta_i64":
            return MILLISECOND * pick.randrange(-(2**40), 2**40)
        assert kind == "datetime_i64", kind
        return EPOCH + MILLISECOND * pick.randrange(1, 2**41)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Union


def hints_kind(field: Any) -> str | None:
    kind: str | None = field.metadata.get("kafka_type")
    return kind


def neutral(value: Any, kind: str | None) -> Any:
    """A value as Kafka sees it, in JSON: kio has richer types for times, errors, ids and its own nulls."""
    if kind == "uuid":
        return base64.urlsafe_b64encode(value.bytes if value is not None else bytes(16)).rstrip(b"=").decode()
    if kind == "datetime_i64":
        return -1 if value is None else (value - EPOCH) // MILLISECOND
    if kind in ("timedelta_i32", "timedelta_i64"):
        return value // MILLISECOND
    if kind == "error_code":
        return int(value.value)
    if isinstance(value, bytes):
        return {"b": value.hex()}
    if isinstance(value, (str, float)) or value is None or isinstance(value, bool):
        return value
    return int(value)


def make(key: int, side: int, version: int, seed: int) -> tuple[bytes, Any]:
    """(body, what it says in neutral form)."""
    from kio.serial import entity_writer

    cls = classes()[key, side, version]
    message, says = Maker(seed, (key, side, version)).struct(cls)
    out = io.BytesIO()
    entity_writer(cls)(out, message)
    return out.getvalue(), says


def main(seeds: int) -> None:
    """Print every message as a line of JSON: key, side, version, seed, body, what it says."""
    for key, side, version in sorted(classes()):
        for seed in range(seeds):
            body, says = make(key, side, version, seed)
            print(json.dumps([key, side, version, seed, base64.b64encode(body).decode(), says]))


# From here on the names of our own tests: not needed where the old kio runs ------------------------------------------

SECRETS = {
    (36, REQUEST): ("AuthBytes",), (36, RESPONSE): ("AuthBytes",), (38, RESPONSE): ("Hmac",), (39, REQUEST): ("Hmac",),
    (40, REQUEST): ("Hmac",), (41, RESPONSE): ("Tokens.Hmac",),
    (51, REQUEST): ("Upsertions.Salt", "Upsertions.SaltedPassword"),
}  # fmt: skip
SECRETS_BY_NAME = {
    (19, REQUEST): ("Topics.Configs.Value",), (19, RESPONSE): ("Topics.Configs.Value",),
    (32, RESPONSE): ("Results.Configs.Value", "Results.Configs.Synonyms.Value"),
    (33, REQUEST): ("Resources.Configs.Value",), (44, REQUEST): ("Resources.Configs.Value",),
}  # fmt: skip
"""Credentials unless the field Name beside them says otherwise."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One message. `says` holds the fields of its version; any other key of a decoded message must be null."""

    key: int
    side: int
    version: int
    seed: int
    body: bytes
    says: dict[str, Any]


def generate(api_key: int, side: int, version: int, seed: int) -> tuple[bytes, dict[str, Any]]:
    """A body encoded by the kio beside the tests, and what it says. KeyError where kio does not have the layout."""
    body, says = make(api_key, side, version, seed)
    return body, named(says, api_key, side, version)


def named(says: Any, key: int, side: int, version: int) -> dict[str, Any]:
    """What a message says, with Kafka's names and in our form."""
    from tests.schema.facts import facts

    for which, layout in facts().items():
        if which[:3] == (str(key), ("request", "response")[side], version):
            below = _children(layout.fields)
            try:
                return _struct(says, below, "", SECRETS.get((key, side), ()), SECRETS_BY_NAME.get((key, side), ()))
            except OtherLayout:
                continue
    raise AssertionError(f"kio's layout of API {key} version {version} is not among the facts")


class OtherLayout(Exception):
    """A message does not have these fields."""


def _children(fields: tuple[str, ...]) -> dict[str, list[tuple[str, str, str | None]]]:
    """(name, type, tag) of the fields of every struct, by the struct's path."""
    below: dict[str, list[tuple[str, str, str | None]]] = {}
    for text in fields:
        path, _, kind = text.partition(":")
        above, _, name = path.rpartition(".")
        kind, _, tag = kind.partition("=")[0].partition("@")
        below.setdefault(above, []).append((name, kind, tag or None))
    return below


def _struct(says: Any, below: Any, path: str, secrets: Any, by_name: Any) -> dict[str, Any]:
    from kdissect.schema.names import snake_case

    plain, tagged = says
    fields = below.get(path, [])
    untagged = [field for field in fields if field[2] is None]
    if len(untagged) != len(plain) or {field[2] for field in fields if field[2] is not None} != set(tagged):
        raise OtherLayout(path)
    values = [
        *zip(untagged, plain, strict=True),
        *((field, tagged[field[2]]) for field in fields if field[2] is not None),
    ]
    out: dict[str, Any] = {}
    for (name, kind, _), value in values:
        here = f"{path}.{name}" if path else name
        key = snake_case(name)
        if "{}" in kind:
            if kind.startswith("[]"):
                shown = None if value is None else [_struct(item, below, here, secrets, by_name) for item in value]
            else:
                shown = None if value is None else _struct(value, below, here, secrets, by_name)
        else:
            shown = bytes.fromhex(value["b"]) if isinstance(value, dict) else value
        if kind.startswith("records"):
            out[f"{key}_bytes"] = None if shown is None else len(shown)
        elif here in secrets or here in by_name:
            raw = shown.encode() if isinstance(shown, str) else shown
            hidden = here in secrets or out["name"] not in OPEN_NAMES
            out[key], out[f"{key}_bytes"] = None if hidden else shown, None if raw is None else len(raw)
        else:
            out[key] = shown
    return out


def differences(says: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Every place where a decoded message is not what it says."""
    if isinstance(says, dict):
        if not isinstance(ours, dict):
            yield f"{path}: {says!r}, ours {ours!r}"
            return
        for name, value in says.items():
            if name not in ours:
                yield f"{path}.{name}: missing"
            else:
                yield from differences(value, ours[name], f"{path}.{name}")
        for name, value in ours.items():
            if name not in says and value is not None:
                yield f"{path}.{name}: {value!r}, which is not in this version"
    elif isinstance(says, list):
        if not isinstance(ours, list) or len(says) != len(ours):
            yield f"{path}: {len(says)} elements, ours {ours!r}"
            return
        for index, (one, other) in enumerate(zip(says, ours, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif says != ours or isinstance(says, bool) != isinstance(ours, bool):
        yield f"{path}: {says!r}, ours {ours!r}"


OLD_KIO = "0.6.2"
"""The last release on Kafka 3.9's messages: every version from 0, and the APIs that 4.0 removed."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "kdissect-tests"


def samples(seeds: Iterable[int]) -> Iterator[Sample]:
    """Messages by the kio beside the tests: every API, side and version that it knows."""
    for key, side, version in sorted(classes()):
        for seed in seeds:
            body, says = generate(key, side, version, seed)
            yield Sample(key, side, version, seed, body, says)


def old_samples(seeds: int) -> Iterator[Sample]:
    """Messages by kio 0.6.2. Installs it into the cache once; skips the test where that fails (not in CI)."""
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    made = CACHE / f"kio-{OLD_KIO}-messages-{seeds}-{digest}.jsonl.gz"
    if not made.exists():
        packages = _old_kio()
        found = subprocess.run(
            [sys.executable, __file__, str(seeds)],
            env=os.environ | {"PYTHONPATH": str(packages), "PYTHONSAFEPATH": "1"},
            capture_output=True,
            check=False,
        )
        assert not found.returncode, found.stderr.decode()
        part = made.with_suffix(f".{os.getpid()}")
        part.write_bytes(gzip.compress(found.stdout, 1))
        part.replace(made)
        for stale in CACHE.glob(f"kio-{OLD_KIO}-messages-{seeds}-*"):
            if stale != made:
                stale.unlink(missing_ok=True)
    with gzip.open(made, "rt") as lines:
        for line in lines:
            key, side, version, seed, body, says = json.loads(line)
            says = named(says, key, side, version)
            yield Sample(key, side, version, seed, base64.b64decode(body), says)


def _old_kio() -> Path:
    """The folder with kio 0.6.2 and what it needs, for this Python."""
    folder = CACHE / f"kio-{OLD_KIO}-python{sys.version_info.major}.{sys.version_info.minor}"
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=CACHE))
    found = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(part), f"kio=={OLD_KIO}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        import pytest

        shutil.rmtree(part, ignore_errors=True)
        reason = f"kio {OLD_KIO} cannot be installed: {found.stderr.strip().splitlines()[-1:]}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        part.rename(folder)
    except OSError:  # another run was faster
        shutil.rmtree(part, ignore_errors=True)
    return folder


if __name__ == "__main__":
    main(int(sys.argv[1]))

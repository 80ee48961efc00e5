"""Values of declared types as bytes for a disk, which are read without running anything that they name.

    data = dumped(value, Learned)    # Learned: a dataclass; its annotations say what it holds
    value = loaded(data, Learned)    # raises UnreadableValue

The bytes are an Arrow IPC stream with one column. Its first row is the value as JSON; the others are the bytes and
arrays in it, in the order in which the JSON counts them. Classes come from the annotations that the reader gives, never
from the bytes: hostile bytes give a wrong value of the right type, or UnreadableValue. Pickle would run their code.

Types: int, float, str, bool, bytes, None, enumerations of integers, arrays of numbers, Arrow tables, `Rows`, `Coder`,
`X | None`, list, tuple, set, frozenset, dict (and Sequence, Mapping), NamedTuples and dataclasses of these, and classes
whose `__init__` takes all that they hold by its name. Fields of a dataclass whose names begin with `_` are caches: they
are not written and get their defaults. A dataclass that is not frozen stays one object where it stands twice.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from kdissect.arrays.arrow import Coder
from kdissect.arrays.dictionaries import shrunk, unified
from kdissect.arrays.ipc_streams import pack_stream
from kdissect.arrays.rows import Rows

FORM = 1
"""Counts up when the bytes of a value mean something else than before."""
PART = pa.schema([pa.field("part", pa.large_binary())])
FORM_KEY, TYPE_KEY = b"kdissect form", b"kdissect type"
OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)
"""Values are small, and Arrow's threads cost a worker of Spark 140 MB of addresses."""
NUMBERS = re.compile(r"[<>|][biuf][1248]")
"""Types of arrays, as numpy writes them."""
DAMAGE = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)
"""What reading damaged bytes raises."""


class UnreadableValue(Exception):
    """Bytes that are damaged, or that another version of kdissect wrote."""


class OtherVersion(UnreadableValue):
    """Bytes of a value whose type is made of other fields here."""


def dumped(value: Any, kind: Any) -> bytes:
    """The value, which has the annotated type `kind`, as bytes for `loaded`."""
    out = _Written()
    tree = _codec(kind)[0](value, out)
    text = json.dumps(tree, separators=(",", ":")).encode()
    schema = PART.with_metadata({FORM_KEY: str(FORM).encode(), TYPE_KEY: _name_of(kind)})
    batch = pa.RecordBatch.from_arrays([pa.array([text, *out.blobs], pa.large_binary())], schema=schema)
    data: bytes = pack_stream(pa.Table.from_batches([batch]), OPTIONS).to_pybytes()
    return data


def loaded(data: bytes, kind: Any) -> Any:
    """The value that `dumped` wrote. Raises UnreadableValue for other bytes."""
    try:
        with pa.ipc.open_stream(data, options=READ_OPTIONS) as reader:
            told = reader.schema.metadata or {}
            if told.get(FORM_KEY) != str(FORM).encode() or told.get(TYPE_KEY) != _name_of(kind):
                raise OtherVersion("these bytes are of another version of kdissect")
            batch = reader.read_next_batch()
        batch.validate(full=True)  # offsets of hostile bytes may lead anywhere
        parts = batch.column(0)
        tree = json.loads(parts[0].as_buffer().to_pybytes())
        return _codec(kind)[1](tree, _Read([part.as_buffer() for part in parts[1:]]))
    except DAMAGE as error:
        raise UnreadableValue(f"these bytes are damaged ({type(error).__name__})") from None


class _Written:
    """Bytes and arrays of a value, which the JSON counts, and its objects that may stand twice."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self.objects: dict[int, int] = {}
        """id of an object that may stand elsewhere too -> its number."""

    def add_blob(self, data: bytes) -> int:
        self.blobs.append(data)
        return len(self.blobs) - 1


class _Read:
    """The reader's side of `_Written`."""

    def __init__(self, blobs: Sequence[pa.Buffer]) -> None:
        self.blobs = blobs
        self.objects: list[Any] = []


Write = Callable[[Any, _Written], Any]
Read = Callable[[Any, _Read], Any]
Codec = tuple[Write, Read]


def _name_of(kind: Any) -> bytes:
    """A hash of a type with all that it is made of: other fields are another type."""
    return blake2b(_described(kind).encode(), digest_size=12).hexdigest().encode()


@cache
def _described(kind: Any) -> str:
    if _is_record(kind):
        fields = ", ".join(f"{name}: {_described(inner)}" for name, inner in _fields(kind))
        return f"{kind.__name__}({fields})"
    if isinstance(kind, type) and typing.get_origin(kind) is None:
        return kind.__name__
    return f"{typing.get_origin(kind)}[{', '.join(map(_described, typing.get_args(kind)))}]"


def _is_record(kind: Any) -> bool:
    if not isinstance(kind, type) or issubclass(kind, enum.Enum | Coder | Rows | pa.Table):
        return False
    return dataclasses.is_dataclass(kind) or hasattr(kind, "_fields") or inspect.isfunction(kind.__init__)


def _fields(kind: Any) -> list[tuple[str, Any]]:
    """Names and types of what a class holds, without caches."""
    if not dataclasses.is_dataclass(kind) and not hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind.__init__)
        return [(name, hints[name]) for name in list(inspect.signature(kind.__init__).parameters)[1:]]
    hints = typing.get_type_hints(kind)
    if not dataclasses.is_dataclass(kind):
        return [(name, hints[name]) for name in kind._fields]
    kept = [one.name for one in dataclasses.fields(kind) if not one.name.startswith("_")]
    return [(name, hints[name]) for name in kept]


@cache
def _codec(kind: Any) -> Codec:
    """The functions that write and read values of a type. Raises TypeError for a type that has no bytes."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in (int, float, str, bool):
        return partial(_plain, kind), partial(_checked, kind)
    if kind is bytes:
        return _put_bytes, _get_bytes
    if origin is np.ndarray or kind is np.ndarray:
        expected = typing.get_args(inner[1])[0] if inner and typing.get_args(inner[1]) else Any
        return _put_array, partial(_get_array, None if expected is Any else np.dtype(expected))
    if kind is pa.Table:
        return _put_table, _get_table
    if kind is Rows:
        return lambda rows, out: _put_table(rows.table(), out), lambda tree, into: Rows.of(_get_table(tree, into))
    if kind is Coder:
        return _put_coder, _get_coder
    if origin in (typing.Union, types.UnionType):
        return _optional(inner)
    if origin is tuple and not (len(inner) == 2 and inner[1] is Ellipsis):
        return _record([_codec(one) for one in inner], tuple)
    if origin in (list, set, frozenset, tuple, Sequence):
        return _list(_codec(inner[0]), list if origin is Sequence else origin)
    if origin in (dict, Mapping):
        return _dict(_codec(inner[0]), _codec(inner[1]))
    if isinstance(kind, type) and issubclass(kind, enum.IntEnum):
        return partial(_plain, int), lambda tree, into: kind(_checked(int, tree, into))
    if _is_record(kind):
        return _object(kind)
    raise TypeError(f"no bytes are declared for {kind}")


def _plain(kind: Callable[[Any], Any], value: Any, out: _Written) -> Any:
    return kind(value)  # numbers may be numpy's


def _checked(kind: type, tree: Any, into: _Read) -> Any:
    if type(tree) is not kind:
        raise ValueError(f"{type(tree).__name__} instead of {kind.__name__}")
    return tree


def _put_bytes(value: bytes, out: _Written) -> int:
    return out.add_blob(bytes(value))


def _get_bytes(tree: Any, into: _Read) -> bytes:
    data: bytes = into.blobs[_checked(int, tree, into)].to_pybytes()
    return data


def _put_array(value: Any, out: _Written) -> Any:
    if not NUMBERS.fullmatch(value.dtype.str):
        raise TypeError(f"no bytes are declared for arrays of {value.dtype}")
    return [value.dtype.str, list(value.shape), out.add_blob(np.ascontiguousarray(value).tobytes())]


def _get_array(expected: np.dtype[Any] | None, tree: Any, into: _Read) -> Any:
    name, shape, place = tree
    if not NUMBERS.fullmatch(name) or (expected is not None and np.dtype(name) != expected):
        raise ValueError("an array of another type")
    return np.frombuffer(into.blobs[place], name).reshape(shape).copy()


def _put_table(value: pa.Table, out: _Written) -> int:
    return out.add_blob(pack_stream(shrunk(unified(value))).to_pybytes())


def _get_table(tree: Any, into: _Read) -> pa.Table:
    with pa.ipc.open_stream(into.blobs[_checked(int, tree, into)], options=READ_OPTIONS) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table


def _put_coder(value: Coder, out: _Written) -> list[str]:
    return list(value.texts)


def _get_coder(tree: Any, into: _Read) -> Coder:
    made = Coder()
    for code, text in enumerate(_as_list(tree)):
        if made.code(_checked(str, text, into)) != code:
            raise ValueError("a text with two codes")
    return made


def _optional(inner: Sequence[Any]) -> Codec:
    """Of `X | None`, and of arrays of several types."""
    kinds = [one for one in inner if one is not type(None)]
    if len(kinds) > 1 and all(typing.get_origin(one) is np.ndarray for one in kinds):
        kinds = [np.ndarray]
    if len(kinds) != 1:
        raise TypeError(f"no bytes are declared for one of {inner}")
    put, get = _codec(kinds[0])
    if type(None) not in inner:
        return put, get
    return (
        lambda value, out: None if value is None else put(value, out),
        lambda tree, into: None if tree is None else get(tree, into),
    )


def _record(inner: Sequence[Codec], make: Callable[[Sequence[Any]], Any]) -> Codec:
    """Of a value with so many parts, each of its own type."""
    return (
        lambda value, out: [put(one, out) for (put, _), one in zip(inner, value, strict=True)],
        lambda tree, into: make([get(one, into) for (_, get), one in zip(inner, _as_list(tree), strict=True)]),
    )


def _as_list(tree: Any) -> list[Any]:
    if type(tree) is not list:
        raise ValueError(f"{type(tree).__name__} instead of a list")
    return tree


def _list(inner: Codec, make: Callable[[Sequence[Any]], Any]) -> Codec:
    put, get = inner
    return (
        lambda value, out: [put(one, out) for one in value],
        lambda tree, into: make([get(one, into) for one in _as_list(tree)]),
    )


def _dict(keys: Codec, values: Codec) -> Codec:
    def write(value: Mapping[Any, Any], out: _Written) -> Any:
        return [[keys[0](one, out) for one in value], [values[0](one, out) for one in value.values()]]

    def read(tree: Any, into: _Read) -> dict[Any, Any]:
        known, found = _as_list(tree)
        made = [keys[1](one, into) for one in known]
        return dict(zip(made, [values[1](one, into) for one in found], strict=True))

    return write, read


def _object(kind: Any) -> Codec:
    """Of a class that holds what its annotations say."""
    fields = _fields(kind)
    names, inner = [name for name, _ in fields], [_codec(one) for _, one in fields]
    shared = dataclasses.is_dataclass(kind) and not getattr(kind, "__dataclass_params__").frozen  # noqa: B009

    def write(value: Any, out: _Written) -> Any:
        if shared and id(value) in out.objects:
            return out.objects[id(value)]
        tree = [put(getattr(value, name), out) for (put, _), name in zip(inner, names, strict=True)]
        if shared:
            out.objects[id(value)] = len(out.objects)
        return tree

    def read(tree: Any, into: _Read) -> Any:
        if shared and type(tree) is int:
            known = into.objects[tree]
            if type(known) is not kind:
                raise ValueError(f"{type(known).__name__} instead of {kind.__name__}")
            return known
        parts = [get(one, into) for (_, get), one in zip(inner, _as_list(tree), strict=True)]
        made = kind(**dict(zip(names, parts, strict=True)))
        if shared:
            into.objects.append(made)
        return made

    return write, read

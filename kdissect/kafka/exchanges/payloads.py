"""Messages inside messages: the content of a bytes field, next to it as `<name>_decoded`.

Consumers put their subscription into JoinGroup and get their assignment from SyncGroup as bytes behind an int16
version. A broker that forwards a request puts its sender into such bytes. The schema marks these fields (`holds`).
Other protocols put bytes of their own there (Kafka Connect, Schema Registry, custom clients). Bytes that do not fit
exactly, or whose protocol type is not `consumer`, are null in `<name>_decoded`; the bytes stay.

A request that is forwarded inside an Envelope (KIP-590), and the answer to it, can hold credentials; these are zeros.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.from_numpy import arrow_array
from kdissect.kafka.completed import Message
from kdissect.kafka.exchanges.bodies import Type
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.schema import index, model
from kdissect.schema.apikeys import ApiKey
from kdissect.schema.columns import schema_of
from kdissect.schema.layout import Layout
from kdissect.schema.model import CONSUMER, DECODED, FORWARDED, PROTOCOL_TYPE, REQUEST, RESPONSE, Api, Field

_VERSION_BYTES = 2
_Flags = npt.NDArray[np.bool_]


def asked_too(kind: Type) -> list[Type]:
    """Other message types read to show messages of this one: an answer to an Envelope does not say what it answers."""
    return [(ApiKey.ENVELOPE, REQUEST)] if kind == (ApiKey.ENVELOPE, RESPONSE) else []


def forwarded(requests: Mapping[Type, Message], rows: npt.NDArray[np.int64]) -> pa.Array:
    """The requests inside the Envelopes of these exchanges, as `unfolded` takes them. Places are those of `rows`."""
    message = requests.get((ApiKey.ENVELOPE, REQUEST))
    if message is None or not len(message.rows):
        return pa.nulls(len(rows), pa.binary())
    place = np.minimum(np.searchsorted(message.rows, rows), len(message.rows) - 1)
    return message.batch.column("request_data").take(arrow_array(place, mask=message.rows[place] != rows))


def unfolded(batch: pa.RecordBatch, kind: Type, requests: pa.Array | None = None) -> pa.RecordBatch:
    """Messages of a type (API key, side) with the content of their bytes fields decoded next to them, and credentials
    masked.

    `requests` (binary, a row each) are the `request_data` that Envelope responses answer; null where not captured.
    """
    fields = index.load().apis[kind[0]].message(kind[1]).fields
    names = batch.schema.names
    out = _fields({name: batch.column(name) for name in names}, fields, np.ones(batch.num_rows, np.bool_))
    if kind[0] == ApiKey.ENVELOPE:
        _mask(out, requests)
    return pa.RecordBatch.from_arrays(list(out.values()), names=list(out))


def unfolded_schema(schema: pa.Schema, kind: Type) -> pa.Schema:
    """The schema of `unfolded`."""
    empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    return unfolded(empty, kind).schema


def decoded(data: pa.Array, name: str, allowed: _Flags | None = None) -> pa.Array:
    """Binary values as structs of the payload message `name`; null where they are something else, or not `allowed`.

    A version newer than the newest known is read in its layout, as consumers do.
    """
    decoder, newest = _decoder(name)
    size = np.asarray(pc.fill_null(pc.binary_length(data), 0)).astype(np.int64)
    offsets = np.frombuffer(data.buffers()[1], np.int32)[data.offset : data.offset + len(data) + 1].astype(np.int64)
    values = data.buffers()[2]
    stream = np.frombuffer(values, np.uint8) if values is not None and values.size else np.zeros(2, np.uint8)
    begin = offsets[:-1]
    there = size >= _VERSION_BYTES
    if allowed is not None:
        there &= allowed
    at = np.where(there, begin, 0)
    version = (stream[at].astype(np.int64) << 8) | stream[np.minimum(at + 1, stream.size - 1)]
    there &= version < 1 << 15
    program = np.where(there, decoder.table[0, np.minimum(version, newest), REQUEST], -1).astype(np.int32)
    start = np.where(there, begin + _VERSION_BYTES, 0)
    found = decoder.decode(stream, start, np.where(there, begin + size, 0), program).messages.get((0, REQUEST))
    kind = _type(name)
    if found is None:
        return pa.nulls(len(data), kind)
    place = np.full(len(data), -1, np.int64)
    place[found.rows] = np.arange(len(found.rows))
    batch = found.batch
    read = arrow_array(version[found.rows], pa.int16())
    made = pa.StructArray.from_arrays([read, *batch.columns], fields=list(kind))
    return made.take(arrow_array(place, pa.int64(), mask=place < 0))


@cache
def _decoder(name: str) -> tuple[Decoder, int]:
    """A decoder whose only API's request is the payload message, and its newest version."""
    message = index.load().payloads[name]
    nothing = model.Message(f"{name}Answer", message.versions, message.flexible, ())
    api = Api(0, name, message, nothing)
    return Decoder({(0, REQUEST): None}, {0: api}), message.versions.last


@cache
def _type(name: str) -> pa.StructType:
    fields = schema_of(Layout(index.load().payloads[name], None))
    return pa.struct([pa.field("version", pa.int16()), *fields])


def _fields(arrays: dict[str, pa.Array], fields: tuple[Field, ...], allowed: _Flags) -> dict[str, pa.Array]:
    """The arrays of a struct's fields with those that they hold."""
    out = copy.copy(arrays)
    if PROTOCOL_TYPE in arrays:
        allowed = allowed & np.asarray(pc.fill_null(pc.equal(arrays[PROTOCOL_TYPE], CONSUMER), True))
    for field in fields:
        name = field.snake
        if name not in arrays:
            continue
        if field.holds is not None and field.holds not in FORWARDED:
            out = _after(out, name, decoded(arrays[name], field.holds, allowed))
        elif _holds(field) and field.kind == "array":
            out[name] = _list(arrays[name], field, allowed)
    return out


def _list(array: pa.Array, field: Field, allowed: _Flags) -> pa.Array:
    """A list of structs likewise."""
    values = array.values
    owner = np.asarray(pc.list_parent_indices(array)).astype(np.int64)
    below = np.zeros(len(values), np.bool_)
    below[: len(owner)] = allowed[owner]
    children = {values.type.field(i).name: values.field(i) for i in range(values.type.num_fields)}
    made = _fields(children, field.fields, below)
    struct = pa.struct([(name, child.type) for name, child in made.items()])
    from_buffers = pa.Array.from_buffers
    inner = from_buffers(struct, len(values), [values.buffers()[0]], children=list(made.values()))
    return from_buffers(pa.list_(struct), len(array), array.buffers()[:2], offset=array.offset, children=[inner])


@cache
def _holds(field: Field) -> bool:
    return field.holds is not None or any(_holds(item) for item in field.fields)


def _after(arrays: dict[str, pa.Array], name: str, array: pa.Array) -> dict[str, pa.Array]:
    """The arrays with one more, behind that of `name`."""
    out = {}
    for key, value in arrays.items():
        out[key] = value
        if key == name:
            out[name + DECODED] = array
    return out


def _mask(arrays: dict[str, pa.Array], requests: pa.Array | None) -> None:
    from kdissect.schema.masking import masked_request, masked_response

    if "request_data" in arrays:
        arrays["request_data"] = _mapped(masked_request, arrays["request_data"])
    elif requests is None:
        arrays["response_data"] = _mapped(masked_response, arrays["response_data"])
    else:
        arrays["response_data"] = _mapped(masked_response, arrays["response_data"], requests)


def _mapped(mask: Callable[..., bytes], *arrays: pa.Array) -> pa.Array:
    """Forwarded requests are those of administrators and brokers: few enough to be masked one by one."""
    rows = zip(*(array.to_pylist() for array in arrays), strict=True)
    return pa.array([None if row[0] is None else mask(*row) for row in rows], pa.binary())

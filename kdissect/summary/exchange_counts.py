"""Exchanges counted by integers: the figures of `gathering`, where no caller makes rows that could be shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.arrays.arrow import Flags, Int64s, Scalar, encoded, numbers
from kdissect.arrays.lending import Lender
from kdissect.kernels.kernel import kernel
from kdissect.kernels.signature import fields
from kdissect.schema.apikeys import ApiKey
from kdissect.summary.client_summaries import FETCHING, WAITING
from kdissect.summary.joint_codes import Counted, in_rank
from kdissect.tables.apinames import api_name, error_text

Reals = npt.NDArray[np.float64]

CODED = {"api": "api_key", "error": "error_code"}
"""Names, and the column of numbers that says the same."""
NOTHING: Mapping[str, int] = {"error": 0}
"""The number that stands for no name; -1 for others."""
FETCHES = (ApiKey.FETCH, ApiKey.SHARE_FETCH)
"""API keys of FETCHING."""
assert tuple(map(api_name, FETCHES)) == FETCHING


def counted(batch: pa.RecordBatch, keys: tuple[str, ...], memory: Lender) -> tuple[Iterator[Counted], Reals]:
    """Exchanges with the columns of `readers.FIRST_SCREEN_COUNTS`, by the columns `keys` of the table. The last of
    these are `api_version`, `status`, `error` and `hold`, in the order of `joint_codes.combined`. Of each exchange also
    its time without waiting, NaN where it waited or is unknown. Arrays that are not kept lie in lent `memory`."""
    rows = batch.num_rows
    columns = {name: _codes(batch, name) for name in dict.fromkeys(keys)}
    first, version, status, error, hold = (columns[name][0] for name in (keys[0], *keys[-4:]))
    for codes, texts in (columns[name] for name in keys[1:-4]):
        if texts is not None:  # API versions are grouped by anyhow
            first = (first + 1) * (len(texts) + 1) + codes + 1
    api = numbers(batch.column("api_key"))
    why = (*(columns["hold"][1] or ()), None)
    waits = np.array([[text in WAITING, text in (None, "unknown")] for text in why], np.bool_)
    latency, queued = _reals(batch, "latency_ms"), _reals(batch, "queued_ms")
    shapes: list[tuple[tuple[int, ...], type]] = [((2 << rows.bit_length(),), np.int64), ((rows,), np.int64)]
    shapes += [((4, rows), np.int64), ((rows,), np.float64), ((rows,), np.float64)]
    table, codes, found, own, most = memory.arrays(shapes)
    table[:] = -1
    count = _grouped(
        _Rows(first, version, status, error, hold, api, latency, queued), waits, own, codes, table, found, most
    )
    firsts, sizes, known, tops = found[:, :count]
    ends = np.cumsum(known)
    values = np.empty(int(ends[-1]) if count else 0)
    _split_latencies(codes, latency, ends - known, values)
    order = in_rank(np.stack([columns[name][0][firsts] for name in keys]))
    parts = np.split(values, ends[:-1])

    def groups() -> Iterator[Counted]:
        for at in order:
            named = tuple(_value(name, columns[name], int(firsts[at])) for name in keys)
            spent = None if most[at] == -np.inf else float(most[at])
            yield Counted(named, int(sizes[at]), parts[at], spent, int(tops[at]))

    return groups(), own


def _codes(batch: pa.RecordBatch, name: str) -> tuple[Int64s, list[Any] | None]:
    """A column as integers, and the texts that these are codes of; -1 (of errors 0) where null."""
    column = batch.column(CODED.get(name, name))
    if name in CODED or pa.types.is_integer(column.type):
        return numbers(column, NOTHING.get(name, -1)), None
    return encoded(column)


def _value(name: str, column: tuple[Int64s, list[Any] | None], row: int) -> Any:
    codes, texts = column
    code = int(codes[row])
    if code == NOTHING.get(name, -1):
        return None
    if texts is not None:
        return texts[code]
    return api_name(code) if name == "api" else error_text(code) if name == "error" else code


def _reals(batch: pa.RecordBatch, name: str) -> Reals:
    found: Reals = batch.column(name).to_numpy(zero_copy_only=False)
    return found


class _Rows(NamedTuple):
    """Columns of exchanges as integers: codes of texts, -1 null."""

    first: Int64s
    """Code of what is grouped by first: of a name, or of a name and its cluster."""
    version: Int64s
    """API version, -1 null."""
    status: Int64s
    error: Int64s
    """Error code, 0 null."""
    hold: Int64s
    api: Int64s
    """API key, -1 null."""
    latency: Reals
    """ms, NaN null."""
    queued: Reals
    """ms behind earlier requests, NaN null."""


_ROWS = fields(
    _Rows,
    "const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const i8[:] const f8[:] const f8[:]",
)


@kernel("_ROWS const b1[:,:] f8[:] i8[:] i8[:] i8[:,:] f8[:] -> i8")
def _grouped(
    rows: _Rows, waits: Flags, own: Reals, codes: Int64s, table: Int64s, groups: Int64s, most: Reals
) -> Scalar:
    """Groups of rows with the same five columns, in order of appearance. The group of each row goes into `codes`. Of
    each group its first row, its rows, those of known latency and the slowest one go into `groups`, and how slow that
    one was into `most`. `own`: what each row took without waiting; `waits` by hold, null last: did, or may have as a
    fetch. Returns how many groups there are."""
    first, version, status, error, hold = rows.first, rows.version, rows.status, rows.error, rows.hold
    api, latency, queued = rows.api, rows.latency, rows.queued
    mask, count, last = table.size - 1, np.int64(0), np.int64(0)
    holds = waits.shape[0] - 1
    for i in range(codes.size):
        why = hold[i] if hold[i] >= 0 else holds
        fetching = api[i] == FETCHES[0] or api[i] == FETCHES[1]
        spent = np.nan
        if not (waits[why, 0] or (waits[why, 1] and fetching)):
            spent = latency[i] if np.isnan(queued[i]) else latency[i] - queued[i]
        own[i] = spent
        code: Scalar = last
        same: Scalar = count > 0
        at: Scalar = np.int64(-1)
        while True:
            if same:
                one = groups[0, code]
                same = first[one] == first[i] and version[one] == version[i] and status[one] == status[i]
                same = same and error[one] == error[i] and hold[one] == hold[i]
            if same:
                break
            if at < 0:
                at = (first[i] * 31 + version[i]) * np.int64(1099511628211) ^ (error[i] * 64 + status[i]) * 64 ^ hold[i]
                at = at * np.int64(-7046029254386353131)
                at = ((at >> 32) ^ at) & mask
            else:
                at = (at + 1) & mask
            code = table[at]
            if code < 0:
                code = count
                table[at] = code
                groups[0, code], groups[1, code], groups[2, code], groups[3, code] = i, 0, 0, -1
                most[code] = -np.inf
                count += 1
                break
            same = True
        last = code
        codes[i] = code
        groups[1, code] += 1
        if not np.isnan(latency[i]):
            groups[2, code] += 1
        if spent > most[code]:
            most[code], groups[3, code] = spent, i
    return count


@kernel("const i8[:] const f8[:] i8[:] f8[:]")
def _split_latencies(codes: Int64s, latency: Reals, places: Int64s, values: Reals) -> None:
    """Latencies that are known, group by group: `places` says where each group's begin."""
    for i in range(codes.size):
        if not np.isnan(latency[i]):
            values[places[codes[i]]] = latency[i]
            places[codes[i]] += 1

"""Names of APIs and errors as dictionary columns."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.schema import index
from kdissect.tables.identity import recoded


@cache
def api_name(key: int) -> str:
    """Kafka's name of an API key, `key N` when there is none."""
    return str(index.api_name(key))


@cache
def error_text(code: int) -> str:
    """Kafka's name of an error code, `error N` when there is none."""
    return str(index.error_name(code))


def api_column(keys: npt.NDArray[Any]) -> pa.Array:
    """Names of API keys, null for -1 (unknown)."""
    return _named(np.asarray(keys, np.int64), -1, api_name)


def error_column(codes: npt.NDArray[Any], present: npt.NDArray[np.bool_]) -> pa.Array:
    """Names of error codes, null for 0 (none) and where not `present`."""
    return _named(np.where(present, codes, 0).astype(np.int64), 0, error_text)


def _named(codes: npt.NDArray[np.int64], null: int, name: Any) -> pa.Array:
    offset = 2**15 + 1  # both are int16 on the wire
    inside = np.clip(codes + offset, 0, 2**16)
    inside[codes == null] = -1
    indices, kept = recoded(inside, 2**16 + 1)
    texts = pa.array([name(int(value) - offset) for value in kept], pa.string())
    return pa.DictionaryArray.from_arrays(indices, texts)

"""Names of APIs and errors as dictionary columns."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.schema import index
from kdissect.tables.identity import recoded

LEAST, MOST = -(2**15) - 1, 2**15 - 1
"""What codes are looked up between."""


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
    return _name_codes(np.asarray(keys), -1, api_name)


def error_column(codes: npt.NDArray[Any], present: npt.NDArray[np.bool_]) -> pa.Array:
    """Names of error codes, null for 0 (none) and where not `present`."""
    return _name_codes(np.where(present, codes, 0), 0, error_text)


def _name_codes(codes: npt.NDArray[Any], null: int, name: Any) -> pa.Array:
    if not len(codes):
        return pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), pa.array([], pa.string()))
    inside = np.clip(codes, LEAST, MOST).astype(np.int32)  # both are int16 on the wire
    low = int(inside.min())
    inside -= low
    inside[codes == null] = -1
    indices, kept = recoded(inside, int(inside.max()) + 1)
    texts = pa.array([name(int(value) + low) for value in kept], pa.string())
    return pa.DictionaryArray.from_arrays(indices, texts)

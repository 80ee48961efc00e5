"""Arrow arrays of numpy arrays.

`pa.array` compares a numpy array with numpy's masked arrays, which numpy loads for that: this takes longer than to read
a small capture. The modules behind a first screen use `arrow_array` instead (`tests/cli/test_entry.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def arrow_array(
    values: npt.NDArray[Any], kind: pa.DataType | None = None, *, mask: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """An array of these numbers or flags, null where `mask`, over the memory of `values`; `kind` casts it.

    Raises TypeError for values that are no numbers or flags, `pa.ArrowInvalid` where a value does not fit `kind`."""
    if values.dtype.kind not in "biuf" or values.ndim != 1:
        raise TypeError(f"no vector of numbers or flags: {values.dtype}, {values.ndim} dimensions")
    flags = values.dtype.kind == "b"
    data = np.packbits(values, bitorder="little") if flags else np.ascontiguousarray(values)
    nulls = 0 if mask is None else int(np.count_nonzero(mask))
    known = pa.py_buffer(np.packbits(~mask, bitorder="little")) if mask is not None and nulls else None
    plain = pa.from_numpy_dtype(values.dtype)
    made = pa.Array.from_buffers(plain, len(values), [known, pa.py_buffer(data)], nulls)
    return made if kind is None or kind == plain else made.cast(kind)

"""Arrow arrays of numpy arrays.

`pa.array` compares a numpy array with numpy's masked arrays, which numpy loads for that: this takes longer than to read
a small capture. The modules behind a first screen use `arrow_array` instead (`tests/cli/test_entry.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_FLAG = pa.bool_()
_TYPES = {
    np.dtype(code): pa.from_numpy_dtype(code) for code in ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]
}
_TYPES[np.dtype(bool)] = _FLAG


def arrow_array(
    values: npt.NDArray[Any], kind: pa.DataType | None = None, *, mask: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """An array of these numbers or flags, null where `mask`, over the memory of `values` if they lie there as Arrow has
    them, aligned and one behind the other; `kind` casts it.

    Raises TypeError for values that are no numbers or flags, `pa.ArrowInvalid` where a value does not fit `kind`."""
    plain = _TYPES.get(values.dtype)
    if plain is None or values.ndim != 1:
        raise TypeError(f"no vector of numbers or flags: {values.dtype}, {values.ndim} dimensions")
    data = np.packbits(values, bitorder="little") if plain is _FLAG else np.ascontiguousarray(values)
    if not data.flags.aligned:  # one field of a packed record
        data = data.copy()
    nulls = 0 if mask is None else int(np.count_nonzero(mask))
    known = pa.py_buffer(np.packbits(~mask, bitorder="little")) if mask is not None and nulls else None
    made = pa.Array.from_buffers(plain, len(values), [known, pa.py_buffer(data)], nulls)
    return made if kind is None or kind == plain else made.cast(kind)

"""Rows as numpy columns are read as Arrow tables of the same rows are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kdissect.arrays.arrow import Coder, ints, joined, reals, times, with_columns
from kdissect.arrays.codes import NULL, Codes, Texts

WORDS = ["b", None, "a"]
TABLE = pa.table(
    {"n": [3, None, 5, 7], "ms": [0.5, None, 2.0, 4.0], "word": ["a", "b", None, "a"], "at": pa.array([1, 2, None, 4])}
)
CODES = Codes(
    {
        "n": np.array([3, NULL, 5, 7]),
        "ms": np.array([0.5, np.nan, 2.0, 4.0]),
        "word": Texts(np.array([2, 0, 1, 2]), WORDS),
        "at": np.array([1, 2, NULL, 4]),
    },
    4,
)


def same(rows: Codes, table: pa.Table) -> None:
    assert rows.num_rows == table.num_rows
    one, other = Coder(), Coder()
    for name in ("n", "at", "missing"):
        assert ints(rows, name, -9).tolist() == ints(table, name, -9).tolist()
        assert times(rows, name).tolist() == times(table, name).tolist()
    for name in ("ms", "n", "missing"):
        np.testing.assert_array_equal(reals(rows, name), reals(table, name))
    for name in ("word", "missing"):
        mine, theirs = one.column(rows, name), other.column(table, name)
        texts = [[coder.texts[code] if code >= 0 else None for code in codes.tolist()]
                 for coder, codes in ((one, mine), (other, theirs))]  # fmt: skip
        assert texts[0] == texts[1]


def test_columns_are_read_alike() -> None:
    same(CODES, TABLE)
    same(CODES.slice(1, 2), TABLE.slice(1, 2))
    same(CODES.slice(3, 9), TABLE.slice(3, 9))
    same(CODES.slice(9), TABLE.slice(9))
    same(CODES.take(np.array([3, 0])), TABLE.take([3, 0]))
    same(CODES.filter(np.array([True, False, False, True])), TABLE.filter([True, False, False, True]))
    same(with_columns(CODES, {"n": np.arange(4)}), with_columns(TABLE, {"n": pa.array([0, 1, 2, 3])}))


def test_rows_stand_behind_others() -> None:
    same(joined(CODES, CODES.slice(2)), joined(TABLE, TABLE.slice(2)))
    assert joined(Codes({}, 0), CODES) is CODES
    assert joined(CODES, Codes({}, 0)) is CODES
    other = CODES.with_columns({"word": Texts(np.zeros(4, np.int64), ["c"])})
    with pytest.raises(ValueError, match="word: codes into two lists"):
        joined(CODES, other)
    with pytest.raises(ValueError, match="the same columns"):
        joined(CODES, CODES.select(["n", "word"]))


def test_a_list_of_texts_may_grow_between_two_columns() -> None:
    lasting, coder = Coder(), Coder()
    first = lasting.interned(Texts(np.array([0, 1, -1]), ["x", None]))
    assert coder.column(Codes({"word": first}, 3), "word").tolist() == [0, -1, -1]
    second = lasting.interned(Texts(np.array([1, 0]), ["x", "y"]))
    assert coder.column(Codes({"word": second}, 2), "word").tolist() == [1, 0]
    both = joined(Codes({"word": first}, 3), Codes({"word": second}, 2))
    assert coder.column(both, "word").tolist() == [0, -1, -1, 1, 0]


def test_a_text_is_called_otherwise() -> None:
    coder, words = Coder(), ["address", "other"]
    assert coder.taken_over(words).tolist() == [0, 1, -1]
    coder.rename("address", "id")
    assert (coder.code("id"), coder.texts) == (0, ["id", "other"])
    assert coder.taken_over(words).tolist() == [2, 1, -1], "the old text is a new one"
    coder.rename("other", "id")
    coder.rename("nobody", "somebody")
    assert coder.codes == {"id": 0, "other": 1, "address": 2}, "both have codes, or none has"

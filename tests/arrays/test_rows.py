"""Rows are read alike however their columns lie: as numpy columns, as Arrow's, or some of each."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kdissect.arrays.arrow import Coder
from kdissect.arrays.rows import NULL, Rows, Texts

WORDS = ["b", None, "a"]
TABLE = pa.table(
    {"n": [3, None, 5, 7], "ms": [0.5, None, 2.0, 4.0], "word": ["a", "b", None, "a"], "at": pa.array([1, 2, None, 4])}
)
COLUMNS = {
    "n": np.array([3, NULL, 5, 7]),
    "ms": np.array([0.5, np.nan, 2.0, 4.0]),
    "word": Texts(np.array([2, 0, 1, 2]), WORDS),
    "at": np.array([1, 2, NULL, 4]),
}
CODES = Rows(COLUMNS, 4)
MIXED = Rows.of(TABLE.select(["n", "word"])).with_columns({name: COLUMNS[name] for name in ("ms", "at")})


def same(rows: Rows, table: pa.Table) -> None:
    other = Rows.of(table)
    assert rows.num_rows == other.num_rows == table.num_rows
    for name in ("n", "at", "missing"):
        assert rows.ints(name, -9).tolist() == other.ints(name, -9).tolist()
        assert rows.times(name).tolist() == other.times(name).tolist()
    for name in ("ms", "n", "missing"):
        np.testing.assert_array_equal(rows.reals(name), other.reals(name))
    for name in ("word", "missing"):
        assert texts(rows, name) == texts(other, name)
    made = rows.table()
    assert {name: made[name].to_pylist() for name in made.column_names} == {
        name: table[name].to_pylist() for name in made.column_names
    }
    assert {*made.column_names} == {*rows.column_names} == {*table.column_names}


def texts(rows: Rows, name: str) -> list[str | None]:
    coder = Coder()
    return [coder.texts[code] if code >= 0 else None for code in rows.codes(name, coder).tolist()]


@pytest.mark.parametrize("rows", [CODES, MIXED, Rows.of(TABLE)], ids=["numpy", "both", "arrow"])
def test_columns_are_read_alike(rows: Rows) -> None:
    same(rows, TABLE)
    same(rows.slice(1, 2), TABLE.slice(1, 2))
    same(rows.slice(3, 9), TABLE.slice(3, 9))
    same(rows.slice(9), TABLE.slice(9))
    same(rows.take(np.array([3, 0])), TABLE.take([3, 0]))
    same(rows.filter(np.array([True, False, False, True])), TABLE.filter([True, False, False, True]))
    same(rows.select(["ms", "word", "missing"]), TABLE.select(["ms", "word"]))
    same(rows.without(["word"]), TABLE.drop_columns(["word"]))
    for begin, part in enumerate(rows.cut([(0, 2), (1, 3)])):
        same(part, TABLE.slice(begin, 2))
    same(rows.without_rows(), TABLE.slice(0, 0))
    assert rows.has("n")
    assert not rows.has("missing")
    assert rows.array("missing") is None


@pytest.mark.parametrize("rows", [CODES, MIXED, Rows.of(TABLE)], ids=["numpy", "both", "arrow"])
def test_columns_are_replaced(rows: Rows) -> None:
    changed = TABLE.set_column(0, "n", pa.array([0, 1, 2, 3]))
    same(rows.with_columns({"n": np.arange(4)}), changed)
    same(rows.with_arrays({"n": pa.array([0, 1, 2, 3])}), changed)
    same(rows.with_arrays({"more": pa.array([True] * 4)}), TABLE.append_column("more", pa.array([True] * 4)))
    assert rows.with_arrays({}) is rows
    same(rows, TABLE)


@pytest.mark.parametrize("rows", [CODES, MIXED, Rows.of(TABLE)], ids=["numpy", "both", "arrow"])
def test_rows_stand_behind_others(rows: Rows) -> None:
    same(Rows.together([rows, rows.slice(2)]), pa.concat_tables([TABLE, TABLE.slice(2)]))
    assert Rows.together([Rows({}, 0), rows]) is rows
    assert Rows.together([rows, Rows({}, 0)]) is rows
    assert Rows.of(None).num_rows == 0


def test_rows_that_differ_do_not() -> None:
    other = CODES.with_columns({"word": Texts(np.zeros(4, np.int64), ["c"])})
    with pytest.raises(ValueError, match="word: codes into two lists"):
        Rows.together([CODES, other])
    for other in (CODES.select(["n", "word"]), MIXED, Rows.of(TABLE)):
        with pytest.raises(ValueError, match="the same columns"):
            Rows.together([CODES, other])


def test_a_list_of_texts_may_grow_between_two_columns() -> None:
    lasting, coder = Coder(), Coder()
    first = Rows({"word": Texts(np.array([0, 1, -1]), ["x", None])}, 3).recoded("word", ["x", None], lasting)
    assert first.codes("word", coder).tolist() == [0, -1, -1]
    second = Rows({"word": Texts(np.array([1, 0]), ["x", "y"])}, 2).recoded("word", ["x", "y"], lasting)
    assert second.codes("word", coder).tolist() == [1, 0]
    assert Rows.together([first, second]).codes("word", coder).tolist() == [0, -1, -1, 1, 0]


def test_a_text_is_called_otherwise() -> None:
    coder, words = Coder(), ["address", "other"]
    assert coder.taken_over(words).tolist() == [0, 1, -1]
    coder.rename("address", "id")
    assert (coder.code("id"), coder.texts) == (0, ["id", "other"])
    assert coder.taken_over(words).tolist() == [2, 1, -1], "the old text is a new one"
    coder.rename("other", "id")
    coder.rename("nobody", "somebody")
    assert coder.codes == {"id": 0, "other": 1, "address": 2}, "both have codes, or none has"

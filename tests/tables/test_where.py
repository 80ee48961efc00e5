from datetime import UTC, datetime

import pyarrow as pa
import pytest

from kdissect.tables.where import parse

TABLE = pa.table(
    {
        "api": ["Fetch", "Produce", "Fetch", None],
        "latency_ms": [1.5, 700.0, None, 20.0],
        "n": pa.array([1, 2, 3, None], pa.int32()),
        "ok": [True, False, None, True],
        "at": pa.array([datetime(2026, 1, d, tzinfo=UTC) for d in (1, 2, 3, 4)], pa.timestamp("us", "UTC")),
        "where": ["it's", "a_b", "axb", ""],
        "m": pa.array([1, 5, 3, 4], pa.int64()),
        "wait_ms": pa.array([2**31 - 1, 2**24 + 1, 500, None], pa.int32()),
        "large": pa.array([2**63 - 1, 2**53 + 1, -(2**63), None], pa.int64()),
        "names": pa.array([["x"], [], None, None], pa.list_(pa.string())),
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("api = 'Fetch'", [0, 2]),
        ("api == 'Fetch' AND latency_ms > 1", [0]),
        ("api != 'Fetch'", [1]),
        ("api <> 'Fetch' or latency_ms = 20", [1, 3]),
        ("'Fetch' = api", [0, 2]),
        ("500 < latency_ms", [1]),
        ("n = 2.0", [1]),
        ("n >= 2", [1, 2]),
        ("n < 2.5", [0, 1]),
        ("n in (1, 3)", [0, 2]),
        ("n in (1.0, 3)", [0, 2]),
        ("n not in (1)", [1, 2]),
        ("n in (1, null)", [0]),
        ("n not in (1, null)", []),
        ("n not in (1.5, null)", []),
        ("n in (null)", []),
        ("not (n in (null)) or n = 2", [1]),
        ("api not in ('Fetch', null)", []),
        ("api in ('Produce', 'x')", [1]),
        ("latency_ms is null", [2]),
        ("latency_ms IS NOT NULL", [0, 1, 3]),
        ("not api = 'Fetch'", [1]),
        ("latency_ms >= 0.7s", [1]),
        ("latency_ms = 1500us", [0]),
        ("latency_ms in (1500 us, 0.02 s)", [0, 3]),
        ("latency_ms between 1 ms and 0.5 min and n < 2", [0]),
        ("api ilike 'fet%'", [0, 2]),
        ("api not ilike 'FETCH'", [1]),
        ("not (api = 'Fetch' or n = 2)", []),
        ("not not ok", [0, 3]),
        ("ok", [0, 3]),
        ("ok = false", [1]),
        ("ok and n = 1", [0]),
        ("api like 'F%'", [0, 2]),
        ("api not like 'F%'", [1]),
        ("where like 'a\\_b'", [1]),
        ("where = 'it''s'", [0]),
        ("\"where\" = ''", [3]),
        ("at >= '2026-01-03'", [2, 3]),
        ("at < '2026-01-02T01:00:00+01:00'", [0]),
        ("at between '2026-01-02' and '2026-01-03 00:00:00'", [1, 2]),
        ("latency_ms between 1 and 20", [0, 3]),
        ("n = m", [0, 2]),
        ("n = 1 or n = 2 and api = 'Fetch'", [0]),
        ("n = -1", []),
        ("latency_ms > 1e2", [1]),
        ("n < 99999999999999999999", [0, 1, 2]),
        ("n=1", [0]),
        ("wait_ms > 1 min", [0, 1]),
        ("wait_ms between 0.5s and 2147483646.5", [1, 2]),
        ("wait_ms = 16777216.0 or wait_ms in (500.0, 16777217.0, 2.5)", [1, 2]),
        ("large > 2.5", [0, 1]),
        ("large = 9007199254740993 or large < latency_ms and n = 3", [1]),
        ("large < latency_ms or n = 2 and large > latency_ms", [1]),
        ("large in (9223372036854775807, 1.5)", [0]),
    ],
)
def test_rows(text, rows):
    found = parse(text, TABLE.schema)
    numbered = TABLE.append_column("row", pa.array(range(4)))
    assert numbered.filter(found.expression)["row"].to_pylist() == rows


def test_columns():
    assert parse("n = 1 or (latency_ms > 2 and n < 5)", TABLE.schema).columns == {"n", "latency_ms"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("latencyms > 1", r"no column 'latencyms' \(did you mean 'latency_ms'\?\) at character 1"),
        ("n = ", "the expression ends early"),
        ("", "the expression ends early"),
        ("n = 1 n", "unexpected 'n' at character 7"),
        ("n = 'x'", "column 'n' is a number, it cannot be compared with 'x'"),
        ("api = 5", "column 'api' is text"),
        ("at > 'yesterday'", "'yesterday' is no time"),
        ("at > '0001-01-01T00:00:00+01:00'", "'0001-01-01T00:00:00.01:00' is no time"),
        ("at < '9999-12-31T23:59:59-01:00'", "'9999-12-31T23:59:59-01:00' is no time"),
        ("(n = 1", r"expected '\)'"),
        ("n", "expected a comparison"),
        ("1 = 1", "a comparison needs a column"),
        ("n = 1; drop table", "unexpected ';' at character 6"),
        ("n like 'x'", "LIKE compares text, and column 'n' is a number at character 1"),
        ("names not like '%x%'", "LIKE compares text, and column 'names' is a list at character 1"),
        ("api like 5", "LIKE compares text with a pattern in quotes at character 10"),
        ("n is 5", "expected NULL"),
        ("n in 5", r"expected '\('"),
        ("api = n", "'api' is text, 'n' is a number"),
        ("api = 'unfinished", "unexpected"),
        ("(" * 5000 + "n", "nested too deeply"),
        ("not " * 5000 + "ok", "nested too deeply"),
    ],
)
def test_what_is_no_expression(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text, TABLE.schema)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("api = Fetch", "a text stands in single quotes: 'Fetch' at character 7 of 'api = Fetch'"),
        ('api = "Fetch"', "a text stands in single quotes: 'Fetch'"),
        ("api", "put the whole expression in double quotes"),
        ("latency_ms > 3 kB", "column 'latency_ms' is milliseconds, 3kB is not"),
        ("n > 3s", "column 'n' is a plain number, 3s is not"),
    ],
)
def test_what_was_meant(text: str, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse(text, TABLE.schema)
    assert said in str(raised.value)


def test_times_that_rows_lie_between() -> None:
    found = parse("at < '2026-01-03' and '2026-01-02T01:00:00+01:00' <= at and n > 1", TABLE.schema).limits
    begin, end = (datetime(2026, 1, day, tzinfo=UTC) for day in (2, 3))
    assert [(limit.column, limit.operator, limit.values) for limit in found] == [
        ("at", "<", (end,)), ("at", ">=", (begin,)), ("n", ">", (1,)),
    ]  # fmt: skip
    assert parse("at < '2026-01-03' or n > 1", TABLE.schema).limits == ()


def test_units_limit_what_is_read() -> None:
    assert parse("latency_ms > 0.5s", TABLE.schema).limits[0].values == (500.0,)


@pytest.mark.parametrize(
    "text",
    [
        "n = 1 " + "x" * 10_000,
        "x" * 10_000 + " = 1",
        "api = " + "x" * 10_000,
        "n = '" + "x" * 10_000 + "'",
        "at > '" + "x" * 10_000 + "'",
        "n = 1 and " * 1000 + "; n = 2" + " and n = 1" * 1000,
        "n = 1 and " * 1000 + "api",
        "n = " + "9" * 10_000,
        "n > " + "9" * 400 + "s",
        "n in (1, -" + "9" * 400 + ")",
        "latency_ms < 1e999",
        "latency_ms < 1e308h",
    ],
)
def test_long_expressions_are_not_repeated_whole(text):
    with pytest.raises(ValueError, match=r"at character [0-9]+ of ") as raised:
        parse(text, TABLE.schema)
    assert len(str(raised.value)) < 300
    assert "\n" not in str(raised.value)


def test_what_is_repeated_is_around_the_place():
    with pytest.raises(ValueError, match=r"^unexpected ';' at character 1001 of \.\.\.'[^;]+; n = 2[^;]+'\.\.\.$"):
        parse("n = 1 and " * 100 + "; n = 2" + " and n = 1" * 100, TABLE.schema)

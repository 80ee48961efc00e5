"""The summary: the same from any split of the rows, exact while small, close when large."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kdissect.problems import UsageError
from kdissect.summary import Summarizer, summarize
from kdissect.summary.quantiles import EXACT_LATENCIES, Latencies
from tests.cli.standin import exchange, rows, small


def test_any_split_of_the_rows_gives_the_same() -> None:
    whole = summarize(small())
    summarizer = Summarizer()
    for name, table in reversed(small().items()):
        for i in range(table.num_rows):
            for batch in table.slice(i, 1).to_batches():
                summarizer.feed(name, batch)
    assert summarizer.finish() == whole


def test_dictionary_encoded_columns_with_nulls() -> None:
    table = rows("exchanges", [exchange(0, client_id=None), exchange(1, client_id="a"), exchange(2, client_id=None)])
    plain = summarize({"exchanges": table}, by="client")
    i = table.schema.get_field_index("client_id")
    encoded = table.set_column(i, "client_id", table.column("client_id").combine_chunks().dictionary_encode())
    assert summarize({"exchanges": encoded}, by="client") == plain
    assert [(line.name, line.exchanges) for line in plain.latencies] == [("(unknown)", 2), ("a", 1)]
    assert [(c.client_id, c.exchanges) for c in plain.clients] == [(None, 2), ("a", 1)]


def test_quantiles_stay_close_when_there_are_many() -> None:
    values = np.random.default_rng(7).lognormal(1, 2, EXACT_LATENCIES * 3)
    many = Latencies()
    for part in np.array_split(values, 11):
        many.add(part)
    shares = (0.5, 0.95, 0.99)
    assert many.quantiles(shares) == pytest.approx(list(np.quantile(values, shares)), rel=0.006)
    assert many.largest == values.max()
    assert Latencies().quantiles(shares) == [None, None, None]


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1001])
def test_quantiles_of_few_are_those_of_numpy(count: int) -> None:
    values = np.random.default_rng(count).lognormal(1, 2, count)
    few = Latencies()
    few.add(values)
    shares = (0.0, 0.25, 0.5, 0.95, 0.99, 1.0)
    assert few.quantiles(shares) == np.quantile(values, shares).tolist()


def test_grouping() -> None:
    assert [line.name for line in summarize(small(), by="version").latencies] == [
        "Fetch v12",
        "ApiVersions v12",
        "Produce v9",
    ]
    with pytest.raises(UsageError, match="cannot group by 'shoe'"):
        summarize({}, by="shoe")


def test_problems_add_up() -> None:
    problem = {"capture": "a", "kind": "missing_bytes", "detail": "d"}
    table = rows("problems", [{**problem, "bytes": 3}, {**problem, "bytes": None}, {**problem, "kind": "tls"}])
    lines = summarize({"problems": table}).problems
    assert [(p.kind, p.count, p.bytes) for p in lines] == [("missing_bytes", 2, 3), ("tls", 1, None)]


def test_peak_of_sessions() -> None:
    def session(opened: int, closed: int | None) -> dict[str, object]:
        return {
            "session_key": "k",
            "first_epoch": 0,
            "broker": "1",
            "opened_at": opened,
            "closed_at": closed,
            "requests": 1,
            "end_reason": "open",
        }

    table = pa.Table.from_pylist([session(1, 5), session(2, 3), session(4, None), session(5, None)])
    assert summarize({"fetch_sessions": table}).sessions[0].peak == 2

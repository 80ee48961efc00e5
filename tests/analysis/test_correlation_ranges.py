"""Which exchanges of several captures are the same, by ranges of correlation ids."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest

from kdissect.analysis.sights.correlation_ranges import (
    ALL,
    MOST_PAIRS,
    RANGES,
    REQUEST_ONLY,
    RESPONSE_ONLY,
    find_copies,
    join_ranges,
)

Exchange = tuple[int, int]
"""Correlation id, and the sequence number behind the request."""
WRAP = 1 << 32
NEAR, FAR = 1_000_000, 5_000_000
"""ns that an answer takes at the broker, and at the client."""


def ranges(
    capture: str, exchanges: Iterable[Exchange], took: int = NEAR, connection: int = 1, flow: int = 7,
    known: int = ALL, n: int = 0,
) -> pa.Table:  # fmt: skip
    """Exchanges of one connection, each a range, joined."""
    rows = [
        {
            "capture": capture, "broker": "1", "flow": flow, "connection": connection, "n": n + at, "count": 1,
            "correlation": correlation, "sequence": sequence % WRAP, "bytes": 0, "known": known, "took": took,
            "until": sequence,
        }
        for at, (correlation, sequence) in enumerate(exchanges)
    ]  # fmt: skip
    return join_ranges(pa.Table.from_pylist(rows, RANGES))


def copies(new: Iterable[pa.Table], counted: pa.Table | None = None) -> dict[str, list[int]]:
    """By capture the ordinals of copies."""
    found = find_copies(pa.concat_tables(new), RANGES.empty_table() if counted is None else counted).copies
    ordinals: dict[str, list[int]] = {}
    for row in found.to_pylist():
        ordinals.setdefault(row["capture"], []).extend(range(row["n"], row["n"] + row["count"]))
    return {capture: sorted(some) for capture, some in ordinals.items()}


def every(count: int, first: int = 0, begin: int = 1000) -> list[Exchange]:
    return [(first + at, begin + 100 * at) for at in range(count)]


def test_requests_that_are_numbered_one_by_one_are_one_range() -> None:
    told = ranges("a", [*every(10), *every(5, first=20, begin=9000)])
    columns = ("n", "count", "correlation", "sequence", "bytes")
    assert [tuple(row[name] for name in columns) for row in told.to_pylist()] == [
        (0, 10, 0, 1000, 900), (10, 5, 20, 9000, 400),
    ]  # fmt: skip
    assert join_ranges(told).equals(told)


def test_a_range_goes_on_where_sequence_numbers_begin_again() -> None:
    (row,) = ranges("a", every(10, begin=WRAP - 450)).to_pylist()
    assert (row["sequence"], row["bytes"]) == (WRAP - 450, 900)


def test_the_capture_nearest_the_broker_counts() -> None:
    near, far = ranges("b", every(10), NEAR), ranges("a", every(10), FAR, connection=2)
    assert copies([near, far]) == {"a": list(range(10))}
    assert copies([ranges("b", every(10)), ranges("a", every(10), connection=2)]) == {"b": list(range(10))}, "by name"


def test_what_was_counted_stays() -> None:
    far = ranges("a", every(10), FAR)
    assert copies([ranges("b", every(15), NEAR, connection=2)], far) == {"b": list(range(10))}
    assert copies([ranges("a", every(5, first=10, begin=2000), FAR, n=10)], far) == {}, "its own"


def test_what_only_one_capture_has_counts() -> None:
    lossy = ranges("b", [*every(20)[:8], *every(20)[12:]])
    whole = ranges("a", every(20), FAR, connection=2)
    assert copies([lossy, whole]) == {"a": [*range(8), *range(12, 20)]}


def test_an_exchange_with_its_answer_counts_before_one_without() -> None:
    asked, answered = ranges("b", every(3), known=REQUEST_ONLY), ranges("a", every(3), FAR, connection=2)
    assert copies([asked, answered]) == {"b": [0, 1, 2]}
    assert copies([answered], asked) == {}, "it was counted without, and nobody else has the answer"
    assert copies([asked], answered) == {"b": [0, 1, 2]}


@pytest.mark.parametrize(("flow", "begin"), [(8, 1000), (7, 1000 + (1 << 30))])
def test_other_flows_and_other_places_of_a_flow_are_others(flow: int, begin: int) -> None:
    """The second is a 4-tuple that was used again."""
    assert copies([ranges("a", every(10)), ranges("b", every(10, begin=begin), connection=2, flow=flow)]) == {}


def test_segments_that_are_cut_otherwise_are_the_same_requests() -> None:
    other = [(correlation, sequence + 700) for correlation, sequence in every(10)]
    assert copies([ranges("a", every(10)), ranges("b", other, FAR, connection=2)]) == {"b": list(range(10))}


def test_ids_that_come_again_are_told_by_sequence_numbers() -> None:
    """A client that numbers no request."""
    whole = [(0, sequence) for _, sequence in every(6)]
    assert copies([ranges("a", whole[:2] + whole[3:]), ranges("b", whole, FAR, connection=2)]) == {"b": [0, 1, 3, 4, 5]}


def test_many_ranges_of_the_same_ids_are_not_compared_with_each_other() -> None:
    """Two ids in turn, 60,000 times: a pair for each two ranges would take gigabytes."""
    whole = [(at % 2, 1000 + 100 * at) for at in range(120_000)]
    assert len(ranges("a", whole)) == 60_000 > MOST_PAIRS
    found = find_copies(ranges("a", whole, FAR), ranges("b", whole, connection=2)).copies
    assert sum(found["count"].to_pylist()) == 120_000


def test_a_response_without_its_request_is_recognised_by_its_id() -> None:
    whole = ranges("a", every(10), FAR)
    alone = ranges("b", [(4, WRAP - 1)], connection=2, known=RESPONSE_ONLY, n=-1)
    assert copies([whole, alone]) == {"b": [-1]}
    assert copies([alone], whole) == {"b": [-1]}
    assert copies([alone, ranges("c", [(4, WRAP - 1)], connection=3, known=RESPONSE_ONLY, n=-1)]) == {"c": [-1]}
    again = ranges("b", [(0, WRAP - 1)], connection=2, known=RESPONSE_ONLY, n=-1)
    assert copies([ranges("a", [(0, 100), (0, 200)], FAR), again]) == {}, "it may be the answer to either"


def test_copies_say_which_connections_are_the_same() -> None:
    counted = ranges("a", every(4), FAR)
    new = pa.concat_tables([ranges("b", every(10), connection=2), ranges("c", every(10), FAR, connection=3)])
    found = {tuple(row.values()) for row in find_copies(new, counted).shared.to_pylist()}
    assert found == {(2, 1, 4, True), (3, 1, 4, True), (3, 2, 10, False)}


@pytest.mark.parametrize("seed", range(40))
def test_each_exchange_counts_once(seed: int) -> None:
    """Connections that three captures have parts of, in several batches; each exchange that any of them has counts, and
    of one capture."""
    random_ = random.Random(seed)
    parts: dict[str, list[pa.Table]] = {name: [] for name in "abc"}
    had: dict[str, set[tuple[int, int]]] = {name: set() for name in "abc"}
    place: dict[tuple[str, int, int], tuple[int, int]] = {}
    for flow in range(4):
        step = random_.choice([0, 1, 1, 1, 3])
        truth = [(step * at + random_.choice([0, 0, 0, 5]) * (step > 1), 77 * at) for at in range(60)]
        begin = random_.randrange(WRAP)
        for number, name in enumerate("abc"):
            kept = [at for at in range(60) if random_.random() > random_.choice([0.0, 0.02, 0.3])]
            exchanges = [(truth[at][0], begin + truth[at][1]) for at in kept]
            cut = random_.randrange(len(kept))
            connection, took = 10 * flow + number, random_.choice([NEAR, FAR])
            for first, some in ((0, exchanges[:cut]), (cut, exchanges[cut:])):
                parts[name].append(ranges(name, some, took, connection, flow, n=first))
            had[name] |= {(flow, at) for at in kept}
            place |= {(name, connection, n): (flow, at) for n, at in enumerate(kept)}
    batches: list[list[pa.Table]] = [[], [], []]
    for tables in parts.values():
        for first, second in zip(tables[::2], tables[1::2], strict=True):
            at = sorted(random_.choices(range(3), k=2))
            batches[at[0]].append(first)
            batches[at[1]].append(second)
    counted, times = RANGES.empty_table(), dict.fromkeys(set().union(*had.values()), 0)
    for some in had.values():
        for one in some:
            times[one] += 1
    for batch in batches:
        new = join_ranges(pa.concat_tables([RANGES.empty_table(), *batch]))
        for row in find_copies(new, counted).copies.to_pylist():
            for n in range(row["n"], row["n"] + row["count"]):
                times[place[row["capture"], row["connection"], n]] -= 1
        counted = join_ranges(pa.concat_tables([counted, new]))
    assert set(times.values()) == {1}, {one: count for one, count in times.items() if count != 1}
    assert int(np.sum(counted["count"].to_numpy())) == sum(map(len, had.values()))

"""Other waits, sizes and lingers: fetches and batches counted by hand, and recordings."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

import kdissect
from kdissect.analysis.other_settings import with_batching, with_fetching
from kdissect.cli.commands import main
from tests.analysis.wire import START, made
from tests.conftest import ROOT

CAPTURES = ROOT / "captures"
POLLS = ((0, 100, 10), (101, 200, 10), (201, 701, 0), (702, 900, 10))
"""Milliseconds at which a consumer asked and was answered, and bytes: a wait of 500 ms ended one of them."""


def fetched(max_wait: int | None, least: int | None, **more: Any) -> tuple[Any, ...]:
    """(fetches, empty, fetches then, empty then, later: median, most)."""
    rows = [
        {"exchange_id": f"{1:016x}:{n}", "connection_id": f"{1:016x}", "client_id": "c", "broker": "1", "error_code": 0,
         "requested_at": START + asked * 1000, "response_first_at": START + answered * 1000, "record_bytes": size,
         "max_wait_ms": 500, "min_bytes": 1, "partitions_with_error": 0} | more
        for n, (asked, answered, size) in enumerate(POLLS)
    ]  # fmt: skip
    names = ("fetches", "empty", "fetches_then", "empty_then", "later_p50_ms", "later_max_ms")
    found = with_fetching(made("fetches", rows), max_wait, least).to_pylist()
    return tuple(found[0][name] for name in names) if found else ()


def test_the_same_settings_change_nothing() -> None:
    assert fetched(None, None) == (4, 1, 4, 1, 0.0, 0.0)


def test_a_longer_wait_spares_the_empty_answer() -> None:
    """The third fetch would have waited until 900 ms."""
    assert fetched(1000, None) == (4, 1, 3, 0, 0.0, 0.0)


def test_more_bytes_make_records_wait_for_others() -> None:
    """The records of 100 ms go with those of 200 ms, those of 900 ms wait from 702 to 1,202 ms in vain."""
    assert fetched(None, 20) == (4, 1, 3, 1, 100.0, 302.0)


def test_a_way_to_the_broker_is_walked_at_each_fetch() -> None:
    """30 ms of network: empty ones end at 430, 660 and 890 ms; who asks at 891 has what came at 900 ms at 921."""
    assert fetched(199, 1, latency_ms=40.0, broker_ms=10.0) == (4, 1, 6, 3, 0.0, 21.0)


def test_followers_and_errors_do_not_count() -> None:
    assert fetched(1000, None, is_follower=True) == ()
    assert fetched(1000, None, error_code=70) == ()


def batched(linger: float, most: int, answered: float, *sent: float) -> tuple[Any, ...]:
    """(batches, batches then, one by one, later: median, most) of batches of 161 bytes, answered so long after."""
    produces, partitions = [], []
    for n, at in enumerate(sent):
        whole = START + round(at * 1000)
        name = {"exchange_id": f"{1:016x}:{n}"}
        produces.append(name | {"connection_id": f"{1:016x}", "client_id": "p", "broker": "1", "requested_at": whole,
                                "response_first_at": whole + round(answered * 1000)})  # fmt: skip
        partitions.append(name | {"topic": "t", "partition": 0, "batches": 1, "records": 1, "record_bytes": 161})
    tables = made("produces", produces), made("produce_partitions", partitions)
    (row,) = with_batching(*tables, linger, most).to_pylist()
    return tuple(row[name] for name in ("batches", "batches_then", "one_by_one", "later_p50_ms", "later_max_ms"))


def test_batches_within_the_linger_are_one() -> None:
    """0, 2 and 4 ms go at 5; 9 at 14; 30 at 35."""
    assert batched(5, 16384, 20, 0, 2, 4, 9, 30) == (5, 3, 0, 5.0, 5.0)


def test_a_full_batch_goes_at_once() -> None:
    """Two payloads of 100 bytes and one header fit 261: 0 and 2 ms go at 4, as the next does not fit, 4 and 9 at 9."""
    assert batched(5, 261, 20, 0, 2, 4, 9, 30) == (5, 3, 0, 4.0, 5.0)
    assert batched(5, 161, 20, 0, 2, 4) == (3, 3, 0, 0.0, 0.0)


def test_who_waits_for_each_answer_sends_nothing_that_could_join() -> None:
    assert batched(5, 16384, 1, 0, 2, 4, 9, 30) == (5, 5, 5, 0.0, 0.0)


def test_recorded_batches() -> None:
    """p16 sends a record every few milliseconds, p16sync waits for each answer; counted here once more, plainly."""
    capture = kdissect.open(CAPTURES / "stories" / "tiny.pcap.zst")
    found = {row["client_id"]: row for row in capture.analysis.with_batching(20.0).to_pylist()}
    assert (found["p16sync"]["batches_then"], found["p16sync"]["one_by_one"]) == (1000, 1000)
    tables = capture.tables({"produces": ["exchange_id", "client_id", "requested_at"],
                             "produce_partitions": ["exchange_id", "record_bytes"]})  # fmt: skip
    sent = {row["exchange_id"]: row for row in tables["produces"].to_pylist() if row["client_id"] == "p16"}
    rows = sorted((sent[row["exchange_id"]]["requested_at"], row["record_bytes"])
                  for row in tables["produce_partitions"].to_pylist() if row["exchange_id"] in sent)  # fmt: skip
    batches, opened, held = 0, None, 0
    for at, size in rows:
        if opened is None or (at - opened).total_seconds() > 0.02 or held + size - 61 > 16384:
            batches, opened, held = batches + 1, at, size
        else:
            held += size - 61
    assert (found["p16"]["batches"], found["p16"]["batches_then"]) == (2500, batches)
    assert found["p16"]["later_max_ms"] == 20.0


def test_recorded_polls() -> None:
    """240 empty answers in 3.1 s: a wait of half a second leaves six of them."""
    capture = kdissect.open(CAPTURES / "rules" / "polling.pcap.zst")
    (poller,) = (row for row in capture.analysis.with_fetching(500).to_pylist() if row["client_id"] == "poller")
    assert (poller["empty"], poller["empty_then"], poller["later_max_ms"]) == (240, 6, None)


def test_the_command() -> None:
    path = str(CAPTURES / "rules" / "polling.pcap.zst")
    said = CliRunner().invoke(main, ["whatif", path, "--max-wait", "500ms"]).output
    assert said.startswith("11 fetches instead of 253, 11 of them empty instead of 253.")
    said = CliRunner().invoke(main, ["whatif", path, "--linger", "5ms"]).output
    assert said == "No batch that a producer sent in what was read.\n"
    assert CliRunner().invoke(main, ["whatif", path]).exit_code == 2


@pytest.mark.parametrize("arguments", [(-1, None), (None, -1)])
def test_below_nothing(arguments: tuple[int | None, int | None]) -> None:
    with pytest.raises(kdissect.UsageError):
        kdissect.open(CAPTURES / "base_tiny.pcap").analysis.with_fetching(*arguments)

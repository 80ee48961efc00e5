"""Reads of one open capture: by several threads, in pieces that take turns, and of open files again."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

import pytest

import kdissect
from kdissect.engine import capture_tables
from kdissect.problems import CaptureUnreadable, UsageError
from tests.oracle.material import CAPTURES

TINY = CAPTURES / "base_tiny.pcap"
UNLIKE = {"capture", "request_file", "response_file", "exchange_id", "connection_id"}
"""Columns with the name of the file in them, or made of it."""
REFUSED = "another thread is reading this capture"


def in_another_thread(read: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(read).result()


def test_a_second_thread_is_refused_while_the_first_one_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = kdissect.open(TINY)
    expected = capture.table("exchanges")
    reading, may_go_on = threading.Event(), threading.Event()
    whole = capture_tables.AnalysedRun.all_tables

    def slowly(run: Any) -> Any:
        reading.set()
        assert may_go_on.wait(60)
        return whole(run)

    monkeypatch.setattr(capture_tables.AnalysedRun, "all_tables", slowly)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(capture.table, "exchanges")
        assert reading.wait(60)
        for read in (capture.summary, capture.analysis.findings, lambda: next(capture.batches("exchanges"))):
            with pytest.raises(UsageError, match=REFUSED):
                read()
        may_go_on.set()
        assert first.result().equals(expected)
    assert capture.table("exchanges").equals(expected)


def test_rows_in_pieces_keep_their_capture_until_they_end_or_are_let_go() -> None:
    capture = kdissect.open(TINY)
    pieces = capture.batches("exchanges")
    next(pieces)
    with pytest.raises(UsageError, match=REFUSED):
        in_another_thread(lambda: capture.table("exchanges"))
    assert capture.table("fetches").num_rows  # the same thread may
    list(pieces)
    assert in_another_thread(lambda: capture.table("exchanges")).num_rows
    other = capture.batches("exchanges")
    next(other)
    del other
    assert in_another_thread(lambda: capture.table("exchanges")).num_rows


def test_pieces_of_two_tables_take_turns() -> None:
    capture = kdissect.open(TINY)
    found = list(zip_longest(capture.batches("exchanges"), capture.batches("fetches")))
    for at, name in enumerate(("exchanges", "fetches")):
        assert sum(pair[at].num_rows for pair in found if pair[at] is not None) == capture.table(name).num_rows


def test_an_open_file_that_can_seek_is_read_again_from_where_it_stood() -> None:
    file = io.BytesIO(b"before" + TINY.read_bytes())
    file.seek(6)
    capture, expected = kdissect.open(file), kdissect.open(TINY)
    for name in ("exchanges", "connections"):
        found, other = capture.table(name), expected.table(name)
        alike = [column for column in found.column_names if column not in UNLIKE]
        assert found.select(alike).equals(other.select(alike))
    assert capture.analysis.latency().equals(expected.analysis.latency())


def test_a_pipe_is_still_read_once() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    capture = kdissect.open(Pipe(TINY.read_bytes()))
    assert capture.table("exchanges").num_rows
    with pytest.raises(CaptureUnreadable, match="a pipe can be read only once"):
        capture.table("exchanges")

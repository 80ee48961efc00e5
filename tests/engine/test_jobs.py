"""Work shared out among threads: what comes out, and in which order, does not depend on their number."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdissect
from kdissect.capture.block import Block
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.cli.main import main
from kdissect.engine import analysed_run
from kdissect.engine.capture_tables import MADE
from kdissect.engine.extracts import overview
from kdissect.engine.pipeline import Strand
from kdissect.engine.readahead import Ahead, Offer, Once
from kdissect.net.scanner import Scanner
from kdissect.problems import UsageError
from kdissect.tables.declaration import SCHEMAS
from tests.bench.workloads import WORKLOADS

TABLES = [*MADE, "producers"]
STREAMED = ("exchanges", "fetches", "fetch_partitions", "record_batches", "list_offsets", "groups")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some dozen blocks a capture, each worked on at once."""
    monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17, 4))
    monkeypatch.setattr(analysed_run, "ROWS_A_TIME", 0)
    monkeypatch.setattr(overview, "HELD_BACK", 0)


@pytest.fixture(scope="module")
def coming_and_going(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A megabyte of short connections: numbers of flows are used again and again."""
    path = tmp_path_factory.mktemp("jobs") / "short.pcap"
    WORKLOADS["short"][1](path, 1 << 20)
    return path


def same(one: Any, other: Any) -> None:
    """Two captures opened differently say the same."""
    first, second = one.tables(TABLES), other.tables(TABLES)
    for name in TABLES:
        assert first[name].equals(second[name]), name
    assert one.summary() == other.summary()
    for name in STREAMED:
        rows = [pa.Table.from_batches(capture.batches(name), SCHEMAS[name]) for capture in (one, other)]
        assert rows[0].equals(rows[1]), name


@pytest.mark.parametrize("jobs", [3])
@pytest.mark.parametrize(
    "name",
    [
        "k4_slow_and_throttled.pcap", "k4_transactions.pcap", "k4_share_group.pcap", "field_loss5.pcap",
        "field_ip_fragments.pcap", "sasl_old.pcap", "field_cut.pcapng", "field_gz.pcap.gz", "base_tiny.pcap",
    ],
)  # fmt: skip
def test_recorded_captures(captures: Path, name: str, jobs: int, small_blocks: None) -> None:
    same(kdissect.open(captures / name, jobs=1), kdissect.open(captures / name, jobs=jobs))


def test_connections_that_come_and_go(coming_and_going: Path, small_blocks: None) -> None:
    same(kdissect.open(coming_and_going, jobs=1), kdissect.open(coming_and_going, jobs=3))


@pytest.mark.whole
def test_several_captures(captures: Path, small_blocks: None) -> None:
    """One of them is compressed and read by a single strand."""
    names = [captures / name for name in ("k4_follower_sessions.pcap", "field_gz.pcap.gz", "base.pcap")]
    same(kdissect.open(names, jobs=1), kdissect.open(names, jobs=3))


def test_encrypted(captures: Path, small_blocks: None) -> None:
    keys = captures / "tls13.keys.log"
    one, other = (kdissect.open(captures / "tls13.pcap", keylog=keys, jobs=jobs) for jobs in (1, 2))
    same(one, other)
    assert one.table("exchanges").num_rows > 10


@pytest.mark.whole
def test_a_client_alone(captures: Path, small_blocks: None) -> None:
    path = captures / "k4_slow_and_throttled.pcap"
    client = next(name for name in kdissect.open(path).table("exchanges")["client_id"].to_pylist() if name)
    same(kdissect.open(path, client=client, jobs=1), kdissect.open(path, client=client, jobs=2))


def test_connections_are_shared_out(coming_and_going: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    feed = Strand.feed

    def watched(self: Strand, segments: Any, flows: Any, order: Any) -> Any:
        fed.append(len(order))
        return feed(self, segments, flows, order)

    monkeypatch.setattr(Strand, "feed", watched)
    kdissect.open(coming_and_going, jobs=3).table("exchanges")
    assert len(fed) % 2 == 0  # the third thread asks
    assert min(fed) > max(fed) / 2 > 0


def test_whoever_stops_early_leaves_no_thread(coming_and_going: Path, small_blocks: None) -> None:
    batches = kdissect.open(coming_and_going, jobs=2).batches("exchanges", columns=["exchange_id", "api"])
    assert next(batches).num_rows
    assert any(thread.name.startswith("kdissect-") for thread in threading.enumerate())
    batches.close()  # type: ignore[attr-defined]
    assert not any(thread.name.startswith("kdissect-") for thread in threading.enumerate())


def test_memory_of_a_run_goes_with_it(coming_and_going: Path, small_blocks: None) -> None:
    """It does not wait for a collection: a window alone is some hundred megabytes."""
    gc.collect()
    gc.disable()
    try:
        for _ in kdissect.open(coming_and_going, jobs=2).batches("exchanges"):
            pass
        assert not any(type(one) is Window for one in gc.get_objects())
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["", "1 / 0"])
def test_python_ends_though_rows_are_left(end: str, coming_and_going: Path) -> None:
    """Whether at the end of a script or with an error: no thread keeps it from ending."""
    script = f"""
import kdissect
from kdissect.capture.captureset import CaptureSet
from kdissect.capture.window import Window
from kdissect.engine import analysed_run

CaptureSet.window = lambda self: Window(1 << 17, 4)
analysed_run.ROWS_A_TIME = 0
batches = kdissect.open({str(coming_and_going)!r}, jobs=2).batches("exchanges")
print(next(batches).num_rows > 0)
{end}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "True\n"
    assert done.returncode == bool(end)
    assert done.stderr.splitlines()[-1:] == ["ZeroDivisionError: division by zero"] * bool(end)


@pytest.mark.parametrize("where", ["strand", "reading"])
def test_an_error_of_a_thread_is_raised(where: str, coming_and_going: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise ZeroDivisionError(where)

    if where == "strand":
        monkeypatch.setattr(Strand, "feed", broken)
    else:
        scan = Scanner.scan

        def second(self: Scanner, block: Block) -> Any:
            monkeypatch.setattr(Scanner, "scan", broken)
            return scan(self, block)

        monkeypatch.setattr(CaptureSet, "window", lambda self: Window(1 << 17, 4))
        monkeypatch.setattr(Scanner, "scan", second)
    with pytest.raises(ZeroDivisionError, match=where):
        kdissect.open(coming_and_going, jobs=3).table("exchanges")


def test_bad_numbers(captures: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="1 to 1024, not 0"):
        kdissect.open(captures / "base_tiny.pcap", jobs=0)
    assert main([str(captures / "base_tiny.pcap"), "--jobs", "0"]) == 2
    assert "jobs" in capfd.readouterr().err


def test_what_another_thread_makes_is_bounded_and_in_order() -> None:
    made: list[int] = []

    def numbers() -> Generator[int, None, None]:
        for number in range(20):
            made.append(number)
            yield number

    with Ahead(lambda _: numbers(), 2, "kdissect-test") as ahead:
        for number in ahead:
            assert len(made) <= number + 2
    assert made == list(range(20))


def test_whoever_waits_does_what_is_offered() -> None:
    """And goes on to the next thing; what was offered is done once."""
    done: list[str] = []

    def work() -> int:
        done.append(threading.current_thread().name)
        return len(done)

    def numbers(offer: Offer) -> Generator[int, None, None]:
        for _ in range(3):
            once = Once(work)
            offer(once)
            while not done:  # whoever takes the numbers has nothing else to do
                time.sleep(0.001)
            yield once.result()
            done.clear()

    with Ahead(numbers, 1, "kdissect-test") as ahead:
        assert list(ahead) == [1, 1, 1]
    assert not done


def test_who_must_not_go_on_yet_does_what_it_offered() -> None:
    done: list[str] = []

    def numbers(offer: Offer) -> Generator[int, None, None]:
        offer(Once(lambda: done.append(threading.current_thread().name)))
        yield 1
        yield 2

    with Ahead(numbers, 1, "kdissect-test") as ahead:
        until = time.monotonic() + 60
        while not done and time.monotonic() < until:  # nobody takes anything meanwhile
            time.sleep(0.001)
        assert list(ahead) == [1, 2]
    assert done == ["kdissect-test"]


def test_what_nobody_takes_is_done_by_who_needs_it() -> None:
    done: list[str] = []
    once = Once(lambda: done.append(threading.current_thread().name) or 7)
    assert once.result() == once.result() == 7
    once.do()
    assert done == [threading.current_thread().name]


def test_what_was_offered_and_failed() -> None:
    """Whoever needs it is told; whoever did it for another one is told of an interrupt only."""

    def failing(error: type[BaseException]) -> Once[None]:
        def work() -> None:
            raise error

        return Once(work)

    once = failing(ZeroDivisionError)
    once.do()
    with pytest.raises(ZeroDivisionError):
        once.result()
    once = failing(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        once.do()
    with pytest.raises(KeyboardInterrupt):
        once.result()


def test_what_is_given_up() -> None:
    """Nobody begins it; what was begun is waited for."""
    begun, may_end = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        begun.set()
        may_end.wait(60)
        ended.append(True)

    never = Once(work)
    never.give_up()
    never.do()
    assert not begun.is_set()
    once = Once(work)
    other = threading.Thread(target=once.do)
    other.start()
    begun.wait(60)
    threading.Timer(0.05, may_end.set).start()
    once.give_up()
    assert ended
    other.join()


def test_who_stops_taking_stops_who_makes() -> None:
    ended = []

    def forever() -> Generator[int, None, None]:
        try:
            while True:
                yield 1
        finally:
            ended.append(True)

    with Ahead(lambda _: forever(), 2, "kdissect-test") as ahead:
        assert next(iter(ahead)) == 1
    assert ended

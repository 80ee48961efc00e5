"""The live view's keys, on a terminal of 80 by 24 cells and on a large one, by textual's own driver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

import kdissect
from kdissect.cli.live.fullscreen import Screen
from kdissect.cli.live.panel import explainable
from kdissect.live.lookout import Lookout
from kdissect.live.ring import Ring
from kdissect.live.running_figures import Figures
from kdissect.live.source import open_source
from kdissect.live.watched_source import Session
from tests.conftest import ROOT

STORY = ROOT / "captures" / "stories" / "slow_broker.pcap.zst"
SIZES = [(80, 24), (200, 60)]


@pytest.fixture(scope="module")
def session(captures: Path) -> Iterator[Session]:
    """A story that was read to its end."""
    source = open_source([str(captures / "k4_session_eviction.pcap")], None, (), None, once=True)
    with Session(source, Figures(), Ring(3600.0)) as session:
        session.run()
        session.figures.add_finding({
            "first_at": "2026-11-21T02:57:53Z", "id": "session_evictor", "severity": "high", "advice": "",
            "text": "Client raw-evict-more pushes out others", "broker": "1", "client_id": None, "topic": None,
            "explained_by": None, "cause": "client",
        })  # fmt: skip
        yield session


def driven(session: Session, size: tuple[int, int], keys: Callable[[Screen, Pilot[None]], Awaitable[None]]) -> None:
    async def run() -> None:
        app = Screen(session, "story.pcap")
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await keys(app, pilot)

    asyncio.run(run())


def text(app: Screen, part: str = "table") -> str:
    return str(app.query_one(f"#{part}", Static).render())


def test_deliveries_are_a_table_where_they_are_counted(session: Session, captures: Path) -> None:
    """Else the key says how to count them, and Tab passes them over."""

    async def refused(app: Screen, pilot: Pilot[None]) -> None:
        await pilot.press("d")
        assert app.shown == "brokers"
        assert "--deliveries" in text(app, "head")
        await pilot.press("tab", "tab", "tab", "tab")
        assert app.shown == "brokers"

    driven(session, SIZES[1], refused)

    async def shown(app: Screen, pilot: Pilot[None]) -> None:
        await pilot.press("tab", "tab", "tab", "tab")
        assert app.shown == "deliveries"
        title, line = text(app).splitlines()[:2]
        assert title.split()[:4] == ["Topic", "Group", "a", "second"]
        assert line.split()[:2] == ["s3x", "g3"]
        assert "reader (100%)" in line

    source = open_source([str(captures / "stories/slow_consumer.pcap.zst")], None, (), None, once=True)
    with Session(source, Figures(deliveries=True)) as counting:
        counting.run()
        driven(counting, SIZES[1], shown)
        driven(counting, SIZES[0], shown)


@pytest.mark.parametrize("size", SIZES)
def test_every_table_fits(session: Session, size: tuple[int, int]) -> None:
    async def keys(app: Screen, pilot: Pilot[None]) -> None:
        for key, title in (("b", "Broker"), ("c", "Client"), ("t", "Topic"), ("a", "API")):
            await pilot.press(key)
            lines = text(app).splitlines()
            assert lines[0].startswith(title)
            assert 2 <= len(lines) <= size[1] - 3
            assert all(len(line) <= size[0] for line in lines)
            assert "p99" in lines[0]
        await pilot.press("tab")
        assert text(app).startswith("Broker")
        assert "2,110 exchanges" in text(app, "head")
        assert "raw-evict-more pushes out" in text(app, "findings")

    driven(session, size, keys)


def test_findings_get_the_lines_that_the_table_leaves(session: Session) -> None:
    session.figures.add_finding({
        "first_at": "2026-11-21T02:57:54Z", "id": "long", "severity": "medium", "advice": "", "broker": None,
        "text": "word " * 60, "client_id": None, "topic": None, "explained_by": None, "cause": "client",
    })  # fmt: skip

    async def keys(app: Screen, pilot: Pilot[None]) -> None:
        await pilot.press("b")
        lines = text(app, "findings").splitlines()
        assert "raw-evict-more pushes out" in lines[0], "the worst first"
        assert text(app, "findings").count("word") == 60
        assert all(len(line) <= 80 for line in lines)
        assert len(lines) + len(text(app).splitlines()) <= 21
        assert {line.split()[0] for line in text(app).splitlines()[1:]} == {"1", "2", "3"}

    try:
        driven(session, (80, 24), keys)
    finally:
        session.figures.findings.pop()


def test_all_lines_and_the_input_are_on_the_screen(session: Session) -> None:
    """With more findings than lines nothing scrolls: findings over the whole screen keep their width, Esc brings the
    table back, and the line that asks for a file or a text is seen."""
    for second in range(20):
        session.figures.add_finding({
            "first_at": f"2026-11-21T02:57:{second + 10}Z", "id": "long", "severity": "medium", "advice": "",
            "text": "word " * 60, "broker": None, "client_id": None, "topic": None, "explained_by": None,
            "cause": "client",
        })  # fmt: skip

    async def keys(app: Screen, pilot: Pilot[None]) -> None:
        for pressed, asks in (("f", False), ("w", True), ("escape", False), ("escape", False), ("slash", True)):
            await pilot.press(pressed)
            await pilot.pause()
            head, table, findings, line = (
                app.query_one(f"#{part}").region for part in ("head", "table", "findings", "ask")
            )
            assert not app.screen.show_vertical_scrollbar
            assert head.height + table.height + findings.height + line.height == 23
            assert findings.width == 80
            assert line.height == asks
            assert line.bottom == (23 if asks else 0)
            assert table.height >= (0 if app.only_findings else 2)

    try:
        driven(session, (80, 24), keys)
    finally:
        for _ in range(20):
            session.figures.findings.pop()


def test_quiet_names_take_no_line(session: Session) -> None:
    async def keys(app: Screen, pilot: Pilot[None]) -> None:
        await pilot.press("c")
        assert "(unknown)" not in text(app)
        assert "quiet: / shows them" in text(app).splitlines()[-1]
        await pilot.press("slash", *"unknown", "enter")
        assert "(unknown)" in text(app)

    driven(session, (80, 24), keys)


def test_sort_filter_and_pause(session: Session) -> None:
    async def keys(app: Screen, pilot: Pilot[None]) -> None:
        await pilot.press("c")
        names = [row["name"] for row in app.rows()]
        await pilot.press("r")
        assert [row["rate"] for row in app.rows()] == sorted(row["rate"] for row in app.rows())
        await pilot.press("S", "r")
        assert [row["name"] for row in app.rows()] == sorted(names, reverse=app.sorted["clients"][1])
        await pilot.press("slash", *"evict", "enter")
        assert {row["name"] for row in app.rows()} == {name for name in names if "evict" in name}
        assert "/evict" in text(app, "head")
        await pilot.press("escape")
        assert len(app.rows()) == len(names)
        await pilot.press("p")
        assert app.paused
        assert "PAUSED" in text(app, "head")
        await pilot.press("space")
        assert not app.paused

    driven(session, (80, 24), keys)


def test_one_clients_exchanges(session: Session) -> None:
    async def keys(app: Screen, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        assert "choose a client" in text(app, "head")
        await pilot.press("c", "down", "enter")
        assert app.client == app.rows()[1]["name"]
        lines = text(app).splitlines()
        assert lines[0].startswith(f"Client {app.client}: the latest exchanges")
        assert "Fetch v" in lines[2]
        assert all(len(line) <= 80 for line in lines)
        await pilot.press("escape")
        assert app.client is None
        await pilot.press("up", "up", "up")
        assert app.chosen == 0

    driven(session, (80, 24), keys)


def test_findings_help_and_quit(session: Session) -> None:
    async def keys(app: Screen, pilot: Pilot[None]) -> None:
        await pilot.press("f")
        assert not text(app)
        await pilot.press("f", "question_mark")
        await pilot.pause()
        said = app.screen.query_one("#help", Static)
        assert "a client's exchanges" in str(said.render())
        assert app.screen.region.contains_region(said.region)
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen.query("#table")
        await pilot.press("q")
        await pilot.pause()
        assert app.return_code == 0

    driven(session, (80, 24), keys)


@pytest.mark.whole
def test_enter_on_a_finding_opens_why() -> None:
    """Of a replay that has ended: the packets are in the ring. The findings are those that the live view found."""
    source = open_source([str(STORY)], None, (), 60.0, once=False)
    with Session(source, Figures(), Ring(3600.0), Lookout()) as session:
        session.run()

        async def keys(app: Screen, pilot: Pilot[None]) -> None:
            await pilot.press("f")
            texts = [one["text"] for one in app.findings()]
            await pilot.press(*["down"] * next(n for n, one in enumerate(texts) if "answered nothing" in one), "enter")
            await pilot.pause()
            shown = app.screen.query_one("#why", Static)
            for _ in range(600):
                if "rows of exchanges" in str(shown.render()):
                    break
                await asyncio.sleep(0.1)
            said = str(shown.render())
            assert "broker 3 answered nothing for 3.0 s" in said.splitlines()[0]
            assert "\nrequests " in said
            assert "kdissect FILE --table exchanges --where" in said
            await pilot.press("escape")
            await pilot.pause()
            assert app.screen.query("#table")

        driven(session, (80, 24), keys)


def test_a_state_of_a_broker_is_explained_by_its_traffic() -> None:
    alert = {
        "at": "2026-11-22T01:02:51.698Z",
        "id": "standstill",
        "severity": "high",
        "broker": "3",
        "text": "broker 3",
    }
    row = explainable(alert, 2, "2026-11-22T01:02:54Z")
    assert row is not None
    assert (row["first_at"], row["last_at"], row["number"]) == (alert["at"], "2026-11-22T01:02:54Z", 2)
    took = kdissect.open(STORY).table(row["table"], ["latency_ms"], where=row["filter"])["latency_ms"].to_pylist()
    assert len(took) > 5
    assert all(one is None or one >= 1000 for one in took)
    gone = explainable({**alert, "id": "gone"}, 1, None)
    assert gone is not None
    assert kdissect.open(STORY).table(gone["table"], where=gone["filter"]).num_rows > 0
    assert explainable({**alert, "id": "sampling", "broker": None}, 1, None) is None


def test_the_last_seconds_are_written(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def keys(app: Screen, pilot: Pilot[None]) -> None:
        await pilot.press("w", "enter")
        assert "packets written to kdissect-20261121" in text(app, "head")
        await pilot.press("w", *(["backspace"] * 40), *"no/where", "enter")
        assert "no/where" in text(app, "head")

    driven(session, (80, 24), keys)
    (written,) = tmp_path.glob("*.pcap")
    assert kdissect.open(written).table("exchanges").num_rows == 2110


def test_what_names_hold_is_only_shown(session: Session) -> None:
    """Control characters and markup of a client id."""
    import pyarrow as pa

    hostile = "[red]\x1b[2J\u202e"
    session.figures.of["client"].places(pa.array([hostile] * 1000))

    async def keys(app: Screen, pilot: Pilot[None]) -> None:
        await pilot.press("c", "slash", *"red", "enter")
        assert "[red]\\u001b[2J\\u202e" in text(app)
        assert "\x1b" not in text(app)

    driven(session, (200, 60), keys)

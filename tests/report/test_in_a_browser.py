"""The report in a real browser: nothing in the console, charts drawn, choices work, CSV holds the rows, capture's text
stays text."""

from __future__ import annotations

import csv
import itertools
import re
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import axe_core_python
import pytest

import kdissect
from kdissect.report import document
from kdissect.tables.declaration import SCHEMAS
from tests.conftest import CAPTURES
from tests.report import browser
from tests.report.hostile import SHOWN, hostile_tables

pytestmark = browser.needed
CHARTS = [
    "heat", "latency-by-api", "time-parts", "budget", "holds", "outliers", "sessions-alive", "sessions", "epochs",
    "throughput",
]  # fmt: skip
MARKS = "return document.querySelectorAll(`[data-chart='${arguments[0]}'] svg .role-mark path`).length"
CAPTURE = "k4_session_eviction.pcap"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[browser.Page]:
    with browser.browser(folder) as page:
        yield page


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    path = folder / "report.html"
    kdissect.open(CAPTURES / CAPTURE).report(path, named=CAPTURE)
    return path


@pytest.mark.parametrize(
    ("scheme", "width"),
    [("light", 1280), *(pytest.param(*one, marks=pytest.mark.whole) for one in (("dark", 1280), ("light", 400)))],
)
def test_every_chart_is_drawn_and_the_console_is_silent(
    page: browser.Page, path: Path, scheme: str, width: int
) -> None:
    page.open(path, scheme, width)
    assert page.messages() == []
    drawn = {name: page.run(MARKS, name) for name in CHARTS}
    assert min(drawn.values()) > 0, drawn
    assert page.run("return document.querySelectorAll('[data-chart=flow] .band').length") > 0
    cut = page.run(
        "const width = document.querySelector('[data-chart=flow]').clientWidth;"
        "return [...document.querySelectorAll('[data-chart=flow] text')].filter((one) => one.getBBox().x < -1"
        " || one.getBBox().x + one.getBBox().width > width + 1).map((one) => one.textContent)"
    )
    assert cut == []
    assert page.run("return document.documentElement.scrollWidth <= window.innerWidth"), "wider than the window"
    background = page.run("return getComputedStyle(document.body).backgroundColor")
    shade = sum(int(part) for part in re.findall(r"\d+", background)[:3]) / 3
    assert (shade > 128) == (scheme == "light")


CUT = """const of = (one) => one.getBoundingClientRect();
    return [...document.querySelectorAll('.chart')].flatMap((chart) => [...chart.querySelectorAll('svg text')]
      .filter((one) => of(one).width && (of(one).right > of(chart).right + 1 || of(one).left < of(chart).left - 1))
      .map((one) => chart.dataset.chart + ': ' + one.textContent))"""
LABELS = """return [...document.querySelectorAll('.chart .role-axis-label')].map((axis) =>
    [...axis.querySelectorAll('text')].filter((one) => one.style.opacity !== '0' && one.getAttribute('opacity') !== '0')
      .map((one) => one.textContent))"""


@pytest.mark.parametrize("width", [420, pytest.param(1400, marks=pytest.mark.whole)])
def test_legends_are_whole_axes_tell_times_apart_and_errors_come_early(
    page: browser.Page, path: Path, width: int
) -> None:
    page.open(path, width=width)
    assert page.run(CUT) == []
    axes = [labels for labels in page.run(LABELS) if any(":" in label for label in labels)]
    assert axes
    for labels in axes:
        assert len(set(labels)) == len(labels), labels
    order = "return [...document.querySelectorAll('#time, #findings, #failures, #overview')].map((one) => one.id)"
    assert page.run(order) == ["time", "findings", "failures", "overview"]
    if width > 420:
        assert page.run("return document.getElementById('failures').getBoundingClientRect().top") < 2800


@pytest.mark.whole
def test_the_last_label_of_a_short_capture_is_whole(page: browser.Page, folder: Path) -> None:
    """Labels of milliseconds are wide, and a tick may stand near the end."""
    path = folder / "short.html"
    kdissect.open(CAPTURES / "raw_errors.pcap").report(path, named="raw_errors.pcap")
    page.open(path, width=420)
    assert page.run(CUT) == []


RUN = {("light", 420): pytest.mark.whole}
"""When they are run; the others where everything is."""


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        pytest.param(scheme, width, marks=RUN.get((scheme, width), pytest.mark.exhaustive))
        for scheme in ("light", "dark")
        for width in (420, 1400, 2560)
    ],
)
def test_no_accessibility_violation(page: browser.Page, path: Path, scheme: str, width: int) -> None:
    """By axe-core, which knows the rules of WCAG; with the bytes of an exchange open, too."""
    script = Path(axe_core_python.__file__).with_name("axe.min.js").read_text()
    page.open(path, scheme, width)
    page.driver.set_script_timeout(240)
    page.run(script)
    judged = (
        "const [where, done] = arguments; axe.run(where, {resultTypes: ['violations']}).then((all) => done("
        "all.violations.map((one) => [one.id, one.impact, one.nodes.map((node) => node.html)])))"
    )
    assert page.driver.execute_async_script(judged, "html") == []
    page.run("document.querySelector('[data-bytes]').click()")
    assert page.run("return document.getElementById('bytes').open") is True
    assert page.driver.execute_async_script(judged, "#bytes") == []  # the rest is as it was
    assert page.messages() == []


def test_everything_follows_the_time_that_is_chosen(page: browser.Page, path: Path) -> None:
    page.open(path)
    cells = page.run(MARKS, "heat")
    slow = "return document.querySelectorAll('[data-table=\"outliers\"] tbody tr:not([hidden])').length"
    before = page.run(slow)
    drawn = "return ['budget', 'time-parts', 'holds'].map((name) => document.querySelector(`[data-chart=${name}] svg`)"
    drawn += ".outerHTML.replace(/clip\\d+/g, ''))"
    listed = (
        "return ['latency', 'network'].map((name) => [...document.querySelectorAll(`[data-table=${name}] tbody tr`)]"
    )
    listed += ".filter((one) => !one.hidden).map((one) => one.textContent.trim()))"
    spent, lines = page.run(drawn), page.run(listed)
    page.run(
        """const box = document.getElementById("axis"), place = box.getBoundingClientRect();
        box.setPointerCapture = () => {};
        const at = (name, share) => box.dispatchEvent(new PointerEvent(name, {
          clientX: place.left + share * place.width, clientY: place.top + 40, pointerId: 1, bubbles: true }));
        at("pointerdown", 0.1); at("pointermove", 0.2); at("pointerup", 0.25);"""
    )
    time.sleep(1.5)
    assert re.fullmatch(r"[\d:.]+ to [\d:.]+ UTC", page.run("return document.getElementById('axis-said').textContent"))
    assert 0 < page.run(MARKS, "heat") < cells
    assert page.run(slow) < before
    assert all(one != whole for one, whole in zip(page.run(drawn), spent, strict=True))
    for few, whole in zip(page.run(listed), lines, strict=True):
        assert 0 < len(few) < len(whole)
    first = "const one = document.querySelector('[data-table=latency] tbody tr:not([hidden])').cells;"
    count = page.run(f"{first} return [one[2].textContent, one[4].textContent, one[9].textContent]")
    assert min(float(text.replace(",", "")) for text in count[:2]) > 0
    assert count[2] == ""
    page.run("document.getElementById('axis-all').click()")
    time.sleep(1.5)
    assert (page.run(MARKS, "heat"), page.run(slow), page.run(drawn)) == (cells, before, spent)
    assert page.run(listed) == lines
    page.run(
        "const one = document.getElementById('axis-from'); one.value = 500; one.dispatchEvent(new Event('change'))"
    )
    time.sleep(1.0)
    assert page.run(MARKS, "heat") < cells
    assert page.messages() == []


def test_lists_and_flows_follow_the_time_that_is_chosen(page: browser.Page, path: Path) -> None:
    """Clients, brokers, errors, versions, creators of sessions and the flow graph: what they had in that time, to the
    stretches that are told apart, and what they were once all of it is looked at again."""
    page.open(path)
    names = ("clients", "brokers", "errors", "versions", "session-clients")
    read = (
        "return [...document.querySelectorAll(`[data-table='${arguments[0]}'] tbody tr`)].filter((one) => !one.hidden)"
        ".map((one) => [...one.cells].map((cell) => cell.textContent.trim()))"
    )
    flow = "return [...document.querySelectorAll('[data-chart=flow] .band title')].map((one) => one.textContent)"
    tiles = "return [...document.querySelectorAll('[data-tile]')].map((one) => one.innerText)"
    all_said = page.run(tiles)
    whole, drawn = {name: page.run(read, name) for name in names}, page.run(flow)
    assert all(len(lines) > 1 for name, lines in whole.items() if name != "errors")
    page.run(
        "for (const [id, to] of [['axis-from', 300], ['axis-to', 600]]) { const one = document.getElementById(id);"
        " one.value = to; one.dispatchEvent(new Event('change')); }"
    )
    time.sleep(1.0)
    first, last = page.run("const at = kdissect.rows('time-axis').map((one) => one.at); return [at[0], at.at(-1)]")
    step = page.run("const at = kdissect.rows('time-axis').map((one) => one.at); return at[1] - at[0]")
    low, high = (first + share * (last + step - first) for share in (0.3, 0.6))
    asked = kdissect.open(CAPTURES / CAPTURE).pandas("exchanges", ["client_id", "broker", "status", "request_first_at"])
    at = asked["request_first_at"].astype("int64[pyarrow]") / 1000

    def between(margin: float) -> Counter[str]:
        mine = asked[(at >= low - margin) & (at <= high + margin) & (asked["status"] != "orphan")]
        return Counter(mine["client_id"].fillna("(none)"))

    length = page.run(
        "return Math.max(...kdissect.rows('clients-steps').map((one) => one.until - one.at).filter(Number.isFinite))"
    )
    least, most = between(0), between(2 * length)
    shown = {line[0]: int(line[5].replace(",", "")) for line in page.run(read, "clients")}
    assert len(shown) > 1
    assert shown.keys() >= least.keys()
    for client, count in shown.items():
        assert least[client] <= count <= most[client], client
    assert all(line[4] == "" for line in page.run(read, "clients")), "connections are those of the whole capture"
    for name in names:
        assert page.run(read, name) != whole[name], name
    said = page.run(tiles)
    assert int(said[0].split()[0].replace(",", "")) < int(all_said[0].split()[0].replace(",", ""))
    assert [("whole capture" in one) for one in said] == [False] * 4 + [True] * 2
    assert page.run(flow) != drawn
    few = {tuple(line[:1]) for line in page.run(read, "versions")}
    assert few <= {tuple(line[:1]) for line in whole["versions"]}
    page.run("document.getElementById('axis-all').click()")
    time.sleep(0.5)
    assert {name: page.run(read, name) for name in names} == whole
    assert (page.run(flow), page.run(tiles)) == (drawn, all_said)
    assert page.messages() == []


def test_ticks_of_the_time_axis_are_round(page: browser.Page, path: Path) -> None:
    page.open(path)
    labels = page.run("return [...document.querySelectorAll('#axis text.tick')].map(one => one.textContent)")
    assert len(labels) >= 2
    seconds = [sum(float(part) * 60 ** (2 - n) for n, part in enumerate(label.split(":"))) for label in labels]
    steps = {round(b - a, 3) for a, b in itertools.pairwise(seconds)}
    assert len(steps) == 1
    (step,) = steps
    assert all(abs(at / step - round(at / step)) < 1e-6 for at in seconds), labels


TICKS = """return [...document.querySelectorAll(arguments[0])].filter((one) => one.textContent.includes(":")
    && one.getAttribute("opacity") !== "0" && one.style.opacity !== "0").map((one) => {
      const place = one.getBoundingClientRect();
      return [one.textContent, (place.left + place.right) / 2];
    })"""
"""Labels of time that a selector finds, with the middle of each. The outer ones may be aligned to their ticks."""


@pytest.mark.parametrize("width", [1280, pytest.param(420, marks=pytest.mark.whole)])
def test_charts_over_time_share_one_axis(page: browser.Page, path: Path, width: int) -> None:
    """Labels of one time stand below each other, of the lanes and of all charts."""
    page.open(path, width=width)
    lanes = dict(page.run(TICKS, "#axis text.tick"))
    assert len(lanes) >= 2
    for name in ("heat", "outliers", "sessions-alive", "sessions", "throughput"):
        chart = dict(page.run(TICKS, f"[data-chart='{name}'] svg .role-axis-label text"))
        assert chart.keys() == lanes.keys(), name
        inner = list(lanes)[1:-1] or list(lanes)
        assert [chart[text] for text in inner] == pytest.approx([lanes[text] for text in inner], abs=2), name


def test_bands_and_events_stand_at_their_times(page: browser.Page, path: Path) -> None:
    page.open(path)
    (first, left), *_, (last, right) = page.run(TICKS, "#axis text.tick")[1:-1]
    day = kdissect.open(CAPTURES / CAPTURE).summary().started_at.date().isoformat()
    low, high = (datetime.fromisoformat(f"{day}T{text}Z").timestamp() * 1000 for text in (first, last))
    found = page.run(
        "return kdissect.rows('findings').filter((one) => one.first_at !== null && one.severity !== 'info').slice(0, 6)"
        ".map((one) => one.first_at)"
    )
    bands = page.run(
        "return [...document.querySelectorAll('#axis .band')].map((one) => one.getBoundingClientRect().left)"
    )
    assert len(found) == len(bands) > 0
    expected = [left + (at - low) / (high - low) * (right - left) for at in found]
    assert bands == pytest.approx(expected, abs=2)
    dots = page.run(
        "const rows = new Map([...kdissect.rows('failures'), ...kdissect.rows('outliers')].map((one) => "
        "[one.exchange_id, one.at])); return [...document.querySelectorAll('#axis .dot')].map((one) => {"
        "const place = one.getBoundingClientRect();"
        "return [rows.get(one.dataset.dot), (place.left + place.right) / 2]; })"
    )
    assert len(dots) > 20
    for at, middle in dots:
        assert middle == pytest.approx(left + (at - low) / (high - low) * (right - left), abs=2)


@pytest.mark.parametrize("where", ["#axis .dot", "[data-chart=outliers] .role-mark path"])
def test_two_clicks_from_a_dot_to_its_bytes(page: browser.Page, path: Path, where: str) -> None:
    """Clicks of the mouse, in the middle of what lies on top."""
    page.open(path)
    listed = "return kdissect.rows('outliers').map((one) => one.exchange_id)"
    dots = page.driver.find_elements("css selector", where)
    page.run("arguments[0].scrollIntoView({ block: 'center', behavior: 'instant' })", dots[0])
    for dot in dots:
        top = "const r = arguments[0].getBoundingClientRect();"
        top += "return document.elementFromPoint((r.left + r.right) / 2, (r.top + r.bottom) / 2) === arguments[0]"
        if page.run(top, dot):
            dot.click()
            if page.run("return !document.getElementById('bytes-open').hidden"):
                break
            page.run("document.getElementById('bytes-close').click()")
    shown = page.run("return document.getElementById('bytes-title').textContent").split()[0]
    assert shown in page.run(listed)
    assert "latency" in page.run("return document.getElementById('bytes-facts').textContent")
    assert page.run("return document.getElementById('bytes-rows').checkVisibility()") is False
    page.driver.find_element("id", "bytes-open").click()
    rows = page.run("return [...document.querySelectorAll('#bytes tbody tr')].map(one => one.textContent)")
    assert any("correlation_id" in row for row in rows)
    assert page.run("return document.getElementById('bytes-rows').checkVisibility()") is True
    assert page.messages() == []


def test_dots_by_keyboard(page: browser.Page, path: Path) -> None:
    """One of them is in the order of the tab key; arrows go on, Enter opens, Esc closes and leads back."""
    page.open(path)
    assert (
        page.run("return [...document.querySelectorAll('#axis .dot')].filter((one) => one.tabIndex === 0).length") == 1
    )
    page.run("document.querySelector('#axis .dot').focus()")
    keys = page.driver.switch_to.active_element
    keys.send_keys("\ue014")  # right
    second = page.run("return document.activeElement.dataset.dot")
    assert second == page.run("return document.querySelectorAll('#axis .dot')[1].dataset.dot")
    page.driver.switch_to.active_element.send_keys("\ue007")  # Enter
    assert page.run("return document.getElementById('bytes').open") is True
    assert page.run("return document.getElementById('bytes-title').textContent").startswith(second)
    page.driver.switch_to.active_element.send_keys("\ue00c")  # Esc
    assert page.run("return [document.getElementById('bytes').open, document.activeElement.dataset.dot]") == [
        False,
        second,
    ]
    assert page.messages() == []


def test_tables_fit(page: browser.Page, path: Path) -> None:
    page.open(path, width=1400)
    wide = (
        "return [...document.querySelectorAll('.rows')].filter((one) => one.clientWidth && "
        "one.scrollWidth > one.clientWidth + 1).map((one) => one.getAttribute('aria-labelledby'))"
    )
    assert page.run(wide) == []


def test_absences_deliveries_and_transactions_are_drawn(page: browser.Page, folder: Path) -> None:
    """Node 3 stood still for three seconds; lines break where nothing was produced."""
    path = folder / "story.html"
    kdissect.open(CAPTURES / "stories" / "slow_broker.pcap.zst").report(path, named="story.pcap")
    page.open(path)
    (stalled,) = page.run("return kdissect.rows('presence').filter((one) => one.state === 'stalled')")
    assert stalled["subject"] == "3"
    assert stalled["until"] - stalled["at"] == pytest.approx(3000, abs=10)
    drawn = page.run(
        "const one = document.querySelector('#axis .presence.stalled'); return one.getBoundingClientRect().width"
    )
    whole = page.run("return document.querySelector('#axis .presence.there').getBoundingClientRect().width")
    (there,) = page.run("return kdissect.rows('presence').filter((one) => one.state === 'there').slice(0, 1)")
    assert drawn / whole == pytest.approx(3000 / (there["until"] - there["at"]), abs=0.01)
    rows = page.run("return kdissect.rows('deliveries')")
    gaps = sum(b["at"] > a["until"] + 1 for a, b in itertools.pairwise(rows))
    lines = page.run(
        "return [...document.querySelectorAll('#axis path.delivered')].map((one) => one.getAttribute('d'))"
    )
    assert [line.count("M") for line in lines] == [1 + gaps] * 2
    cells = page.run(MARKS, "delivery-heat")
    names = page.run(
        "return [...document.querySelectorAll('[data-control=\"delivery-heat.name\"] option')].map((one) => one.value)"
    )
    rows = page.run("return kdissect.rows('delivery-heat')")
    assert cells == sum(row["name"] == names[0] for row in rows)
    page.choose("delivery-heat.name", names[-1])
    assert page.run(MARKS, "delivery-heat") == sum(row["name"] == names[-1] for row in rows)
    assert "no connection" not in page.run("return document.getElementById('axis').textContent")
    assert page.messages() == []


def test_lines_break_where_there_are_no_rows(page: browser.Page, path: Path) -> None:
    page.open(path)
    line = "return brokenLine([[0, 1], [1, 2], [5, 3], [6, 3]].map(([x, y]) => ({ x, y })), (a, b) => b.x - a.x > 1.5)"
    assert page.run(line) == "M0.0,1.0L1.0,2.0M5.0,3.0L6.0,3.0"


def test_an_incident_is_one_card(page: browser.Page, path: Path) -> None:
    """Its consequences stand inside it; commands are folded away until somebody asks for them."""
    page.open(path)
    assert page.run("return document.querySelectorAll('ol.findings > li ul.consequences > li').length") > 0
    assert page.run("return document.querySelector('ol.findings details.commands').open") is False
    command = page.run("return document.querySelector('ol.findings details.commands code').textContent")
    assert command.startswith("kdissect why ")


def test_a_finding_leads_to_its_time(page: browser.Page, path: Path) -> None:
    page.open(path)
    page.run("document.querySelector('[data-look]').click()")
    time.sleep(0.5)
    assert page.run("return document.querySelectorAll('#axis .brush').length") == 1


def test_links_lead_to_the_bytes(page: browser.Page, path: Path) -> None:
    page.open(path)
    for where in ("#findings", "#failures", "#outliers"):
        page.run("document.querySelector(arguments[0] + ' [data-bytes]').click()", where)
        assert page.run("return document.getElementById('bytes').open") is True
        rows = page.run("return [...document.querySelectorAll('#bytes tbody tr')].map(one => one.textContent)")
        assert any(row.startswith("Request, ") for row in rows), rows[:3]
        assert any("correlation_id" in row for row in rows)
        page.run("document.getElementById('bytes-close').click()")
        assert page.run("return document.getElementById('bytes').open") is False
    assert page.messages() == []


def test_it_is_small(path: Path) -> None:
    assert path.stat().st_size <= 1_500_000


def test_it_asks_no_network(page: browser.Page, path: Path) -> None:
    page.open(path)
    assert page.run("return performance.getEntriesByType('resource').map(one => one.name)") == []
    assert page.run("return fetch('https://example.org/').then(() => 'let through', () => 'refused')") == "refused"
    page.messages()


def test_choices_change_what_is_drawn(page: browser.Page, path: Path) -> None:
    page.open(path)
    everything = page.run(MARKS, "heat")
    page.choose("heat.polls", True)
    without = page.run(MARKS, "heat")
    page.choose("heat.series", '["api","Metadata"]')
    assert everything > without > page.run(MARKS, "heat") > 0
    groups = "return document.querySelector('[data-chart=time-parts] svg').textContent"
    assert "Metadata" in page.run(groups)
    page.choose("time-parts.by", "client_id")
    assert "ev-consumer-2" in page.run(groups)
    page.choose("time-parts.shares", False)
    assert "seconds, all exchanges together" in page.run(groups)
    of_one = page.run(MARKS, "sessions")
    page.choose("sessions-alive.broker", "2")
    assert page.run(MARKS, "sessions") != of_one
    page.choose("sessions.end", "open")
    assert page.run("return document.querySelector('[data-chart=sessions] svg').textContent") is not None
    assert page.messages() == []


def test_tables_filter_and_sort(page: browser.Page, path: Path) -> None:
    page.open(path)
    shown = (
        "return [...document.querySelectorAll(`[data-table='${arguments[0]}'] tbody tr`)].filter(r => !r.hidden).length"
    )
    rows = page.run(shown, "latency")
    page.run(
        "const one = document.querySelector('[data-filter=latency]'); one.value = 'evict-more';"
        "one.dispatchEvent(new Event('input'))"
    )
    assert 0 < page.run(shown, "latency") < rows
    page.choose("outliers.api", "Metadata")
    assert 0 < page.run(shown, "outliers") < 100
    page.choose("outliers.text", "no such text")
    assert page.run(shown, "outliers") == 0
    assert page.run("return document.querySelector('#outliers .empty').hidden") is False
    counts = (
        "return [...document.querySelectorAll('[data-table=latency] tbody tr')].map(r => Number(r.cells[2].dataset.v))"
    )
    for expected in (lambda v: sorted(v, reverse=True), sorted):
        page.run("document.querySelectorAll('[data-table=latency] th button')[2].click()")
        values = page.run(counts)
        assert values == expected(values)
    severities = "return [...document.querySelectorAll('ol.findings > li')].filter(li => !li.hidden).length"
    findings = page.run(severities)
    page.run("document.querySelector('input[data-severity=low]').click()")
    assert 0 < page.run(severities) < findings
    assert page.messages() == []


def test_an_outlier_leads_to_its_frame_and_filter(page: browser.Page, path: Path) -> None:
    page.open(path)
    rows = kdissect.open(CAPTURES / CAPTURE).table("exchanges", ["request_frame", "response_frame", "correlation_id"])
    pairs = {(row["request_frame"], row["response_frame"]): row["correlation_id"] for row in rows.to_pylist()}
    listed = page.run(
        "return [...document.querySelectorAll('[data-table=outliers] tbody tr')].map(row => "
        "[...row.querySelectorAll('[data-copy-text]')].map(one => one.dataset.copyText))"
    )
    assert len(listed) == 100
    for show, request, response, shown in listed:
        assert re.fullmatch(rf"kdissect show {re.escape(CAPTURE)} [0-9a-f]{{4,16}}:\d+", show)
        frames = tuple(int(re.fullmatch(r"frame\.number == (\d+)", one)[1]) for one in (request, response))
        assert shown.endswith(f"kafka.correlation_id == {pairs[frames]}")


def test_csv_has_the_rows(page: browser.Page, path: Path, folder: Path) -> None:
    page.open(path)
    names = page.run("return [...document.querySelectorAll('[data-csv]')].map(one => one.dataset.csv)")
    assert set(CHARTS) <= set(names)
    page.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    page.run("document.querySelector('[data-csv=\"time-parts\"]').click()")
    target = folder / "time-parts.csv"
    for _ in range(100):
        if target.exists():
            break
        time.sleep(0.1)
    with target.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    asked = kdissect.open(CAPTURES / CAPTURE).table("exchanges", ["api", "client_id", "queued_ms"])
    queued = {}
    for row in asked.to_pylist():
        key = (row["api"] or "", row["client_id"] or "")
        queued[key] = queued.get(key, 0.0) + (row["queued_ms"] or 0.0)
    found = {}
    for row in rows:  # a row for each stretch of time
        if row["part"] == "queued":
            key = row["api"], row["client_id"]
            found[key] = found.get(key, 0.0) + float(row["total_ms"])
    assert found == pytest.approx({key: value for key, value in queued.items() if value > 0}, abs=1e-1)


def test_what_a_capture_says_stays_text(page: browser.Page, folder: Path) -> None:
    """Every text that a capture controls is markup: nothing of it becomes an element, runs, or is lost."""
    path = folder / "hostile.html"
    path.write_bytes(document(hostile_tables(), "a.pcap"))
    page.open(path)
    assert page.messages() == []
    assert page.run("return [window.pwned, document.querySelectorAll('img, main script, main iframe').length]") == [
        None,
        0,
    ]
    found = page.run("return document.querySelector('[data-table=latency] tbody').textContent")
    assert SHOWN in found
    page.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    time.sleep(0.2)
    text = page.run("return kdissect.csv('latency')")
    rows = list(csv.DictReader(text.splitlines(keepends=True)))
    assert SHOWN in {row["client_id"] for row in rows}
    assert "'=1+2" in {row["client_id"] for row in rows}, "a formula is text in a spreadsheet"
    assert page.run("return window.pwned") is None
    assert page.messages() == []


def test_a_capture_without_exchanges(page: browser.Page, folder: Path) -> None:
    path = folder / "empty.html"
    path.write_bytes(document({name: schema.empty_table() for name, schema in SCHEMAS.items()}, "a.pcap"))
    page.open(path)
    assert page.messages() == []
    assert page.run("return document.querySelector('#heat .empty').hidden") is False

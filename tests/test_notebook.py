"""The charts of notebooks: valid, from any kind of table, and with the values of the tables in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pytest

import kdissect
from kdissect import notebook
from kdissect.installed_copy import install_command
from kdissect.problems import UsageError
from tests.conftest import ROOT

SLOW = ROOT / "captures" / "k4_slow_and_throttled.pcap"
EVICTION = ROOT / "captures" / "k4_session_eviction.pcap"


@pytest.fixture(scope="module")
def slow() -> dict[str, pa.Table]:
    return kdissect.open(SLOW).tables(["exchanges", "fetches"])


@pytest.fixture(scope="module")
def evicted() -> dict[str, pa.Table]:
    return kdissect.open(EVICTION).tables(["fetches", "fetch_sessions"])


def rows(chart: Any) -> list[dict[str, Any]]:
    """The rows in a chart that Altair itself finds valid."""
    data = chart.to_dict()["data"]["values"]
    assert isinstance(data, list)
    return data


def test_a_heat_map_counts_every_row(slow: dict[str, pa.Table]) -> None:
    latencies = [ms for ms in slow["exchanges"]["latency_ms"].to_pylist() if ms]
    cells = rows(notebook.heat_map(slow["exchanges"]))
    assert sum(cell["count"] for cell in cells) == len(latencies)
    assert min(cell["from"] for cell in cells) <= min(latencies) * 1.001
    assert max(cell["to"] for cell in cells) * 1.001 >= max(latencies)


def test_labels_of_time_say_the_time_of_day(evicted: dict[str, pa.Table]) -> None:
    """Not `.500` after `.500`."""
    drawn = notebook.heat_map(evicted["fetches"]).to_dict()
    assert "%H:%M:%S" in drawn["encoding"]["x"]["axis"]["labelExpr"]


def test_waits_add_up(slow: dict[str, pa.Table]) -> None:
    """Every answered fetch's time is somewhere, once; a long poll is no broker's."""
    fetches = slow["fetches"]
    parts = notebook.split(fetches)
    assert set(parts) == set(notebook.PARTS)
    whole = np.array([ms or 0.0 for ms in fetches["latency_ms"].to_pylist()])
    assert np.allclose(sum(parts.values()), whole, atol=0.1)
    assert all((values > -0.001).all() for values in parts.values())
    throttled = {row["part"]: row["seconds"] for row in rows(notebook.waits(fetches)) if row["group"] == "sl-req"}
    assert max(throttled, key=lambda part: throttled[part]) == "throttled"


def test_the_worst_client_comes_first_and_the_rest_is_left_out(slow: dict[str, pa.Table]) -> None:
    assert len({row["group"] for row in rows(notebook.waits(slow["fetches"], top=3))}) == 3


def test_quantiles_are_those_of_the_analysis(slow: dict[str, pa.Table]) -> None:
    from kdissect.analysis.latency import latency

    wanted = latency(slow["exchanges"], by=["api"], every=5.0).to_pylist()
    drawn = {(row["at"], row["group"], row["quantile"]): row["ms"] for row in rows(notebook.quantiles(
        slow["exchanges"], every=5.0))}  # fmt: skip
    for row in wanted:
        if row["p99_ms"] is not None:
            assert drawn[row["at"].timestamp() * 1000, row["api"], "p99"] == pytest.approx(row["p99_ms"], rel=1e-3)


def test_lines_break_where_no_row_is(slow: dict[str, pa.Table]) -> None:
    """A point is joined to the one of the bucket before, and to none further back."""
    drawn = rows(notebook.quantiles(slow["exchanges"], every=1.0, shares=("p50_ms",)))
    lines: dict[tuple[str, int], list[float]] = {}
    for row in drawn:
        lines.setdefault((row["group"], row["stretch"]), []).append(row["at"])
    for (group, stretch), points in lines.items():
        assert {b - a for a, b in pairwise(points)} <= {1000.0}, "no gap inside a line"
        after = lines.get((group, stretch + 1))
        assert after is None or after[0] - points[-1] > 1000.0, "no break without a gap"
    assert max(stretch for _, stretch in lines) > 1
    assert notebook.quantiles(slow["exchanges"]).to_dict()["spec"]["encoding"]["detail"]["field"] == "stretch"


def titles(drawn: Any) -> Iterator[str]:
    """Every title and field that a reader of a chart may see."""
    if isinstance(drawn, dict):
        if (
            "field" in drawn
            and "type" in drawn
            and drawn.get("title", drawn["field"]) is not None
            and drawn.get("axis", {}) is not None
        ):
            yield str(drawn.get("title", drawn["field"]))
        for name, value in drawn.items():
            if name not in ("data", "datasets", "sort", "x2", "y2", "detail", "order"):
                yield from titles(value)
    elif isinstance(drawn, list):
        for value in drawn:
            yield from titles(value)


def test_titles_are_words(slow: dict[str, pa.Table], evicted: dict[str, pa.Table]) -> None:
    """No name of a column, no unit that is no word."""
    exchanges, fetches, sessions = slow["exchanges"], slow["fetches"], evicted["fetch_sessions"]
    key = next(key for key in evicted["fetches"]["session_key"].to_pylist() if key)
    charts = [
        notebook.heat_map(exchanges), notebook.heat_map(fetches, "excess_ms"), notebook.waits(fetches),
        notebook.quantiles(exchanges, by="client"), notebook.throughput(exchanges), notebook.session_timeline(sessions),
        notebook.slots(sessions, cache=8), notebook.epochs(evicted["fetches"], key),
    ]  # fmt: skip
    for chart in charts:
        found = list(titles(chart.to_dict()))
        assert len(found) > 2
        for title in found:
            assert re.fullmatch(r"[A-Za-z0-9 ,()]+", title), title
            assert not {"ms", "s", "group", "key"} & set(re.findall(r"\w+", title)), title


def test_throughput_holds_every_byte(slow: dict[str, pa.Table]) -> None:
    drawn = rows(notebook.throughput(slow["exchanges"], every=1.0))
    for side in ("request", "response"):
        known = sum(size or 0 for size in slow["exchanges"][f"{side}_bytes"].to_pylist())
        assert sum(row["rate"] for row in drawn if row["side"] == f"{side}s") == known


def test_sessions_by_broker(evicted: dict[str, pa.Table]) -> None:
    drawn = rows(notebook.session_timeline(evicted["fetch_sessions"]))
    assert len(drawn) == evicted["fetch_sessions"].num_rows
    assert sum(row["end_reason"] == "evicted" for row in drawn) == 8
    assert all(row["from"] <= row["to"] for row in drawn)
    assert notebook.slots(evicted["fetch_sessions"], cache=8).to_dict()["layer"]


def test_epochs_of_one_session(evicted: dict[str, pa.Table]) -> None:
    (key,) = {key for key in evicted["fetches"]["session_key"].to_pylist() if key and key.endswith("/3/590939123/1")}
    drawn = rows(notebook.epochs(evicted["fetches"], key))
    assert [row["epoch"] for row in drawn] == [*range(270), -1]
    assert drawn[-1]["outcome"] == "closed"


def test_any_table_will_do(slow: dict[str, pa.Table]) -> None:
    """Arrow, pandas with either kind of types, polars."""
    fetches = slow["fetches"]
    expected = notebook.waits(fetches).to_dict()
    others = (fetches.to_pandas(), kdissect.open(SLOW).pandas("fetches"), polars.DataFrame(fetches))
    for table in others:
        assert notebook.waits(table).to_dict() == expected


@pytest.mark.parametrize("name", notebook.__all__)
def test_empty_tables(name: str) -> None:
    tables = kdissect.open(ROOT / "captures" / "field_header_only.pcap").tables(
        ["exchanges", "fetches", "fetch_sessions"]
    )
    draw = getattr(notebook, name)
    if name == "epochs":
        with pytest.raises(UsageError, match="no fetch"):
            draw(tables["fetches"], "1/2/3")
    else:
        kind = {"waits": "fetches", "session_timeline": "fetch_sessions", "slots": "fetch_sessions"}
        assert draw(tables[kind.get(name, "exchanges")]).to_dict()


def test_bad_arguments(slow: dict[str, pa.Table]) -> None:
    with pytest.raises(UsageError, match="'sloth_ms'"):
        notebook.heat_map(slow["exchanges"], "sloth_ms")
    with pytest.raises(UsageError, match="longer than nothing"):
        notebook.throughput(slow["exchanges"], every=0)
    with pytest.raises(UsageError, match="cannot group"):
        notebook.quantiles(slow["exchanges"], by="moon")
    with pytest.raises(UsageError, match="'moon'"):
        notebook.waits(slow["fetches"], by="moon")


def test_without_altair_it_says_what_to_install() -> None:
    import subprocess
    import sys

    code = "import sys; sys.modules['altair'] = None; import kdissect.notebook"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: kdissect.notebook needs altair: {install_command('notebook')}"
    )

"""Recordings that lie outside of the repository, with what must be said of them: KDISSECT_APART names their folder.

Its `expect.toml` has a table a recording. `want`: a finding above info each, with one of these causes (`|` between),
whose columns or sentence hold one of `who`, and whose span touches `from` to `to` (times of day, UTC). `long`: the
seconds that the sentence or the span should give. `wrong`: no finding of severity high or medium has this cause, and
`who` in its columns or its headline. `files`: the recording's files, where it has several. The headline of a wanted
finding must stand in the first lines of the screen, too.

    KDISSECT_APART=../shared/captures/stories_2 pytest tests/analysis/test_kept_apart.py -s

test_universals.py and test_time_ledger.py look at all recordings of such a folder, with an `expect.toml` or without
one, such as captures/record/lab/record.py writes.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.cli.main import main

FOLDER = os.environ.get("KDISSECT_APART")
APART = sorted(Path(FOLDER).rglob("*.pcap*")) if FOLDER else []
"""All recordings of the folder."""
LINES = 12
"""Of the first screen, at a terminal of 100 columns."""
LEAST = 18 / 19
NEAR = timedelta(seconds=0.5)
LONG = 0.1
SEVERE = ("high", "medium")
MS_OF = {"ms": 1.0, "s": 1000.0, "min": 60_000.0}
Row = dict[str, Any]


def expected(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each file and what is expected of it."""
    for name, entry in tomllib.loads((folder / "expect.toml").read_text()).items():
        for file in entry.get("files", [name]):
            yield folder / name / f"{file}.pcap.zst", entry


def holds(row: Row, wanted: dict[str, Any], told: str = "text") -> bool:
    """Whether a finding has the cause, the place and the time of a statement; `told` is the column with its words."""
    text = f"{row[told]} {row['client_id']} {row['topic']} {row['group_id']} broker {row['broker']}"
    return bool(
        row["cause"] in wanted["cause"].split("|")
        and any(re.search(place(name), text) for name in wanted.get("who", [""]))
        and in_time(row, wanted)
    )


def place(name: str) -> str:
    """A pattern of a name as a word; of a number, as a broker's."""
    before = r"brokers? (?:\d+(?:, | and ))*" if name.isdigit() else r"(?<![\w.-])"
    return rf"{before}{re.escape(name)}(?![\w-])"


def in_time(row: Row, wanted: dict[str, Any]) -> bool:
    if "from" not in wanted:
        return True
    if row["first_at"] is None:
        return False
    begin, end = (
        datetime.combine(row["first_at"].date(), time.fromisoformat(wanted[key]), UTC) for key in ("from", "to")
    )
    return bool(row["first_at"] <= end + NEAR and row["last_at"] >= begin - NEAR)


def lasts(row: Row, seconds: float) -> bool:
    """Whether the span or a duration of the sentence is so long."""
    said = [float(n) * MS_OF[unit] / 1000 for n, unit in re.findall(r"(\d+(?:\.\d+)?) (ms|s|min)\b", row["text"])]
    span = (row["last_at"] - row["first_at"]).total_seconds()
    return any(abs(one - seconds) <= LONG * seconds for one in [*said, span])


@pytest.mark.skipif(
    not FOLDER or not (Path(FOLDER) / "expect.toml").exists(), reason="KDISSECT_APART names no folder with expect.toml"
)
def test_causes_are_named_on_the_first_screen_and_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prints, of each statement, whether it is shown, named or unsaid, and how many of the seconds are right. Seconds
    are no part of the judgement: what a capture shows of a silence ends with the next packet, not with its cause."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    named, shown, every, wrong = 0, 0, 0, []
    long: list[bool] = []
    for path, entry in expected(Path(str(FOLDER))):
        rows = kdissect.open(path).table("findings").to_pylist()
        main([str(path)])
        screen = " ".join(" ".join(capsys.readouterr().out.splitlines()[:LINES]).split())
        for wanted in entry["want"]:
            right = [row for row in rows if row["severity"] != "info" and holds(row, wanted)]
            seen = any(row["headline"] in screen for row in right)
            every, named, shown = every + 1, named + bool(right), shown + seen
            long += [any(lasts(row, wanted["long"]) for row in right)] if "long" in wanted else []
            with capsys.disabled():
                print(
                    f"{'shown' if seen else 'named' if right else 'unsaid':<6} {path.parent.name}/{path.name} {wanted}"
                )
        for one in entry["wrong"]:
            wrong += [row["text"] for row in rows if row["severity"] in SEVERE and holds(row, one, "headline")]
    with capsys.disabled():
        print(
            f"{named} of {every} named above info, {shown} of these in the first {LINES} lines, {len(wrong)} wrong; "
            f"{sum(long)} of {len(long)} give the seconds"
        )
    assert wrong == []
    assert shown >= LEAST * every


def test_a_statement_holds_of_its_cause_place_and_time() -> None:
    at = datetime(2026, 11, 22, 1, 16, 57, tzinfo=UTC)
    row = {
        "text": "Client c1 asked brokers 1 and 2 for nothing for 4.1 s.", "headline": "client c1 asked for nothing",
        "cause": "client", "broker": None, "client_id": "c1", "topic": None, "group_id": None,
        "first_at": at, "last_at": at,
    }  # fmt: skip
    wanted = {"cause": "client|settings", "who": ["c1"], "from": "01:16:57", "to": "01:17:01"}
    assert holds(row, wanted)
    assert holds(row, wanted | {"who": ["2"]})
    others = ({"cause": "broker"}, {"who": ["c", "c11"]}, {"who": ["4"]}, {"from": "01:16:58"})
    assert not any(holds(row, wanted | other) for other in others)
    assert not holds(row, wanted | {"who": ["2"]}, "headline")
    assert [lasts(row, seconds) for seconds in (4.0, 5.0)] == [True, False]

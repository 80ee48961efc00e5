"""Judges the laboratory's recordings: per cause, client library and capture point, whether findings name the cause.

    python -m tests.laboratory FOLDER... [--half A|B] [--cause CAUSE]... [--verbose] [--counts]

A folder holds what captures/record/lab/record.py wrote: recordings named CAUSE_LIBRARY[_POINT].pcap.zst, and
truth.txt. `tests/laboratory.toml` states what each cause must be named as. A recording is `named` if all of that is
said, `half` if a part of it is, else `unsaid`; where nothing is wrong it is `silent`, or `loud`. It is `wrong`, too, if
a finding of severity high or medium has another cause but `unknown`, and belongs to no incident of the right one.

`--counts` writes what is said of each recording into laboratory_counts.toml, in place of what it has of these folders;
docs/findings.md has the counts of each kind of finding from it (`laboratory_counts.py`).

The cells are in two halves, by cause, library and the brokers' release (`half_of`), so that each cause is in both.
Rules are chosen by half A and judged by half B.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import kdissect
from kdissect.analysis.findings.evidence import SEVERITIES
from tests.laboratory_counts import Said, said_of, store

SEED = 20261124
"""Of the split in two halves."""
LIBRARIES = (("kafka_python", "aiokafka", "librdkafka"), ("franz_go", "sarama", "kafkajs"))
"""Two groups that are often recorded apart: each cause of each has cells in both halves."""
EXPECTED: Mapping[str, Mapping[str, Any]] = tomllib.loads((Path(__file__).parent / "laboratory.toml").read_text())
HABITS = {"commit_per_record": ("kafkajs", "every")}
"""Low findings that say how a client works, whatever was done to it, and the libraries of which they are true: KafkaJS
commits when it has worked off what a fetch brought, and here a fetch brings a record."""
BEFORE = timedelta(seconds=1)
"""A finding may begin so long before the mischief: requests under way when it struck had been sent."""
AFTER = timedelta(seconds=10)
"""And so long behind its end: clients wait, time out and try again."""
Row = dict[str, Any]


class Cell(NamedTuple):
    """A recording and what was done."""

    path: Path
    cause: str
    library: str
    point: str
    truth: tuple[str, ...]
    """Lines of truth.txt, without the cell's name: what it is, what was done when, how the clients ended."""


class Judged(NamedTuple):
    """A recording and what is said of it."""

    cell: Cell
    half: str
    verdict: str
    wrong: bool
    findings: list[Row]
    roles: list[str]
    """Of each finding, as of `roles_of`."""


def cells(folder: Path) -> Iterator[Cell]:
    """The recordings of a folder, by name. Raises ValueError for one whose name no cause begins."""
    truth: dict[str, list[str]] = defaultdict(list)
    for line in (folder / "truth.txt").read_text().splitlines():
        at, name, text = line.split(" ", 2)
        truth[name.replace("-", "_")].append(f"{at} {text}")
    for path in sorted(folder.glob("*.pcap*")):
        name = path.name.partition(".")[0]
        cause = max((one for one in EXPECTED if name.startswith(one + "_")), key=len, default=None)
        if cause is None:
            raise ValueError(f"{path}: no cause of laboratory.toml")
        library, _, point = name[len(cause) + 1 :].rpartition("_")
        if point not in ("client", "broker"):
            library, point = name[len(cause) + 1 :], ""
        cell = Cell(path, cause, library, point, tuple(truth[f"{cause}/{library}"]))
        void = re.search(EXPECTED[cause].get("void", "$^"), "\n".join(cell.truth))
        if not void and point in EXPECTED[cause].get("points", (point,)):
            yield cell


def half_of(cause: str, library: str, release: str) -> str:
    """`A` or `B`. Of three libraries that are recorded together two are in one half and one in the other; of the six it
    is three and three."""
    group = next((names for names in LIBRARIES if library in names), (library,))

    def rank(name: str) -> str:
        return hashlib.sha256(f"{SEED}/{cause}/{release}/{name}".encode()).hexdigest()

    place = sorted(group, key=rank).index(library)
    first = LIBRARIES.index(group) if group in LIBRARIES else int(rank(library), 16)
    offset = int(hashlib.sha256(f"{SEED}/{cause}/{release}".encode()).hexdigest(), 16)
    return "AB"[(place + first + offset) % 2]


def release_of(capture: kdissect.Capture) -> str:
    """What distinguishes releases of brokers: the highest version of Fetch that they offer, or ""."""
    offered = capture.table("api_versions", ["max_version"], where="api = 'Fetch' and max_version is not null")
    return f"Fetch v{max(offered['max_version'].to_pylist())}" if offered.num_rows else ""


def mischief(cell: Cell, begin: datetime) -> tuple[datetime, datetime] | None:
    """The first and the last instant at which something was done, the end of time where it lasts; None where clients
    were started wrong already. The truth has times of day, `begin` is the first packet's."""
    done = [line for line in cell.truth[1:] if not re.match(r"\S+ (client |still running)", line)]
    instants = [
        datetime.combine(begin.date(), datetime.strptime(line.split(" ", 1)[0], "%H:%M:%S.%f").time(), begin.tzinfo)
        for line in done
    ]
    if not instants:
        return None
    lasts = re.search(r"between: (delay|loss|big|rate|unread)", done[-1])
    return min(instants), datetime.max.replace(tzinfo=begin.tzinfo) - AFTER if lasts else max(instants)


def fits(row: Row, wanted: Mapping[str, Any], span: tuple[datetime, datetime] | None) -> bool:
    """Whether a finding is above info and says what is wanted of the time of the mischief."""
    if row["severity"] == "info" or row["cause"] not in wanted["cause"].split("|"):
        return False
    told = f"{row['text']} broker {row['broker']} {row['client_id']} {row['topic']} {row['topic']}-{row['partition']}"
    if not any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", told) for name in wanted.get("who", [""])):
        return False
    if span is None:
        return True
    if row["first_at"] is None:
        return False
    return bool(row["first_at"] <= span[1] + AFTER and (row["last_at"] or row["first_at"]) >= span[0] - BEFORE)


def roles_of(cause: str, rows: list[Row], span: tuple[datetime, datetime] | None) -> list[str]:
    """What each finding is in a recording: `info`; it `names` the cause; it is true `beside` it, with a cause that the
    mischief has, or in an incident of one; else it is `wrong`, or `apart` where its severity is low. Where nothing is
    wrong it is `loud`, or `beside` below the severity that must not be."""
    expected = EXPECTED[cause]
    if "silent" in expected:
        loud = SEVERITIES[: SEVERITIES.index(expected["silent"]) + 1]
        return [
            "info" if row["severity"] == "info" else "loud" if row["severity"] in loud else "beside" for row in rows
        ]
    right = [any(fits(row, wanted, span) for wanted in expected["want"]) for row in rows]
    incidents = {row["incident"] for row, fine in zip(rows, right, strict=True) if fine} - {None}
    allowed = {one for wanted in expected["want"] for one in wanted["cause"].split("|")}
    allowed |= {"unknown", *expected.get("also", ())}

    def role(row: Row) -> str:
        if row["severity"] == "info":
            return "info"
        if row["cause"] in allowed or row["incident"] in incidents:
            return "beside"
        return "apart" if row["severity"] == "low" else "wrong"

    return ["names" if fine else role(row) for row, fine in zip(rows, right, strict=True)]


def judge(cause: str, rows: list[Row], span: tuple[datetime, datetime] | None) -> tuple[str, bool]:
    """The verdict on findings, and whether something of them is wrong."""
    roles = roles_of(cause, rows, span)
    if "silent" in EXPECTED[cause]:
        return ("loud" if "loud" in roles else "silent"), "loud" in roles
    said = [any(fits(row, wanted, span) for row in rows) for wanted in EXPECTED[cause]["want"]]
    return "named" if all(said) else "half" if any(said) else "unsaid", "wrong" in roles


def certainties(one: Judged) -> Counter[tuple[str, bool]]:
    """How many findings above info of a recording are `sure` or `likely` of a cause, and whether the recording has it,
    or the finding belongs to an incident of such a cause, or says what the client always does."""
    expected = EXPECTED[one.cell.cause]
    causes = {name for wanted in expected.get("want", ()) for name in wanted["cause"].split("|")}
    causes |= set(expected.get("also", ()))
    incidents = {row["incident"] for row in one.findings if row["cause"] in causes} - {None}
    return Counter(
        (
            row["certainty"],
            row["cause"] in causes
            or row["incident"] in incidents
            or (row["severity"] == "low" and one.cell.library in HABITS.get(row["id"], ())),
        )
        for row in one.findings
        if row["severity"] != "info" and row["certainty"] is not None
    )


def line_of(one: Judged) -> Said:
    """What laboratory_counts.toml has of a recording."""
    kinds = [row["id"] for row in one.findings]
    return said_of(one.cell.cause, one.half, one.verdict, zip(kinds, one.roles, strict=True))


def judged(folder: Path, half: str | None, causes: list[str]) -> Iterator[Judged]:
    """Each recording of a folder, of one half and of these causes where they are given."""
    for cell in cells(folder):
        if causes and cell.cause not in causes:
            continue
        capture = kdissect.open(cell.path)
        own = half_of(cell.cause, cell.library, release_of(capture))
        seen = EXPECTED[cell.cause].get("seen")
        if seen and not capture.table("exchanges", ["exchange_id"], where=seen).num_rows:
            continue
        if half in (None, own):
            tables = capture.tables({"findings": None, "connections": ["started_at"]})
            begin = min(at for at in tables["connections"]["started_at"].to_pylist() if at is not None)
            rows = tables["findings"].to_pylist()
            span = mischief(cell, begin)
            yield Judged(cell, own, *judge(cell.cause, rows, span), rows, roles_of(cell.cause, rows, span))


def figures(some: list[Judged]) -> str:
    """`12 named, 3 half, 2 unsaid of 17; 1 wrong; 5 of 5 silent where nothing is wrong`."""
    ill = [one for one in some if "silent" not in EXPECTED[one.cell.cause]]
    well = [one for one in some if "silent" in EXPECTED[one.cell.cause]]
    count = Counter(one.verdict for one in some)
    told = ", ".join(f"{count[verdict]} {verdict}" for verdict in ("named", "half", "unsaid"))
    wrong = sum(one.wrong for one in ill)
    return f"{told} of {len(ill)}; {wrong} wrong; {count['silent']} of {len(well)} silent where nothing is wrong"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.laboratory", description="Judges the laboratory's recordings."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--half", choices=("A", "B"), help="recordings of this half only")
    parser.add_argument("--cause", action="append", default=[], choices=sorted(EXPECTED), help="of this cause only")
    parser.add_argument("--verbose", action="store_true", help="all findings, not only those of what is not right")
    parser.add_argument("--counts", action="store_true", help="write what is said into laboratory_counts.toml")
    given = parser.parse_args()
    if given.counts and (given.half or given.cause):
        parser.error("--counts is of whole folders")
    every = []
    for one in (one for folder in given.folders for one in judged(folder, given.half, given.cause)):
        every.append(one)
        cell, fine = one.cell, one.verdict in ("named", "silent") and not one.wrong
        print(f"{one.half} {one.verdict:<6} {'wrong' if one.wrong else '':<5} {cell.cause} {cell.library} {cell.point}")
        for row in one.findings:
            if given.verbose or (not fine and row["severity"] != "info"):
                print(f"      {row['severity']} {row['cause']} {row['id']}: {row['text']}")
    if given.counts:
        store({f"{one.cell.path.parent.name}/{one.cell.path.name.partition('.')[0]}": line_of(one) for one in every})
    print()
    for cause in sorted({one.cell.cause for one in every}):
        print(f"{cause:<18} {figures([one for one in every if one.cell.cause == cause])}")
    for half in "AB":
        print(f"half {half}             {figures([one for one in every if one.half == half])}")
    for half in "AB":
        told: Counter[tuple[str, bool]] = sum((certainties(one) for one in every if one.half == half), Counter())
        print(f"half {half}             " + ", ".join(
            f"{certainty}: {told[certainty, True]} of {told[certainty, True] + told[certainty, False]} right"
            for certainty in ("sure", "likely")
        ))  # fmt: skip


if __name__ == "__main__":
    main()

"""What the benchmarks say of their figures, and how one compares two runs. The figures here are made up."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from tests.bench import slopes
from tests.bench.__main__ import main
from tests.bench.lines import Line, compare, document, growth, others, table
from tests.bench.measure import Cost
from tests.bench.packets import Made
from tests.bench.peers import PEERS, Measured, measure
from tests.bench.spark import SMALL
from tests.bench.workloads import WORKLOADS

TSHARK = Measured(60_000_000, 8.0, 7.0, 400_000_000, 8e6, 1e7)


def line(size: int = 10**9, wall: float = 2.5, **more: object) -> Line:
    values = {
        "packets": 5_000_000, "exchanges": 2_500_000, "cold": None, "cpu": 2.4, "peak": 400_000_000, "startup": 0.5,
        "slope": 4e8, "cpu_slope": 5e8, "cat": 4e9, "floor": 2e9, "peers": {"tshark": TSHARK},
    }  # fmt: skip
    return Line("chatter", "exchanges", size, wall=wall, **(values | more))  # type: ignore[arg-type]


def cells(text: str, row: int) -> dict[str, str]:
    heads, *rows = [[cell.strip() for cell in one.strip("|").split("|")] for one in text.splitlines()]
    return dict(zip(heads, rows[row + 1], strict=True))


def test_table() -> None:
    found = cells(table([line()], 8e9), 0)
    assert found["slope"] == "0.40 GB/s"
    assert found["x tshark (by CPU)"] == "50 (50)"
    assert (found["of cat"], found["of memory"], found["peak"]) == ("10%", "5%", "400 MB")
    assert found["of one pass (by CPU)"] == "25%"
    assert found["M packets/s"] == "2.00"
    assert cells(others([line()]), 0)["slope"] == "8.00 MB/s"


def test_growth() -> None:
    text = growth([line(), line(10**8, 0.7, peak=380_000_000)])
    assert "exponent 1.00" in text
    assert "from 380 to 400 MB" in text
    assert not growth([line()])


def test_two_runs_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(document([line(), line(10**8)], 8e9)))
    after.write_text(json.dumps(document([line(wall=5.0, peak=200_000_000)], 8e9)))
    monkeypatch.setattr("sys.argv", ["bench", "--compare", str(before), str(after)])
    assert main() == 0
    text = capsys.readouterr().out
    *rows, left = text.splitlines()
    assert cells("\n".join(rows), 0) == {
        "workload": "chatter", "what": "exchanges", "size": "1000 MB", "wall": "2.00", "CPU": "1.00",
        "bytes by CPU": "1.00", "peak": "0.50",
    }  # fmt: skip
    assert left == "only in the first: chatter exchanges 100 MB"
    assert compare(json.loads(after.read_text()), json.loads(after.read_text())).count("1.00") == 4


def test_slopes_leave_out_what_does_not_grow() -> None:
    large, small = Made(Path("a"), 400, 4, 2, 1), Made(Path("b"), 100, 1, 1, 1)
    found = Measured.of(large, small, Cost(5.0, 3.0, 1.0, 9, 0), Cost(2.0, 1.0, 1.0, 8, 0))
    assert (found.slope, found.cpu_slope) == (100.0, 150.0)


def test_a_session_tells_each_job_apart() -> None:
    counting = "import sys\nfor line in sys.stdin:\n    sum(range(int(line)))\n    print('done', flush=True)"
    session = slopes.Session([sys.executable, "-c", counting])
    heavy, light = session.job("60000000"), session.job("10")
    assert heavy.cpu > 2 * light.cpu  # clocks of processes tick in hundredths
    assert heavy.wall > light.wall
    with pytest.raises(SystemExit, match="failed"):
        session.job("no number")


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.parametrize("tables", [False, True])
def test_a_session_of_spark(tmp_path: Path, tables: bool) -> None:
    session = slopes.Session(slopes.session(2, 0, tmp_path / "out" if tables else None))
    first, second = (session.job(str(SMALL)) for _ in range(2))
    session.close()
    assert first.cpu > second.cpu > 0  # the first has begun the session


def test_slopes_of_a_warm_session(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM here compiles in its first three jobs for 7 seconds each, and takes 2 for each GB."""

    class Jvm:
        done: ClassVar[list[float]] = []

        def __init__(self, command: list[str]) -> None:
            assert command[3:5] == [str(len(os.sched_getaffinity(0))), "6"]

        def job(self, line: str) -> slopes.Spent:
            size = (Path(line) / "file").stat().st_size / 1e9
            self.done.append(size)
            return slopes.Spent(size, 2 * size + (7 if len(self.done) < 4 else 0), 1, 1)

        def close(self) -> None:
            self.done.append(0)

    def made(folder: Path, name: str, size: int, *more: object) -> tuple[Path, int]:
        (folder / "set").mkdir()
        with (folder / "set" / "file").open("wb") as file:
            file.truncate(size)
        return folder / "set", 1

    monkeypatch.setattr(slopes, "rotated", made)
    monkeypatch.setattr(slopes, "Session", Jvm)
    monkeypatch.setattr(slopes, "measured", lambda command: slopes.Spent(1, 1, 1, 1))
    monkeypatch.setattr("sys.argv", ["slopes", "chatter", "3MB", "1MB", "--warm", "--no-local", "--partitions", "6"])
    assert slopes.main() == 0
    assert Jvm.done == [0.001, 0.001, 0.001, 0.001, 0.003, 0]
    assert "+ 2.00 CPU seconds for each GB" in capsys.readouterr().out


def test_least_times_and_most_memory() -> None:
    assert slopes.least([slopes.Spent(2, 9, 1, 8), slopes.Spent(3, 7, 2, 4)]) == slopes.Spent(2, 7, 2, 8)


@pytest.mark.parametrize("name", ["tshark", "tshark -z", "scapy"])
def test_others_read_the_captures(name: str, tmp_path: Path) -> None:
    found = measure(PEERS[name], WORKLOADS["chatter"][1], tmp_path, 200_000, 0, None)
    assert found is not None
    assert found.size > 100_000
    assert not list(tmp_path.iterdir())

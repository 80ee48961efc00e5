from __future__ import annotations

import gzip
import io
import os
import shutil
from pathlib import Path

import pytest

from kdissect.capture import open_captures
from kdissect.capture.sources import stem_of
from kdissect.problems import CaptureNotFound, NotACapture
from tests.capture.build import CAPTURES, pcap

ONE = (10**18, b"x" * 60)


def names(sources: object) -> dict[str, list[str]]:
    return {c.name: c.files for c in open_captures(sources)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("files", "together"),
    [
        (["a.pcap", "a.pcap1", "a.pcap12"], True),  # tcpdump -C
        (["a.pcap0", "a.pcap1"], True),  # tcpdump -C -W
        (["a-20260131-235900.pcap", "a-20260201-000000.pcap"], True),  # -G with %Y%m%d-%H%M%S
        (["a_2026-01-31_23:59:00.pcap", "a_2026-02-01_00:00:00.pcap"], True),
        (["a-2026-01-31T23:59:00Z.pcap.gz", "a-2026-02-01T00:00:00Z.pcap"], True),
        (["a.1769900000.pcap", "a.1769903600.pcap"], True),  # %s
        (["a_00001_20260131235900.pcapng", "a_00002_20260131235910.pcapng"], True),  # dumpcap -b
        (["a_20260131235900_00001.pcapng", "a_20260131235910_00002.pcapng"], True),  # dumpcap -b nametimenum:2
        (["a-2026-01-31T23:59:00+0530.pcap", "a-2026-02-01T00:00:00+0530.pcap"], True),  # %FT%T%z
        (["a-2026-03-08T01:59:00-05:00.pcap", "a-2026-03-08T03:00:00-04:00.pcap"], True),
        (["a_20260131-235900_UTC.pcap", "a_20260201-000000_UTC.pcap"], True),
        (["a-235900.pcap", "a-000000.pcap"], True),  # %H%M%S
        (["a-20260131-2300.pcap3", "a-20260131-2300.pcap4"], True),  # -G and -C
        (["node1.pcap", "node2.pcap"], False),
        (["broker-1001.pcap", "broker-1002.pcap"], False),
        (["a-20260131-235900-1001.pcap", "a-20260131-235900-1002.pcap"], False),  # brokers, not zones
        (["a_20260131_10001.pcap", "a_20260131_10002.pcap"], False),
        (["a.pcap", "b.pcap"], False),
        (["a.pcap", "a.pcapng"], False),
        (["a-20260131-235900.pcap", "b-20260131-235900.pcap"], False),
        (["a", "b"], False),
    ],
)
def test_what_rotation_names(files: list[str], together: bool) -> None:
    keys = [stem_of(f) for f in files]
    assert (keys[0] is not None and all(k is not None and k[0] == keys[0][0] for k in keys)) is together


def test_a_rotated_set_is_one_capture_in_the_order_of_its_times(tmp_path: Path) -> None:
    for i, name in enumerate(["t.pcap10", "t.pcap9", "t.pcap11"]):
        (tmp_path / name).write_bytes(pcap([(10**18 + i * 10**6, b"x")]))
    (tmp_path / "t.pcap12").write_bytes(pcap([]))
    paths = [tmp_path / n for n in ("t.pcap12", "t.pcap11", "t.pcap9", "t.pcap10")]
    assert names(paths) == {"t.pcap": ["t.pcap10", "t.pcap9", "t.pcap11", "t.pcap12"]}
    assert names(str(tmp_path)) == names(paths)
    assert names(str(tmp_path / "t.pcap*")) == names(paths)
    assert names(paths[0]) == {"t.pcap12": ["t.pcap12"]}


@pytest.mark.parametrize(
    ("folder", "name", "count"), [("field_rotated_C", "base.pcap", 5), ("field_rotated_G", "rotated", 4)]
)
def test_recorded_sets(folder: str, name: str, count: int) -> None:
    files = sorted(p.name for p in (CAPTURES / folder).iterdir())
    assert len(files) == count
    assert names([CAPTURES / folder / f for f in reversed(files)]) == {name: files}


def test_a_file_just_begun_belongs_to_its_set(tmp_path: Path) -> None:
    (tmp_path / "t.pcap0").write_bytes(pcap([ONE]))
    (tmp_path / "t.pcap1").write_bytes(b"")
    (capture,) = open_captures([tmp_path / "t.pcap1", tmp_path / "t.pcap0"])
    assert capture.files == ["t.pcap0", "t.pcap1"]
    assert sum(len(b.packets) for b in capture.blocks(capture.window())) == 1
    assert [p.file for p in capture.problems] == [1]


def test_names_that_clash_get_their_folders(tmp_path: Path) -> None:
    paths = []
    for folder in ("x/n1", "x/n2", "y/n1"):
        (tmp_path / folder).mkdir(parents=True)
        paths.append(tmp_path / folder / "a.pcap")
        paths[-1].write_bytes(pcap([ONE]))
    assert list(names(paths[:2])) == ["n1/a.pcap", "n2/a.pcap"]
    assert list(names(paths)) == ["x/n1/a.pcap", "n2/a.pcap", "y/n1/a.pcap"]


def test_one_file_named_twice_is_one_capture(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([ONE]))
    assert names([path, str(path), tmp_path]) == {"a.pcap": ["a.pcap"]}


def test_plain_and_compressed_copies_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(pcap([ONE]))
    (tmp_path / "a.pcap.gz").write_bytes(gzip.compress(pcap([ONE])))
    assert names(tmp_path) == {"a.pcap": ["a.pcap"], "a.pcap.gz": ["a.pcap.gz"]}


def test_a_compressed_copy_of_a_file_does_not_cut_its_set(tmp_path: Path) -> None:
    """`tcpdump -z gzip` is at work; an older file of a ring has the name of a newer one."""
    older, *files = [pcap([(10**18 + i * 10**9, b"x" * 60)]) for i in range(4)]
    for i, data in enumerate(files):
        (tmp_path / f"a.pcap{i}").write_bytes(data)
    (tmp_path / "a.pcap1.gz").write_bytes(gzip.compress(files[1]))
    assert names(tmp_path) == {"a.pcap": ["a.pcap0", "a.pcap1", "a.pcap2"]}
    (tmp_path / "a.pcap0.gz").write_bytes(gzip.compress(older))
    assert names(tmp_path) == {"a.pcap": ["a.pcap0.gz", "a.pcap0", "a.pcap1", "a.pcap2"]}
    (tmp_path / "a.pcap1").unlink()
    assert names(tmp_path) == {"a.pcap": ["a.pcap0.gz", "a.pcap0", "a.pcap1.gz", "a.pcap2"]}


def test_directories_and_globs_leave_out_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(pcap([ONE]))
    (tmp_path / "notes.txt").write_text("no capture")
    (tmp_path / "empty.pcap").touch()
    for source in (str(tmp_path), str(tmp_path / "*")):
        (capture,) = open_captures(source)
        assert capture.name == "a.pcap"
        list(capture.blocks(capture.window()))
        left_out = [(problem.where, problem.detail) for problem in capture.problems]
        assert [Path(where).name for where, _ in left_out] == ["empty.pcap", "notes.txt"]
        assert "the file is empty" in left_out[0][1]
        assert "not a capture" in left_out[1][1]


def test_folders_are_read_with_the_folders_in_them(tmp_path: Path) -> None:
    for place in ("", "host1", "host2/day", ".trash"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "a.pcap").write_bytes(pcap([ONE]))
    found = names(tmp_path)
    assert set(found) == {f"{tmp_path.name}/a.pcap", "host1/a.pcap", "day/a.pcap"}


def test_thousands_of_files_are_opened_in_the_same_time_each(tmp_path: Path) -> None:
    """Counted in calls, not on a clock: what a file costs does not grow with how many there are."""
    import cProfile
    import pstats

    def calls(count: int) -> int:
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            (folder / f"node{number}.pcap").write_bytes(pcap([ONE]))
        profile = cProfile.Profile()
        profile.runcall(open_captures, folder)
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    few, many = calls(100), calls(800)
    assert many < 8.5 * few


def test_a_glob_character_in_a_real_name(tmp_path: Path) -> None:
    (tmp_path / "a[1].pcap").write_bytes(pcap([ONE]))
    assert list(names(str(tmp_path / "a[1].pcap"))) == ["a[1].pcap"]


def test_errors_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.pcap").touch()
    (tmp_path / "text.pcap").write_text("hello, world, this is no capture")
    (tmp_path / "half.pcap").write_bytes(pcap([])[:11])
    (tmp_path / "none").mkdir()
    cases = [
        ("missing.pcap", CaptureNotFound),
        ("empty.pcap", NotACapture),
        ("text.pcap", NotACapture),
        ("half.pcap", NotACapture),
        ("none", CaptureNotFound),
        ("none/*.pcap", CaptureNotFound),
    ]
    for name, kind in cases:
        with pytest.raises(kind) as raised:
            open_captures(str(tmp_path / name))
        assert name.split("/")[0] in str(raised.value)
        assert "\n" not in str(raised.value)
    with pytest.raises(CaptureNotFound):
        open_captures([])


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_permission(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([ONE]))
    path.chmod(0)
    with pytest.raises(Exception, match="permission"):
        open_captures(path)


def test_open_files(tmp_path: Path) -> None:
    shutil.copy(CAPTURES / "base_tiny.pcap", tmp_path / "a.pcap")
    with open(tmp_path / "a.pcap", "rb") as file:
        (capture,) = open_captures(file)
        assert capture.name == "a.pcap"
        assert sum(len(b.packets) for b in capture.blocks(capture.window())) == 167
    (capture,) = open_captures(io.BytesIO(b"hello"))
    assert capture.name == "-"
    with pytest.raises(NotACapture):
        list(capture.blocks(capture.window()))

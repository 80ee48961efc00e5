"""What is done for a capture set that was read before."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kdissect.analysis.sights.both_ends import Clock
from kdissect.engine.settings import Settings
from kdissect.spark.keep.inventory import FORM, File, Kept, Manifest, Part, Work, describe_works, fingerprint
from kdissect.spark.stages.plan import Source

PART = Part("rows-000001", 0)


def written(folder: Path, **contents: bytes) -> list[tuple[str, str]]:
    """Files as a source has them: (name, path)."""
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return [(name, str(folder / name)) for name in contents]


def source(files: list[tuple[str, str]], ranged: bool = True) -> Source:
    return Source("a.pcap", files, [0] * len(files), ranged, "")


def known(files: list[tuple[str, str]], whole: bool = False) -> Manifest:
    """After a job that read these files, 7 packets of each."""
    read = [File.of(*file) for file in files]
    return Manifest(1, "same", {"a.pcap": Kept(read, [7] * len(read), [PART], whole)}, {PART.generation: 5})


def work(
    manifest: Manifest, files: list[tuple[str, str]], options: str = "same", ranged: bool = True, common: str = ""
) -> Work:
    (found,) = manifest.work(options, [source(files, ranged)], [common])
    return found


def test_what_is_the_same_is_not_read(tmp_path: Path) -> None:
    files = written(tmp_path, a=b"1" * 9000, b=b"2" * 100)
    found = work(known(files), files)
    assert found.idle
    assert list(found.parts) == [PART]


def test_new_files_and_a_grown_last_one_go_on(tmp_path: Path) -> None:
    files = written(tmp_path, a=b"1" * 9000, b=b"2" * 100)
    before = known(files)
    more = [*files, *written(tmp_path, c=b"3")]
    found = work(before, more)
    assert (found.first, found.skip, list(found.parts)) == (2, 0, [PART])
    written(tmp_path, b=b"2" * 100 + b"and more")
    found = work(before, more)
    assert (found.first, found.skip, list(found.parts)) == (1, 7, [PART])
    assert describe_works([found, work(before, files[:1])]) == (
        "0 of 2 captures as decoded before, 1 with 2 new files and the connections that were open, 1 decoded whole"
    )


@pytest.mark.parametrize(
    "change",
    ["gone", "in front", "other bytes", "shorter", "touched", "first grew", "options", "payload", "whole", "common"],
)
def test_everything_else_is_read_anew(tmp_path: Path, change: str) -> None:
    files = written(tmp_path, a=b"1" * 9000, b=b"2" * 9000)
    before = known(files, whole=change == "whole")
    after, options, ranged = [*files, *written(tmp_path, c=b"3")], "same", True
    if change == "gone":
        after = after[1:]
    elif change == "in front":
        after = after[::-1]
    elif change == "other bytes":
        written(tmp_path, b=b"2" * 8999 + b"!" + b"2")
    elif change == "shorter":
        written(tmp_path, b=b"2" * 8999)
    elif change == "touched":
        os.utime(tmp_path / "a", ns=(1, 1))
    elif change == "first grew":
        written(tmp_path, a=b"1" * 9001)
    elif change == "options":
        options = "others"
    elif change == "payload":
        ranged = False
    if change == "common":
        after = files
    found = work(before, after, options, ranged, "some" if change == "common" else "")
    assert found.anew
    assert (found.first, found.skip) == (0, 0)


def test_a_file_that_could_not_be_read_is_another_once_it_can(tmp_path: Path) -> None:
    path = tmp_path / "a"
    before = File.of("a", str(path))
    assert before.begin == ""
    path.write_bytes(b"1")
    assert File.of("a", str(path)) != before
    assert not File.of("a", str(path)).grown_from(before)


def test_manifests_as_text(tmp_path: Path) -> None:
    manifest = known(written(tmp_path, a=b"1"))
    assert Manifest.read(manifest.text()) == manifest
    clock = Clock(1, 0, 7, 1.5, -2.0, 3, 9, 4.0, 1.0, 2.0, 3.0)
    matched = replace(manifest, clocks=[clock], views=[(1 << 40, 1), (5, 0)], order=["a"])
    assert Manifest.read(matched.text()) == matched
    assert manifest.generations() == {"rows-000001"}
    for text in ("", "[]", "{}", manifest.text().replace(f'"form": {FORM}', '"form": 0')):
        with pytest.raises(ValueError, match=r"form|manifest|Expecting"):
            Manifest.read(text)


def test_options_that_rows_depend_on() -> None:
    made = {
        fingerprint(columns, settings)
        for columns in ({"exchanges": ["api"]}, {"exchanges": ["api", "status"]}, {"fetches": ["api"]})
        for settings in (Settings(), Settings(after=1), Settings(before=1), Settings(keylog=b"k"))
    }
    assert len(made) == 12
    assert fingerprint({"exchanges": ["api"]}, Settings()) in made

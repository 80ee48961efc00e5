"""`annotate`: the same packets, each exchange found by its comment, findings on their evidence, macros that work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scapy.utils import RawPcapNgReader, RawPcapReader

import kdissect
from kdissect.problems import UsageError
from kdissect.wireshark.annotation import annotate
from kdissect.wireshark.verdicts import macros
from tests.oracle.dissector import tshark
from tests.oracle.material import CAPTURES

SAMPLE = (
    "raw_ids", "k4_session_eviction", "field_two_interfaces", "field_be_ns", "tls13", "raw_cuts", "field_vlan",
    "field_to_client",
)  # fmt: skip
NOT_CAPTURES = ("field_empty", "field_half_header", "field_header_only", "field_wrong_magic")
NOT_READ_ALIKE = (
    "field_absurd_length", "field_incl_over_orig", "field_truncated", "field_modified", "field_lz4", "field_zst",
    "field_simple_packets",
)  # fmt: skip
"""Scapy has no such files, stops elsewhere in broken ones, or has no times for packets that have none."""

SCAPY_READS = 0xFFFF
"""Bytes of a packet at most."""


def every(*but: str) -> list[Any]:
    """The sample, then every other capture but these."""
    there = {path.name.partition(".")[0] for path in CAPTURES.glob("*.pcap*") if path.is_file()}
    return [
        *SAMPLE,
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in sorted(there - {*SAMPLE, *NOT_CAPTURES, *but})),
    ]


def source(name: str) -> Path:
    return next(CAPTURES.glob(f"{name}.pcap*"))


def packets(path: Path) -> list[tuple[bytes, int, int]]:
    """Bytes, length on the wire and time in ns of every packet, as scapy reads them."""
    out = []
    if path.read_bytes()[:4] == b"\n\r\r\n":
        with RawPcapNgReader(str(path)) as reader:
            for data, about in reader:
                ticks = about.tshigh << 32 | about.tslow
                out.append((data, about.wirelen, ticks * (1_000_000_000 // about.tsresol)))
    else:
        with RawPcapReader(str(path)) as reader:
            for data, about in reader:
                out.append((data, about.wirelen, about.sec * 10**9 + about.usec * (1 if reader.nano else 1000)))
    return out


def comments(path: Path, *options: str) -> dict[int, str]:
    """Comments by frame, as tshark reads them."""
    words = [tshark(), "-r", str(path), *options, "-T", "fields", "-e", "frame.number", "-e", "frame.comment"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return {int(number): text for number, _, text in (line.partition("\t") for line in lines) if text}


@pytest.mark.parametrize("name", every(*NOT_READ_ALIKE))
def test_packets_are_unchanged(name: str, tmp_path: Path) -> None:
    path = tmp_path / "out.pcapng"
    done = annotate(kdissect.open(source(name)), path)
    before, after = packets(source(name)), packets(path)
    assert before == after
    assert done.written.packets == len(before)
    if all(len(data) < SCAPY_READS for data, _, _ in before):
        assert done.written.bytes == sum(len(data) for data, _, _ in before)


@pytest.mark.oracle
@pytest.mark.parametrize("name", every("not_kafka"))
def test_every_exchange_is_found(name: str, tmp_path: Path) -> None:
    """On the frames of its messages, and nowhere else; the same exchanges come out of the annotated capture."""
    keys = CAPTURES / f"{name}.keys.log"
    capture = kdissect.open(source(name), **({"keylog": keys} if keys.exists() else {}))
    path = tmp_path / "out.pcapng"
    annotate(capture, path)
    rows = capture.table("exchanges").to_pylist()
    assert rows
    expected = Counter(
        (row["exchange_id"], row[f"{side}_frame"])
        for row in rows
        for side in ("request", "response")
        if row[f"{side}_frame"] is not None
    )
    assert {one for one, _ in expected} == {row["exchange_id"] for row in rows}
    found: Counter[tuple[str, int]] = Counter()
    for frame, text in comments(path).items():
        for one in text.split("kdissect ")[1:]:
            found[one.split(" ", 1)[1].partition(";")[0], frame] += 1
    assert found == expected
    for row in rows[:: max(1, len(rows) // 3)]:
        there = comments(path, "-Y", f'frame.comment contains "{row["exchange_id"]};"')
        assert set(there) == {frame for one, frame in expected if one == row["exchange_id"]}
        text = next(iter(there.values()))
        assert row["latency_ms"] is None or f"{row['latency_ms']:.3f}".rstrip("0").rstrip(".") in text
        assert row["hold"] is None or f"; hold {row['hold']};" in text


@pytest.mark.oracle
def test_findings_stand_on_their_evidence(tmp_path: Path) -> None:
    """Each exchange that a finding's filter selects, and macros that find them in Wireshark."""
    capture = kdissect.open(source("k4_session_eviction"))
    path, settings = tmp_path / "out.pcapng", tmp_path / "settings"
    settings.mkdir()
    done = annotate(capture, path, settings / "dfilter_macros")
    assert "session_evictor" in done.findings
    (evidence,) = [row for row in capture.table("findings").to_pylist() if row["id"] == "session_evictor"]
    asked = capture.table(evidence["table"], where=evidence["filter"])["exchange_id"].to_pylist()
    text = comments(path)
    mine = {one for one in text.values() if "; finding session_evictor;" in one}
    assert {exchange for exchange in asked if any(f"{exchange};" in one for one in mine)} == set(asked)
    words = [tshark(), "-r", str(path), "-T", "fields", "-e", "frame.number", "-Y"]
    environment = {**os.environ, "WIRESHARK_CONFIG_DIR": str(settings)}

    def frames(macro: str) -> set[int]:
        shown = subprocess.run([*words, macro], env=environment, capture_output=True, text=True, check=True).stdout
        return {int(line) for line in shown.split()}

    assert frames("${kdissect_session_evictor}") == {k for k, one in text.items() if one in mine}
    assert frames("${kdissect_comments}") == set(text)
    assert frames("${kdissect_hold:timeout}") == {k for k, one in text.items() if "; hold timeout;" in one}
    assert frames(f"${{kdissect_exchange:{asked[0]}}}") == {k for k, one in text.items() if f"{asked[0]};" in one}


def blocks(data: bytes) -> list[tuple[int, bytes]]:
    """Type and body of every block of a pcapng file, little- or big-endian."""
    out, at, order = [], 0, "little"
    while at < len(data):
        if data[at : at + 4] == b"\n\r\r\n":
            order = "big" if data[at + 8] == 0x1A else "little"
        kind, size = (int.from_bytes(data[at + o : at + o + 4], order) for o in (0, 4))  # type: ignore[arg-type]
        assert size >= 12
        assert data[at + size - 4 : at + size] == data[at + 4 : at + 8]
        out.append((kind, data[at + 8 : at + size - 4]))
        at += size
    return out


def pcapng(order: Any, from_capture: str, simple: slice = slice(0), options: bytes = b"") -> bytes:
    """A section with the packets of a capture, each with a comment of its own, between other blocks; `simple` ones are
    simple packet blocks. `options`: more of the interface's."""

    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, order)

    def made(kind: int, body: bytes) -> bytes:
        return number(kind, 4) + number(len(body) + 12, 4) + body + number(len(body) + 12, 4)

    own = number(1, 2) + number(5, 2) + b"mine!\0\0\0" + bytes(4)
    name = number(2, 2) + number(3, 2) + b"lo0\0" + options + bytes(4)
    out = made(0x0A0D0D0A, number(0x1A2B3C4D, 4) + number(1, 2) + bytes(2) + number(64, 8))
    out += made(1, number(1, 2) + bytes(6) + name)
    for i, (data, wire, time) in enumerate(packets(source(from_capture))[:200]):
        if i in range(200)[simple]:
            out += made(3, number(wire, 4) + data + bytes(-len(data) % 4))
            continue
        head = b"".join(number(value, 4) for value in (0, time // 1000 >> 32, time // 1000 & 0xFFFFFFFF))
        out += made(6, head + number(len(data), 4) + number(wire, 4) + data + bytes(-len(data) % 4) + own)
    return out + made(5, bytes(12))


@pytest.mark.parametrize("order", ["little", "big"])
def test_what_a_pcapng_holds_comes_along(order: str, tmp_path: Path) -> None:
    """Every block as it was, in two sections: interfaces and their names, statistics, a packet's own comment too."""
    given, path = tmp_path / "given.pcapng", tmp_path / "out.pcapng"
    given.write_bytes(pcapng(order, "zoo_kafkajs") + source("field_two_interfaces").read_bytes())
    done = annotate(kdissect.open(given), path)
    before, after = blocks(given.read_bytes()), blocks(path.read_bytes())
    assert [kind for kind, _ in before] == [kind for kind, _ in after]
    grown = 0
    for (kind, old), (_, new) in zip(before, after, strict=True):
        if kind == 0x0A0D0D0A:
            assert new == old[:8] + b"\xff" * 8 + old[16:]
        elif kind == 6 and new != old:
            grown += 1
            assert new[:20] == old[:20]
            assert b"kdissect re" in new
            assert (b"mine!" in new) == (b"mine!" in old)
        else:
            assert new == old
    assert 20 < grown <= done.written.comments


@pytest.mark.parametrize("order", ["little", "big"])
def test_packets_without_times(order: Any, tmp_path: Path) -> None:
    """Simple packet blocks become enhanced ones where they get a comment; all other blocks are as they were."""
    given, path = tmp_path / "given.pcapng", tmp_path / "out" / "given.pcapng"
    path.parent.mkdir()
    given.write_bytes(
        pcapng(order, "zoo_kafkajs", simple=slice(20, None, 2)) + source("field_simple_packets").read_bytes()
    )
    done = annotate(kdissect.open(given), path)
    before, after = blocks(given.read_bytes()), blocks(path.read_bytes())
    assert len(before) == len(after)
    grown, left, high, low, section = Counter[int](), 0, 0, 0, 0
    for (kind, old), (now, new) in zip(before, after, strict=True):
        if kind == 0x0A0D0D0A:
            section, order = section + 1, "little" if section else order
        elif kind == 6:
            high, low = (int.from_bytes(old[o : o + 4], order) for o in (4, 8))
            assert new[:12] == old[:12]
        elif (kind, now) == (3, 6):
            grown[section] += 1
            size = min(int.from_bytes(old[:4], order), len(old) - 4)
            numbers = [int.from_bytes(new[o : o + 4], order) for o in range(0, 16, 4)]
            assert numbers == [0, high, low, size]  # the time of the packet before it, in microseconds everywhere here
            assert new[16:20] == old[:4]
            assert new[20 : 20 + len(old) - 4] == old[4:]
            assert new[16 + len(old) :].startswith((1).to_bytes(2, order))
            assert b"kdissect re" in new
        else:
            left += kind == 3
            assert (now, new) == (kind, old)
    assert grown[1]
    assert grown[2]
    assert left
    assert b"mine!" in path.read_bytes()
    assert grown.total() <= done.written.comments
    assert kdissect.open(path).table("exchanges").equals(kdissect.open(given).table("exchanges"))


@pytest.mark.parametrize(
    ("resolution", "offset"), [(0x06, 0), (0x09, 0), (0x0C, 1_790_000_000), (0xA0, -5), (0xA8, 1_790_000_000)]
)
def test_a_time_in_the_ticks_of_the_interface(resolution: int, offset: int, tmp_path: Path) -> None:
    """Decimal and binary ticks, finer ones than nanoseconds too, of a section that has no times."""
    given, path = tmp_path / "given.pcapng", tmp_path / "out" / "given.pcapng"
    path.parent.mkdir()
    options = bytes([9, 0, 1, 0, resolution, 0, 0, 0, 14, 0, 8, 0]) + offset.to_bytes(8, "little", signed=True)
    nothing = pcapng("little", "zoo_kafkajs", slice(None), options)
    given.write_bytes(pcapng("little", "raw_ids") + nothing)
    assert annotate(kdissect.open(given), path).written.comments
    after = blocks(path.read_bytes())
    section = max(i for i, (kind, _) in enumerate(after) if kind == 0x0A0D0D0A)
    assert {kind for kind, _ in after[section:]} >= {3, 6}
    assert kdissect.open(path).table("exchanges").equals(kdissect.open(given).table("exchanges"))


@pytest.mark.oracle
def test_packets_without_times_in_wireshark(tmp_path: Path) -> None:
    """Every comment is read, each on its frame."""
    path = tmp_path / "out.pcapng"
    done = annotate(kdissect.open(source("field_simple_packets")), path)
    assert sum(text.count("kdissect re") for text in comments(path).values()) == done.written.comments > 0


def test_macros_are_lines_of_two_texts() -> None:
    lines = macros(["b", "a", "b"]).splitlines()
    assert [line for line in lines if line.startswith(('"kdissect_a"', '"kdissect_b"'))] == lines[-2:]
    assert lines[-1] == '"kdissect_b","frame.comment contains \\x22; finding b;\\x22"'


def test_a_rotated_set_becomes_one_file(tmp_path: Path) -> None:
    """Frame numbers begin anew in each file; comments stand on the right packets of the whole."""
    folder = CAPTURES / "field_rotated_C"
    files = sorted(path for path in folder.iterdir() if path.is_file())
    capture = kdissect.open(folder)
    path = tmp_path / "out.pcapng"
    annotate(capture, path)
    assert packets(path) == [packet for file in files for packet in packets(file)]
    again = kdissect.open(path).table("exchanges", columns=["request_first_at", "response_last_at", "latency_ms"])
    assert again.equals(capture.table("exchanges", columns=again.column_names))


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(source("raw_ids").read_bytes())
    with pytest.raises(UsageError, match="is read by this command"):
        annotate(kdissect.open(path), path)
    with pytest.raises(UsageError, match="one capture at a time"):
        annotate(kdissect.open([path, source("raw_cuts")]), tmp_path / "out.pcapng")
    done = subprocess.run(
        [sys.executable, "-m", "kdissect", "annotate", "-", "-o", str(tmp_path / "out.pcapng")],
        input=path.read_bytes(), capture_output=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(b"kdissect: a pipe can be read only once")
    assert not (tmp_path / "out.pcapng").exists()


def test_an_empty_capture(tmp_path: Path) -> None:
    path = tmp_path / "out.pcapng"
    done = annotate(kdissect.open(CAPTURES / "field_header_only.pcap"), path)
    assert done.written.packets == 0
    assert packets(path) == []

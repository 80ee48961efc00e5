"""Memory with very many connections."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.bench.measure import Cost, run
from tests.oracle.pcap import FIN, SYN, api_versions_request, api_versions_response, pcap
from tests.oracle.pcap import Talk as _Talk

PSH = 24
"""Flags of a packet with a payload: ACK and PSH."""
SPACING_NS = 3_600_000
"""Between connections: a million in an hour."""


def conversation() -> list[tuple[int, bytes]]:
    talk = _Talk()
    talk.handshake()
    request, response = api_versions_request(1), api_versions_response(1)
    talk.put(1, 0, 0, request)
    talk.put(2, 1, 0, response)
    talk.put(3, 0, len(request), b"", FIN | 16)
    talk.put(3.1, 1, len(response), b"", FIN | 16)
    return talk.packets


class ShortConnections(io.RawIOBase):
    """A pcap of `count` short connections, each from another address and port, made as it is read."""

    def __init__(self, count: int) -> None:
        whole = pcap(conversation())
        self._buffer = whole[:24]
        self._one = np.frombuffer(whole[24:], np.uint8)
        self._count = count
        self._made = 0
        at, self._places = 0, []
        while at < len(self._one):
            (size,) = struct.unpack_from("<I", whole, 24 + at + 8)
            self._places.append(at)
            at += 16 + size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while len(self._buffer) < max(size, 1) and self._made < self._count:
            self._buffer += self._more(min(4096, self._count - self._made))
        out, self._buffer = self._buffer[:size], self._buffer[size:]
        return out

    def _more(self, count: int) -> bytes:
        rows = np.tile(self._one, (count, 1))
        number = np.arange(self._made, self._made + count)
        for n, place in enumerate(self._places):
            first = struct.unpack_from("<II", self._one.tobytes(), place)
            time = first[0] * 10**9 + first[1] + number * SPACING_NS
            rows[:, place : place + 8] = np.stack([time // 10**9, time % 10**9], 1).astype("<u4").view(np.uint8)
            from_client = n in (0, 2, 3, 5)
            address = place + 16 + 14 + (12 if from_client else 16)
            port = place + 16 + 34 + (0 if from_client else 2)
            rows[:, address + 1 : address + 4] = (
                (number // 50_000 + 7 << 8).astype(">u4").view(np.uint8).reshape(-1, 4)[:, 1:]
            )
            rows[:, port : port + 2] = (number % 50_000 + 10_000).astype(">u2").view(np.uint8).reshape(-1, 2)
        self._made += count
        return rows.tobytes()


def peak(count: int) -> tuple[int, int]:
    """Connections found, and the largest resident memory (bytes) of a process that reads `count` of them."""
    code = (
        "import resource, sys, kdissect\n"
        "from tests.engine.test_memory import ShortConnections\n"
        f"capture = kdissect.open(ShortConnections({count}))\n"
        "rows = sum(batch.num_rows for batch in capture.batches('exchanges', ['exchange_id', 'status']))\n"
        "print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows, size = done.stdout.split()
    return int(rows), int(size)


@pytest.mark.whole
def test_flows_are_given_anew() -> None:
    """One after the other, 3.6 s apart: of 2,000 connections few are remembered at a time."""
    from kdissect.capture import open_captures
    from kdissect.engine.books import Books
    from kdissect.engine.inputs import CaptureFiles
    from kdissect.engine.run import Run
    from kdissect.engine.settings import Settings
    from kdissect.net.scanner import Scanner

    capture = open_captures(ShortConnections(120_000))
    seen: list[int] = []
    books = Books(capture, {"exchanges": ["exchange_id"]}, Settings())
    inputs = CaptureFiles(capture)
    number, one, scanner = next(iter(inputs.readings()))
    assert isinstance(scanner, Scanner)
    inputs.readings = lambda: iter([(number, one, scanner)])  # type: ignore[method-assign]
    rows = 0
    for done in Run(books, inputs).completed():
        rows += len(done)
        seen.append(len(scanner.flows))
    assert rows == 120_000
    assert len(np.unique(books.ledger.connections.id)) == 120_000
    assert max(seen) < 100_000


@pytest.mark.bench
def test_a_million_connections() -> None:
    """What remains of a finished connection is its row in `connections`."""
    (some, small), (many, large) = peak(200_000), peak(1_000_000)
    each = (large - small) / (many - some)
    print(f"{some} connections: {small >> 20} MB; {many}: {large >> 20} MB; {each:.0f} bytes for each more")
    assert (some, many) == (200_000, 1_000_000)
    assert each < 250


LITTLE = np.frombuffer(
    b"GET / HTTP/1.1\r\n\r" + api_versions_request(7, "some client")[:17] + bytes(17) + bytes(range(120, 137)), np.uint8
).reshape(4, 17)
"""Payloads that are no request: of HTTP, the beginning of a request, zeros, noise."""


def flood(path: Path, count: int, flags: int = SYN, payloads: np.ndarray = LITTLE[:1, :0]) -> Path:
    """A packet from each of so many clients, each to an endpoint of its own, with one of the payloads."""
    path.write_bytes(pcap([]))
    with path.open("ab") as file:
        for first in range(0, count, 1 << 18):
            _packets(np.arange(first, min(first + (1 << 18), count)), flags, payloads).tofile(file)
    return path


def _packets(number: np.ndarray, flags: int, payloads: np.ndarray) -> np.ndarray:
    count, size = len(number), payloads.shape[1]
    packet = np.zeros((count, 70 + size), np.uint8)
    packet[:, 16:][:, [12, 14, 22, 23, 46, 47]] = [8, 0x45, 64, 6, 0x50, flags]
    packet[:, [8, 12]] = 54 + size
    packet[:, 70:] = payloads[number % len(payloads)]
    for column, value, width, order in (
        (0, 1_700_000_000 + number // 10**5, 4, "<"), (4, number % 10**5 * 10, 4, "<"),
        (32, np.full(count, 40 + size), 2, ">"),
        (42, 0x0B000000 + number, 4, ">"), (46, 0x0A000000 + number * 7919 % 2**24, 4, ">"),
        (50, 32768 + number % 30_000, 2, ">"), (52, number % 30_000, 2, ">"),
        (54, number * 2654435761 % 2**32, 4, ">"), (64, np.full(count, 1000), 2, ">"),
    ):  # fmt: skip
        packet[:, column : column + width] = value.astype(f"{order}u{width}").view(np.uint8).reshape(count, width)
    return packet


EVERY_ANSWER = ([], ["--table", "exchanges"], ["--table", "connections", "--format", "csv"], ["-o", "@DIR@"])
"""What is asked of a flood; @DIR@ is a folder."""
FURTHER_ANSWERS = (
    ["@CAPTURE@", "--html", "@DIR@"], ["why", "@CAPTURE@"], ["top", "@CAPTURE@", "--once"],
    ["sql", "@CAPTURE@", "select client_ip, count(*) from connections group by all order by 2 desc limit 10"],
    ["otlp", "@CAPTURE@", "-o", "@DIR@"],
)  # fmt: skip
"""What only a million connections are asked; @DIR@ is a file."""


def cost(capture: Path, question: list[str], folder: Path) -> Cost:
    """What a question costs: options behind the capture, or all words of a command."""
    command = question if "@CAPTURE@" in question else ["@CAPTURE@", *question]
    out = str(folder / "out") + ("" if question in FURTHER_ANSWERS else "/")
    words = {"@CAPTURE@": str(capture), "@DIR@": out}
    made = run([sys.executable, "-m", "kdissect", *(words.get(word, word) for word in command)])
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").unlink(missing_ok=True)
    assert made.code == 0, question
    return made


FEW_FILES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
os.execv(sys.executable, [sys.executable, "-m", "kdissect", *sys.argv[1:]])
"""
"""The command line, where only so many files may be open."""


def test_captures_are_let_go_of_one_by_one(tmp_path: Path) -> None:
    """A hundred captures take the memory (the command's own bound holds) and the open files of one."""
    count, each = 100, 20
    for number in range(count):
        flood(tmp_path / f"host{number}x.pcap", each)
    asked = [str(tmp_path), "--table", "connections", "--columns", "capture", "--format", "csv", "--jobs", "1"]
    made = subprocess.run([sys.executable, "-c", FEW_FILES, *asked], capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    assert len(made.stdout.splitlines()) == 1 + count * each


@pytest.mark.whole
def test_connections_that_say_little_take_little_memory(tmp_path: Path) -> None:
    """Of a hundred thousand each takes some 200 bytes on top of what any capture takes."""
    capture = flood(tmp_path / "little.pcap", 100_000, PSH, LITTLE)
    for question in EVERY_ANSWER:
        peak = cost(capture, question, tmp_path).peak
        assert peak < 320 << 20, (question, peak >> 20)


@pytest.mark.bench
def test_a_million_connections_that_say_little(tmp_path: Path) -> None:
    some, many = (flood(tmp_path / f"{n}.pcap", n * 10**5, PSH, LITTLE) for n in (1, 10))
    for question in (*EVERY_ANSWER, *FURTHER_ANSWERS):
        small, large = cost(some, question, tmp_path), cost(many, question, tmp_path)
        print(
            f"{' '.join(question) or 'first screen'}: {large.peak / 1e6:.0f} MB, {large.cpu:.2f} us of CPU a packet; "
            f"each more: {(large.peak - small.peak) / 9e5:.0f} bytes, {(large.cpu - small.cpu) / 0.9:.2f} us"
        )
        assert large.peak <= 512 * 10**6, question


@pytest.mark.bench
def test_redacting_a_million_connections_that_say_little(tmp_path: Path) -> None:
    capture = flood(tmp_path / "little.pcap", 10**6, PSH, LITTLE)
    for line in (["-o", str(tmp_path / "safe.pcap")], ["--check"]):
        made = run([sys.executable, "-m", "kdissect", "redact", str(capture), *line])
        print(f"redact {line[0]}: {made.peak / 1e6:.0f} MB, {made.cpu:.2f} us of CPU a packet")
        assert made.code in (0, 1)  # 1: texts are left
        assert made.peak <= 512 * 10**6, line


@pytest.mark.bench
def test_three_million_half_open_connections_stay_within_memory(tmp_path: Path) -> None:
    """What each takes is the slope between one million and three."""
    one, three = (
        run([sys.executable, "-m", "kdissect", str(flood(tmp_path / "flood.pcap", count * 10**6))]) for count in (1, 3)
    )
    each = (three.peak - one.peak) / 2e6
    print(
        f"3 million: {three.peak / 1e6:.0f} MB, {three.cpu / 3:.2f} us of CPU a packet; "
        f"each more: {each:.0f} bytes, {(three.cpu - one.cpu) / 2:.2f} us"
    )
    assert (one.code, three.code) == (0, 0)
    assert three.peak <= 512 * 10**6
    assert each <= 100

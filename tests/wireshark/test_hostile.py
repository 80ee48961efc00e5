"""Damaged messages: no Lua error, whatever the bytes. A file holds many captures, each with addresses of its own."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from scapy.utils import RawPcapReader

from tests.fuzz.mutation import mutate
from tests.oracle import pcap
from tests.oracle.material import CAPTURES
from tests.wireshark.plugged import command, lua_errors, run

pytestmark = pytest.mark.oracle

SOURCES = (
    "raw_ids", "raw_reuse", "raw_errors", "raw_cuts", "sasl_old", "zoo_kafkajs", "zoo_sarama_010", "zoo_franz_go",
    "zoo_librdkafka", "zoo_kafka_python", "k4_list_offsets_raw",
)  # fmt: skip
MOST_PACKETS = 60
"""Of one damaged capture: a run of packets of its source."""
TO_A_FILE = 100
ETHERNET = 14
PASSES = (["-V", "-O", "kdissect"], ["-2", "-T", "fields", "-e", "kdissect.api", "-e", "kdissect.metadata.topics.name"])


def damaged(number: int) -> list[tuple[int, bytes]]:
    """Capture `number`: packets of a source, of which some are changed, left out, doubled or cut."""
    chance = random.Random(number)
    with RawPcapReader(str(CAPTURES / f"{chance.choice(SOURCES)}.pcap")) as reader:
        every = [data for data, _ in reader]
    start = 0 if chance.random() < 0.5 else chance.randrange(max(1, len(every) - MOST_PACKETS))
    out = []
    rate = chance.choice((0.02, 0.1, 0.5))
    for data in every[start : start + MOST_PACKETS]:
        packet = bytearray(data)
        header = ETHERNET + (packet[ETHERNET] & 15) * 4
        header += (packet[header + 12] >> 4) * 4
        if len(packet) > header and chance.random() < rate:
            payload = mutate(bytes(packet[header:]), chance)
            packet[header:] = payload
            struct.pack_into(">H", packet, ETHERNET + 2, min(len(packet) - ETHERNET, 0xFFFF))
        struct.pack_into(">H", packet, ETHERNET + 13, number & 0xFFFF)  # both addresses, so that files may be joined
        struct.pack_into(">H", packet, ETHERNET + 17, number & 0xFFFF)
        fate = chance.random()
        if fate > 0.02:
            out.append((pcap.START + len(out) * pcap.MS, bytes(packet)))
        if fate > 0.98:
            out.append(out[-1])
    return out


def check(lua: Path, folder: Path, numbers: range) -> int:
    """Read these captures, as one file, in each way; the bytes that tshark printed."""
    path = folder / f"{folder.name}-{numbers.start}.pcap"
    packets = [packet for number in numbers for packet in damaged(number)]
    path.write_bytes(pcap.pcap(packets, snap=random.Random(numbers.start).choice((262144, 262144, 120))))
    printed = 0
    for options in PASSES:
        done = run(command(lua, path, *options))
        assert done.returncode == 0, (numbers, options, done.stderr[-500:])
        assert not lua_errors(done), (numbers, options, lua_errors(done)[:3])
        printed += len(done.stdout)
    (lua.parent / path.name).unlink()
    path.unlink()
    return printed


def test_a_sample_of_damage(lua: Path, tmp_path: Path) -> None:
    assert check(lua, tmp_path, range(TO_A_FILE)) > 100_000


@pytest.mark.fuzz
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("most", [1000, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_damaged_captures(lua: Path, tmp_path: Path, most: int) -> None:
    first = int(os.environ.get("KDISSECT_FUZZ_FIRST", "0"))
    count = int(os.environ.get("KDISSECT_FUZZ_COUNT", most))
    for start in range(first, first + count, TO_A_FILE):
        check(lua, tmp_path, range(start, start + TO_A_FILE))

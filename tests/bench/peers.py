"""What others read of the same captures: tshark, pyshark and scapy, each at a size that it can finish."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.measure import Cost, run
from tests.bench.packets import Made

FIELDS = ("kafka.api_key", "kafka.api_version", "kafka.request.version", "kafka.correlation_id", "kafka.client_id")
"""Five Kafka fields, the nearest to what `exchanges` tells."""

PYSHARK = """
import sys, pyshark
capture = pyshark.FileCapture(sys.argv[1], display_filter="kafka", keep_packets=False)
found = 0
for packet in capture:
    for layer in packet.layers:
        if layer.layer_name == "kafka":
            found += sum(layer.get_field(name) is not None for name in ("correlation_id", "api_key", "client_id"))
capture.close()
print(found)
"""
SCAPY = """
import sys
from scapy.layers.inet import TCP
from scapy.utils import PcapReader
found = 0
with PcapReader(sys.argv[1]) as packets:
    for packet in packets:
        if TCP in packet:
            found += len(packet[TCP].payload)
print(found)
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that reads captures. `size`: bytes that it is given at most."""

    name: str
    size: int
    command: Callable[[Path], list[str]]
    there: Callable[[], bool]


def _tshark() -> bool:
    return shutil.which("tshark") is not None


def _importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "tshark",
            60_000_000,
            lambda path: ["tshark", "-r", str(path), "-T", "fields", *(w for f in FIELDS for w in ("-e", f))],
            _tshark,
        ),
        # tshark counts nothing of Kafka: protocols and connections are the nearest to a first screen that it has.
        Peer(
            "tshark -z",
            60_000_000,
            lambda path: ["tshark", "-r", str(path), "-q", "-z", "io,phs", "-z", "conv,tcp"],
            _tshark,
        ),
        Peer(
            "pyshark",
            1_000_000,
            lambda path: [sys.executable, "-c", PYSHARK, str(path)],
            lambda: _tshark() and _importable("pyshark"),
        ),
        Peer("scapy", 8_000_000, lambda path: [sys.executable, "-c", SCAPY, str(path)], lambda: _importable("scapy")),
    )
}
"""By name; the first is what ratios go by. scapy knows nothing of Kafka: it only takes packets apart."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a program needed for a capture of `size` bytes. Slopes (bytes a second, by wall and by CPU time) leave its
    start-up out."""

    size: int
    wall: float
    cpu: float
    peak: int
    slope: float
    cpu_slope: float

    @classmethod
    def of(cls, large: Made, small: Made, more: Cost, less: Cost) -> Measured:
        """From its costs for two captures of the same kind."""
        rest = large.size - small.size
        # A difference below a fiftieth cannot be told from noise.
        pairs = ((more.wall, less.wall), (more.cpu, less.cpu))
        slopes = (rest / max(one - other, one / 50, 1e-6) for one, other in pairs)
        return cls(large.size, more.wall, more.cpu, more.peak, *slopes)


def measure(
    peer: Peer, make: Callable[[Path, int], Made], folder: Path, size: int, cores: int, given: tuple[Made, Made] | None
) -> Measured | None:
    """A program on captures made for it, of `size` bytes and a quarter of that, or on those given where they are no
    larger. None where it is not installed or fails."""
    if not peer.there():
        return None
    own = given is None or given[0].size > size * 1.1
    pair = (
        (make(folder / "peer.pcap", size), make(folder / "peer-s.pcap", size // 4)) if own or given is None else given
    )
    try:
        costs = [run(peer.command(made.path), cores=cores) for made in pair]
    finally:
        for made in pair if own else ():
            made.path.unlink()
    if any(cost.code for cost in costs):
        print(f"{peer.name} ended with {[cost.code for cost in costs]}", file=sys.stderr)
        return None
    return Measured.of(*pair, *costs)

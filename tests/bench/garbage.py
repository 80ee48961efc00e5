"""`python -m tests.bench.garbage`: what is not Kafka, or hardly, costs at most three times a plain pass over Kafka.

    python -m tests.bench.garbage --size 1GB

Each capture is one workload of sixteen connections on port 9092; CPU seconds of `--table exchanges` beside those of the
same bytes of `plain` (small frames) tell the ratio. Kafka streams that lost a fifth of their packets are no garbage,
but nearly every frame of theirs is searched for. The captures are deleted afterwards.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.bench.__main__ import OURS, size_of
from tests.bench.measure import run
from tests.bench.packets import Cycle, Made, Packet, write
from tests.bench.workloads import plain

SEGMENT = 1448
TURN = 256
"""Packets of a turn: so many different ones there are."""
CONNECTIONS = 16
ALLOWED = 3.0


def noise() -> Cycle:
    """Random bytes both ways."""
    rng = np.random.default_rng(1)
    return Cycle([Packet(n % 2, rng.bytes(SEGMENT)) for n in range(TURN)])


def web() -> Cycle:
    """Requests and answers like those of HTTP."""
    ask = b"GET /api/v1/items?page=%d HTTP/1.1\r\nHost: shop.example\r\nAccept: application/json\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1300\r\n\r\n"
    packets = []
    for n in range(TURN // 2):
        packets += [Packet(0, ask % n), Packet(1, head + (b'{"item": %d, "name": "a thing"}, ' % n * 60)[:1300])]
    return Cycle(packets)


def likely() -> Cycle:
    """What looks like the beginnings of requests and responses, with bodies that no layout fits."""
    rng = np.random.default_rng(2)
    packets = []
    for n in range(TURN // 2):
        body = rng.bytes(SEGMENT - 24)
        head = (SEGMENT - 4).to_bytes(4, "big") + bytes([0, n % 60, 0, n % 12]) + n.to_bytes(4, "big")
        packets.append(Packet(0, head + b"\0\x06client" + body))
        packets.append(Packet(1, (SEGMENT - 4).to_bytes(4, "big") + n.to_bytes(4, "big") + body))
    return Cycle(packets)


def endless() -> Cycle:
    """The beginning of one large message after the other, none of which comes to its end, in small packets."""
    promise = (200 << 10).to_bytes(4, "big")
    ask = promise + bytes([0, 1, 0, 12]) + bytes(4) + b"\0\x06client" + bytes(40)
    packets = []
    for n in range(TURN // 2):
        packets += [Packet(0, ask), Packet(1, promise + n.to_bytes(4, "big") + bytes(60))]
    return Cycle(packets)


def small_segments() -> Cycle:
    """`plain` whose frames lie in several packets."""
    cycle = plain()
    return Cycle([piece for packet in cycle.packets for piece in _pieces(packet)], cycle.exchanges)


def _pieces(packet: Packet) -> list[Packet]:
    return [
        Packet(packet.side, packet.payload[at : at + 64], packet.flags, packet.correlation_at if at == 0 else None)
        for at in range(0, len(packet.payload), 64)
    ]


def headless() -> Cycle:
    """`plain` of whose requests every third lacks its beginning."""
    cycle = plain()
    first = cycle.packets[0]
    return Cycle([*cycle.packets[1:], Packet(first.side, first.payload[9:])], cycle.exchanges)


def whole(cycle: Callable[[], Cycle]) -> Callable[[Path, int], Made]:
    return lambda path, size: write(path, cycle(), size, CONNECTIONS)


def torn(cycle: Callable[[], Cycle]) -> Callable[[Path, int], Made]:
    """Connections that began before the capture, which lost every fifth packet."""
    return lambda path, size: write(path, cycle(), size, CONNECTIONS, loss=0.2, handshakes=False)


KINDS: dict[str, Callable[[Path, int], Made]] = {
    "random bytes": whole(noise),
    "text like HTTP": whole(web),
    "headers like Kafka's": whole(likely),
    "messages that never end": whole(endless),
    "Kafka, a fifth lost": torn(plain),
    "Kafka in small packets, a fifth lost": torn(small_segments),
    "Kafka without a third of its headers, a fifth lost": torn(headless),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.garbage", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--size", type=size_of, default=size_of("1GB"))
    parser.add_argument("--folder", type=Path, help="where captures are made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kdissect-bench-") as folder:
        path = Path(folder) / "capture.pcap"
        base = cost(whole(plain), path, options.size)
        print(f"| capture of {options.size / 1e9:.2g} GB | CPU | of plain Kafka | peak |\n|---|---|---|---|")
        print(f"| small frames of Kafka | {base[0]:.1f} s | 1 | {base[1] / 1e6:.0f} MB |")
        worst = 0.0
        for name, make in KINDS.items():
            seconds, peak = cost(make, path, options.size)
            worst = max(worst, seconds / base[0])
            print(f"| {name} | {seconds:.1f} s | {seconds / base[0]:.2f} | {peak / 1e6:.0f} MB |", flush=True)
    print(f"worst {worst:.2f}, allowed {ALLOWED:g}")
    return worst > ALLOWED


def cost(make: Callable[[Path, int], Made], path: Path, size: int) -> tuple[float, int]:
    """CPU seconds and peak memory of a pass over a capture made so."""
    made = make(path, size)
    found = run([sys.executable, "-m", "kdissect", str(made.path), "--jobs", "1", *OURS["exchanges"]])
    made.path.unlink()
    return found.cpu, found.peak


if __name__ == "__main__":
    sys.exit(main())

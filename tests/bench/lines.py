"""The figures of a benchmark: lines, a table of them, JSON, and how two runs differ."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.bench.peers import Measured

GB, MB = 1e9, 1e6


@dataclass(slots=True)
class Line:
    """One workload and question at one size, measured. Seconds, bytes, bytes a second."""

    workload: str
    what: str
    size: int
    packets: int
    exchanges: int
    wall: float
    cold: float | None
    cpu: float
    peak: int
    startup: float
    slope: float
    cpu_slope: float
    cat: float
    """What `cat FILE >/dev/null` reads of the same file."""
    floor: float
    """What one fused pass over its bytes takes, reading included, by CPU (`tests.bench.floor`)."""
    peers: dict[str, Measured] = field(default_factory=dict)
    records: int | None = None
    bare: float | None = None
    """CPU seconds of the codec's library alone for all batches."""

    @property
    def of_cat(self) -> float:
        """The slope as a part of what `cat` reads."""
        return self.slope / self.cat

    @property
    def of_floor(self) -> float:
        """The slope by CPU as a part of what one fused pass takes."""
        return self.cpu_slope / self.floor

    @property
    def record_rate(self) -> float | None:
        """Records a second of CPU, start-up left out."""
        return self.cpu_slope / self.size * self.records if self.records else None

    @property
    def bare_ratio(self) -> float | None:
        """Seconds of CPU for all of it, start-up left out, over those of bare decompression."""
        return self.size / self.cpu_slope / self.bare if self.bare else None

    def ratio(self, peer: str, *, cpu: bool = False) -> float | None:
        """How many times another program's slope ours is; by CPU time that holds on a busy machine too."""
        other = self.peers.get(peer)
        if other is None:
            return None
        return self.cpu_slope / other.cpu_slope if cpu else self.slope / other.slope


def table(lines: Sequence[Line], bandwidth: float) -> str:
    """The lines as Markdown."""
    names = list(dict.fromkeys(name for line in lines for name in line.peers))
    heads = [
        "workload", "what", "size", "wall", "cold", "CPU", "start-up", "slope", "by CPU", "M packets/s", "of cat",
        "of memory", "of one pass (by CPU)", "peak", *(f"x {name} (by CPU)" for name in names), "M records/s", "x bare",
    ]  # fmt: skip
    rows = [heads, ["---"] * len(heads)]
    for line in lines:
        ratios = [(line.ratio(name), line.ratio(name, cpu=True)) for name in names]
        rows.append(
            [
                line.workload, line.what, f"{line.size / MB:.0f} MB", f"{line.wall:.2f} s",
                "-" if line.cold is None else f"{line.cold:.2f} s", f"{line.cpu:.2f} s", f"{line.startup:.2f} s",
                f"{line.slope / GB:.2f} GB/s", f"{line.cpu_slope / GB:.2f} GB/s",
                f"{line.slope / line.size * line.packets / MB:.2f}", f"{line.of_cat:.0%}",
                f"{line.slope / bandwidth:.0%}", f"{line.of_floor:.0%}", f"{line.peak / MB:.0f} MB",
                *("-" if one is None else f"{one:.0f} ({two:.0f})" for one, two in ratios),
                "-" if line.record_rate is None else f"{line.record_rate / MB:.1f}",
                "-" if line.bare_ratio is None else f"{line.bare_ratio:.2f}",
            ]
        )  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def others(lines: Sequence[Line]) -> str:
    """What the other programs needed, one row for each workload, as Markdown."""
    rows = [["workload", "program", "size", "wall", "slope", "peak"], ["---"] * 6]
    found = {(line.workload, name): peer for line in lines for name, peer in line.peers.items()}
    for (workload, name), peer in found.items():
        rows.append(
            [
                workload, name, f"{peer.size / MB:.1f} MB", f"{peer.wall:.2f} s", f"{peer.slope / MB:.2f} MB/s",
                f"{peer.peak / MB:.0f} MB",
            ]
        )  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def growth(lines: Sequence[Line]) -> str:
    """How time and memory grow from the smallest size to the largest, where there are several."""
    out = []
    for workload, what in dict.fromkeys((line.workload, line.what) for line in lines):
        same = sorted((one for one in lines if (one.workload, one.what) == (workload, what)), key=lambda one: one.size)
        small, large = same[0], same[-1]
        if large.size < 2 * small.size:
            continue
        took = [max(one.wall - large.startup, 1e-3) for one in (small, large)]
        exponent = math.log(took[1] / took[0]) / math.log(large.size / small.size)
        out.append(
            f"{workload} {what}: from {small.size / MB:.0f} to {large.size / MB:.0f} MB time grows with exponent "
            f"{exponent:.2f}, peak memory from {small.peak / MB:.0f} to {large.peak / MB:.0f} MB"
        )
    return "\n".join(out)


def document(lines: Sequence[Line], bandwidth: float) -> dict[str, Any]:
    """The same for another program, and for `compare`."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "memory_bytes_per_second": bandwidth,
        "lines": [
            asdict(line)
            | {"of_cat": line.of_cat, "of_floor": line.of_floor}
            | {"ratio": line.ratio("tshark"), "cpu_ratio": line.ratio("tshark", cpu=True)}
            for line in lines
        ],
    }


def compare(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Two documents, line by line: what the second needs as a multiple of the first (below 1 is better)."""

    def keyed(document: dict[str, Any]) -> dict[tuple[str, str, int], dict[str, Any]]:
        return {(one["workload"], one["what"], round(one["size"], -6)): one for one in document["lines"]}

    first, second = keyed(before), keyed(after)
    rows = [["workload", "what", "size", "wall", "CPU", "bytes by CPU", "peak"], ["---"] * 7]
    for key in [key for key in first if key in second]:
        one, two = first[key], second[key]
        measures = [
            two["wall"] / one["wall"], two["cpu"] / one["cpu"], one["cpu_slope"] / two["cpu_slope"],
            two["peak"] / one["peak"],
        ]  # fmt: skip
        rows.append([key[0], key[1], f"{key[2] / MB:.0f} MB", *(f"{value:.2f}" for value in measures)])
    alone = [
        f"only in the {which}: {' '.join(map(str, key[:2]))} {key[2] / MB:.0f} MB"
        for which, mine, other in (("first", first, second), ("second", second, first))
        for key in mine
        if key not in other
    ]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), *alone])

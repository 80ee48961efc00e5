"""`python -m tests.bench`: make large captures, measure kdissect beside tshark, print the ratios, delete the captures.

    python -m tests.bench                                 chatter, bulk and mixed at 400 MB
    python -m tests.bench chatter bulk --size 1GB --cold
    python -m tests.bench --all --size 100MB --what exchanges screen parquet --json out.json
    python -m tests.bench chatter --size 1GB --no-tshark
    python -m tests.bench bulk bulk-lz4 bulk-zstd --what batches verified records --tshark-size 400MB
    python -m tests.bench --generate chatter --size 1GB -o /tmp/chatter.pcap

Two sizes are measured (the asked one and a quarter of it), so that start-up and slope stand apart: the slope is the
bytes of difference over the seconds of difference. tshark is slower; it gets a smaller pair (`--tshark-size`), or the
same files where that is no less than `--size`.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kdissect.tables.declaration import columns_of
from tests.bench.measure import Cost, memory_bandwidth, run
from tests.bench.packets import Made
from tests.bench.workloads import WORKLOADS, held

TSHARK_FIELDS = (
    "kafka.api_key", "kafka.api_version", "kafka.request.version", "kafka.correlation_id", "kafka.client_id",
)  # fmt: skip
"""Five Kafka fields, the nearest to what `exchanges` tells."""

WIRE = ",".join(column for column in columns_of("exchanges") if column != "hold")
"""All of `exchanges` but why an answer was held back, which takes the analysis of every fetch."""
CHECKED = ",".join(column for column in columns_of("record_batches") if column != "uncompressed_bytes")
"""All of `record_batches` with the checksum computed."""
MEASURED = ",".join(column for column in columns_of("record_batches") if column != "crc_ok")
"""All of `record_batches` with every batch decompressed."""
OURS: dict[str, list[str]] = {
    "exchanges": ["--table", "exchanges", "--columns", WIRE, "--format", "arrow", "-o", "/dev/null"],
    "analysed": ["--table", "exchanges", "--format", "arrow", "-o", "/dev/null"],
    "screen": [],
    "fetches": ["--table", "fetches", "--format", "arrow", "-o", "/dev/null"],
    "batches": ["--table", "record_batches", "--format", "arrow", "-o", "/dev/null"],
    "verified": ["--table", "record_batches", "--columns", CHECKED, "--format", "arrow", "-o", "/dev/null"],
    "sizes": ["--table", "record_batches", "--columns", MEASURED, "--format", "arrow", "-o", "/dev/null"],
    "revealed": ["--table", "records", "--reveal", "--format", "arrow", "-o", "/dev/null"],
    "records": ["--table", "records", "--format", "arrow", "-o", "/dev/null"],
    "messages": ["--messages", "Fetch.response", "--format", "arrow", "-o", "/dev/null"],
    "parquet": ["-o", "@DIR@"],
}
"""What to ask of kdissect -> its options."""


@dataclass(slots=True)
class Line:
    """One workload and question, measured."""

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
    tshark_wall: float | None = None
    tshark_size: int | None = None
    tshark_slope: float | None = None
    tshark_peak: int | None = None
    cpu_slope: float = 0.0
    tshark_cpu_slope: float | None = None
    records: int | None = None
    bare: float | None = None
    """CPU seconds of the codec's library alone for all batches."""

    @property
    def record_rate(self) -> float | None:
        """Records a second of CPU, start-up left out."""
        return self.cpu_slope / self.size * self.records if self.records else None

    @property
    def bare_ratio(self) -> float | None:
        """Seconds of CPU for all of it, start-up left out, over those of bare decompression."""
        return self.size / self.cpu_slope / self.bare if self.bare else None

    @property
    def ratio(self) -> float | None:
        """How many times tshark's slope ours is."""
        return self.slope / self.tshark_slope if self.tshark_slope else None

    @property
    def cpu_ratio(self) -> float | None:
        """The same by CPU seconds: what a machine that does other things too can still tell."""
        return self.cpu_slope / self.tshark_cpu_slope if self.tshark_cpu_slope else None


def size_of(text: str) -> int:
    """`100MB`, `1GB` -> bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)i?B?", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"not a size: {text} (like 100MB or 1GB)")
    return int(float(found[1]) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[found[2].upper()])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workloads", nargs="*", help=f"of: {', '.join(WORKLOADS)}")
    parser.add_argument("--all", action="store_true", help="every workload")
    parser.add_argument("--size", type=size_of, default=size_of("400MB"))
    parser.add_argument("--tshark-size", type=size_of, default=size_of("60MB"), help="size of tshark's larger file")
    parser.add_argument("--what", nargs="+", choices=OURS, default=["exchanges"])
    parser.add_argument("--times", type=int, default=2, help="runs of each, the best counts (kdissect only)")
    parser.add_argument("--cores", type=int, default=1, help="cores to pin every process to; 0 for all")
    parser.add_argument("--cold", action="store_true", help="also with the file out of the page cache")
    parser.add_argument("--no-tshark", action="store_true")
    parser.add_argument("--generate", metavar="WORKLOAD", choices=WORKLOADS, help="only write a capture, to -o")
    parser.add_argument("-o", "--output", type=Path, default=Path("bench.pcap"))
    parser.add_argument("--folder", type=Path, help="where captures are made (they are deleted afterwards)")
    parser.add_argument("--json", type=Path, help="also write the figures as JSON")
    options = parser.parse_args()
    if options.generate:
        print(WORKLOADS[options.generate][1](options.output, options.size))
        return 0
    names = list(WORKLOADS) if options.all else options.workloads or ["chatter", "bulk", "mixed"]
    if unknown := [name for name in names if name not in WORKLOADS]:
        parser.error(f"no such workload: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kdissect-bench-") as folder:
        for name in names:
            lines += bench(name, Path(folder), options)
        bandwidth = memory_bandwidth()
    report(lines, bandwidth)
    if options.json:
        options.json.write_text(json.dumps(document(lines, bandwidth), indent=1) + "\n")
    return 0


def bench(name: str, folder: Path, options: argparse.Namespace) -> list[Line]:
    """Measure one workload: its captures live only as long."""
    _, make = WORKLOADS[name]
    large, small = make(folder / f"{name}.pcap", options.size), make(folder / f"{name}-s.pcap", options.size // 4)
    tshark = None
    if not options.no_tshark and shutil.which("tshark"):
        same = options.tshark_size >= options.size
        tshark = tshark_of(name, folder, options, (large, small) if same else None)
    contents = held(name, large.exchanges)
    floor = run(["cat", str(large.path)], times=2)
    print(
        f"{name}: {large.size / 1e6:.0f} MB, {large.packets:,} packets, {large.exchanges:,} exchanges, "
        f"{large.connections:,} connections; cat {large.size / floor.wall / 1e9:.1f} GB/s",
        file=sys.stderr,
    )
    out = []
    for what in options.what:
        cost, less = ours(large, what, folder, options), ours(small, what, folder, options)
        cold = ours(large, what, folder, options, cold=True).wall if options.cold else None
        slope = (large.size - small.size) / max(cost.wall - less.wall, 1e-6)
        line = Line(
            name, what, large.size, large.packets, large.exchanges, cost.wall, cold, cost.cpu, cost.peak,
            max(0.0, less.wall - small.size / slope), slope,
        )  # fmt: skip
        if tshark:
            line.tshark_wall, line.tshark_size, line.tshark_slope, line.tshark_peak, line.tshark_cpu_slope = tshark
        if contents:
            line.records, line.bare = contents.records, contents.seconds
        line.cpu_slope = (large.size - small.size) / max(cost.cpu - less.cpu, 1e-6)
        if cost.code:
            print(f"{name} {what}: kdissect ended with {cost.code}", file=sys.stderr)
        out.append(line)
    for made in (large, small):
        made.path.unlink()
    return out


def ours(made: Made, what: str, folder: Path, options: argparse.Namespace, *, cold: bool = False) -> Cost:
    arguments = [word.replace("@DIR@", str(folder / "tables")) for word in OURS[what]]
    command = [sys.executable, "-m", "kdissect", str(made.path), *arguments]
    cost = run(command, cold=made.path if cold else None, times=options.times, cores=options.cores)
    shutil.rmtree(folder / "tables", ignore_errors=True)
    return cost


def tshark_of(
    name: str, folder: Path, options: argparse.Namespace, pair: tuple[Made, Made] | None
) -> tuple[float, int, float, int, float]:
    """tshark's seconds, size, slope, memory and slope by CPU seconds on a pair of files: of its own, if none is
    given."""
    make = WORKLOADS[name][1]
    own = ((size, folder / f"tshark-{size}.pcap") for size in (options.tshark_size, options.tshark_size // 4))
    files = pair or tuple(make(path, size) for size, path in own)
    fields = [word for field in TSHARK_FIELDS for word in ("-e", field)]
    more, less = (run(["tshark", "-r", str(made.path), "-T", "fields", *fields], cores=options.cores) for made in files)
    large, small = files
    slope = (large.size - small.size) / max(more.wall - less.wall, 1e-6)
    by_cpu = (large.size - small.size) / max(more.cpu - less.cpu, 1e-6)
    for made in () if pair else files:
        made.path.unlink()
    return more.wall, large.size, slope, more.peak, by_cpu


def report(lines: list[Line], bandwidth: float) -> None:
    """Print the table."""
    print(
        f"Python {platform.python_version()}, {platform.machine()}; memory {bandwidth / 1e9:.1f} GB/s copied by a core"
    )
    print(
        "| workload | what | size | wall | cold | start-up | slope | slope by CPU | M packets/s | peak | tshark "
        "| ratio | by CPU | M records/s | x bare |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for line in lines:
        rate = line.slope / line.size * line.packets / 1e6
        cold = f"{line.cold:.2f} s" if line.cold else "-"
        tshark = f"{line.tshark_slope / 1e6:.0f} MB/s" if line.tshark_slope else "-"
        ratio = f"{line.ratio:.0f}x" if line.ratio else "-"
        by_cpu = f"{line.cpu_ratio:.0f}x" if line.cpu_ratio else "-"
        records = f"{line.record_rate / 1e6:.1f}" if line.record_rate else "-"
        bare = f"{line.bare_ratio:.2f}" if line.bare_ratio else "-"
        print(
            f"| {line.workload} | {line.what} | {line.size / 1e6:.0f} MB | {line.wall:.2f} s | {cold} "
            f"| {line.startup:.2f} s | {line.slope / 1e9:.2f} GB/s | {line.cpu_slope / 1e9:.2f} GB/s "
            f"| {rate:.2f} | {line.peak / 1e6:.0f} MB | {tshark} | {ratio} | {by_cpu} | {records} | {bare} |"
        )


def document(lines: list[Line], bandwidth: float) -> dict[str, Any]:
    """The same for another program to compare."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "memory_bytes_per_second": bandwidth,
        "lines": [asdict(line) | {"ratio": line.ratio, "cpu_ratio": line.cpu_ratio} for line in lines],
    }


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.bench`: make large captures, measure kdissect beside others, print the ratios, delete the captures.

    python -m tests.bench                                 every workload at 100 MB, all questions, all programs
    python -m tests.bench --full --json all.json          the same at 100 MB, 1 GB and 8 GB, cold too: takes hours
    python -m tests.bench chatter bulk --size 1GB --what exchanges screen --cold
    python -m tests.bench chatter --size 100MB 1GB --peers
    python -m tests.bench bulk bulk-lz4 bulk-zstd --what batches verified records --tshark-size 400MB
    python -m tests.bench --compare before.json after.json
    python -m tests.bench --generate chatter --size 1GB -o /tmp/chatter.pcap

Two captures are measured for each size (of that size and a quarter of it), so that start-up and slope stand apart: the
slope is the bytes of difference over the seconds of difference. Others are slower; each gets a smaller pair. The table
also says what part of `cat FILE >/dev/null`, and of copying memory, a slope is. No figure makes the command fail.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from kdissect.tables.declaration import TABLES, columns_of
from kdissect.tables.declaration.model import By
from tests.bench.floor import floor
from tests.bench.lines import Line, compare, document, growth, others, table
from tests.bench.measure import Cost, memory_bandwidth, run
from tests.bench.packets import Made
from tests.bench.peers import FIELDS, PEERS, Measured, measure
from tests.bench.workloads import WORKLOADS, held

TSHARK_FIELDS = FIELDS
WIRE = ",".join(name for name, column in TABLES["exchanges"].by_name.items() if column.by is not By.EXCHANGE_HOLDS)
"""All of `exchanges` but why an answer was held back and for how long, which takes the analysis of every fetch."""
CHECKED = ",".join(column for column in columns_of("record_batches") if column != "uncompressed_bytes")
"""All of `record_batches` with the checksum computed."""
MEASURED = ",".join(column for column in columns_of("record_batches") if column != "crc_ok")
"""All of `record_batches` with every batch decompressed."""
FEW = "exchange_id,api,client_id,latency_ms,status"
"""Five columns of `exchanges`."""


def _table(name: str, *options: str) -> list[str]:
    return ["--table", name, *options, "--format", "arrow", "-o", "/dev/null"]


OURS: dict[str, list[str]] = {
    "exchanges": _table("exchanges", "--columns", WIRE),
    "five": _table("exchanges", "--columns", FEW),
    "filtered": _table("exchanges", "--columns", FEW, "--where", "api = 'Heartbeat'"),
    "analysed": _table("exchanges"),
    "screen": [],
    "connections": _table("connections"),
    "fetches": _table("fetches"),
    "deliveries": _table("deliveries"),
    "partitions": _table("fetch_partitions"),
    "batches": _table("record_batches"),
    "verified": _table("record_batches", "--columns", CHECKED),
    "sizes": _table("record_batches", "--columns", MEASURED),
    "revealed": _table("records", "--reveal"),
    "records": _table("records"),
    "messages": ["--messages", "Fetch.response", "--format", "arrow", "-o", "/dev/null"],
    "parquet": ["-o", "@DIR@"],
}
"""What to ask of kdissect -> its options."""
USUAL = ("screen", "exchanges", "parquet", "records")
SIZES = ("100MB", "1GB", "8GB")


def size_of(text: str) -> int:
    """`100MB`, `1GB` -> bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)i?B?", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"not a size: {text} (like 100MB or 1GB)")
    return int(float(found[1]) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[found[2].upper()])


def arguments() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workloads", nargs="*", help=f"of: {', '.join(WORKLOADS)} (all)")
    parser.add_argument("--full", action="store_true", help=f"{', '.join(SIZES)}, cold and warm, all programs")
    parser.add_argument("--size", type=size_of, nargs="+", help="of the captures (100MB)")
    parser.add_argument("--what", nargs="+", choices=OURS, default=list(USUAL))
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="other programs to measure (all)")
    parser.add_argument("--tshark-size", type=size_of, help="bytes that tshark is given at most (60MB)")
    parser.add_argument("--times", type=int, default=2, help="runs of each, the best counts (kdissect only)")
    parser.add_argument("--cores", type=int, default=1, help="cores to pin every process to; 0 for all")
    parser.add_argument("--cold", action="store_true", help="also with the file out of the page cache")
    parser.add_argument("--generate", metavar="WORKLOAD", choices=WORKLOADS, help="only write a capture, to -o")
    parser.add_argument("-o", "--output", type=Path, default=Path("bench.pcap"))
    parser.add_argument("--folder", type=Path, help="where captures are made (they are deleted afterwards)")
    parser.add_argument("--json", type=Path, help="also write the figures as JSON")
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar="JSON", help="only compare two files that --json wrote"
    )
    return parser


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    sizes = options.size or [size_of(text) for text in (SIZES if options.full else SIZES[:1])]
    if options.compare:
        print(compare(*(json.loads(path.read_text()) for path in options.compare)))
        return 0
    if options.generate:
        print(WORKLOADS[options.generate][1](options.output, sizes[0]))
        return 0
    names = options.workloads or list(WORKLOADS)
    if unknown := [name for name in names if name not in WORKLOADS]:
        parser.error(f"no such workload: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    options.cold = options.cold or options.full
    lines: list[Line] = []
    bandwidth = memory_bandwidth()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kdissect-bench-") as folder:
        for name in names:
            peers: dict[str, Measured] = {}
            for size in sizes:
                lines += bench(name, size, Path(folder), options, peers)
            if options.json:  # after each workload: a run that takes hours leaves what it has
                options.json.write_text(json.dumps(document(lines, bandwidth), indent=1) + "\n")
    print(
        f"Python {platform.python_version()}, {platform.machine()}; memory {bandwidth / 1e9:.1f} GB/s copied by a core"
    )
    for text in (table(lines, bandwidth), others(lines), growth(lines)):
        print(f"\n{text}" if text else "", end="\n" if text else "")
    return 0


def bench(name: str, size: int, folder: Path, options: argparse.Namespace, peers: dict[str, Measured]) -> list[Line]:
    """Measure one workload at one size: its captures live only as long. `peers` is filled the first time."""
    _, make = WORKLOADS[name]
    large, small = make(folder / f"{name}.pcap", size), make(folder / f"{name}-s.pcap", size // 4)
    for peer in [PEERS[key] for key in (PEERS if options.peers is None else options.peers) if key not in peers]:
        most = options.tshark_size if options.tshark_size and peer.name.startswith("tshark") else peer.size
        found = measure(peer, make, folder, most, options.cores, (large, small))
        if found is not None:
            peers[peer.name] = found
    contents = held(name, large.exchanges)
    cat = run(["cat", str(large.path)], times=2, cores=options.cores)
    least = floor(large.path)
    print(
        f"{name}: {large.size / 1e6:.0f} MB, {large.packets:,} packets, {large.exchanges:,} exchanges, "
        f"{large.connections:,} connections; cat {large.size / cat.wall / 1e9:.1f} GB/s, one pass over it "
        f"{least.slope / 1e9:.1f} GB/s of CPU",
        file=sys.stderr,
    )
    out = []
    for what in options.what:
        more, less = ours(large, what, folder, options), ours(small, what, folder, options)
        cold = ours(large, what, folder, options, cold=True).wall if options.cold else None
        mine = Measured.of(large, small, more, less)
        line = Line(
            name, what, large.size, large.packets, large.exchanges, more.wall, cold, more.cpu, more.peak,
            max(0.0, less.wall - small.size / mine.slope), mine.slope, mine.cpu_slope, large.size / cat.wall,
            least.slope, dict(peers),
        )  # fmt: skip
        if contents:
            line.records, line.bare = contents.records, contents.seconds
        if more.code:
            print(f"{name} {what}: kdissect ended with {more.code}", file=sys.stderr)
        out.append(line)
    for made in (large, small):
        made.path.unlink()
    return out


def asked(path: Path, what: str, tables: Path, jobs: int) -> list[str]:
    """The command of a question; `jobs`: 0 for as many as kdissect likes."""
    words = [word.replace("@DIR@", str(tables)) for word in OURS[what]]
    return [sys.executable, "-m", "kdissect", str(path), *words, *(["--jobs", str(jobs)] if jobs else [])]


def ours(made: Made, what: str, folder: Path, options: argparse.Namespace, *, cold: bool = False) -> Cost:
    """What kdissect needs for a question."""
    command = asked(made.path, what, folder / "tables", options.cores)
    costs = []
    for _ in range(options.times):
        costs.append(run(command, cold=made.path if cold else None, cores=options.cores))
        shutil.rmtree(folder / "tables", ignore_errors=True)
    best = min(costs, key=lambda cost: cost.wall)
    return replace(best, peak=max(cost.peak for cost in costs))


if __name__ == "__main__":
    sys.exit(main())

"""The Wireshark plugin beside the built-in dissector: CPU of tshark on the same file, as ratios that fail nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.measure import Cost, run
from tests.bench.workloads import WORKLOADS
from tests.oracle.dissector import tshark
from tests.wireshark.plugged import written

pytestmark = pytest.mark.bench

OURS = ("kdissect.api", "kdissect.version", "kdissect.correlation_id", "kdissect.client_id", "kdissect.length")
THEIRS = ("kafka.api_key", "kafka.api_version", "kafka.correlation_id", "kafka.client_id", "kafka.len")
SIZES = {"plain": 25_000_000, "bulk": 60_000_000}
WAYS = (
    ("plain", "-T fields", 3.0), ("bulk", "-T fields", 1.3), ("plain", "-V", 4.0), ("plain", "-2 -T fields", 4.0)
)  # fmt: skip
"""Workload, what tshark does, and the ratio that it should stay below with Wireshark 4.0."""


def options(way: str, protocol: str, fields: tuple[str, ...]) -> list[str]:
    if way == "-V":
        return ["-V", "-O", protocol]
    return [*way.split(), *(word for field in fields for word in ("-e", field))]


@pytest.mark.timeout(1800)
def test_cpu_beside_the_built_in_dissector(tmp_path: Path) -> None:
    """In pairs, the best of three each."""
    lua = written(tmp_path)
    print("\n| workload | tshark | plugin, CPU s | built in, CPU s | ratio | meant | plugin, peak MB | built in |")
    print("|---" * 8 + "|")
    for name, way, meant in WAYS:
        path = tmp_path / f"{name}.pcap"
        if not path.exists():
            WORKLOADS[name][1](path, SIZES[name])
        plugin = [tshark(), "-X", f"lua_script:{lua}", "-r", str(path), *options(way, "kdissect", OURS)]
        built_in = [tshark(), "-r", str(path), *options(way, "kafka", THEIRS)]
        pairs: list[tuple[Cost, Cost]] = [(run(plugin), run(built_in)) for _ in range(3)]
        ours, theirs = (min(side, key=lambda cost: cost.cpu) for side in zip(*pairs, strict=True))
        assert ours.code == theirs.code == 0
        print(
            f"| {name} | {way} | {ours.cpu:.2f} | {theirs.cpu:.2f} | {ours.cpu / theirs.cpu:.2f} | {meant} "
            f"| {ours.peak >> 20} | {theirs.peak >> 20} |"
        )

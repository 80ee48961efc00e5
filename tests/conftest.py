"""What all tests share: reproducible Hypothesis runs, where the captures are, captures by name."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import zlib
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
CAPTURES = ROOT / "captures"
PACKAGE = Path(str(importlib.util.find_spec("kdissect").origin)).parent  # type: ignore[union-attr]
"""The package that is tested: of the checkout, or an installed one."""

SAMPLE = frozenset(
    {
        "base_tiny", "base_short", "downconv_282", "era_0_8_2", "era_2_8_2", "field_loss1", "field_rotated_C",
        "field_snap96", "field_two_interfaces", "k4_python_kafka", "k4_session_eviction", "k4_share_group",
        "raw_errors", "raw_reuse", "sasl_logins", "tls13", "zoo_kafkajs",
    }
)  # fmt: skip
"""Captures that stand for all where a test goes over many: releases, clients, damage, logins, TLS, all small. A module
whose tests are slow on some names a smaller CAPTURE_SAMPLE of its own."""
MANY = 5
"""Captures that a test goes over before the sample stands for them."""
ONE_IN = 24
"""Of what the sample leaves out `whole` has one case in so many, others for each test; `exhaustive` has the rest."""
SLOW = ROOT / "tests" / "slow.txt"
"""Tests that take long, a line each; `python -m tests.slow` makes it."""
COLLECTED = pytest.StashKey[frozenset[str]]()
"""Names of all tests that pytest found, those that it leaves out too."""
FEW = 3
"""Cases kept of a test whose captures are not in the sample."""

# Sessions of Spark are short here: the optimising compiler takes half of their CPU time and never pays, and whether the
# classes of published jars are sound need not be asked fifteen times.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)

# One profile in every place: no deadline, because kernels compile on first use, and the same examples on every run.
settings.register_profile(
    "default", max_examples=50, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "exhaustive", max_examples=2000, derandomize=False, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure(config: pytest.Config) -> None:
    """Compile all kernels once before several workers begin (-n): each would do it for itself. Commands that a shell
    runs in its background ignore interrupts, and so would those that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # hundreds of short programs would each compile every module
        sys.dont_write_bytecode = False
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        from kdissect.kernels.kernel import LIBRARY, PLAIN

        if not PLAIN and LIBRARY is None and importlib.util.find_spec("numba"):
            subprocess.run([sys.executable, "-m", "kdissect.kernels.shared_object"], cwd=ROOT, check=True)


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of committed captures."""
    return CAPTURES


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as `whole`, which CI runs too, the tests that take long, of one with several such cases the first, and of a
    test that goes over many captures cases outside the sample: a few, or all where it is marked `every_capture`. The
    others are `exhaustive`. Put them in the order of `_turn`."""
    config.stash[COLLECTED] = frozenset(item.nodeid for item in items)
    slow = frozenset(SLOW.read_text().split("\n"))
    tried = set()
    for item in items:
        if item.nodeid in slow:
            test = item.nodeid.partition("[")[0]
            first = test not in tried or item.get_closest_marker("every_capture")
            item.add_marker(pytest.mark.whole if first else pytest.mark.exhaustive)
            tried.add(test)
    stems = {path.name.split(".")[0] for path in CAPTURES.iterdir()}
    cases: defaultdict[str, list[tuple[str, pytest.Item]]] = defaultdict(list)
    for item in items:
        words = re.split(r"[^\w]", getattr(getattr(item, "callspec", None), "id", ""))
        stem = next((word for word in words if word in stems), None)
        if stem is not None:
            cases[item.nodeid.partition("[")[0]].append((stem, item))
    for test, found in cases.items():
        names = sorted({stem for stem, _ in found})
        if len(names) <= MANY:
            continue
        sample = getattr(found[0][1].module, "CAPTURE_SAMPLE", SAMPLE)  # type: ignore[attr-defined]
        kept = sample.intersection(names) or set(names[:FEW])
        for stem, item in found:
            if stem not in kept:
                item.add_marker(pytest.mark.whole)
                if not item.get_closest_marker("every_capture") and zlib.crc32(f"{test} {stem}".encode()) % ONE_IN:
                    item.add_marker(pytest.mark.exhaustive)
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Tests that look at the memory of their process, those that start a JVM of their own, half a minute each, and
    others."""
    own = item.get_closest_marker("spark") and "spark" not in getattr(item, "fixturenames", ())
    return 0 if item.get_closest_marker("fuzz") else 1 if own else 2

"""`python -m tests.bench.kernels`: the seconds that each kernel takes to compile in the first run ever.

The first screen of a small capture with an empty cache. A kernel that others call is
counted for itself.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from typing import Any

from tests.conftest import ROOT

CAPTURE = ROOT / "captures" / "base_tiny.pcap"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kdissect-bench-") as cache:
        os.environ["NUMBA_CACHE_DIR"] = cache
        from numba.core import event

        import kdissect

        with event.install_recorder("numba:compile") as recorder:
            kdissect.open(CAPTURE, jobs=1).summary()
    seconds = own_seconds(recorder.buffer)
    print("| kernel | compiled in |\n|---|---|")
    for name, taken in seconds.most_common():
        print(f"| {name} | {taken:.2f} s |")
    print(f"| all {len(seconds)} | {seconds.total():.1f} s |")


def own_seconds(events: list[tuple[float, Any]]) -> Counter[str]:
    """Seconds of each kernel, without those of kernels compiled meanwhile."""
    seconds: Counter[str] = Counter()
    since, running = 0.0, []
    for time, one in events:
        if running:
            seconds[running[-1]] += time - since  # type: ignore[assignment]
        since = time
        function = one.data["dispatcher"].py_func
        if one.is_start:
            running.append(f"{function.__module__.removeprefix('kdissect.')}.{function.__name__}")
        elif running:
            running.pop()
    return seconds


if __name__ == "__main__":
    main()

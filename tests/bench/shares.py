"""The shares of APIs and the sizes of messages in the committed captures: `python -m tests.bench.shares` counts them.

`tests/bench/shares.txt` has an exchange a line: its API, the bytes of its request and of its response.
"""

from __future__ import annotations

from collections import defaultdict

import kdissect
from tests.conftest import CAPTURES, ROOT

SHARES = ROOT / "tests" / "bench" / "shares.txt"
EXCHANGES = 200
"""Lines of the file: each stands for half a hundredth of the exchanges."""
APIS = (
    "Fetch", "ApiVersions", "Produce", "Metadata", "ListOffsets", "FindCoordinator", "Heartbeat", "OffsetFetch",
    "OffsetCommit",
)  # fmt: skip
"""What clients ask most often: four fifths of all exchanges of the captures, and nine tenths of the bytes."""
HOW = """\
# Computed by `python -m tests.bench.shares`: of all exchanges with a response in captures/*.pcap but field_* (copies of
# one traffic), those of the APIs that clients use most; of each API, in order of its responses' and requests' bytes,
# the middle ones of as many equal parts as its share of {exchanges} is. API, bytes of the request, of the response.
"""
ANSWERED = "(status = 'ok' or status = 'error') and request_bytes > 0 and response_bytes > 0"


def count() -> list[tuple[str, int, int]]:
    """API, bytes of request and response of EXCHANGES exchanges that stand for all of the committed captures."""
    sizes: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for path in sorted(CAPTURES.glob("*.pcap")):
        if path.name.startswith("field_"):
            continue
        table = kdissect.open(path).table("exchanges", ["api", "request_bytes", "response_bytes"], ANSWERED)
        for row in table.to_pylist():
            sizes[row["api"]].append((row["response_bytes"], row["request_bytes"]))
    total = sum(len(sizes[api]) for api in APIS)
    chosen = []
    for api in APIS:
        each, lines = sorted(sizes[api]), max(1, round(EXCHANGES * len(sizes[api]) / total))
        middles = (each[(2 * n + 1) * len(each) // (2 * lines)] for n in range(lines))
        chosen += [(api, request, response) for response, request in middles]
    return chosen


def read() -> list[tuple[str, int, int]]:
    """The lines of shares.txt."""
    rows = [line.split() for line in SHARES.read_text().splitlines() if not line.startswith("#")]
    return [(api, int(request), int(response)) for api, request, response in rows]


def main() -> None:
    """Write shares.txt."""
    lines = [f"{api} {request} {response}\n" for api, request, response in count()]
    SHARES.write_text(HOW.format(exchanges=EXCHANGES) + "".join(lines))


if __name__ == "__main__":
    main()

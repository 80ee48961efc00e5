"""What forms of a capture and damage do to the times of the exchanges that survive: `python -m tests.bench.forms`.

Prints a table over all committed recordings, or those that are named.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.oracle.forms import DAMAGE, FORMS, read
from tests.oracle.material import CAPTURES
from tests.oracle.survivors import Judged, brokers, judge, told

HEADINGS = (
    "copy", "survivors", "network and broker unknown", "another part unknown", "a part wrong",
    "`network_ms` too large", "findings above info",
)  # fmt: skip


def recordings() -> list[Path]:
    """All committed recordings that are no copies of others, and are of Kafka."""
    plain = [path for path in sorted(CAPTURES.glob("*.pcap")) if not path.name.startswith(("field_", "not_kafka"))]
    return plain + sorted(CAPTURES.glob("stories/*.pcap.zst")) + sorted(CAPTURES.glob("lab/*.pcap.zst"))


def measured(paths: list[Path]) -> dict[str, Judged]:
    """What was said of the copies of these recordings, by form or damage."""
    out = {name: Judged() for name in (*FORMS, *DAMAGE)}
    for path in paths:
        recording = read(path.read_bytes())
        whole = told([path.read_bytes()] if path.suffix == ".pcap" else [_plain(path)])
        if brokers(whole):
            for name, copy in (FORMS | DAMAGE).items():
                judge(f"{path.name}, {name}", recording, whole, copy, out[name])
    return out


def _plain(path: Path) -> bytes:
    import zstandard

    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read()


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]] or recordings()
    made = measured(paths)
    print(f"| {' | '.join(HEADINGS)} |")
    print("| --- " * len(HEADINGS) + "|")
    for name, one in made.items():
        cells = (one.survivors, one.unknown, one.unknown_other, len(one.wrong), one.above, len(one.findings))
        print(f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    for one in made.values():
        for line in one.wrong + one.findings:
            print(line, file=sys.stderr)


if __name__ == "__main__":
    main()

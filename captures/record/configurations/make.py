"""make.py RELEASE...: writes kdissect/schema/configurations.csv, the configurations that Kafka's own ConfigDefs know.

For each release Maven fetches `kafka` (core) with what it needs, and PrintConfigurations prints names, types and valid
values. A row: name, type, first and last release of those given that have it, and the words that are its only valid
values in any of them, with | between. A name that any release types as password is one.
Needs Java and Maven (the releases from 0.11 on run on Java 17).
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parents[2] / "kdissect" / "schema" / "configurations.csv"
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>made</groupId><artifactId>configurations</artifactId>
<version>1</version><dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_{scala}</artifactId>
<version>{release}</version></dependency></dependencies></project>"""


def configurations(release: str) -> dict[str, tuple[str, str]]:
    """(type, valid values) by name of one release."""
    scala = "2.11" if release.startswith(("0.", "1.")) else "2.12" if release.startswith("2.") else "2.13"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pom.xml").write_text(POM.format(scala=scala, release=release))
        jars = Path(folder) / "jars"
        subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"], cwd=folder, check=True
        )
        shown = subprocess.run(
            ["java", "-cp", f"{jars}/*", str(HERE / "PrintConfigurations.java")], capture_output=True, text=True,
            check=True,
        )  # fmt: skip
    rows = (line.split(",") for line in shown.stdout.splitlines() if line.count(",") == 2)
    return {name: (kind, values) for name, kind, values in rows}


def main() -> None:
    releases = sys.argv[1:]
    rows: dict[str, list[str]] = {}
    for release in releases:
        found = configurations(release)
        print(release, len(found), file=sys.stderr)
        for name, (kind, values) in found.items():
            row = rows.setdefault(name, [kind, release, release, ""])
            row[0] = "password" if "password" in (kind, row[0]) else kind
            row[2] = release
            row[3] = "|".join(sorted(set(filter(None, [*row[3].split("|"), *values.split("|")]))))
    with TARGET.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["name", "type", "first", "last", "values"])
        writer.writerows([name, *row] for name, row in sorted(rows.items()))


if __name__ == "__main__":
    main()

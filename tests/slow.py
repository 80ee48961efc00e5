"""Which tests the default run leaves out because they take long: `python -m tests.slow RESULTS.xml` writes slow.txt.

RESULTS.xml is what `pytest --junit-xml` wrote on a quiet machine, of any choice of tests; those that it did not run
keep their places. The quickest test of a file stays in the default run however long it takes, so that every file is
tried.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

from tests.conftest import ROOT, SLOW

LONG_S = 0.6
"""Seconds: with the tests that take longer left out, the others take two minutes on two cores."""


def main(results: Path) -> None:
    """Write slow.txt anew."""
    took: dict[str, float] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        name, path = str(case.get("name")), str(case.get("classname")).replace(".", "/") + ".py"
        if case.find("skipped") is None:
            took[f"{path}::{name}"] = float(case.get("time") or 0)
    before = [line for line in SLOW.read_text().splitlines() if line and line not in took] if SLOW.exists() else []
    files: defaultdict[str, list[str]] = defaultdict(list)
    for name in took:
        files[name.partition("::")[0]].append(name)
    slow = {name for name, seconds in took.items() if seconds > LONG_S}
    for names in files.values():
        if slow.issuperset(names):
            slow.discard(min(names, key=lambda name: took[name]))
    known = [name for name in before if (ROOT / name.partition("::")[0]).exists()]
    SLOW.write_text("\n".join(sorted({*slow, *known})) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

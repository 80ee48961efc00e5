"""`tests/slow.txt` names tests that there are."""

from __future__ import annotations

import pytest

from tests.conftest import COLLECTED, ROOT, SLOW


def test_every_line_names_a_test(request: pytest.FixtureRequest) -> None:
    """Of the files that this run collects; a run over single tests (`FILE::TEST`) knows nothing of the others."""
    lines = SLOW.read_text().splitlines()
    assert not [line for line in lines if not (ROOT / line.partition("::")[0]).is_file()]
    if any("::" in argument for argument in request.config.args):
        return
    collected = request.config.stash[COLLECTED]
    files = {name.partition("::")[0] for name in collected}
    assert not [line for line in lines if line.partition("::")[0] in files and line not in collected]

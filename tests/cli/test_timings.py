"""`--timings` at the end of a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdissect.cli.commands import main
from kdissect.engine.timings import LAYERS


def test_the_command_says_it_at_the_end(captures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main([str(captures / "base.pcap"), "--table", "exchanges", "--columns", "api", "--timings"])
    assert not done.value.code
    seen = capsys.readouterr()
    assert "layer" not in seen.out
    lines = [line.split()[0] for line in seen.err.splitlines() if line[:1] != " "]
    assert lines[:8] == ["layer", *LAYERS]
    assert " packets; " in seen.err

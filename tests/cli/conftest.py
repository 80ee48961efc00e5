"""Commands are tested as they are from the second run on, wherever the kernels come from."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that the first run ever prints is not part of what a command says."""
    monkeypatch.setattr("kdissect.kernels.kernel.compiled_before", lambda: True)

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from kdissect.cli.printing.hushing import Hushed

SAY = [sys.executable, "-c", "import sys; sys.stderr.write('noise: nothing\\nsomething\\n')"]


def waited(text: str, get: Callable[[], str]) -> str:
    said = ""
    for _ in range(500):
        said += get()
        if text in said:
            break
        time.sleep(0.01)
    return said


def test_noise_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    hushed = Hushed(["noise"])
    with hushed.entered():
        subprocess.run(SAY, check=True)
    sys.stderr.write("our own noise\n")
    sys.stderr.flush()
    assert sorted(waited("something", lambda: capfd.readouterr().err).splitlines()) == ["our own noise", "something"]


def test_what_was_said_before_it_went_wrong_is_held(capfd: pytest.CaptureFixture[str]) -> None:
    hushed = Hushed(["noise"])
    failing = [*SAY[:2], SAY[2] + "; sys.exit(1)"]
    with pytest.raises(subprocess.CalledProcessError), hushed.entered():
        subprocess.run(failing, check=True)
    assert "something\n" in waited("something", lambda: "".join(hushed.said))
    assert capfd.readouterr().err == ""


def test_at_the_end_nothing_matters(capfd: pytest.CaptureFixture[str]) -> None:
    hushed = Hushed([])
    with hushed.entered():
        started = subprocess.Popen([sys.executable, "-c", f"input(); {SAY[2]}"], stdin=subprocess.PIPE)
    hushed.over()
    started.communicate(b"now\n")
    time.sleep(0.05)
    assert capfd.readouterr().err == ""

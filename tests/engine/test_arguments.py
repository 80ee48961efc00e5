"""Arguments of the Python interface that are of another kind than they should be."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

import kdissect
from kdissect.cli.main import main
from kdissect.problems import UsageError
from tests.oracle.material import CAPTURES

TINY = CAPTURES / "base_tiny.pcap"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"start": 3}, "3 is not a time; say it like"),
        ({"end": 1.5}, "1.5 is not a time; say it like"),
        ({"slow": "1s"}, "slow is a number of seconds above 0, not '1s'"),
        ({"jobs": "2"}, "jobs is a number of threads, 1 to 1024, not '2'"),
        ({"jobs": 10**20}, "jobs is a number of threads, 1 to 1024, not 1"),
        ({"memory": "1GB"}, "memory is a number of bytes, not '1GB'"),
        ({"memory": float("inf")}, "memory is a number of bytes, not inf"),
        ({"source": None}, "None is no capture: give a path"),
        ({"source": [None]}, "None is no capture: give a path"),
        ({"source": b"a.pcap"}, "b'a.pcap' is no capture: give a path"),
        ({"source": ""}, "an empty name is no capture"),
        ({"source": [TINY, ""]}, "an empty name is no capture"),
        ({"source": io.StringIO("text")}, "<_io.StringIO object"),
    ],
)
def test_open_says_what_is_wrong_with_an_argument(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        kdissect.open(**{"source": TINY, **arguments})
    assert str(raised.value).startswith(said)


def test_an_empty_name_is_not_the_current_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(CAPTURES / "rules")
    assert main([""]) == 2
    assert capsys.readouterr().err == "kdissect: an empty name is no capture; the current directory is .\n"


@pytest.mark.parametrize(
    ("ask", "names"),
    [
        (lambda capture, names: capture.table("exchanges", names), "api"),
        (lambda capture, names: capture.table("exchanges", sort=names, limit=2), "-latency_ms"),
        (lambda capture, names: capture.tables(names)["fetches"], "fetches"),
        (lambda capture, names: capture.analysis.latency(names), "client"),
        (lambda capture, names: capture.analysis.budget(names), "client"),
        (lambda capture, names: capture.analysis.time_ledger(names), "broker"),
        (lambda capture, names: capture.analysis.delivery_latency(names), "topic"),
        (lambda capture, names: capture.analysis.diff(capture, names)["latency"], "client"),
    ],
)
def test_a_text_is_one_name(ask: Callable[[kdissect.Capture, Any], Any], names: str) -> None:
    capture = kdissect.open(TINY)
    assert ask(capture, names).equals(ask(capture, [names]))


def test_what_is_no_text_is_refused() -> None:
    capture = kdissect.open(TINY)
    wrong: Any = 3
    with pytest.raises(UsageError, match="names are texts in a list, not 3"):
        capture.table("exchanges", wrong)
    with pytest.raises(UsageError, match="a name is a text, not 3"):
        capture.analysis.latency([wrong])
    with pytest.raises(UsageError, match="the name of a table is a text, not 3"):
        capture.table(wrong)
    with pytest.raises(UsageError, match=r"a filter is a text, such as .*, not 3"):
        capture.table("exchanges", where=wrong)
